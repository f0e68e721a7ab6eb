"""Faults that the tests of each family's reference must notice: (name, label, old text, new text)."""
