"""What every simulator fills in, and every lab of real runs: tables, steps, checks, claims and pictures.

A lesson is data. How it looks in a terminal, as JSON, on a page or in a picture is decided by ``render/``; a builder in
``course/lessons/`` only says what was simulated and what came out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from shardwise.claims import Cell, Claim, Unit

UNITS: Mapping[str, Unit] = {unit: unit for unit in get_args(Unit)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Heading of a column and the unit of its numbers."""

    name: str
    unit: Unit = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonTable:
    """Numbers side by side."""

    title: str
    head: str
    """Names of columns between bars, each with the unit of its numbers behind a colon."""
    rows: tuple[tuple[Cell, ...], ...]
    """Every row has as many cells as there are columns."""
    note: str = ""
    """A sentence that explains the table."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that the head names.

        >>> LessonTable(title="", head="model | weights: decimal_bytes", rows=()).columns[1]
        Column(name='weights', unit='decimal_bytes')
        """
        parts = (part.partition(": ") for part in self.head.split(" | "))
        return tuple(Column(name=name, unit=UNITS[unit]) for name, _, unit in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One parameter the simulation ran with."""

    name: str
    """The name of the option without its dashes."""
    value: Cell
    unit: Unit = ""
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message from one simulated rank to another."""

    sender: int
    receiver: int
    num_bytes: float
    what: str = ""
    """Which part of the data, such as ``chunk 3``."""
    adds: bool = False
    """Whether the receiver adds the message to what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonStep:
    """One stop of a walk through the simulation."""

    title: str
    text: str = ""
    messages: tuple[Message, ...] = ()
    table: LessonTable | None = None
    """The contents of all ranks after the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A result compared with the same computed another way: on one device, by a formula, by an inventory."""

    what: str
    difference: float
    """Difference between the two results, relative unless ``what`` says otherwise."""
    limit: float
    """The largest difference that passes; 0 when they have to be identical."""

    @property
    def holds(self) -> bool:
        """Whether the two agree."""
        return self.difference <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRound:
    """Messages that are under way at the same time."""

    title: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePicture:
    """The communication pattern: ranks side by side, time downwards, an arrow for every message."""

    title: str
    rank_names: tuple[str, ...]
    rounds: tuple[MessageRound, ...]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttBar:
    """One piece of a lane."""

    kind: str
    """The kind decides the colour: ``forward``, ``backward``, ``input_backward``, ``weight_backward``, ``bubble``,
    ``gather``, ``reduce`` or any other word."""
    start: float
    end: float
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttLane:
    """The tasks of one rank or stream, and the bytes or micro-batches it holds meanwhile."""

    name: str
    bars: tuple[GanttBar, ...]
    held: tuple[tuple[float, float], ...] = ()
    """Times and the amount held from then on, such as micro-batches in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GanttPicture:
    """A schedule: one lane a rank, bubbles marked, what is held drawn under each lane."""

    title: str
    unit: Unit
    """``s`` or ``time_units``."""
    lanes: tuple[GanttLane, ...]
    numbered: str = ""
    """The thing that the number in a bar counts, such as micro-batches."""
    held_name: str = ""
    """The name of the quantity in ``held``."""
    held_unit: Unit = "number"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points of one line."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePicture:
    """Lines over one another, on logarithmic axes where that is said."""

    title: str
    x: Column
    y: Column
    curves: tuple[Curve, ...]
    is_x_log: bool = False
    is_y_log: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One amount."""

    name: str
    amount: float | None
    """``None`` where there is none, which is said in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarGroup:
    """Amounts that belong together."""

    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarPicture:
    """Amounts as bars of one scale, group under group."""

    title: str
    unit: Unit
    groups: tuple[BarGroup, ...]
    note: str = ""


Picture = MessagePicture | GanttPicture | CurvePicture | BarPicture


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One simulation, or one lab of real runs, from its question to what it shows."""

    name: str
    """The name that ``shardwise simulate`` takes."""
    title: str
    what: str
    """A sentence on what is simulated and how far it is like the real thing; it says that it is a simulation."""
    settings: tuple[Setting, ...] = ()
    tables: tuple[LessonTable, ...] = ()
    steps: tuple[LessonStep, ...] = ()
    checks: tuple[Check, ...] = ()
    claims: tuple[Claim, ...] = ()
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()
    is_measured: bool = False
    """Whether the numbers come from real runs."""
