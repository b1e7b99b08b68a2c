"""Models that measured rows name without printing their shape: public configs, shipped beside the measurements."""

import json
from functools import lru_cache

from benchmarks.published.rows import TABLES

from shardwise.families import read_model
from shardwise.model import ModelSpec


@lru_cache
def named_model(name: str) -> ModelSpec:
    """The model of ``tables/models.json`` with this name."""
    text = (TABLES / "models.json").read_text(encoding="utf-8")
    return read_model(json.loads(text)[name]["config"])
