"""What each family assumes for the fields a config omits: ``catalog/models/family_defaults.json``."""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files


@lru_cache(maxsize=1)
def _tables() -> Mapping[str, Mapping[str, object]]:
    text = files("shardwise").joinpath("catalog/models/family_defaults.json").read_text(encoding="utf-8")
    data = json.loads(text)
    return {**data["families"], **data["remote_families"]}


def family_defaults(model_type: str) -> Mapping[str, object]:
    """The defaults of a family, empty for one nobody knows."""
    return _tables().get(model_type, {})
