"""The stages of many rows at once, for the functions that are written for the stage of one plan.

A row is taken for a plan whose numbers are columns (:mod:`shardwise.columns`). Stages that have the same moments and
the same tensors, of different sizes, are looked at together.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from operator import attrgetter, is_
from typing import ParamSpec, TypeVar, cast

import numpy as np

from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.search.candidates import Candidates, IntColumn, Key, Words, distinct_keys
from shardwise.step.held_stage import HeldStage, Pipeline, by_content, fullest_stages, held_stage, pipeline_of
from shardwise.step.layer_placement import Stage, pipeline_stages
from shardwise.step.stage_context import ManyPlans, StageContext

__all__ = ["AskedOnce", "StageColumns"]

Parameters = ParamSpec("Parameters")
Found = TypeVar("Found")

COLUMNS = (np.ndarray, Words)
"""Types of columns: of numbers, and of words."""
Chosen = Callable[[Pipeline], Sequence[HeldStage]]
"""The stages of a pipeline that are asked about."""
EVERY = slice(None)
SIZES = tuple(one.name for one in fields(HeldStage) if one.type in (int, float))
"""Fields of a stage in which stages may differ that are looked at together."""
CLAIMS = tuple(one.name for one in fields(HeldStage) if one.type is bool)
"""Fields in which such stages are equal."""


class AskedOnce:
    """Asks a function of plain numbers once for all rows that ask the same (:class:`shardwise.columns.Each`)."""

    def __init__(self) -> None:
        self._known: dict[Hashable, dict[Key, object]] = {}
        self._last: tuple[list[object], tuple[list[Key], IntColumn]] = ([], ([], np.zeros(0, dtype=np.int64)))
        """The columns that were asked about last, and their distinct values."""

    def __call__(
        self, function: Callable[Parameters, Found], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Found:
        """Call the function; its answer is a number or a record of numbers, or columns of these."""
        asked = _Columns([*args, *kwargs.values()])
        if not asked.columns:
            return function(*args, **kwargs)
        keys, of_row = self._distinct(asked)
        known = cast("dict[Key, Found]", self._known.setdefault((function, *asked.fixed), {}))
        for key in keys:
            if key not in known:
                filled = asked.filled(key)
                named = dict(zip(kwargs, filled[len(args) :], strict=True))
                known[key] = function(*filled[: len(args)], **named)  # type: ignore[arg-type]
        return _in_columns([known[key] for key in keys], of_row)

    def _distinct(self, asked: "_Columns") -> tuple[list[Key], IntColumn]:
        """The distinct values of columns, which are often those that were asked about just before."""
        before, found = self._last
        is_same = len(before) == len(asked.columns) and all(map(is_, before, asked.columns))
        if not is_same:
            found = asked.distinct(0)
            self._last = (asked.columns, found)
        return found


class _Columns:
    """Arguments of which some are columns, or records with columns."""

    def __init__(self, arguments: Sequence[object]) -> None:
        self._arguments = list(arguments)
        self._fields: dict[int, tuple[str, ...]] = {}
        """The place of every argument with columns, and the names of its fields that are; none if it is one itself."""
        self.columns: list[object] = []
        fixed: list[object] = []
        for number, argument in enumerate(arguments):
            if _is_column(argument):
                self._fields[number] = ()
                self.columns.append(argument)
                continue
            parts = _fields_of(argument)
            own = [name for name, value in parts if _is_column(value)]
            if not own:
                fixed.append(argument)
                continue
            self._fields[number] = tuple(own)
            self.columns += [value for _, value in parts if _is_column(value)]
            fixed += [value for _, value in parts if not _is_column(value)]
        self.fixed = (*self._fields.items(), *fixed)
        """The positions of the columns among the arguments, and all arguments that are no columns."""

    def distinct(self, num_rows: int) -> tuple[list[Key], IntColumn]:
        """The distinct values of the columns, and which of them each row has; of so many rows where there are none."""
        if not self.columns:
            return [()], np.zeros(num_rows, dtype=np.int64)
        return distinct_keys([_codes(column) for column in self.columns])

    def filled(self, key: Key) -> list[object]:
        """The arguments of rows that have these values."""
        found = list(self._arguments)
        values = [_value(column, code) for column, code in zip(self.columns, key, strict=True)]
        for number, names in self._fields.items():
            if not names:
                found[number] = values.pop(0)
                continue
            own, values = values[: len(names)], values[len(names) :]
            found[number] = replace(found[number], **dict(zip(names, own, strict=True)))  # type: ignore[type-var]
        return found


def _fields_of(argument: object) -> list[tuple[str, object]]:
    """The fields of a record; none of anything else."""
    return [(name, getattr(argument, name)) for name in _names_of(argument)]


def _names_of(argument: object) -> tuple[str, ...]:
    return tuple(argument.__dataclass_fields__) if is_dataclass(argument) else ()


def _is_column(value: object) -> bool:
    return isinstance(value, COLUMNS)


def _codes(column: object) -> IntColumn:
    """Whole numbers that tell the values of a column apart: those themselves, or the places of words."""
    if isinstance(column, Words):
        return column.places
    values = np.asarray(column)
    codes: IntColumn = values.astype(np.int64, copy=False)
    assert (codes == values).all(), "a function is asked once for equal whole numbers, not for fractions"
    return codes


def _value(column: object, code: int) -> object:
    if isinstance(column, Words):
        return column.names[code]
    return bool(code) if np.asarray(column).dtype == np.bool_ else code


def _in_columns(found: Sequence[Found], of_row: IntColumn) -> Found:
    """Numbers, or records of numbers, as columns."""
    names = _names_of(found[0])
    if not names:
        return cast("list[Found]", _columns([(cast(float, number),) for number in found], of_row))[0]
    numbers_of = attrgetter(*names)
    numbers = _columns([numbers_of(one) for one in found], of_row)
    return replace(found[0], **dict(zip(names, numbers, strict=True)))  # type: ignore[type-var]


def _columns(found: Sequence[tuple[float, ...]], of_row: IntColumn) -> list[float]:
    """Columns of the numbers that were found, or numbers where all rows have the same.

    In floats: a product of sizes may be larger than whole numbers of NumPy are.
    """
    table = np.asarray(found, dtype=np.float64)
    is_same = (table == table[0]).all(axis=0)
    return [
        first if same else cast(float, column[of_row])
        for first, same, column in zip(found[0], is_same.tolist(), table.T, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """A stage of a pipeline, and the number of those that it can be looked at together with."""

    held: HeldStage
    kind: int
    numbers: tuple[float, ...]
    """Sizes of the stage, then for each run of equal blocks their number and the number recomputed."""


@dataclass(frozen=True, kw_only=True)
class StageColumns:
    """The stages of the rows of one question."""

    question: Plan
    _each: AskedOnce = field(default_factory=AskedOnce, compare=False)
    _placed: dict[Hashable, tuple[_Placed, ...]] = field(default_factory=dict, compare=False)
    _kinds: dict[Hashable, int] = field(default_factory=dict, compare=False)
    _contents: dict[Hashable, tuple[tuple[Stage, ...], ...]] = field(default_factory=dict, compare=False)
    _held: dict[Pipeline, tuple[HeldStage, ...]] = field(default_factory=dict, compare=False)

    def of(self, rows: Candidates, chosen: Chosen, part: slice = EVERY) -> Iterator[tuple[IntColumn, StageContext]]:
        """Stages that can be looked at together, and the row that each of them belongs to.

        Args:
            rows: the candidates; those that recompute other modules are looked at apart.
            chosen: which stages of every row's pipeline.
            part: which of these.
        """
        modules, of_row = distinct_keys([rows.recompute_modules])
        for number in range(len(modules)):
            own = np.flatnonzero(of_row == number)
            for row, context in self._alike(rows if len(modules) == 1 else rows.take(own), chosen, part):
                yield own[row], context

    def _alike(self, rows: Candidates, chosen: Chosen, part: slice) -> Iterator[tuple[IntColumn, StageContext]]:
        """Stages of rows that recompute the same modules, or none by name."""
        asked = _Columns([pipeline_of(rows.columns(self.question))])
        keys, of_row = asked.distinct(len(rows))
        order = np.argsort(of_row, kind="stable")
        ends = [0, *np.cumsum(np.bincount(of_row, minlength=len(keys))).tolist()]
        alike: dict[int, list[tuple[int, _Placed]]] = {}
        for number, key in enumerate(keys):
            for placed in self._stages_of(asked, key, chosen)[part]:
                alike.setdefault(placed.kind, []).append((number, placed))
        for stages in alike.values():
            parts = [order[ends[number] : ends[number + 1]] for number, _ in stages]
            row = np.concatenate(parts)
            of_stage = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
            held = _held_in_columns([placed for _, placed in stages], of_stage)
            plan = rows.take(row).columns(self.question)
            many = ManyPlans(held=held, each=self._each)
            yield row, StageContext(plan=plan, stage=cast(Stage, None), many=many)

    def _stages_of(self, asked: _Columns, key: Key, chosen: Chosen) -> tuple[_Placed, ...]:
        """The chosen stages of rows with these values."""
        known = (chosen, asked.fixed, key)
        if known not in self._placed:
            (pipeline,) = cast("list[Pipeline]", asked.filled(key))
            stages = chosen(replace(pipeline, recompute_layers=pipeline.recompute_layers or None))
            self._placed[known] = tuple(self._place(held) for held in stages)
        return self._placed[known]

    def _place(self, held: HeldStage) -> _Placed:
        sizes = [getattr(held, name) for name in SIZES]
        sizes += [number for run in held.runs for number in (run.count, run.num_recomputed)]
        kind = self._kinds.setdefault(_kind(held), len(self._kinds))
        return _Placed(held=held, kind=kind, numbers=tuple(sizes))

    def fullest(self, pipeline: Pipeline) -> tuple[HeldStage, ...]:
        """The stages of a pipeline among which is the fullest, in order."""
        if pipeline not in self._held:
            layout = (pipeline.pp, pipeline.vpp, pipeline.schedule)
            if layout not in self._contents:
                self._contents[layout] = by_content(self._stages(pipeline))
            stages = fullest_stages(self._contents[layout], pipeline)
            self._held[pipeline] = tuple(held_stage(stage, pipeline) for stage in stages)
        return self._held[pipeline]

    def _stages(self, pipeline: Pipeline) -> tuple[Stage, ...]:
        layout = Layout(
            pp=pipeline.pp,
            vpp=pipeline.vpp,
            schedule=pipeline.schedule,
            stage_layers=self.question.layout.stage_layers,
        )
        return pipeline_stages(model=self.question.model, layout=layout)

    def one(self, index: Callable[[Pipeline], int]) -> Chosen:
        """One stage of every pipeline."""
        return lambda pipeline: (held_stage(self._stages(pipeline)[index(pipeline)], pipeline),)


def _kind(held: HeldStage) -> Hashable:
    """Equal for stages with the same moments and the same tensors."""
    runs = tuple((id(run.layer), run.count == 1) for run in held.runs)
    return *(getattr(held, name) for name in CLAIMS), runs


def _held_in_columns(stages: Sequence[_Placed], of_row: IntColumn) -> HeldStage:
    """Stages of one kind as one whose sizes are columns."""
    held = stages[0].held
    columns = _columns([placed.numbers for placed in stages], of_row)
    sizes = dict(zip(SIZES, columns, strict=False))
    counts = cast("list[int]", columns[len(SIZES) :])
    runs = tuple(
        replace(run, count=count, num_recomputed=again)
        for run, count, again in zip(held.runs, counts[::2], counts[1::2], strict=True)
    )
    return replace(held, runs=runs, **sizes)  # type: ignore[arg-type]
