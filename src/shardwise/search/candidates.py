"""The candidates of a search as columns: one row is a layout with its micro-batch size and its recompute mode.

Columns instead of objects, so that rules, memory bounds and time estimates are a few array operations whatever the
number of rows; an object is built only for a row that is predicted or shown.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from math import prod
from typing import TypeAlias, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from shardwise.layout import Layout, ZeroStage
from shardwise.plan import Plan
from shardwise.recipe import Offload, Recipe, Recompute, RecomputeModule
from shardwise.schedules.table import SCHEDULES

__all__ = [
    "MODULES",
    "OFFLOADS",
    "RECOMPUTES",
    "SEARCHED_FIELDS",
    "ZERO_STAGES",
    "Candidates",
    "FloatColumn",
    "IntColumn",
    "Key",
    "Mask",
    "Words",
    "constant",
    "distinct_keys",
    "expand",
    "group_rows",
    "module_bits",
    "modules_of",
    "option_counts",
]

IntColumn: TypeAlias = NDArray[np.int64]
FloatColumn: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Key: TypeAlias = tuple[int, ...]
Name = TypeVar("Name", bound=str)

RECOMPUTES: tuple[Recompute, ...] = get_args(Recompute)
OFFLOADS: tuple[Offload, ...] = get_args(Offload)
MODULES: tuple[RecomputeModule, ...] = get_args(RecomputeModule)
MOST_CODES = 1 << 20
"""Combinations of values that get a table of their own; more are sorted."""
FEW_ROWS, LARGEST_CODE = 1 << 11, 1 << 62
"""So few rows are sorted, by one whole number for each where there is one so large."""
ZERO_STAGES: tuple[ZeroStage, ...] = get_args(ZeroStage)
SEARCHED_FIELDS = (
    *("micro_batch_size", "recompute", "recompute_layers", "recompute_modules"),
    *("offload", "activation_offload"),
)
"""Fields of the recipe that a search chooses beside the layout; each is a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Columns of equal length; ``schedule``, ``recompute`` and ``offload`` hold positions in their tables above.

    The last five columns are decorations: choices of the recipe that a layout is combined with. Rows that are not
    decorated yet stand for all of them.

    Most axes have one value until they are enumerated, and many ever after. Such a column is :func:`constant`: taking
    and repeating rows copies nothing of it.
    """

    dp_replicate: IntColumn
    dp_shard: IntColumn
    tp: IntColumn
    cp: IntColumn
    pp: IntColumn
    vpp: IntColumn
    ep: IntColumn
    expert_tp: IntColumn
    zero_stage: IntColumn
    schedule: IntColumn
    reshard_after_forward: IntColumn
    sequence_parallel: IntColumn
    micro_batch_size: IntColumn
    offload_choices: IntColumn
    """Bit ``i`` is set while ``OFFLOADS[i]`` breaks no rule with the row."""
    recompute: IntColumn
    recompute_layers: IntColumn
    """Blocks of each stage that are recomputed; 0 for all of them."""
    recompute_modules: IntColumn
    """Bit ``i`` is set where ``MODULES[i]`` is recomputed selectively; 0 for what the question says."""
    offload: IntColumn
    activation_offload: IntColumn

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def model_copies(self) -> IntColumn:
        """Copies of the model in each row's pipeline."""
        return self.figure("model_copies", ("pp", "schedule"))

    @property
    def data_parallel_size(self) -> IntColumn:
        """Ranks that read different sequences."""
        return self.dp_replicate * self.dp_shard

    @property
    def state_shard_size(self) -> IntColumn:
        """Ranks that dense model states are divided over."""
        return self.figure("state_shard_size", ("dp_shard", "cp", "pp", "schedule"))

    def figure(self, name: str, fields: Sequence[str]) -> IntColumn:
        """A property of the layout of every row.

        Args:
            name: of the property.
            fields: of the layout that it is made of.
        """
        numbers = {field: self._number(field) for field in fields}
        schedule = {"schedule": _named(numbers.pop("schedule"), SCHEDULES)} if "schedule" in numbers else {}
        value: int = getattr(Layout(**numbers, **schedule), name)  # type: ignore[arg-type]
        return self.of_each(value)

    def take(self, rows: Mask | IntColumn | slice) -> "Candidates":
        """Some of the rows."""
        chosen = np.flatnonzero(rows) if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ else rows
        if isinstance(chosen, slice):
            return self._each(lambda column: column[chosen])
        size = len(chosen)
        return self._each(
            lambda column: constant(int(column[0]), size) if is_constant(column) else column.take(chosen, mode="clip")
        )

    def joined(self, other: "Candidates") -> "Candidates":
        """These rows, then those of another."""
        return Candidates(**{name: np.concatenate([self.column(name), other.column(name)]) for name in self.names})

    def _each(self, function: Callable[[IntColumn], IntColumn]) -> "Candidates":
        """These candidates with a function applied to each of their columns."""
        return Candidates(**{name: function(self.column(name)) for name in self.names})

    def column(self, name: str) -> IntColumn:
        """A column by its name."""
        values: IntColumn = getattr(self, name)
        return values

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(field.name for field in fields(self))

    def plan(self, row: int, *, question: Plan) -> Plan:
        """The plan of one row: the question with this row's layout, micro-batch size, recompute and offload."""
        return self.plans((row,), question=question)[0]

    def plans(self, rows: Iterable[int], *, question: Plan) -> list[Plan]:
        """The plans of some rows; equal recipes are made once."""
        columns = [self.column(name) for name in SEARCHED_FIELDS]
        recipes: dict[Key, Recipe] = {}
        found: list[Plan] = []
        for row in rows:

            def number(name: str, row: int = row) -> int:
                return int(self.column(name)[row])

            key = tuple(int(column[row]) for column in columns)
            if key not in recipes:
                recipe = _recipe(number, question.recipe)
                is_selective = recipe.recompute == "selective"
                recipes[key] = replace(
                    recipe,
                    recompute_layers=recipe.recompute_layers or None,
                    recompute_modules=recipe.recompute_modules if is_selective else None,
                )
            found.append(replace(question, layout=_layout(number, question.layout), recipe=recipes[key]))
        return found

    def columns(self, question: Plan) -> Plan:
        """All rows as one plan whose numbers are columns, or numbers where all rows have the same.

        See :mod:`shardwise.columns`; a column stands where a type checker sees a number. Modules to recompute cannot be
        read where rows differ in them.
        """

        layout, recipe = _layout(self._number, question.layout), _recipe(self._number, question.recipe)
        return replace(question, layout=layout, recipe=recipe)

    def _number(self, name: str) -> int:
        """The number of all rows, or a column; in floats, whose products stay right beyond the largest integer."""
        column = self.column(name)
        is_same = is_constant(column) or (len(column) > 0 and bool((column == column[0]).all()))
        return int(column[0]) if is_same else cast(int, column.astype(np.float64))

    def of_each(self, value: int) -> IntColumn:
        """Spread a value that was computed from :meth:`columns` over all rows; it is one number where they agree."""
        return np.broadcast_to(np.asarray(value, dtype=np.int64), (len(self),))


