"""An error as one sentence for people and as one object for programs."""

from shardwise.render.json_text import json_line
from shardwise.render.printable import printable


def error_text(*, message: str, code: str, fix: str) -> str:
    """Three facts on two lines: what cannot be, its code, and what to type next."""
    return printable(f"error: {message} [{code}]\n  fix: {fix}\n")


def error_object(*, message: str, code: str, fix: str) -> dict[str, object]:
    """The one shape of an error in every JSON answer."""
    return {"ok": False, "error": message, "code": code, "fix": fix}


def error_json(*, message: str, code: str, fix: str) -> str:
    """:func:`error_object` as text."""
    return json_line(error_object(message=message, code=code, fix=fix))
