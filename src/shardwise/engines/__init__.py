"""One file an engine: how it implements a step, what it offers, and in which files that was read.

Read at NVIDIA/Megatron-LM d98e8a6, pytorch/torchtitan b5bcd76, deepspeedai/DeepSpeed edaa722, huggingface/accelerate
16cb6eb (July and August 2026) and in torch 2.13; the rules that name a file mean these versions.
"""
