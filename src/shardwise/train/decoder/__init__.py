"""Our own decoder: Llama-like blocks, dense or with routed experts, under the parameter names of Hugging Face."""
