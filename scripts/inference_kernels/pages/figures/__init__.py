"""The figures of docs/figures: their data, and the drawing of each."""
