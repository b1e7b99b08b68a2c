"""The values that each family assumes for fields that a config omits or leaves null.

The table is ``catalog/models/family_defaults.json``.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files

from shardwise.families.config import TRAINED_NUMBERS

NEVER_NULL = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"),
    *("max_position_embeddings", *TRAINED_NUMBERS),
)
"""Sizes without which there is no model, and numbers that every run reads."""


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Mapping[str, Mapping[str, object]]]:
    text = files("shardwise").joinpath("catalog/models/family_defaults.json").read_text(encoding="utf-8")
    table: dict[str, dict[str, dict[str, object]]] = json.loads(text)
    return table


@lru_cache(maxsize=256)
def family_defaults(model_type: str) -> Mapping[str, object]:
    """The defaults of a family, empty for one nobody knows."""
    table = _table()
    return table["families"].get(model_type) or table["remote_families"].get(model_type, {})


@lru_cache(maxsize=256)
def null_means_default(model_type: str) -> frozenset[str]:
    """Fields of a family that hold the family's default where a config has null for them.

    The classes of transformers take null for no value but in the fields listed under ``null_means_none``, where it says
    that there is none, such as no window. Code that lies beside weights gives null a meaning of its own. A null for
    one of ``NEVER_NULL`` is a mistake, and is refused.
    """
    table = _table()
    none = (*table["null_means_none"].get(model_type, ()), *NEVER_NULL)
    known = table["families"].get(model_type, {})
    return frozenset(name for name, default in known.items() if default is not None and name not in none)