@dataclass(frozen=True, slots=True, eq=False)
class Words:
    """A column of words: which of some names every row has."""

    places: IntColumn
    names: tuple[str, ...]

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, word: object) -> Mask:  # type: ignore[override]
        """The rows that have a word."""
        return np.asarray(self.places == (self.names.index(word) if word in self.names else -1))


def _named(place: int, names: tuple[Name, ...]) -> Name:
    """The name at a place, or a column of names."""
    return names[place] if isinstance(place, int) else cast(Name, Words(np.asarray(place, dtype=np.int64), names))


def _layout(number: Callable[[str], int], asked: Layout) -> Layout:
    """The layout of a row, or of columns."""
    return Layout(
        dp_replicate=number("dp_replicate"),
        dp_shard=number("dp_shard"),
        zero_stage=cast(ZeroStage, number("zero_stage")),
        tp=number("tp"),
        cp=number("cp"),
        pp=number("pp"),
        vpp=number("vpp"),
        ep=number("ep"),
        expert_tp=number("expert_tp"),
        schedule=_named(number("schedule"), SCHEDULES),
        sequence_parallel=number("sequence_parallel") > 0,
        reshard_after_forward=number("reshard_after_forward") > 0,
        stage_layers=asked.stage_layers,
    )


def _recipe(number: Callable[[str], int], asked: Recipe) -> Recipe:
    """The recipe of a row, or of columns; 0 blocks to recompute are all of them."""
    return replace(
        asked,
        micro_batch_size=number("micro_batch_size"),
        recompute=_named(number("recompute"), RECOMPUTES),
        recompute_layers=number("recompute_layers"),
        recompute_modules=_modules(number("recompute_modules"), asked),
        offload=_named(number("offload"), OFFLOADS),
        activation_offload=number("activation_offload") > 0,
    )


def module_bits(modules: Iterable[RecomputeModule]) -> int:
    """A set of modules as a value of ``Candidates.recompute_modules``."""
    return sum(1 << MODULES.index(module) for module in modules)


def modules_of(bits: int) -> tuple[RecomputeModule, ...]:
    """The set of modules that a value of ``Candidates.recompute_modules`` means.

    >>> modules_of(module_bits(("moe_act", "layernorm")))
    ('layernorm', 'moe_act')
    """
    return tuple(module for number, module in enumerate(MODULES) if bits >> number & 1)


class DifferentModules:
    """What stands for the modules of rows that differ in them: who reads it gets a ``TypeError``, and groups the rows
    by their modules first."""

    __bool__ = __eq__ = __hash__ = None  # type: ignore[assignment]


def _modules(bits: int, asked: Recipe) -> tuple[RecomputeModule, ...] | None:
    """The modules of a row; the question's where the row names none."""
    if not isinstance(bits, int):
        return cast(tuple[RecomputeModule, ...], DifferentModules())
    return modules_of(bits) if bits else asked.recompute_modules


