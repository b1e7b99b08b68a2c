"""Sentences of a search: why a plan is recommended, and why each of the others lost, in terms of the objective."""

from collections.abc import Sequence

from shardwise.ledger import TimeComponent
from shardwise.search.evaluation import Evaluated
from shardwise.search.records import Objective
from shardwise.search.simplicity import (
    host_moves,
    moved_words,
    num_axes,
    simplicity,
    straddles_nodes,
    told_apart,
)
from shardwise.units import Bytes, format_gib, format_percent, format_seconds

__all__ = ["why_it_lost", "why_it_won"]

SHOWN_DIFFERENCES = 3
NOTEWORTHY_FRACTION = 0.005

COMPONENT_WORDS: dict[TimeComponent, str] = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recomputation",
    "optimizer": "optimizer",
    "exposed_communication": "exposed communication",
    "pipeline_bubble": "pipeline bubble",
    "offload": "offload",
    "other": "other work",
}


def why_it_won(
    winner: Evaluated, best: Evaluated, *, ties: Sequence[Evaluated], num_layouts: int, objective: Objective
) -> str:
    """Why a plan is recommended, and what is given up against the best by the objective.

    Args:
        winner: the recommended plan.
        best: the plan with the best objective, which may be the same.
        ties: those that cannot be told from the best.
        num_layouts: sets of degrees with a plan that fits.
        objective: what was to be small.
    """
    memory = winner.prediction.memory
    step, headroom = format_seconds(winner.prediction.time.step_s), format_gib(memory.spare_bytes)
    safety = "; the device lies inside its memory band, so try it first" if memory.is_borderline else ""
    gpus = ""
    if objective == "fewest_gpus":
        gpus = f"{winner.plan.cluster.num_gpus:,} GPUs are the fewest, in whole nodes, on which a layout was found. "
    if objective == "memory":
        figure, rest = f"{format_gib(memory.needed_bytes)} needed per GPU", f"{step} per step"
        adjective, behind = "smallest", _more_memory(winner, best)
    else:
        figure, rest = f"{step} per step", f"{headroom} to spare"
        adjective, behind = "fastest", _more_time(winner, best)
    if winner is best:
        found = f"{adjective.capitalize()} of {num_layouts} layouts that fit" if num_layouts > 1 else "What fits"
        return f"{gpus}{found}: {figure} with {rest}{safety}."
    reason = _why_preferred(winner, best) + _what_stays(winner, best, ties, objective)
    return (
        f"{gpus}{figure}, {behind} the {adjective} ({told_apart(best.plan, winner.plan)}), which is inside the error "
        f"of a prediction; it is {reason}, with {rest}{safety}."
    )


def _more_memory(winner: Evaluated, best: Evaluated) -> str:
    more = winner.prediction.memory.needed_bytes / best.prediction.memory.needed_bytes - 1
    return f"{format_percent(more)} more than" if more >= NOTEWORTHY_FRACTION else "next to nothing more than"


def _more_time(winner: Evaluated, best: Evaluated) -> str:
    slower = winner.prediction.time.step_s / best.prediction.time.step_s - 1
    return f"{format_percent(slower)} from" if slower >= NOTEWORTHY_FRACTION else "next to nothing from"


def _why_preferred(winner: Evaluated, best: Evaluated) -> str:
    mine, theirs = winner.plan, best.plan
    if host_moves(mine) < host_moves(theirs):
        waits = "waiting less" if host_moves(mine) else "not waiting"
        return f"{waits} for copies to the host, whose speed a prediction knows least"
    if best.prediction.memory.is_borderline and not winner.prediction.memory.is_borderline:
        simpler = "simpler and " if num_axes(mine.layout) < num_axes(theirs.layout) else ""
        return f"{simpler}safer: the other's memory band reaches beyond the device"
    if num_axes(mine.layout) == num_axes(theirs.layout) and straddles_nodes(theirs) and not straddles_nodes(mine):
        return "better placed: its shard groups fill whole nodes"
    if simplicity(mine.layout) < simplicity(theirs.layout):
        return "simpler"
    return "faster" if winner.prediction.time.step_s < best.prediction.time.step_s else "as simple"


