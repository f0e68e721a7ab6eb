"""Qwen3-Next as the contest captured it: checkpoint, capture requests and hooks of the gated delta rule only."""
