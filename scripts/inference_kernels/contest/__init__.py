"""The MLSys 2026 contest's tensors: read its tree and convert it into a capture run; importing is the business of
capture.
"""
