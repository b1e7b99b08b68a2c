"""What costs time in a measured step, the knob that would help, and what turning it can gain at most."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from shardwise.measure.profile_records import (
    CollectiveFamily,
    KernelShare,
    Knob,
    ProfileFinding,
    RankProfile,
    UnitExposure,
)
from shardwise.measure.step_split import StepSplit
from shardwise.step.inventory import CollectiveKind
from shardwise.units import Seconds, format_percent, format_seconds

WORTH_SAYING_FRACTION = 0.01
"""Share of the step time; smaller gains are noise between steps."""
FUSION_LEAVES_FRACTION = 0.5
"""Compiling a block about halves the bytes of its elementwise kernels (``docs/memory.md``: a fused norm and SwiGLU)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """A finding before it is compared with the step."""

    knob: Knob
    sentence: str
    advice: str
    gain_s: Seconds
    axis: str = ""


def find_costs(
    *,
    split: StepSplit,
    collectives: Sequence[CollectiveFamily],
    units: Sequence[UnitExposure],
    kernels: Sequence[KernelShare],
    straggler: int | None,
    ranks: Sequence[RankProfile],
) -> tuple[ProfileFinding, ...]:
    """The findings that are worth saying, the largest possible gain first."""
    found = (
        *_host(split, ranks),
        *_gathers(units),
        *_reductions(split, units),
        *_families(split, collectives, units),
        *_straggler(straggler, ranks),
        *_idle(split),
        *_memory_bound(kernels),
        *_copies(split),
    )
    worth = sorted(
        (cost for cost in found if cost.gain_s >= WORTH_SAYING_FRACTION * split.step_s), key=lambda cost: -cost.gain_s
    )
    return tuple(
        ProfileFinding(
            knob=cost.knob,
            sentence=cost.sentence,
            advice=cost.advice,
            gain_s=cost.gain_s,
            gain_fraction=cost.gain_s / split.step_s,
            axis=cost.axis,
        )
        for cost in worth
    )


def _host(split: StepSplit, ranks: Sequence[RankProfile]) -> Iterator[_Cost]:
    num_kernels = round(sum(rank.num_kernels for rank in ranks) / len(ranks))
    yield _Cost(
        knob="compile",
        sentence=f"the device waits {_share(split.host_s, split)} of the step for the host, which launches "
        f"{num_kernels:,} kernels a step",
        advice="compile the blocks (fewer kernels), use CUDA graphs, or give each rank more work at once",
        gain_s=split.host_s,
    )


def _gathers(units: Sequence[UnitExposure]) -> Iterator[_Cost]:
    """Whether gathers are prefetched, and the unit whose gather is exposed most."""
    for is_backward, direction in ((False, "forward"), (True, "backward")):
        gathers = [unit for unit in units if unit.kind == "all_gather" and unit.is_backward == is_backward]
        if not gathers:
            continue
        hidden = median(1 - unit.exposed_fraction for unit in gathers)
        worst = max(gathers, key=lambda unit: unit.exposed_s)
        verdict = "on" if hidden > 0.5 else "off"
        covered = (
            f"{direction} prefetch is {verdict}: compute covers {format_percent(hidden)} of the median unit's "
            "all-gather; "
        )
        exposed = f"{format_percent(worst.exposed_fraction)} exposed ({format_seconds(worst.exposed_s)})"
        of_one = f"the {direction} all-gather of "  # a single unit has none before it that could gather ahead
        yield _Cost(
            knob="prefetch",
            sentence=f"{of_one}{worst.unit} is {exposed}"
            if len(gathers) == 1
            else f"{covered}{worst.unit}'s is {exposed}",
            advice=_prefetch_advice(direction, is_on=verdict == "on"),
            gain_s=sum(unit.exposed_s for unit in gathers),
        )


def _prefetch_advice(direction: str, *, is_on: bool) -> str:
    if is_on:
        return "give a gather more compute to hide under (larger units or micro-batches), or shard over fewer GPUs"
    return (
        f"set_modules_to_{direction}_prefetch, and CUDA_DEVICE_MAX_CONNECTIONS unset (1 puts all streams in one queue)"
    )


