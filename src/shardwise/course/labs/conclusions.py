"""What a lab's runs measured in one sentence, with what to do about it; times that tell nothing are left out."""

from collections.abc import Sequence

from shardwise.claims import RIGHT_WITHIN
from shardwise.course.labs.claims import states_ratio
from shardwise.course.labs.quantities import ACTIVATIONS, EXPOSED, PEAK, SCATTERS, STEP, TOKENS, measured_share, ratio
from shardwise.course.labs.steadiness import doubt_about, timed_ratio
from shardwise.course.labs.trial import Outcome, Quantity, outcome_of

SIZES = ("small", "larger")
OFFLOADED = ("optimizer", "parameters", "activations")


def memory_conclusion(outcomes: Sequence[Outcome]) -> str:
    """Say which share of DDP's memory FSDP needs."""
    ddp, fsdp = outcome_of(outcomes, "DDP, small"), outcome_of(outcomes, "FSDP, small")
    states, peaks = states_ratio(ddp, fsdp), ratio(PEAK, fsdp, ddp)
    if not states or not peaks:
        return ""
    return (
        f"a rank of FSDP kept {1 / states:.0%} of DDP's states and peaked at {peaks:.0%} of its memory: dividing helps "
        "as far as states fill a rank; against activations take checkpointing or a smaller batch."
    )


def throughput_conclusion(outcomes: Sequence[Outcome]) -> str:
    """States FSDP's speed over DDP's."""
    found = [
        f"{speeds:.0%} of DDP's speed with the {size} model"
        for size in SIZES
        if (speeds := _times(TOKENS, outcomes, f"FSDP, {size}", f"DDP, {size}"))
    ]
    return _sentence(
        f"FSDP trained at {' and '.join(found)}: take DDP where it is faster and fits with room to spare", found
    )


def checkpointing_conclusion(outcomes: Sequence[Outcome]) -> str:
    """States what selective and full recomputation save in memory and cost in time."""
    found = []
    for name in ("selective", "full"):
        kept = ratio(ACTIVATIONS, outcome_of(outcomes, name), outcome_of(outcomes, "FSDP, small"))
        slower = _slower(outcomes, name, "FSDP, small")
        if kept:
            cost = f" for a step {slower:.2f} times as long" if slower else ""
            found.append(f"{name} checkpointing kept {kept:.0%} of the activations{cost}")
    return _sentence(f"{'; '.join(found)}: take the least that fits", found)


def offload_conclusion(outcomes: Sequence[Outcome]) -> str:
    """States what every kind of offload saves in memory and costs in time."""
    found = []
    for name in OFFLOADED:
        run = f"{name} offloaded"
        slower = _slower(outcomes, run, "FSDP, small")
        peaks = ratio(PEAK, outcome_of(outcomes, run), outcome_of(outcomes, "FSDP, small"))
        if slower and peaks:
            found.append(f"{run}: {peaks:.0%} of the peak, {slower:.2f} times the step")
    return _sentence(f"with {'; '.join(found)}. Offload what does not fit otherwise, and no more", found)


def scaling_conclusion(outcomes: Sequence[Outcome]) -> str:
    """States the efficiency of every number of processes."""
    found = [
        f"{sped:.0%} with {outcome.plan.layout.world_size}"
        for outcome in outcomes
        if outcome.plan.layout.world_size > 1
        and (sped := _times(TOKENS, outcomes, outcome.trial.name, "1 process"))
        and sped <= 1 + RIGHT_WITHIN
    ]
    text = (
        f"a process kept {' and '.join(found)} of the speed of one alone: the rest went into communication and waiting"
    )
    return _sentence(text, found)


def prefetch_conclusion(outcomes: Sequence[Outcome]) -> str:
    """Say how much longer a step takes without prefetching."""
    without, ahead = outcome_of(outcomes, "no prefetch"), outcome_of(outcomes, "one unit ahead")
    slower = _slower(outcomes, "no prefetch", "one unit ahead")
    shares = [EXPOSED.measured(found) for found in (without, ahead) if found is not None]
    if not slower or len(shares) < len((without, ahead)) or None in shares:
        return ""
    return (
        f"without prefetch a step took {slower:.2f} times as long, and {shares[0]:.0%} instead of {shares[1]:.0%} of "
        "it was exposed communication: one unit ahead is the default for that."
    )


def communication_conclusion(outcomes: Sequence[Outcome]) -> str:
    """States what FSDP's communication takes of a step, and how much of it is exposed."""
    found = []
    for size in SIZES:
        outcome = outcome_of(outcomes, f"FSDP, {size}")
        if outcome is None:
            continue
        worked, exposed = measured_share(outcome, ("all_gather", *SCATTERS), "work_s"), EXPOSED.measured(outcome)
        if worked is not None and exposed is not None:
            found.append(f"{worked:.0%} of a step of the {size} model, with {exposed:.0%} exposed")
    text = f"FSDP's gathers and scatters worked in {'; '.join(found)}: only what is exposed can be won"
    return _sentence(text, found)


def _times(quantity: Quantity, outcomes: Sequence[Outcome], over: str, under: str) -> float | None:
    """The ratio of two runs' times or speeds; ``None`` where it tells nothing."""
    found = timed_ratio(quantity, outcome_of(outcomes, over), outcome_of(outcomes, under))
    return found.middle_ratio if found and not doubt_about(found.runs) else None


def _slower(outcomes: Sequence[Outcome], over: str, under: str) -> float | None:
    """The ratio of two runs' steps, of which the first can only be longer; ``None`` where it is shorter by chance."""
    times = _times(STEP, outcomes, over, under)
    return times if times and times >= 1 - RIGHT_WITHIN else None


def _sentence(text: str, found: Sequence[str]) -> str:
    return f"{text}." if found else ""
