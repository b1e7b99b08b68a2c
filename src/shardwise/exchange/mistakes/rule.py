"""The record of one kind of mistake, and the case that its condition looks at."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from shardwise.cluster import Cluster
from shardwise.exchange.facts import Fact
from shardwise.exchange.names import View
from shardwise.exchange.reading import Reading
from shardwise.model import ModelSpec

ToolSays = Literal["silent", "warns", "hangs", "crashes", "refused"]
"""The ways in which a tool treats a mistake."""
SEVERITY: tuple[ToolSays, ...] = get_args(ToolSays)
"""What a tool does, from worst to best for its user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A reading, and the model and cluster where they are known."""

    reading: Reading
    model: ModelSpec | None = None
    cluster: Cluster | None = None

    def views(self, *tools: str) -> Iterator[View]:
        """The documents that were read as files of one of these tools; without a name, all documents."""
        return (view for view in self.reading.views if not tools or view.tool.name in tools)

    def fact(self, key: str, *tools: str) -> Fact | None:
        """The first fact of that key in documents of these tools."""
        return next((view.by_key[key] for view in self.views(*tools) if key in view.by_key), None)

    def number(self, field: str) -> int:
        """A known field that is a whole number; 0 while it is open."""
        return self.reading.number(field) or 0

    def place(self, field: str) -> str:
        """Return the place at which a known field stands."""
        claim = self.reading.claim(field)
        return "" if claim is None else claim.place


@dataclass(frozen=True, slots=True)
class Found:
    """One place where a kind of mistake was made."""

    place: str
    what: str
    fix: str
    """What to write instead, in the words of the tool that reads the file."""


Conditions: TypeAlias = tuple[tuple[str, Callable[[Case], Iterator[Found]]], ...]
"""Codes of ``kinds.csv``, each with what finds a mistake of that kind in a case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MistakeKind:
    """One kind of mistake: a row of ``kinds.csv``."""

    code: str
    tool_says: ToolSays
    what: str
    """What is wrong, without the numbers of a file."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One mistake in somebody's files."""

    kind: MistakeKind
    place: str
    what: str
    fix: str

    @property
    def code(self) -> str:
        """The kind's name."""
        return self.kind.code

    @property
    def tool_says(self) -> ToolSays:
        """The way in which the tool treats the mistake."""
        return self.kind.tool_says
