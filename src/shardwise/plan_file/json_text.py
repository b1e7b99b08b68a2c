"""JSON for plan files: without duplicate keys."""

import json

from shardwise.errors import PlanError
from shardwise.plan_file.duplicates import refuse_duplicate


def load_json(text: str, *, name: str) -> object:
    """The document as plain values.

    Raises:
        PlanError: it is not JSON, gives a key twice in one place, or holds an absurdly long number.
    """

    def without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    refuse_duplicate(key, name=name)
                seen.add(key)
        return found

    try:
        tree: object = json.loads(text, object_pairs_hook=without_duplicates)
    except json.JSONDecodeError as error:
        raise PlanError(
            f"{name} is not JSON: {_complaint(error.msg)} at line {error.lineno}, column {error.colno}",
            code="plan-syntax",
            fix="mend that line, or save the plan as .yaml if it is YAML",
        ) from None
    except ValueError:
        raise PlanError(
            f"{name} holds a whole number of thousands of digits",
            code="plan-out-of-range",
            fix="write a smaller number",
        ) from None
    return tree


def _complaint(text: str) -> str:
    """The parser's complaint without the ``at`` that ends ``unterminated string starting at``: a place follows it."""
    return text[:1].lower() + text[1:].removesuffix(" at")
