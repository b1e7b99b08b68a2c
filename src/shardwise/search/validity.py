"""Which candidates the rules of validity allow, without asking every rule about every candidate.

A rule says which fields of a plan it reads (:attr:`shardwise.rules.rule.Rule.reads`). It is asked once per combination
of their values that occurs, and its answer is spread over all rows that share it: some thousand questions instead of
millions. A test compares the result with asking every rule about every row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from shardwise.errors import RecipeError
from shardwise.plan import Plan
from shardwise.rules import Refusal, refusal_within
from shardwise.rules.book import rules_of
from shardwise.rules.rule import FIGURES, Rule
from shardwise.search.candidates import OFFLOADS, Candidates, IntColumn, Key, Mask, constant, group_rows
from shardwise.search.records import Rejection
from shardwise.search.space import AXES, DEGREES, STATE_AXES, Space

__all__ = ["ValidCandidates", "valid_candidates"]

OFFLOAD = "offload"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidCandidates:
    """The rows that break no rule, not decorated yet, and what became of the others.

    All counts are of decorated rows.
    """

    rows: Candidates
    num_microbatches: IntColumn
    considered: int
    num_too_big: int
    """Candidates whose states alone do not fit: dropped, and not counted as breaking a rule."""
    rejected: tuple[Rejection, ...]


def valid_candidates(space: Space, *, states_fit: Callable[[Candidates], Mask] | None = None) -> ValidCandidates:
    """Enumerate axis by axis, dropping rows as soon as a rule about the axes known so far excludes them.

    Args:
        space: what to enumerate.
        states_fit: asked once all axes that decide the model states are known; rows it denies are dropped.
    """
    pending = [rule for rule in rules_of(space.question.engine) if rule.severity == "error"]
    rows = space.degrees()
    considered = int(space.num_descendants(rows, after=None).sum())
    known = {*DEGREES, OFFLOAD}
    sieve = Sieve(space=space)
    num_too_big = 0
    for axis in (None, *AXES):
        if axis is not None:
            rows = space.grow(rows, axis)
            known |= set(space.axis(axis).names)
        ready = [rule for rule in pending if sieve.fields_of(rule) <= known]
        pending = [rule for rule in pending if rule not in ready]
        rows = sieve.keep(ready, rows, axis=axis)
        if axis == STATE_AXES[-1] and states_fit is not None and len(rows):
            fits = states_fit(rows)
            num_too_big = int(space.num_descendants(rows.take(~fits), after=axis).sum())
            rows = rows.take(fits)
    ranked = tuple(sorted(sieve.rejected.values(), key=lambda group: (-group.count, group.rule)))
    return ValidCandidates(
        rows=rows,
        num_microbatches=_num_microbatches(rows, space.question),
        considered=considered,
        num_too_big=num_too_big,
        rejected=ranked,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Rows grouped by what a rule reads of them."""

    rows: Candidates
    group_of: IntColumn
    """Position in ``plans`` of the group that each row belongs to."""
    plans: Sequence[Plan]
    """One plan per group, with the values that its rows share; rules are asked about it for all of them."""