def constant(value: int, size: int) -> IntColumn:
    """A column with one value for all rows. It takes no room, and cannot be written to."""
    return np.broadcast_to(np.int64(value), (size,))


def is_constant(column: IntColumn) -> bool:
    """Whether a column was made by :func:`constant`: all its rows are at one place of the memory."""
    return len(column) > 0 and column.strides == (0,)


def group_rows(columns: Sequence[IntColumn]) -> tuple[IntColumn, IntColumn]:
    """Rows grouped by equal values of some columns: the group of each row, and the first row of each group.

    Groups are numbered in the order of their values. Values become positions in a table instead of being sorted.
    """
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    if 0 < len(codes) <= FEW_ROWS:
        return _sorted_groups(columns)
    size = 1
    for values in columns:
        if is_constant(values):
            continue
        low = int(values.min(initial=0))
        spread = int(values.max(initial=0)) - low + 1
        if spread == 1:
            continue
        shifted = values - low if low else values
        if size * spread > MOST_CODES:
            codes, size = _ranked(codes, size)
        if size * spread > MOST_CODES:
            shifted, spread = _ranked(shifted, spread)
        codes, size = codes * spread + shifted, size * spread
    groups, count = _ranked(codes, size)
    first = np.zeros(count, dtype=np.int64)
    first[groups[::-1]] = np.arange(len(groups) - 1, -1, -1)
    return groups, first


def _sorted_groups(columns: Sequence[IntColumn]) -> tuple[IntColumn, IntColumn]:
    """Group few rows by sorting their combinations of values."""
    varying = np.stack([np.zeros_like(columns[0]), *(values for values in columns if not is_constant(values))])
    shifted = varying - varying.min(axis=1, keepdims=True)
    spreads = [int(most) + 1 for most in shifted.max(axis=1)]
    weights = [prod(spreads[place + 1 :]) for place in range(len(spreads))]
    if prod(spreads) <= LARGEST_CODE:
        _, first, groups = np.unique(weights @ shifted, return_index=True, return_inverse=True)
    else:
        _, first, groups = np.unique(shifted, axis=1, return_index=True, return_inverse=True)
    return groups.reshape(-1), first


def _ranked(codes: IntColumn, size: int) -> tuple[IntColumn, int]:
    """Codes below ``size`` as positions among those that occur, and how many do."""
    if size > MOST_CODES:
        distinct, ranks = np.unique(codes, return_inverse=True)
        return ranks.reshape(-1), len(distinct)
    occurs = np.zeros(size, dtype=np.bool_)
    occurs[codes] = True
    distinct = np.flatnonzero(occurs)
    positions = np.empty(size, dtype=np.int64)
    positions[distinct] = np.arange(len(distinct))
    ranked: IntColumn = positions[codes]
    return ranked, len(distinct)


def distinct_keys(columns: Sequence[IntColumn]) -> tuple[list[Key], IntColumn]:
    """The distinct combinations of some columns, and which of them each row has."""
    inverse, first = group_rows(columns)
    keys: list[Key] = list(zip(*(values[first].tolist() for values in columns), strict=True))
    return keys, inverse


def option_counts(rows: Candidates, *, keys: Sequence[str], options: Callable[[Key], Sequence[Key]]) -> IntColumn:
    """How many options each row has on an axis whose options depend on the ``keys`` columns."""
    distinct, inverse = distinct_keys([rows.column(name) for name in keys])
    return np.asarray([len(options(key)) for key in distinct], dtype=np.int64)[inverse]


def expand(
    rows: Candidates,
    *,
    names: Sequence[str],
    keys: Sequence[str],
    options: Callable[[Key], Sequence[Key]],
) -> Candidates:
    """Every row once for each of its options; an option sets the columns ``names``.

    Args:
        names: the columns an option is a tuple of.
        keys: the columns that decide which options a row has.
        options: from the values of ``keys`` to the options, in order.
    """
    if not len(rows):
        return rows
    distinct, inverse = distinct_keys([rows.column(name) for name in keys])
    tables = [np.asarray(options(key), dtype=np.int64).reshape(-1, len(names)) for key in distinct]
    lengths = np.asarray([len(table) for table in tables], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    counts = lengths[inverse]
    source = np.repeat(np.arange(len(rows)), counts)
    first_of_row = np.cumsum(counts) - counts
    nth = np.arange(len(source)) - first_of_row[source]
    chosen, values = starts[inverse[source]] + nth, np.concatenate(tables)
    grown = rows.take(source)
    return replace(grown, **{name: _values_at(chosen, values[:, position]) for position, name in enumerate(names)})


def _values_at(chosen: IntColumn, values: IntColumn) -> IntColumn:
    """Some of the values, as a column."""
    if len(values) and (values == values[0]).all():
        return constant(int(values[0]), len(chosen))
    return values[chosen]
