"""Models that measured rows name without printing their shape: public configs, shipped beside the measurements."""

import json
from functools import lru_cache
from importlib.resources import files

from shardwise.families import read_model
from shardwise.model import ModelSpec


@lru_cache
def named_model(name: str) -> ModelSpec:
    """The model of ``catalog/measurements/models.json`` with this name."""
    text = files("shardwise.catalog").joinpath("measurements", "models.json").read_text(encoding="utf-8")
    return read_model(json.loads(text)[name]["config"])
