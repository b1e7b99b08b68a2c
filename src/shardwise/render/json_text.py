"""Strict JSON text: no NaN, no infinity, keys in the order they were written."""

import json
from collections.abc import Mapping, Sequence


def json_text(value: Mapping[str, object] | Sequence[object]) -> str:
    """``value`` as indented JSON for a file or a screen."""
    return json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)


def json_line(value: Mapping[str, object]) -> str:
    """``value`` as JSON on one line, for JSONL."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
