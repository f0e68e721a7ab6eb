"""The dataset on the Hugging Face Hub: pull, publish and verify; nothing here reads a tensor's values."""
