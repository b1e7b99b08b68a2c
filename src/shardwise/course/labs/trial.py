"""What a lab is made of: trials that differ in one thing, quantities, and what texts say will be seen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from shardwise.claims import Claim, Unit
from shardwise.plan import Plan
from shardwise.prediction import Prediction

Strategy = Literal["ddp", "zero-1", "zero-2", "fsdp"]
ModelSize = Literal["small", "larger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One real run."""

    name: str
    strategy: Strategy = "fsdp"
    size: ModelSize = "small"
    num_processes: int | None = None
    """``None`` means as many as the lab was asked for."""
    num_microbatches: int = 1
    """Micro-batches that each rank adds up in a step."""
    recipe: Mapping[str, object] = field(default_factory=dict)
    """Fields that differ from the lab's common recipe."""
    layout: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a trial."""

    trial: Trial
    plan: Plan
    prediction: Prediction
    measurement: Mapping[str, object] | None
    """``measurement.json``; ``None`` when the run did not end."""
    failure: str = ""
    """Why it did not end."""
    folder: Path
    is_crowded: bool = False
    """Whether more processes ran on CPUs than there are cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Something that is predicted and measured."""

    name: str
    """Short, for the head of a column."""
    title: str
    unit: Unit
    predicted: Callable[[Outcome], float | None]
    measured: Callable[[Outcome], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A question, the runs that answer it, and what to expect of them."""

    name: str
    """The name that ``shardwise lab`` takes."""
    summary: str
    """The lab's line in the list of labs."""
    question: str
    expect: str
    """The sentence that says what should be seen, and why."""
    trials: Callable[[int, bool], tuple[Trial, ...]]
    """Makes the trials for a number of processes, told whether it is the default one."""
    quantities: tuple[Quantity, ...]
    """The quantities that each run measures; the first one is drawn."""
    claims: Callable[[Sequence[Outcome]], tuple[Claim, ...]]
    conclusion: Callable[[Sequence[Outcome]], str]
    """Says in one sentence, to follow a colon, what was measured; empty where it tells nothing."""
    has_families: bool = False
    """Whether collectives are listed kind by kind."""
    on_cpu: str = ""
    """The sentence that says what this lab cannot show without GPUs."""
    min_processes: int = 1
    """Fewer processes cannot show the difference that the lab asks about."""


def outcome_of(outcomes: Sequence[Outcome], name: str) -> Outcome | None:
    """The outcome of a trial that ended; ``None`` for one that did not run or failed."""
    return next((found for found in outcomes if found.trial.name == name and found.measurement is not None), None)
