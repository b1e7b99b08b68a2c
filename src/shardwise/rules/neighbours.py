"""Find the nearest plan that keeps a rule: candidates are tried, completed and verified before one is shown."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from shardwise.plan import Plan
from shardwise.rules.book import RANGE_RULES, error_rules
from shardwise.rules.changes import apply_changes, complete, current_value, merge
from shardwise.rules.defaults import fill_again
from shardwise.rules.refusal import Changes
from shardwise.rules.rule import Rule

MOST_CANDIDATES = 48
"""Neighbours tried per broken rule; the nearest good one is nearly always among the first three."""
MOST_FOLLOWING_FIXES = 4
"""Further rules a fix may mend on the way before it stops being a neighbour."""


def nearest_neighbour(plan: Plan, rule: Rule, *, allows: Callable[[Changes], bool] | None = None) -> Changes:
    """The nearest changes after which ``rule`` holds and no rule breaks that held before.

    First every candidate alone and with the changes that plainly go along with it; then candidates that need further
    rules mended on the way; at last the first that keeps this rule, whatever else it breaks. Rules about ranges come
    first: no other rule can be evaluated while one of them is broken. The changes hold where they are typed into the
    plan's file, too, which fills again what it leaves open.

    Args:
        plan: breaks the rule.
        rule: that is broken.
        allows: changes that may be proposed, where some that mend the rule are; all without.
    """
    if rule in RANGE_RULES:
        return _effective(plan, next(iter(rule.candidates_for(plan))))
    return _with_open_fields(plan, _nearest(plan, rule, allows), rule)


def _nearest(plan: Plan, rule: Rule, allows: Callable[[Changes], bool] | None) -> Changes:
    already_broken = frozenset(other.name for other in error_rules(plan.engine) if other.breaks(plan))
    tried = tuple(islice(_completed_candidates(plan, rule), 2 * MOST_CANDIDATES))
    keeping = [changes for changes in tried if not _still_breaks(apply_changes(plan, changes), rule)]
    found: Changes | None = None
    for changes in _good_neighbours(plan, keeping, rule, already_broken):
        if allows is None or allows(changes):
            return changes
        found = found or changes
    return found or (keeping[0] if keeping else ())


def _good_neighbours(
    plan: Plan, keeping: Sequence[Changes], rule: Rule, already_broken: frozenset[str]
) -> Iterator[Changes]:
    """Changes that break nothing else, then those that do once further rules are mended."""
    for changes in keeping:
        if _first_new_error(apply_changes(plan, changes), already_broken) is None:
            yield changes
    for changes in keeping:
        mended = _mend(plan, changes, rule, already_broken, MOST_FOLLOWING_FIXES)
        if mended is not None:
            yield mended


def _with_open_fields(plan: Plan, changes: Changes, rule: Rule) -> Changes:
    """``changes`` and the fields that the plan's file leaves open and would fill again so that a rule breaks.

    One such field if naming it is enough, else all that would be filled otherwise than the neighbour has them; once
    these are named another may be filled with what they were.
    """
    if fill_again(plan, ()) != plan:  # the plan was changed since it was read
        return changes
    neighbour = apply_changes(plan, changes)
    while not _keeps_as_much(fill_again(plan, changes), neighbour, rule):
        moved = _refilled_otherwise(plan, changes, neighbour)
        if not moved:
            break
        alone = (merge(changes, (field,)) for field in moved)
        enough = (typed for typed in alone if _keeps_as_much(fill_again(plan, typed), neighbour, rule))
        changes = next(enough, merge(changes, moved))
    return changes


def _refilled_otherwise(plan: Plan, changes: Changes, neighbour: Plan) -> Changes:
    """The neighbour's values of the fields that the plan's file would fill with others."""
    refilled = fill_again(plan, changes)
    still_open = plan.open_fields.difference(name for name, _ in changes)
    values = ((name, current_value(neighbour, name)) for name in sorted(still_open))
    return tuple((name, value) for name, value in values if current_value(refilled, name) != value)


def _keeps_as_much(refilled: Plan, neighbour: Plan, rule: Rule) -> bool:
    """Whether a plan keeps the rule, and every other that the neighbour keeps."""
    return all(
        not _still_breaks(refilled, other) or other.breaks(neighbour)
        for other in (rule, *error_rules(neighbour.engine))
    )


def _first_new_error(plan: Plan, already_broken: frozenset[str]) -> Rule | None:
    return next(
        (other for other in error_rules(plan.engine) if other.name not in already_broken and other.breaks(plan)), None
    )


def _mend(plan: Plan, changes: Changes, rule: Rule, already_broken: frozenset[str], fixes_left: int) -> Changes | None:
    """``changes`` with the fixes of every rule they break, none of which may undo an earlier change."""
    neighbour = apply_changes(plan, changes)
    if _still_breaks(neighbour, rule):
        return None
    following = _first_new_error(neighbour, already_broken)
    if following is None:
        return changes
    if fixes_left == 0:
        return None
    changed = {name for name, _ in changes}
    for candidate in islice(_completed_candidates(neighbour, following), 8):
        if changed.isdisjoint(name for name, _ in candidate):
            mended = _mend(plan, merge(changes, candidate), rule, already_broken, fixes_left - 1)
            if mended is not None:
                return mended
    return None


def _still_breaks(plan: Plan, rule: Rule) -> bool:
    return (rule.engines is None or plan.engine in rule.engines) and rule.breaks(plan)


def _completed_candidates(plan: Plan, rule: Rule) -> Iterator[Changes]:
    """Every candidate that changes something, as it stands and with what must go along with it."""
    for candidate in rule.candidates_for(plan):
        changes = _effective(plan, candidate)
        if not changes:
            continue
        yield changes
        completed = _effective(plan, complete(plan, changes))
        if completed != changes:
            yield completed


def _effective(plan: Plan, changes: Changes) -> Changes:
    """The changes that change something."""
    return tuple((name, value) for name, value in merge((), changes) if current_value(plan, name) != value)
