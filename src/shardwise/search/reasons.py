"""Sentences of a search: why a plan is recommended, and why each of the others lost, in terms of the objective."""

from collections.abc import Sequence

from shardwise.ledger import TimeComponent
from shardwise.search.evaluation import Evaluated
from shardwise.search.price_list import Price, asked_fraction, charged, price_fraction
from shardwise.search.records import Objective
from shardwise.search.simplicity import told_apart
from shardwise.units import Bytes, format_gib, format_percent, format_seconds

__all__ = ["why_it_lost", "why_it_won"]

SHOWN_DIFFERENCES = 3
NOTEWORTHY_FRACTION = 0.005
ROUNDING_FRACTION = 1e-9
WITHIN_ERROR = "that is within the error of a prediction"

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
    winner: Evaluated, *, best: Evaluated, best_safe: Evaluated, num_layouts: int, objective: Objective
) -> str:
    """Why a plan is recommended, and what is given up against the best by the objective.

    Args:
        winner: the recommended plan.
        best: the plan with the best objective, which may be the same.
        best_safe: the best of those whose memory band stays inside the device.
        num_layouts: sets of degrees with a plan that fits.
        objective: what was to be small.
    """
    memory = winner.prediction.memory
    step, headroom = format_seconds(winner.prediction.time.step_s), format_gib(memory.spare_bytes)
    figure, rest, adjective = f"{step} per step", f"{headroom} to spare", "fastest"
    if objective == "memory":
        figure, rest, adjective = f"{format_gib(memory.needed_bytes)} needed per GPU", f"{step} per step", "smallest"
    gpus = ""
    if objective == "fewest_gpus":
        gpus = f"{winner.plan.cluster.num_gpus:,} GPUs are the fewest, in whole nodes, on which a layout was found. "
    found = f"{figure} with {rest}"
    if winner is best:
        kinds = f"{num_layouts} layouts" if num_layouts > 1 else "the variants"
        first = f"{adjective.capitalize()} of {kinds} that fit"
        found = f"{first}: {found}"
    if memory.is_borderline:
        found += f"; {memory.tight_place} lies inside its memory band, so try it first"
    others = {id(other): other for other in (best, best_safe) if other is not winner}
    sentences = [f"{_named(other, winner, adjective, objective)}." for other in others.values()]
    return " ".join([f"{gpus}{found}.", *sentences])


def _named(other: Evaluated, winner: Evaluated, adjective: str, objective: Objective) -> str:
    """A plan that is better by the objective, by how much, and why it is not recommended."""
    is_safe = not other.prediction.memory.is_borderline
    words = f"The {adjective}{' that fits safely' if is_safe else ''}, {told_apart(other.plan, winner.plan)},"
    if objective == "memory":
        less = 1 - other.prediction.memory.needed_bytes / winner.prediction.memory.needed_bytes
        against = what_speaks_against(other, winner) if _is_less_safe(other, winner) else WITHIN_ERROR
        return f"{words} needs {_share(less)} less and {_speed_text(other, winner)}; {against}"
    takes = format_seconds(other.prediction.time.step_s)
    less = 1 - other.prediction.time.step_s / winner.prediction.time.step_s
    if less < 0:  # the recommended plan is at the edge of the device, and worth a try for what it saves
        return f"{words} takes {takes}, {format_percent(-less)} more"
    return f"{words} takes {takes}, {_share(less)} less; {what_speaks_against(other, winner)}"


def _is_less_safe(found: Evaluated, winner: Evaluated) -> bool:
    return found.prediction.memory.is_borderline and not winner.prediction.memory.is_borderline


def _share(fraction: float) -> str:
    return format_percent(fraction) if fraction >= NOTEWORTHY_FRACTION else "next to nothing"


def what_speaks_against(found: Evaluated, winner: Evaluated) -> str:
    """Why a plan that is better by the objective is not the recommended one."""
    if _is_less_safe(found, winner):
        return f"its memory band reaches beyond {found.prediction.memory.tight_place}"
    prices = charged(found.plan, beyond=winner.plan)
    if not prices:
        return "it is no simpler"
    asked, earned = asked_fraction(found.plan, beyond=winner.plan), charged(winner.plan, beyond=found.plan)
    if len(prices) == 1 and not earned:
        return f"it gains less than is asked for {prices[0].name} ({format_percent(asked)})"
    part = 1 / (1 + price_fraction(found.plan))
    is_most = (_sum(prices) - _sum(earned)) * part > asked + ROUNDING_FRACTION
    asked_words = f"{format_percent(asked)}{' that at most are' if is_most else ''} asked of it"
    return f"it gains less than the {asked_words}: {_sum_text(prices, earned, part=part)}"


def _sum_text(prices: Sequence[Price], earned: Sequence[Price] = (), *, part: float = 1.0) -> str:
    """Prices that add up: each of a few, or the dearest and the sum of the others; less those of the recommended plan.

    Args:
        prices: steps that a plan takes and the recommended one does not.
        earned: steps that the recommended plan takes and the other does not.
        part: the recommended step that a plan has to save, over the price.
    """
    named = prices if len(prices) <= SHOWN_DIFFERENCES else prices[:1]
    terms = [f"{price.name} ({format_percent(price.gain_fraction * part)})" for price in named]
    others = prices[len(named) :]
    if others:
        terms.append(f"{len(others)} more ({format_percent(_sum(others) * part)})")
    less = f" - the recommended plan's own ({format_percent(_sum(earned) * part)})" if earned else ""
    return " + ".join(terms) + less


def _sum(prices: Sequence[Price]) -> float:
    return sum(price.gain_fraction for price in prices)


def _memory_text(saved_bytes: Bytes) -> str:
    if not saved_bytes:
        return "needs as much"
    return (
        f"saves {format_gib(saved_bytes)}"
        if saved_bytes > 0
        else f"needs {format_gib(-saved_bytes)} more than the recommended"
    )


def why_it_lost(found: Evaluated, winner: Evaluated, *, objective: Objective) -> str:
    """A sentence on how a plan compares with the recommended one in time and memory, the objective first."""
    slower_s = found.prediction.time.step_s - winner.prediction.time.step_s
    saved_bytes = winner.prediction.memory.needed_bytes - found.prediction.memory.needed_bytes
    memory = _memory_text(saved_bytes)
    if objective == "memory":
        share, speed = -saved_bytes / winner.prediction.memory.needed_bytes, _speed_text(found, winner)
        against = what_speaks_against(found, winner) if _is_less_safe(found, winner) else WITHIN_ERROR
        return f"{memory[:1].upper()}{memory[1:]} ({share:+.1%}){f', but {against}' if share < 0 else ''}; {speed}."
    share = slower_s / winner.prediction.time.step_s
    if slower_s < 0:
        return f"{format_percent(-share)} faster, but {what_speaks_against(found, winner)}; {memory}."
    slower = f"{format_percent(share)} slower (+{format_seconds(slower_s)})"
    memory += f", and {what_speaks_against(found, winner)}" if _is_less_safe(found, winner) else ""
    if not slower_s:
        slower, losses = "As fast", what_speaks_against(found, winner)
    else:
        losses = _largest_losses(found, winner) or "a little of everything"
    return f"{slower}: {losses}; {memory}."


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
        return "is as fast"
    return f"is {format_percent(abs(share))} {'slower' if share > 0 else 'faster'}"
