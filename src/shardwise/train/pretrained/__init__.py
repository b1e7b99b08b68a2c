"""Hugging Face checkpoints: read slice by slice into sharded parameters, and written back."""
