"""Qwen-Next with sparse attention: checkpoint, capture requests and hooks; the gated delta rule is in models/gdn."""
