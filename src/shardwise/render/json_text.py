"""Strict JSON text: no NaN, no infinity, keys in the order they were written."""

import json
from collections.abc import Mapping, Sequence


def json_text(value: Mapping[str, object] | Sequence[object]) -> str:
    """``value`` as indented JSON for a file or a screen."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)


def json_line(value: Mapping[str, object]) -> str:
    """``value`` as JSON on one line, for JSONL."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def rows_text(value: Mapping[str, object]) -> str:
    """``value`` as JSON with one line for each key, and for each item of a list of objects or lists."""
    return "{\n" + ",\n".join(f"  {_text(key)}: {_rows(item)}" for key, item in value.items()) + "\n}"


def _rows(value: object) -> str:
    if not isinstance(value, list) or not any(isinstance(item, dict | list) for item in value):
        return _text(value)
    return "[\n" + ",\n".join(f"    {_text(item)}" for item in value) + "\n  ]"


def _text(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
