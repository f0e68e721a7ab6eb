"""Stand-in for vLLM on CPU. SGLang 0.5.23 imports `vllm._custom_ops.rotary_embedding` off CUDA, unused here."""
