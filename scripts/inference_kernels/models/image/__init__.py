"""Qwen-Image: checkpoint, requests, hooks, and the joining of its attention calls; nothing for video."""