@dataclass(frozen=True, kw_only=True)
class Sieve:
    """Rules applied to the rows of a space, and what they kept out."""

    space: Space
    rejected: dict[str, Rejection] = field(default_factory=dict)
    """Rejected candidates, by the name of the rule they break."""
    plans: dict[tuple[str, ...], dict[Key, Plan]] = field(default_factory=dict)
    """One plan by the columns that rules read and by their values; no rule sees its other fields. It is made once for
    all rules that read the same columns."""

    groups: dict[tuple[str, ...], Groups] = field(default_factory=dict)
    """The rows that were grouped last, by the columns."""

    @cached_property
    def searched(self) -> frozenset[str]:
        """The fields of a plan in which the rows of the space differ."""
        return frozenset({*DEGREES, OFFLOAD, *(name for axis in AXES for name in self.space.axis(axis).names)})

    def columns_of(self, rule: Rule) -> tuple[str, ...]:
        """The columns a rule reads, among those that differ between rows; empty for a rule about the question alone."""
        if rule.reads is None:
            return tuple(sorted(self.searched))
        return tuple(name for name in rule.reads if name in self.searched or name in FIGURES)

    def fields_of(self, rule: Rule) -> set[str]:
        """The fields that have to be enumerated before a rule can be asked."""
        fields = {part for name in self.columns_of(rule) for part in FIGURES.get(name, (name,))}
        return fields & self.searched

    def keep(self, rules: Sequence[Rule], rows: Candidates, *, axis: str | None) -> Candidates:
        """The rows that keep all of the rules; the others are counted under the first rule they break."""
        keeps: Mask = np.ones(len(rows), dtype=np.bool_)
        for rule in rules:
            if OFFLOAD in self.columns_of(rule):
                rows = self._keep_ways_to_offload(rule, _those(rows, keeps), axis=axis)
                keeps = np.ones(len(rows), dtype=np.bool_)
                continue
            if not keeps.any():
                break
            broken = np.flatnonzero(self._broken(rule, rows) & keeps)
            if not len(broken):
                continue
            refusal = self._refusal(rows.plan(int(broken[0]), question=self.space.question), rule)
            if not self.columns_of(rule):
                raise RecipeError(refusal.message, code=refusal.rule, fix=refusal.fix)
            count = int(self.space.num_descendants(rows.take(broken), after=axis).sum())
            self._reject(rule, count, refusal)
            keeps[broken] = False
        return _those(rows, keeps)

    def _keep_ways_to_offload(self, rule: Rule, rows: Candidates, *, axis: str | None) -> Candidates:
        """The rows with the ways to offload that keep the rule; those without any are dropped."""
        if not len(rows):
            return rows
        count, shown = 0, None
        left = rows.offload_choices.copy()
        for position in range(len(OFFLOADS)):
            offered = (rows.offload_choices & (1 << position)) > 0
            asked = replace(rows, offload=constant(position, len(rows)))
            broken = np.flatnonzero(self._broken(rule, asked) & offered)
            if not len(broken):
                continue
            one_way = replace(asked.take(broken), offload_choices=constant(1 << position, len(broken)))
            count += int(self.space.num_descendants(one_way, after=axis).sum())
            shown = shown or self._refusal(asked.plan(int(broken[0]), question=self.space.question), rule)
            left[broken] -= 1 << position
        if shown is None:
            return rows
        self._reject(rule, count, shown)
        return replace(rows, offload_choices=left).take(left > 0)

    def _reject(self, rule: Rule, count: int, refusal: Refusal) -> None:
        self.rejected[rule.name] = Rejection(
            rule=rule.name, count=count, example=refusal.message, fix=refusal.fix, changes=refusal.neighbour
        )

    def _refusal(self, plan: Plan, rule: Rule) -> Refusal:
        """The refusal of a plan by a rule, with a fix inside the bounds of the search where there is one."""
        return refusal_within(plan, rule, allows=self.space.bounds.allows)

    def _broken(self, rule: Rule, rows: Candidates) -> Mask:
        """Which rows break a rule."""
        columns = self.columns_of(rule)
        if not columns:
            return np.full(len(rows), rule.breaks(rows.plan(0, question=self.space.question)))
        groups = self._grouped(rows, columns)
        broken: Mask = np.asarray([rule.breaks(plan) for plan in groups.plans], dtype=np.bool_)[groups.group_of]
        return broken

    def _grouped(self, rows: Candidates, columns: tuple[str, ...]) -> Groups:
        """The rows grouped by some columns; the last ones of these columns where the rows are still the same."""
        found = self.groups.get(columns)
        if found is not None and found.rows is rows:
            return found
        question = self.space.question
        read = [_column(rows, name, question) for name in columns]
        group_of, first = group_rows(read)
        known = self.plans.setdefault(columns, {})
        keys: list[Key] = list(zip(*(values[first].tolist() for values in read), strict=True))
        fresh = {key: row for key, row in zip(keys, first.tolist(), strict=True) if key not in known}
        known.update(zip(fresh, rows.plans(fresh.values(), question=question), strict=True))
        plans = [known[key] for key in keys]
        self.groups[columns] = Groups(rows=rows, group_of=group_of, plans=plans)
        return self.groups[columns]


def _those(rows: Candidates, keeps: Mask) -> Candidates:
    """The rows that are kept: the same where all are."""
    return rows if keeps.all() else rows.take(keeps)


def _num_microbatches(rows: Candidates, question: Plan) -> IntColumn:
    count: IntColumn = question.global_batch_size // (rows.micro_batch_size * rows.data_parallel_size)
    return count


def _column(rows: Candidates, name: str, question: Plan) -> IntColumn:
    """A field or one of ``FIGURES`` of every row."""
    if name == "num_microbatches":
        return _num_microbatches(rows, question)
    return rows.figure(name, FIGURES[name]) if name in FIGURES else rows.column(name)
