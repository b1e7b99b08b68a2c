"""A changed question, tried by searching it: what is proposed where the one that was asked has no plan."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.errors import ShardwiseError
from shardwise.plan import Plan
from shardwise.rules import Changes, apply_changes
from shardwise.rules.changes import RECIPE_FIELDS, changes_text, current_value, merge
from shardwise.search.bounds import SearchBounds
from shardwise.search.candidates import SEARCHED_FIELDS
from shardwise.search.one_pass import find
from shardwise.search.ranking import rank
from shardwise.search.records import Objective, Rejection, Relief
from shardwise.search.targets import meeting
from shardwise.units import format_gib

__all__ = [
    "AT_THE_EDGE",
    "Hypothesis",
    "changed",
    "first_that_helps",
    "free_axes",
    "has_plan",
    "mended_rules",
    "relief_of",
]

AT_THE_EDGE = "fits at the edge: try it first"
ENOUGH_PREDICTIONS = SearchBounds().max_predictions
TRIED_FIELDS = frozenset((*SEARCHED_FIELDS, "global_batch_size"))
"""Fields of a recipe that a search chooses by itself, and the batch size, whose changes are looked for apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A question with one change, and what its plan would cost besides."""

    change: str
    question: Plan
    bounds: SearchBounds
    caution: str = ""


def has_plan(hypothesis: Hypothesis) -> bool:
    """Whether something fits."""
    try:
        return bool(find(hypothesis.question, hypothesis.bounds, is_brief=True).evaluation.fitting)
    except ShardwiseError:  # the bounds leave no layout of the other cluster, model or batch
        return False


def relief_of(hypothesis: Hypothesis, *, objective: Objective) -> Relief | None:
    """The plan that a search recommends for a changed question, with memory and time; ``None`` when it finds none."""
    if not has_plan(hypothesis):
        return None
    bounds = replace(hypothesis.bounds, max_predictions=max(ENOUGH_PREDICTIONS, hypothesis.bounds.max_predictions))
    fitting = find(hypothesis.question, bounds, objective=objective).evaluation.fitting
    ranked = rank(meeting(fitting, bounds), objective=objective, limit=1)
    if not ranked:
        return None
    plan, prediction = ranked[0].plan, ranked[0].prediction
    memory = prediction.memory
    is_host_unknown = bool(memory.host_bytes_per_node and not memory.host_capacity_bytes)
    cautions = [
        hypothesis.caution,
        f"needs {format_gib(memory.host_bytes_per_node)} of memory in each host" if is_host_unknown else "",
        AT_THE_EDGE if memory.is_borderline else "",
    ]
    return Relief(
        change=hypothesis.change,
        plan=plan,
        device_used_bytes=memory.worst.device_used_bytes,
        needed_bytes=memory.needed_bytes,
        step_s=prediction.time.step_s,
        caution=", ".join(filter(None, cautions)),
        running_cost=prediction.running_cost,
    )


def first_that_helps(hypotheses: Iterable[Hypothesis], *, objective: Objective) -> Relief | None:
    """The recommendation for the first of these changed questions that has a plan; ``None`` when none has."""
    found = (relief_of(hypothesis, objective=objective) for hypothesis in hypotheses)
    return next((relief for relief in found if relief is not None), None)


def free_axes(question: Plan, bounds: SearchBounds) -> Iterator[Hypothesis]:
    """The question without one of the user's bounds on axes, for each bound in turn, then without any."""
    names = bounds.bounded_axes
    for name in names:
        yield Hypothesis(change=f"no bound on {name}", question=question, bounds=bounds.without(name))
    if len(names) > 1:
        yield Hypothesis(change="no bounds on the axes", question=question, bounds=bounds.without(*names))


def mended_rules(question: Plan, bounds: SearchBounds, rejected: Sequence[Rejection]) -> Iterator[Hypothesis]:
    """The question with the changes that mend a broken rule, for each rule in turn, then with all of these changes.

    Changes of fields that a search chooses by itself are left out: the search has tried them.
    """
    fixes = [group.changes for group in rejected if _is_about_question(group.changes)]
    together: Changes = ()
    for changes in fixes:
        together = merge(together, changes)
        yield changed(question, bounds, changes)
    if together and dict(together) not in map(dict, fixes):
        yield changed(question, bounds, together)


def _is_about_question(changes: Changes) -> bool:
    names = {name for name, _ in changes}
    return bool(names) and names <= RECIPE_FIELDS - TRIED_FIELDS


def changed(question: Plan, bounds: SearchBounds, changes: Changes, caution: str = "") -> Hypothesis:
    """The question with the changes that change something, as they are typed."""
    typed = tuple((name, value) for name, value in changes if value != current_value(question, name))
    asked = apply_changes(question, typed)
    return Hypothesis(change=changes_text(typed), question=asked, bounds=bounds, caution=caution)
