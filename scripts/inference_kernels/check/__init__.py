"""Checks of a dataset: its files and records, and what its tasks can tell apart; nothing here changes a file."""