def _what_stays(winner: Evaluated, best: Evaluated, ties: Sequence[Evaluated], objective: Objective) -> str:
    """What else decided: a tie that is faster moves more to the host."""
    if objective == "memory" or host_moves(winner.plan) < host_moves(best.plan):
        return ""
    step_s = winner.prediction.time.step_s
    movers = [tie for tie in ties if host_moves(tie.plan) > host_moves(winner.plan)]
    if not any(tie.prediction.time.step_s < step_s for tie in movers):
        return ""
    return f"; unlike a faster tie it moves {'less' if host_moves(winner.plan) else 'nothing'} to the host"


def _memory_text(saved_bytes: Bytes) -> str:
    if not saved_bytes:
        return "needs as much"
    return f"saves {format_gib(saved_bytes)}" if saved_bytes > 0 else f"needs {format_gib(-saved_bytes)} more"


def why_it_lost(found: Evaluated, winner: Evaluated, *, is_tie: bool, objective: Objective) -> str:
    """What a plan loses against the recommended one, in time and in memory, that of the objective first."""
    slower_s = found.prediction.time.step_s - winner.prediction.time.step_s
    saved_bytes = winner.prediction.memory.needed_bytes - found.prediction.memory.needed_bytes
    memory = _memory_text(saved_bytes)
    if objective == "memory":
        share, speed = -saved_bytes / winner.prediction.memory.needed_bytes, _speed_text(found, winner)
        if is_tie:
            return f"As small within the error ({share:+.1%}), but {_tie_reason(found, winner)}; {speed}."
        return f"{memory[:1].upper()}{memory[1:]} ({share:+.1%}); {speed}."
    share = slower_s / winner.prediction.time.step_s
    parts = _largest_losses(found, winner)
    if is_tie:
        ratio = f"{share:+.1%}" + (f": {parts}" if parts and slower_s > 0 else "")
        return f"As fast within the error ({ratio}), but {_tie_reason(found, winner)}; {memory}."
    slower = f"{format_percent(share)} slower (+{format_seconds(slower_s)})"
    return f"{slower}: {parts or 'a little of everything'}; {memory}."


def _largest_losses(found: Evaluated, winner: Evaluated) -> str:
    mine = {entry.component: entry.duration_s for entry in found.prediction.time.components}
    theirs = {entry.component: entry.duration_s for entry in winner.prediction.time.components}
    losses = {component: mine.get(component, 0.0) - theirs.get(component, 0.0) for component in COMPONENT_WORDS}
    least = NOTEWORTHY_FRACTION * winner.prediction.time.step_s
    largest = sorted((item for item in losses.items() if item[1] > least), key=lambda item: -item[1])
    return ", ".join(
        f"{COMPONENT_WORDS[component]} +{format_seconds(loss)}" for component, loss in largest[:SHOWN_DIFFERENCES]
    )


def _speed_text(found: Evaluated, winner: Evaluated) -> str:
    share = found.prediction.time.step_s / winner.prediction.time.step_s - 1
    if abs(share) < NOTEWORTHY_FRACTION:
        return "as fast"
    return f"{format_percent(abs(share))} {'slower' if share > 0 else 'faster'}"


def _tie_reason(found: Evaluated, winner: Evaluated) -> str:
    if found.prediction.memory.is_borderline and not winner.prediction.memory.is_borderline:
        return "its memory band reaches beyond the device"
    if host_moves(found.plan) > host_moves(winner.plan):
        return f"it waits for {moved_words(found.plan)} on the host, which a prediction knows least"
    mine, theirs = num_axes(found.plan.layout), num_axes(winner.plan.layout)
    if mine > theirs:
        return f"it combines {mine} axes instead of {theirs}"
    if mine == theirs and straddles_nodes(found.plan) and not straddles_nodes(winner.plan):
        return "its shard groups straddle nodes unevenly"
    if found.prediction.time.step_s > winner.prediction.time.step_s:
        return "it is slower" if mine < theirs else "it is no simpler"
    return "it uses more tensor, pipeline or context parallelism"
