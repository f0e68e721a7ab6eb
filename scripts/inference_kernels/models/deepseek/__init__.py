"""DeepSeek-V4.1: checkpoint, capture requests, hooks, and the Hopper routes that stand in for its Blackwell kernels."""
