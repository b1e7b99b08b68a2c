"""Step time of a plan and the rates that follow from it."""

from collections.abc import Iterable, Iterator, Sequence

from shardwise.ledger import TimeComponent
from shardwise.plan import Plan
from shardwise.predict.group_placement import placement_doubts
from shardwise.predict.model_flop import attention_flop_per_token, mfu_convention, plan_flop_per_token
from shardwise.predict.stage_time import CollectiveTime, StageClock, StageTime
from shardwise.predict.step_parts import StepParts, own_s, step_parts
from shardwise.predict.time_band import Ratios, band_ratios, independent_ratios, is_attention_doubted
from shardwise.prediction import CommunicationEntry, Throughput, TimeEntry, TimePrediction
from shardwise.step.attention_kernel import attention_kernel
from shardwise.step.operation_context import MATMUL_DTYPES, usable_dtype
from shardwise.units import Seconds

DOUBTED_LINK_RATIO = 1.0
"""Where a link's rate or a network's latency had to be assumed, what communication adds may be half or twice that."""
DOUBTED_ATTENTION_RATIO = 1.0
"""Where fused attention was timed on no part of the architecture it may take half or twice as long: the shares of the
peak that one kernel reaches on A100 and on H100 differ by a factor of two (``kernel_rates.ATTENTION_RATES``)."""


def predict_time(plan: Plan) -> tuple[TimePrediction, Throughput]:
    """Step time with its parts, and tokens per second, MFU and HFU."""
    parts = step_parts(plan)
    slowest = parts.slowest
    components = time_components(parts)
    step_s = sum(entry.duration_s for entry in components)
    low_ratio, high_ratio = independent_ratios(_doubts(plan, slowest, components))
    prediction = TimePrediction(
        step_s=step_s,
        step_low_s=low_ratio * step_s,
        step_high_s=high_ratio * step_s,
        components=components,
        communication=_communication(slowest.collectives, parts.clock),
        attention_kernel=None if plan.model.attention is None else attention_kernel(plan),
    )
    return prediction, _throughput(plan, parts.times, step_s)


def _doubts(plan: Plan, time: StageTime, components: Sequence[TimeEntry]) -> Iterator[Ratios]:
    """The bands of everything that may make the step shorter or longer, each by itself.

    The runs that are like the plan; a faster or slower host; links whose rates had to be assumed; attention that was
    never timed.
    """
    step_s = sum(entry.duration_s for entry in components)
    compute = time.compute
    yield band_ratios(plan)
    if time.busy_s:
        yield 1 - compute.host_gain_s / time.busy_s, 1 + compute.host_loss_s / time.busy_s
    if placement_doubts(plan.cluster):
        yield _half_or_more(_exposed_s(components) / step_s, DOUBTED_LINK_RATIO)
    if is_attention_doubted(plan):
        attention_s = compute.attention_forward_s + compute.attention_backward_s
        yield _half_or_more(attention_s / step_s, DOUBTED_ATTENTION_RATIO)


def _half_or_more(share: float, doubted_ratio: float) -> Ratios:
    """The band of a share of the step that may take half its time, or ``1 + doubted_ratio`` times it."""
    return 1 - share / 2, 1 + doubted_ratio * share


def _exposed_s(components: Iterable[TimeEntry]) -> Seconds:
    return sum(entry.duration_s for entry in components if entry.component == "exposed_communication")


def time_components(parts: StepParts) -> tuple[TimeEntry, ...]:
    """The parts of the slowest stage's step; they sum to it."""
    return _components(parts.slowest, offload_s=parts.offloads[parts.critical].total_s, bubble_s=parts.bubble_s)


def stage_components(parts: StepParts, stage: int) -> tuple[TimeEntry, ...]:
    """The parts of any stage's step, the time it waits for others included; they sum to it."""
    if stage == parts.critical:
        return time_components(parts)
    time, offload = parts.times[stage], parts.offloads[stage]
    return _components(time, offload_s=offload.total_s, bubble_s=max(0.0, parts.waits.step_s - own_s(time, offload)))


def _components(time: StageTime, *, offload_s: Seconds, bubble_s: Seconds) -> tuple[TimeEntry, ...]:
    compute = time.compute
    durations: tuple[tuple[TimeComponent, Seconds], ...] = (
        ("forward", compute.forward_s),
        ("backward", compute.backward_s),
        ("recompute", compute.recompute_s),
        ("optimizer", compute.optimizer_s),
        ("exposed_communication", time.model_parallel_exposed_s + time.step_exposed_s),
        ("pipeline_bubble", bubble_s),
        ("offload", offload_s),
        ("other", 0.0),
    )
    return tuple(TimeEntry(component=component, duration_s=duration_s) for component, duration_s in durations)


def _communication(times: Iterable[CollectiveTime], clock: StageClock) -> tuple[CommunicationEntry, ...]:
    """Entries by name, payload and group; what is hidden and what is not of one call are added up."""
    merged: dict[tuple[str, str, int, int], CommunicationEntry] = {}
    for time in times:
        call = time.collective
        key = (call.name, call.axis, call.group_size, call.num_bytes)
        before = merged.get(key)
        chosen = clock.call(call)
        merged[key] = CommunicationEntry(
            name=call.name,
            kind=call.kind,
            axis=call.axis,
            group_size=call.group_size,
            num_bytes=call.num_bytes,
            count=call.count + (before.count if before else 0),
            total_s=time.total_s + (before.total_s if before else 0.0),
            exposed_s=time.exposed_s + (before.exposed_s if before else 0.0),
            algorithm=chosen.algorithm,
            protocol=chosen.protocol,
            bottleneck=chosen.bottleneck,
            basis=chosen.basis,
        )
    return tuple(merged.values())


def _throughput(plan: Plan, times: Sequence[StageTime], step_s: Seconds) -> Throughput:
    dtype = usable_dtype(MATMUL_DTYPES[plan.recipe.precision], plan.cluster.gpu)
    dtype = "bf16" if dtype == "fp8" else dtype
    peak = plan.cluster.gpu.peak_flop_per_s(dtype)
    world = plan.layout.world_size
    is_frozen = plan.recipe.adapter != "none"
    per_token = plan_flop_per_token(plan)
    attention = attention_flop_per_token(plan.model, seq_len=plan.recipe.document_len)
    per_step = per_token * plan.tokens_per_step
    mfu = per_step / (step_s * world * peak) if peak else None
    forwards = 2 if is_frozen else 3  # that a step's own FLOP are worth
    tokens_per_s = plan.tokens_per_step / step_s
    return Throughput(
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / world,
        mfu_fraction=mfu,
        hfu_fraction=None if mfu is None else mfu * (1 + _recomputed_fraction(times) / forwards),
        mfu_convention=f"{mfu_convention(plan.model, is_base_frozen=is_frozen)}{_packed(plan)}; dense {dtype} peak",
        model_flop_per_step=per_step,
        attention_fraction=attention / per_token,
        peak_flop_per_s=peak,
    )


def _packed(plan: Plan) -> str:
    """Words that packing adds to the MFU convention: attention is counted within documents; empty without packing."""
    document_len = plan.recipe.document_len
    return f" within documents of {document_len} tokens" if document_len < plan.recipe.seq_len else ""


def _recomputed_fraction(times: Sequence[StageTime]) -> float:
    """Share of the forward FLOP that runs a second time."""
    forward = sum(time.forward_flop for time in times)
    return sum(time.recompute_flop for time in times) / forward if forward else 0.0
