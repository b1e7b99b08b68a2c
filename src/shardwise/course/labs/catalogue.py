"""The seven labs."""

from dataclasses import replace

from shardwise.course.labs import claims, conclusions
from shardwise.course.labs.quantities import (
    ACTIVATIONS,
    EXPOSED,
    HOST,
    OPTIMIZER,
    PEAK,
    SCATTERS,
    STEP,
    TOKENS,
    WEIGHTS,
    share_quantity,
)
from shardwise.course.labs.trial import Lab, Trial
from shardwise.errors import PlanError

SCALES = (1, 2, 4)
DDP = Trial(name="DDP, small", strategy="ddp")
ZERO_1 = Trial(name="ZeRO-1, small", strategy="zero-1")
ZERO_2 = Trial(name="ZeRO-2, small", strategy="zero-2")
FSDP = Trial(name="FSDP, small")
DDP_LARGER = Trial(name="DDP, larger", strategy="ddp", size="larger")
FSDP_LARGER = Trial(name="FSDP, larger", size="larger")


def _scales(num_processes: int, is_default: bool) -> tuple[Trial, ...]:
    """1, 2 and 4; or the powers of two up to the number that was asked for."""
    sizes = SCALES if is_default and num_processes < max(SCALES) else _powers_of_two(num_processes)
    return tuple(Trial(name=f"{size} process" + ("es" if size > 1 else ""), num_processes=size) for size in sizes)


def _powers_of_two(highest: int) -> tuple[int, ...]:
    return tuple(2**power for power in range(highest.bit_length()))


