"""LTX-2.5: checkpoint, codecs, hooks, and the preparation of the licensed distribution; nothing for images."""
