"""Findings that divide the step's time: components, exposed communication by name, utilisation and the band."""

from shardwise.explain.records import Finding
from shardwise.explain.told import compared, told
from shardwise.ledger import TimeComponent
from shardwise.plan import Plan
from shardwise.predict import exposed_communication
from shardwise.prediction import CommunicationEntry, Prediction
from shardwise.units import format_band, format_gb, format_percent, format_seconds

__all__ = ["TIME_MEANINGS", "time_findings"]

SMALL_FRACTION = 0.02

TIME_MEANINGS: dict[TimeComponent, tuple[str, str]] = {
    "forward": ("matrix products and attention of the forward pass", "a faster dtype (fp8-mixed) or more GPUs"),
    "backward": ("gradients of inputs and weights", "a faster dtype (fp8-mixed) or more GPUs"),
    "recompute": ("forward work done a second time to save memory", "recompute=selective or none where memory allows"),
    "optimizer": ("the update of parameters, bound by memory bandwidth", "divide it over more ranks (zero_stage>=1)"),
    "exposed_communication": (
        "communication that no computation hides",
        "fewer or larger messages: less tp across slow links, HSDP inside a node, larger micro-batches",
    ),
    "pipeline_bubble": ("stages waiting for micro-batches", "more micro-batches per step, vpp>1, or a smaller pp"),
    "offload": (
        "copies over PCIe and the update on the host",
        "keep the optimizer on the GPU: more GPUs or 8-bit states",
    ),
    "other": ("launches, memory-bound kernels and the loss", "compile, fused kernels, larger micro-batches"),
}
"""Each component in words, and what makes it shorter."""


def time_findings(plan: Plan, prediction: Prediction) -> tuple[Finding, ...]:
    """Step time with its band, the dominant cost beyond useful compute, exposed communication, and utilisation."""
    found = [_step(plan, prediction), _overhead(prediction), _exposed(plan, prediction), _utilisation(prediction)]
    return tuple(finding for finding in found if finding is not None)


def _step(plan: Plan, prediction: Prediction) -> Finding:
    time, throughput, count = prediction.time, prediction.throughput, plan.num_microbatches
    sequences, ranks = plan.global_batch_size, plan.layout.data_parallel_size
    return Finding(
        topic="time",
        claim=f"One step of {plan.tokens_per_step:,} tokens takes {format_seconds(time.step_s)} "
        f"({format_band(time.step_low_s, time.step_high_s, of_s=time.step_s)}), "
        f"{throughput.tokens_per_s_per_gpu:,.0f} tokens/s per GPU.",
        numbers=tuple(
            told(entry.component, prediction, f"time.components_s.{entry.component}", "s")
            for entry in sorted(time.components, key=lambda entry: -entry.duration_s)
            if entry.duration_s
        ),
        because=f"a step trains {'one sequence' if sequences == 1 else f'{sequences:,} sequences'} of "
        f"{plan.recipe.seq_len:,} tokens in {'one micro-batch' if count == 1 else f'{count:,} micro-batches'} on "
        f"{'one data-parallel rank' if ranks == 1 else f'each of {ranks:,} data-parallel ranks'}",
    )


def _overhead(prediction: Prediction) -> Finding | None:
    """The largest part of the step that is not forward or backward: what tuning can win."""
    time = prediction.time
    useful = ("forward", "backward")
    overheads = [entry for entry in time.components if entry.component not in useful]
    if not overheads:
        return None
    top = max(overheads, key=lambda entry: entry.duration_s)
    fraction = top.duration_s / time.step_s
    if fraction < SMALL_FRACTION:
        return Finding(
            topic="time",
            claim=f"Nearly all of the step is forward and backward; the largest overhead, {top.component}, is "
            f"{format_percent(fraction)}.",
            suggestion="only faster kernels, a lower precision or more GPUs make it much faster",
        )
    words, remedy = TIME_MEANINGS[top.component]
    return Finding(
        topic="time",
        claim=f"The largest cost beside forward and backward is {top.component}: {format_seconds(top.duration_s)}, "
        f"{format_percent(fraction)} of the step.",
        numbers=(told(top.component, prediction, f"time.components_s.{top.component}", "s"),),
        because=f"it is {words}",
        suggestion=remedy,
    )


