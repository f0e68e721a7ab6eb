"""Weights made from a seed, and the checkpoints of them; nothing here knows an engine or an operator's capture."""
