"""LTX-2.5: checkpoint, requests, hooks, and the preparation of the licensed distribution; nothing for images."""
