"""Model families: from a Hugging Face ``config.json`` to every weight by name, shape, role and split."""

from shardwise.families.catalogue import ModelEntry, load_models
from shardwise.families.reading import read_model

__all__ = ["ModelEntry", "load_models", "read_model"]
