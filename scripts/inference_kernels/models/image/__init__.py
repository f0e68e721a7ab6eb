"""Qwen-Image: checkpoint, hooks and the joining of its attention calls; nothing for video."""