def _exposed(plan: Plan, prediction: Prediction) -> Finding | None:
    entries = sorted(prediction.time.communication, key=lambda entry: -entry.exposed_s)
    exposed = [entry for entry in entries if entry.exposed_s > 0]
    if not exposed:
        return None
    top = exposed[0]
    numbers = {id(entry): number for number, entry in enumerate(prediction.time.communication)}
    free = exposed_communication(plan)
    alone = ", ".join(f"{share.name} {format_seconds(share.exposed_s)}" for share in free.axes)
    by_axis = f", if one axis alone were: {alone}" if len(free.axes) > 1 else ""
    return Finding(
        topic="communication",
        claim=f"Most exposed: {_entry_text(top)}, {format_seconds(top.exposed_s)} of its "
        f"{format_seconds(top.total_s)} are not hidden. The step would lose {format_seconds(free.total_s)} if "
        f"communication were free{by_axis}.",
        numbers=(
            *(
                told(f"{entry.name} exposed", prediction, f"time.communication.{numbers[id(entry)]}.exposed_s", "s")
                for entry in exposed[:6]
            ),
            *(told(f"if {share.name} were free", free, f"exposed.axes_s.{share.name}", "s") for share in free.axes),
            told("shared by axes", free, "exposed.shared_by_axes_s", "s"),
        ),
        because=_call_text(top),
        suggestion=_communication_remedy(top, plan),
    )


ALGORITHM_WORDS = {
    "ring": "a ring",
    "tree": "trees",
    "nvls": "a reduction in the switch",
    "nvls_tree": "trees over reductions in the switches",
    "pat": "aggregated trees",
    "p2p": "messages from rank to rank",
}

BASIS_WORDS = {"measured": "as such groups were timed", "scaled": "scaled from groups that were timed"}


def _call_text(entry: CommunicationEntry) -> str:
    """Names the algorithm that NCCL takes for one call and what limits it; empty for what is no call of NCCL."""
    if not entry.algorithm:
        return ""
    limit = "its steps" if entry.bottleneck == "latency" else f"the {entry.bottleneck} rate"
    return (
        f"NCCL takes {ALGORITHM_WORDS[entry.algorithm]} with the {entry.protocol} protocol, limited by {limit}; "
        f"{format_seconds(entry.total_s / entry.count)} a call, {BASIS_WORDS.get(entry.basis, entry.basis)}"
    )


def _entry_text(entry: CommunicationEntry) -> str:
    return (
        f"{entry.name} ({entry.kind} over {entry.axis}, {entry.group_size} ranks, {entry.count:,} x "
        f"{format_gb(entry.num_bytes)})"
    )


def _communication_remedy(entry: CommunicationEntry, plan: Plan) -> str:
    hybrid = "HSDP (dp_shard inside a node, dp_replicate across), " if plan.cluster.num_nodes > 1 else ""
    remedies = {
        "tp": "a smaller tp, and tp only inside the fast domain; sequence_parallel moves the same bytes in halves",
        "cp": "a smaller cp, or longer sequences per rank so that attention hides the exchange",
        "pp": "fewer stages or chunks: every boundary sends the residual stream once each way",
        "ep": "keep ep inside a node, or fewer experts per token across nodes",
        "dp_shard": f"{hybrid}fewer and larger micro-batches: each of them gathers and reduces again, and hides more",
        "dp_replicate": "larger batches per step: gradients are reduced once per step whatever the batch",
    }
    return remedies.get(entry.axis, "")


def _utilisation(prediction: Prediction) -> Finding:
    throughput = prediction.throughput
    if throughput.mfu_fraction is None or throughput.hfu_fraction is None:
        return Finding(
            topic="time",
            claim=f"MFU and HFU are unknown by the convention {throughput.mfu_convention}.",
            numbers=(
                compared(
                    "model FLOP per second of all devices",
                    told("model FLOP", prediction, "throughput.model_flop_per_step", "flop_per_s"),
                    told("step", prediction, "time.step_s", "s"),
                    "ratio",
                ),
            ),
            because="they divide by a dense peak, and no source states the device's",
            suggestion="measure what the device reaches: `shardwise calibrate`, then --calibration",
        )
    return Finding(
        topic="time",
        claim=f"MFU {format_percent(throughput.mfu_fraction)} by the convention {throughput.mfu_convention}; counting "
        f"recomputed work as well, HFU {format_percent(throughput.hfu_fraction)}.",
        numbers=(
            told("MFU", prediction, "throughput.mfu_fraction", "fraction"),
            told("HFU", prediction, "throughput.hfu_fraction", "fraction"),
            told("dense peak", prediction, "throughput.peak_flop_per_s", "flop_per_s"),
        ),
        because="MFU divides the model's own FLOP by time x dense peak; other conventions differ by several points",
    )
