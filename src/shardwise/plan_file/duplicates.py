"""Keys that a plan file gives twice."""

from typing import NoReturn

from shardwise.errors import PlanError


def refuse_duplicate(key: str, *, name: str) -> NoReturn:
    """Raise for a key that was given twice, of which a plain reader would silently drop one."""
    raise PlanError(
        f"{name} gives the key {key!r} twice in one place", code="plan-duplicate-key", fix=f"keep one {key!r}"
    )
