"""A rule of validity: a name, a predicate, a sentence, and where to look for a plan that keeps it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwise.engines.table import EngineName
from shardwise.plan import Plan
from shardwise.rules.refusal import Changes, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. ``breaks`` is cheap (a search calls it for every layout); the rest runs only for a broken rule."""

    name: str
    severity: Severity = "error"
    engines: tuple[EngineName, ...] | None = None
    """Engines it holds for; ``None`` means all of them."""
    why: str
    """Why the rule exists, for the documentation."""
    source: str
    """Where it can be checked."""
    breaks: Callable[[Plan], bool]
    message: Callable[[Plan], str]
    candidates: Callable[[Plan], Iterable[Changes]]
    """Changes that may mend it, nearest first. They are verified before they are shown."""
    advice: str = ""
    """A second way out that no field of the plan expresses."""
