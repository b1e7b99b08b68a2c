"""Statements of courses and papers about the labs' questions, beside what the runs measured."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from shardwise.claims import RIGHT_WITHIN, Claim, Unit, Verdict, at_most, divides, near
from shardwise.course.labs.quantities import (
    ACTIVATIONS,
    EXPOSED,
    PEAK,
    SCATTERS,
    STATES,
    STEP,
    TOKENS,
    measured_memory,
    measured_share,
    number,
    ratio,
)
from shardwise.course.labs.steadiness import TimedRatio, doubt_about, timed_ratio
from shardwise.course.labs.trial import Outcome, outcome_of

ZERO_PAPER = "Rajbhandari et al. 2020, arXiv:1910.02054, section 5"
CHECKPOINT_PAPER = "Chen et al. 2016, arXiv:1604.06174, section 4"
FSDP_PAPER = "Zhao et al. 2023, arXiv:2304.11277, section 3.3"
ZERO_BYTES = 16
"""Bytes per parameter under mixed precision with Adam: 2 for weights, 2 for gradients, 12 for the optimizer."""
ZERO_WHOLE_BYTES = {"ZeRO-1": 4, "ZeRO-2": 2}
"""Bytes per parameter that every rank keeps whole under each ZeRO stage; the ranks divide the rest."""
COURSE = "a course on data parallelism, week 14"
OVERVIEW = "an overview of distributed training"
LESSON = "a lesson on distributed training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saying:
    """One claim of a text, before it is compared."""

    says: str
    source: str
    said_ratio: float
    unit: Unit
    rule: Literal["about", "at most", "more than", "divides"] = "about"
    note: str = ""
    without_ratio: float | None = None
    """The number without any effect, where the note names a condition that a run need not meet: an effect of another
    size is loose then, and none or the opposite is wrong."""
    least_ratio: float = -math.inf
    """The lowest ratio that the change between the runs can cause."""
    most_ratio: float = math.inf
    """The highest ratio that the change between the runs can cause."""


def compared(saying: Saying, measured: float | TimedRatio | None) -> tuple[Claim, ...]:
    """The claim beside the measured number; nothing without one, and no verdict on times that tell nothing."""
    if measured is None:
        return ()
    doubt = _doubt(saying, measured) if isinstance(measured, TimedRatio) else ""
    found = measured.middle_ratio if isinstance(measured, TimedRatio) else measured
    return (
        Claim(
            says=saying.says,
            source=saying.source,
            said=saying.said_ratio,
            computed=found,
            unit=saying.unit,
            verdict="unclear" if doubt else _verdict(saying, found),
            note=doubt or saying.note,
        ),
    )


def _verdict(saying: Saying, measured: float) -> Verdict:
    if saying.rule == "more than":
        return "right" if measured > saying.said_ratio else "wrong"
    if saying.rule == "divides":
        return divides(saying.said_ratio, measured)
    found = (at_most if saying.rule == "at most" else near)(saying.said_ratio, measured)
    if found != "wrong" or saying.without_ratio is None:
        return found
    is_an_effect = (measured - saying.without_ratio) * (saying.said_ratio - saying.without_ratio) > 0
    return "loose" if is_an_effect else "wrong"


def _doubt(saying: Saying, measured: TimedRatio) -> str:
    """Why measured times allow no verdict; nothing where they do."""
    doubt = doubt_about(measured.runs)
    if doubt:
        return f"no verdict: {doubt}"
    if not saying.least_ratio - RIGHT_WITHIN <= measured.middle_ratio <= saying.most_ratio + RIGHT_WITHIN:
        return (
            "no verdict: what differs between the runs cannot do this, so the machine was slower during one of them; "
            "run the lab again"
        )
    ends = (measured.low_ratio, measured.high_ratio)
    if _verdict(saying, measured.middle_ratio) == "wrong" and any(_verdict(saying, end) != "wrong" for end in ends):
        return "no verdict: single steps of the runs differ by more than the runs do; more --steps tell more"
    return ""


def states_ratio(over: Outcome | None, under: Outcome | None) -> float | None:
    """The most that parameters, gradients and optimizer states held at any moment, of two runs."""
    amounts = [
        sum(number(found.measurement, "memory", "most_bytes", name) or 0.0 for name in STATES) if found else 0.0
        for found in (over, under)
    ]
    return amounts[0] / amounts[1] if all(amounts) else None


def memory_claims(outcomes: Sequence[Outcome]) -> tuple[Claim, ...]:
    """Stages of ZeRO divide by as much as the paper says; FSDP has room for a larger model."""
    return (*_division_claims(outcomes), *_room_claim(outcomes))


def _division_claims(outcomes: Sequence[Outcome]) -> Iterator[Claim]:
    ddp, fsdp = outcome_of(outcomes, "DDP, small"), outcome_of(outcomes, "FSDP, small")
    for name, whole in ZERO_WHOLE_BYTES.items():
        found = outcome_of(outcomes, f"{name}, small")
        if found is None:
            continue
        ranks = found.plan.layout.dp_shard
        said = ZERO_BYTES / (whole + (ZERO_BYTES - whole) / ranks)
        saying = Saying(
            says=f"{name} divides DDP's states by {said:.2g} at least on {ranks} rank{'s' if ranks > 1 else ''}",
            source=ZERO_PAPER,
            said_ratio=said,
            unit="ratio",
            rule="divides",
            note=(
                f"the paper counts {ZERO_BYTES} bytes a parameter and divides {ZERO_BYTES - whole} of them, "
                f"by {ZERO_BYTES // whole} in all on very many ranks"
            ),
        )
        yield from compared(saying, states_ratio(ddp, found))
    if fsdp is not None:
        ranks = fsdp.plan.layout.dp_shard
        saying = Saying(
            says=f"FSDP divides the states by the {ranks} rank{'s' if ranks > 1 else ''}",
            source=ZERO_PAPER,
            said_ratio=float(ranks),
            unit="ratio",
            rule="divides",
            note="the most of each at any moment: gradients of one unit are whole until they are scattered",
        )
        yield from compared(saying, states_ratio(ddp, fsdp))


def _room_claim(outcomes: Sequence[Outcome]) -> Iterator[Claim]:
    ddp, larger = outcome_of(outcomes, "DDP, small"), outcome_of(outcomes, "FSDP, larger")
    peaks = ratio(PEAK, larger, ddp)
    small = measured_memory(ddp, ("parameters",)) if ddp else None
    part = measured_memory(larger, ("parameters",)) if larger else None
    if larger is None or peaks is None or not small or not part:
        return
    sizes = part * larger.plan.layout.dp_shard / small
    yield Claim(
        says="FSDP holds a larger model in the memory of DDP's small one",
        source=COURSE,
        said=f"{sizes:.1f}x the model",
        computed=f"{peaks:.2f}x the peak",
        verdict="right" if peaks <= 1 else "loose" if peaks < sizes else "wrong",
        note="only states are divided, by the number of ranks; a larger model's activations are its own",
    )


def throughput_claims(outcomes: Sequence[Outcome]) -> tuple[Claim, ...]:
    """Whether the plain strategy is faster where it fits."""
    return tuple(
        claim
        for size in ("small", "larger")
        for claim in compared(
            Saying(
                says=f"Where it fits, DDP is faster than FSDP ({size} model)",
                source=OVERVIEW,
                said_ratio=1.0,
                unit="ratio",
                rule="more than",
            ),
            timed_ratio(TOKENS, outcome_of(outcomes, f"DDP, {size}"), outcome_of(outcomes, f"FSDP, {size}")),
        )
    )


def checkpointing_claims(outcomes: Sequence[Outcome]) -> tuple[Claim, ...]:
    """A third more computation for a fraction of the activations."""
    none, full = outcome_of(outcomes, "FSDP, small"), outcome_of(outcomes, "full")
    slower = timed_ratio(STEP, full, none)
    time = Saying(
        says="Full checkpointing makes a step about 30% slower at most",
        source=f"{CHECKPOINT_PAPER}; {COURSE}",
        said_ratio=0.3,
        unit="fraction",
        rule="at most",
        least_ratio=0.0,
    )
    memory = Saying(
        says="Full checkpointing leaves about a third of the activations",
        source=COURSE,
        said_ratio=3.0,
        unit="ratio",
        note="what is left is one input a block and what one block, or the loss, needs at once: more blocks save more",
        without_ratio=1.0,
    )
    return (
        *compared(time, slower.through(lambda ratio: ratio - 1) if slower else None),
        *compared(memory, ratio(ACTIVATIONS, none, full)),
    )


def offload_claims(outcomes: Sequence[Outcome]) -> tuple[Claim, ...]:
    """The claims that offload buys memory with speed."""
    none = outcome_of(outcomes, "FSDP, small")
    return tuple(
        claim
        for name in ("optimizer offloaded", "parameters offloaded", "activations offloaded")
        for claim in compared(
            Saying(
                says=f"With {name} a step is slower",
                source=COURSE,
                said_ratio=1.0,
                unit="ratio",
                rule="more than",
                least_ratio=1.0,
            ),
            timed_ratio(STEP, outcome_of(outcomes, name), none),
        )
    )


def scaling_claims(outcomes: Sequence[Outcome]) -> tuple[Claim, ...]:
    """The claims about the throughput of N processes over N times the throughput of one."""
    alone = outcome_of(outcomes, "1 process")
    return tuple(
        claim
        for outcome in outcomes
        if outcome.plan.layout.world_size > 1 and outcome.measurement is not None
        for claim in compared(
            Saying(
                says=f"Throughput grows linearly to {outcome.plan.layout.world_size} processes",
                source=LESSON,
                said_ratio=1.0,
                unit="fraction",
                note="scaling efficiency: tokens/s of N over N times those of one",
                most_ratio=1.0,
            ),
            timed_ratio(TOKENS, outcome, alone),
        )
    )


def prefetch_claims(outcomes: Sequence[Outcome]) -> tuple[Claim, ...]:
    """Compare statements about prefetching with how much longer a step takes without it."""
    slower = timed_ratio(STEP, outcome_of(outcomes, "no prefetch"), outcome_of(outcomes, "one unit ahead"))
    saying = Saying(
        says="Without prefetch large models lose 20 to 30% of their speed",
        source=COURSE,
        said_ratio=0.25,
        unit="fraction",
        note="as much as the gathers take of a step: less on fast links, on small models and with many tokens",
        without_ratio=0.0,
        least_ratio=0.0,
    )
    return compared(saying, slower.through(lambda ratio: 1 - 1 / ratio) if slower else None)


def communication_claims(outcomes: Sequence[Outcome]) -> tuple[Claim, ...]:
    """The claim that most of what FSDP sends is hidden."""
    fsdp = outcome_of(outcomes, "FSDP, small")
    whole = measured_share(fsdp, ("all_gather", *SCATTERS), "work_s") if fsdp else None
    exposed = EXPOSED.measured(fsdp) if fsdp else None
    saying = Saying(
        says="At least half of FSDP's communication hides under computation (exposed share of it)",
        source=FSDP_PAPER,
        said_ratio=0.5,
        unit="fraction",
        rule="at most",
        note="where a block computes for longer than its parameters travel, and messages do not need what computes",
        without_ratio=1.0,
    )
    return compared(saying, min(1.0, exposed / whole) if exposed is not None and whole else None)