def _reductions(split: StepSplit, units: Sequence[UnitExposure]) -> Iterator[_Cost]:
    reductions = [unit for unit in units if unit.kind in ("reduce_scatter", "all_reduce")]
    if reductions:
        worst = max(reductions, key=lambda unit: unit.exposed_s)
        exposed_s = sum(unit.exposed_s for unit in reductions)
        yield _Cost(
            knob="overlap",
            sentence=f"reductions are exposed for {_share(exposed_s, split)} of the step, most in {worst.unit} "
            f"({format_seconds(worst.exposed_s)})",
            advice="accumulate over more micro-batches, reduce in bf16, or replicate across nodes (HSDP)",
            gain_s=exposed_s,
            axis="dp_shard",
        )


FAMILY_ADVICE: dict[CollectiveKind | None, str] = {
    "all_reduce": "start it under the backward pass (DDP buckets, async tensor parallelism)",
    "all_gather": "issue it earlier, or gather over fewer GPUs",
    "reduce_scatter": "reduce once per step instead of once per micro-batch, or in bf16",
    "all_to_all": "keep the ranks that exchange inside a node, or send and compute in two halves",
    "send_recv": "more micro-batches, or fewer and fatter stages",
    "broadcast": "keep the value on every rank",
    None: "record shapes and process groups (record_shapes=True), so that the report can say which it is",
}


def _families(
    split: StepSplit, collectives: Sequence[CollectiveFamily], units: Sequence[UnitExposure]
) -> Iterator[_Cost]:
    """Exposed collectives that no FSDP unit accounts for."""
    of_units = {unit.kind for unit in units}
    for family in collectives:
        if family.kind not in of_units:
            over = f" over {family.axis}" if family.axis else ""
            yield _Cost(
                knob="overlap",
                sentence=f"{family.kind or 'unnamed communication'}{over} is exposed for "
                f"{_share(family.exposed_s, split)} of the step",
                advice=FAMILY_ADVICE[family.kind],
                gain_s=family.exposed_s,
                axis=family.axis,
            )


def _idle(split: StepSplit) -> Iterator[_Cost]:
    yield _Cost(
        knob="idle",
        sentence=f"the device is idle {_share(split.idle_s, split)} of the step with its next kernel already launched",
        advice="look for synchronising calls (.item(), .cpu(), nonzero) and for streams that wait for one another",
        gain_s=split.idle_s,
    )


def _straggler(straggler: int | None, ranks: Sequence[RankProfile]) -> Iterator[_Cost]:
    if straggler is None:
        return
    waits = [rank.wait_s for rank in ranks if rank.rank != straggler and rank.wait_s is not None]
    yield _Cost(
        knob="straggler",
        sentence=f"rank {straggler} enters collectives last; the others wait {format_seconds(median(waits))} a step",
        advice=f"compare rank {straggler}'s clocks, data loading and kernels with another rank's",
        gain_s=median(waits),
    )


def _memory_bound(kernels: Sequence[KernelShare]) -> Iterator[_Cost]:
    share = next((kernel for kernel in kernels if kernel.family == "memory_bound"), None)
    if share is not None and share.share_fraction > 0.25:
        yield _Cost(
            knob="compile",
            sentence=f"kernels that only move memory take {format_percent(share.share_fraction)} of the compute time",
            advice="compile the blocks, or use fused norms, rotary embeddings, activations and optimizer",
            gain_s=share.duration_s * FUSION_LEAVES_FRACTION,
        )


def _copies(split: StepSplit) -> Iterator[_Cost]:
    yield _Cost(
        knob="copies",
        sentence=f"copies run alone for {_share(split.copies_s, split)} of the step",
        advice="pin host memory, copy on a stream of its own with non_blocking=True, or offload less",
        gain_s=split.copies_s,
    )


def _share(part_s: Seconds, split: StepSplit) -> str:
    return f"{format_percent(part_s / split.step_s)} ({format_seconds(part_s)})" if split.step_s else "none"
