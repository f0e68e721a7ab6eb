"""Releases: the curated set of a full capture, and the difference of two releases."""
