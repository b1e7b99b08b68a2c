"""Which life of a run made a checkpoint or a line of metrics, and from which steps of earlier lives it goes on.

Every start of a run is a life with a name of its own, ``3-9f2c1a``: its number in the run folder, and six digits that
no other run has. A life that resumes a checkpoint follows the life that made it up to that step; what was done after
that step is abandoned. Checkpoints of versions before lives belong to the life without a name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FACTS", "Lineage", "Stretch", "lineage_from_json", "lineage_of"]

FACTS = "state.json"
"""A file beside the tensors of every checkpoint: its step, and what it was made with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """The steps of an earlier life that count: those up to the checkpoint from which a later one went on."""

    life: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """One life and the steps before it."""

    life: str = ""
    ancestors: tuple[Stretch, ...] = ()
    """Earlier lives, oldest first; the last is the parent, with the step of the checkpoint that was resumed."""

    @property
    def number(self) -> int:
        """How many lives the run folder had with this one; 0 for runs of versions before lives."""
        return number_of(self.life)

    @property
    def parent(self) -> Stretch | None:
        """The life that was gone on from, and how far it was followed."""
        return self.ancestors[-1] if self.ancestors else None

    def holds(self, life: str, step: int) -> bool:
        """Whether a step of a life is among those that led here."""
        return life == self.life or any(life == earlier.life and step <= earlier.step for earlier in self.ancestors)

    def child(self, life: str, *, step: int) -> "Lineage":
        """The lineage of a life that goes on from a step of this one."""
        return Lineage(life=life, ancestors=(*self.ancestors, Stretch(life=self.life, step=step)))

    def to_json(self) -> dict[str, object]:
        """The lineage as :func:`lineage_from_json` reads it."""
        return {"life": self.life, "ancestors": [[earlier.life, earlier.step] for earlier in self.ancestors]}


def number_of(life: str) -> int:
    """The number in the name of a life."""
    digits = life.partition("-")[0]
    return int(digits) if digits.isdecimal() and len(digits) < 18 else 0


def lineage_from_json(document: object) -> Lineage:
    """The lineage in a document; that of the life without a name where it says none."""
    fields: Mapping[str, object] = document if isinstance(document, dict) else {}
    life, ancestors = fields.get("life"), fields.get("ancestors")
    return Lineage(
        life=life if isinstance(life, str) else "",
        ancestors=tuple(
            Stretch(life=pair[0], step=pair[1])
            for pair in (ancestors if isinstance(ancestors, list) else [])
            if isinstance(pair, list) and [type(part) for part in pair] == [str, int]
        ),
    )


def lineage_of(checkpoint: Path) -> Lineage:
    """The lineage of the life that made a checkpoint."""
    try:
        facts: object = json.loads((checkpoint / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return Lineage()
    return lineage_from_json(facts.get("lineage") if isinstance(facts, dict) else None)
