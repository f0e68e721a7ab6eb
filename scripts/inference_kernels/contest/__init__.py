"""The MLSys 2026 contest's tensors: read its tree and convert it into a capture run; capture imports the run."""