MEMORY = Lab(
    name="memory",
    summary="what DDP, ZeRO and FSDP keep on every rank, for a small and a larger model",
    question=(
        "Every rank of DDP keeps all parameters, gradients and optimizer states. What does a rank keep when ZeRO "
        "and FSDP divide them, and how much larger may the model be?"
    ),
    expect=(
        "States shrink from stage to stage: ZeRO-1 divides what Adam keeps, ZeRO-2 the gradients as well, FSDP "
        "also the parameters, then all by the number of ranks. Every step has two micro-batches, which ZeRO-1 adds up "
        "whole; with one, it would keep no more gradients than ZeRO-2. ZeRO-1 and ZeRO-2 gather all weights for a "
        "step, FSDP those of a block or two. Activations stay as they are. Where the larger model does not fit under "
        "DDP, as 8B on a GPU of 80 GB, that run ends for want of memory, and the FSDP run beside it trains."
    ),
    trials=lambda _count, _default: tuple(
        replace(trial, num_microbatches=2) for trial in (DDP, ZERO_1, ZERO_2, FSDP, DDP_LARGER, FSDP_LARGER)
    ),
    quantities=(PEAK, OPTIMIZER, WEIGHTS),
    claims=claims.memory_claims,
    conclusion=conclusions.memory_conclusion,
    min_processes=2,
)
THROUGHPUT = Lab(
    name="throughput",
    summary="tokens per second of DDP, ZeRO and FSDP, for a small and a larger model",
    question="FSDP communicates parameters where DDP has them. When does that cost speed, and how much?",
    expect=(
        "DDP sends 2(N-1)/N of the gradients a step; FSDP gathers parameters twice and scatters gradients, three "
        "(N-1)/N of the model, yet most of it under computation. With few tokens a step DDP is faster; the more "
        "computation per byte, the smaller the difference. ZeRO-2 gathers once."
    ),
    trials=lambda _count, _default: (DDP, ZERO_2, FSDP, DDP_LARGER, FSDP_LARGER),
    quantities=(TOKENS, STEP, EXPOSED),
    claims=claims.throughput_claims,
    conclusion=conclusions.throughput_conclusion,
    min_processes=2,
)
CHECKPOINTING = Lab(
    name="checkpointing",
    summary="no, selective and full activation checkpointing: memory against recomputation",
    question="How much activation memory does checkpointing save, and what does computing again cost?",
    expect=(
        "Full checkpointing keeps each block's input and computes the block again in backward: one forward more, "
        "a third of the computation at most. Selective checkpointing keeps attention and every second product: "
        "about half the memory for a small part of the time. States do not change."
    ),
    trials=lambda _count, _default: (
        FSDP,
        Trial(name="selective", recipe={"recompute": "selective"}),
        Trial(name="full", recipe={"recompute": "full"}),
    ),
    quantities=(ACTIVATIONS, PEAK, STEP),
    claims=claims.checkpointing_claims,
    conclusion=conclusions.checkpointing_conclusion,
)
OFFLOAD = Lab(
    name="offload",
    summary="optimizer states, parameters with them, or activations in the host's memory: what it costs",
    question="How much device memory does offloading to the host free, and how much slower is a step?",
    expect=(
        "With parameters on the host their gradients and optimizer states are there too, and the optimizer runs "
        "on the CPUs: device memory falls by all of them, and the step waits for copies and for the update. "
        "Activations travel out in forward and back in backward."
    ),
    trials=lambda _count, _default: (
        FSDP,
        Trial(name="optimizer offloaded", recipe={"offload": "optimizer"}),
        Trial(name="parameters offloaded", recipe={"offload": "parameters"}),
        Trial(name="activations offloaded", recipe={"activation_offload": True}),
    ),
    quantities=(STEP, PEAK, HOST),
    claims=claims.offload_claims,
    conclusion=conclusions.offload_conclusion,
    on_cpu=(
        "CPUs have no second memory: what is offloaded stays in the same one, so that this lab shows the "
        "cost of the copies here and the memory they free only on GPUs. Predictions count the host apart."
    ),
)
SCALING = Lab(
    name="scaling",
    summary="1, 2 and 4 processes with the same work each: scaling efficiency",
    question="With N times the processes and N times the sequences, does a step take as long as with one?",
    expect=(
        "Efficiency is the throughput of N divided by N times that of one. What is lost is exposed communication, "
        "waiting for the slowest rank, and, where processes share cores, the cores."
    ),
    trials=_scales,
    quantities=(TOKENS, STEP, EXPOSED),
    claims=claims.scaling_claims,
    conclusion=conclusions.scaling_conclusion,
    min_processes=2,
    on_cpu="More processes than cores share them: their efficiency says nothing about a cluster.",
)
PREFETCH = Lab(
    name="prefetch",
    summary="FSDP that gathers no unit ahead, one, and two",
    question="FSDP can gather the next block while one computes. What does a step lose without that?",
    expect=(
        "Without prefetch every gather of a block is exposed. One unit ahead hides it where a block computes "
        "longer than the next one travels. Two units ahead cost the memory of one more and help where blocks are "
        "uneven."
    ),
    trials=lambda _count, _default: (
        Trial(name="no prefetch", layout={"prefetch_units": 0}),
        Trial(name="one unit ahead"),
        Trial(name="two units ahead", layout={"prefetch_units": 2}),
    ),
    quantities=(STEP, EXPOSED, PEAK),
    claims=claims.prefetch_claims,
    conclusion=conclusions.prefetch_conclusion,
    min_processes=2,
    on_cpu="Messages of gloo need the cores that compute: what is hidden still takes their time.",
)
COMMUNICATION = Lab(
    name="communication",
    summary="the share of a step in all-gather and reduce-scatter, and what of it is exposed",
    question="Which part of a step is communication, of which kind, and how much of it does computation hide?",
    expect=(
        "DDP has all-reduces alone. FSDP gathers every block in forward and again in backward, and scatters its "
        "gradients once, with mixed precision by an all-to-all in 16 bits; kept gathered, each block is gathered "
        "once. Work includes waiting for the slowest rank; exposed is what no computation covers, and what a better "
        "layout could win."
    ),
    trials=lambda _count, _default: (
        DDP,
        FSDP,
        Trial(name="FSDP, kept gathered", layout={"reshard_after_forward": False}),
        FSDP_LARGER,
    ),
    quantities=(
        EXPOSED,
        share_quantity("gathers", "Share of the step in all-gather, hidden or not", ("all_gather",)),
        share_quantity(
            "scatters", "Share of the step in reduce-scatter, or in the all-to-all that takes its place", SCATTERS
        ),
    ),
    claims=claims.communication_claims,
    conclusion=conclusions.communication_conclusion,
    min_processes=2,
    has_families=True,
)
LABS = (MEMORY, THROUGHPUT, CHECKPOINTING, OFFLOAD, SCALING, PREFETCH, COMMUNICATION)


def find_lab(name: str) -> Lab:
    """The lab called ``name``.

    Raises:
        PlanError: there is none.
    """
    found = next((lab for lab in LABS if lab.name == name), None)
    if found is None:
        raise PlanError(
            f"there is no lab '{name}'; the labs are {', '.join(lab.name for lab in LABS)}",
            code="lab-name",
            fix="run `shardwise lab` to see what each one asks",
        )
    return found
