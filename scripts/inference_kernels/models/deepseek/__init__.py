"""DeepSeek-V4.1: checkpoint, capture requests, hooks, and the Hopper substitutes for its Blackwell kernels."""
