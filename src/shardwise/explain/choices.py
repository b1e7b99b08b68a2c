"""Choices of a plan that cost more than they give: each is taken back, and the plan without it is predicted."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter

from shardwise.explain.changes import Predictions, verify_edits
from shardwise.explain.records import Finding, Quantity, VerifiedChange
from shardwise.plan import Plan
from shardwise.predict.idle_switches import NOTHING_FRACTION
from shardwise.prediction import Prediction
from shardwise.rules.degrees import divisors
from shardwise.rules.world import fast_domain_gpus
from shardwise.schedules.table import SCHEDULE_KINDS
from shardwise.search.edits import (
    LAYOUT,
    TRAINING,
    Edit,
    divided_norms,
    edit,
    fewer_ranks,
    fused_attention,
    larger_micro_batch,
    recompute,
    slow_switches,
    usual_schedule,
    without_activation_offload,
    without_offload,
)
from shardwise.search.uneven_stages import head_blocks, uneven_stages
from shardwise.units import format_gib, format_seconds

__all__ = ["choice_edits", "choice_findings"]

LEAST_GAIN_FRACTION = 0.05
"""A choice is questioned where the step without it is this much shorter: predictions of one plan and its neighbour
differ by less than that for no reason."""
LEAST_SAVED_FRACTION = 0.10
"""Memory that a choice has to waste, where it costs no time, to be questioned."""
AS_FAST_RATIO = 1.02
NEARLY_BEST_RATIO = 1.03
"""The first edit that comes this close to the fastest one is proposed: it takes back most."""
LARGER_MICRO_BATCHES = (2, 4, 8, 16, 32)
FEW_SPREADS = 3

Edits = Iterable[Edit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Something that a plan does, which others do without."""

    words: Callable[[Plan], str]
    """The choice as the subject of a sentence; empty where a plan does not make it."""
    because: str
    """What it costs."""
    edits: Callable[[Plan], Edits]
    """Plans without it or with less of it, those without it first."""


def choice_edits(plan: Plan) -> Edits:
    """Edits that take back what the plan does."""
    return chain.from_iterable(choice.edits(plan) for choice in CHOICES if choice.words(plan))


def choice_findings(plan: Plan, prediction: Prediction, *, made: Predictions | None = None) -> tuple[Finding, ...]:
    """Each choice that another plan does better without: faster, or as fast in much less memory. Dearest first."""
    found = []
    made = {} if made is None else made
    for choice in CHOICES:
        words = choice.words(plan)
        if not words:
            continue
        tried = verify_edits(choice.edits(plan), plan=plan, prediction=prediction, made=made)
        better = [change for change in tried if _is_better(change, prediction)]
        if better:
            change = _best(better)
            found.append((change.step_ratio, _finding(words, choice, change, prediction)))
    return tuple(finding for _, finding in sorted(found, key=itemgetter(0)))


def _is_better(change: VerifiedChange, prediction: Prediction) -> bool:
    """Whether the plan without the choice is faster and as safe, costs less and needs no more, or needs much less."""
    needed = prediction.memory.needed_bytes
    needs_no_more = change.saved_bytes >= -NOTHING_FRACTION * needed
    is_as_safe = change.fits and (prediction.memory.is_borderline or not change.is_borderline)
    if change.step_ratio <= 1 - LEAST_GAIN_FRACTION:
        return is_as_safe or (needs_no_more and not prediction.fits)
    if change.step_ratio <= 1 - NOTHING_FRACTION and needs_no_more:
        return True
    return change.step_ratio <= AS_FAST_RATIO and change.saved_bytes >= LEAST_SAVED_FRACTION * needed


def _best(better: list[VerifiedChange]) -> VerifiedChange:
    """The first that is nearly as fast as the fastest, of those that fit where some do."""
    fitting = [change for change in better if change.fits] or better
    fastest = min(change.step_ratio for change in fitting)
    return next(change for change in fitting if change.step_ratio <= NEARLY_BEST_RATIO * fastest)


def _finding(words: str, choice: Choice, change: VerifiedChange, prediction: Prediction) -> Finding:
    time, needed = prediction.time, prediction.memory.needed_bytes
    return Finding(
        topic="caution",
        claim=f"{words} {_balance(change, needed)}: with {change.edit} {_time_text(change, prediction)} and "
        f"{_memory_text(change, prediction)}.",
        numbers=(
            Quantity(name="step", value=time.step_s, unit="s"),
            Quantity(name=f"step with {change.edit}", value=change.step_s, unit="s"),
            Quantity(name="needed", value=needed, unit="bytes"),
            Quantity(name=f"needed with {change.edit}", value=change.needed_bytes, unit="bytes"),
        ),
        because=choice.because,
        suggestion=change.edit,
    )


def _balance(change: VerifiedChange, needed_bytes: int) -> str:
    if change.saved_bytes < -NOTHING_FRACTION * needed_bytes:
        return "costs more than it gives"
    if change.step_ratio > 1 - NOTHING_FRACTION:
        return "costs memory and saves no time"
    return "costs time and saves nothing"


def _time_text(change: VerifiedChange, prediction: Prediction) -> str:
    if abs(change.step_ratio - 1) < NOTHING_FRACTION:
        return "a step takes as long"
    return f"a step takes {format_seconds(change.step_s)} instead of {format_seconds(prediction.time.step_s)}"


def _memory_text(change: VerifiedChange, prediction: Prediction) -> str:
    needed = prediction.memory.needed_bytes
    if abs(change.saved_bytes) < NOTHING_FRACTION * needed:
        return "the fullest GPU needs as much memory"
    still = "" if change.fits else ", which still does not fit"
    return f"the fullest GPU needs {format_gib(change.needed_bytes)} instead of {format_gib(needed)}{still}"


def _fewer(axis: str) -> Callable[[Plan], Edits]:
    """Edits that give ranks of an axis to data parallelism, also with a micro-batch that needs as much memory."""

    def edits(plan: Plan) -> Edits:
        degree: int = getattr(plan.layout, axis)
        for smaller in divisors(degree)[:-1]:
            size = plan.recipe.micro_batch_size
            for experts in (*_more_experts(plan), {}) if axis == "tp" else ({},):
                for halved in range((degree // smaller).bit_length()):
                    if size >> halved:
                        yield fewer_ranks(plan, axis, smaller, **experts, micro_batch_size=size >> halved)

    return edits


def _more_experts(plan: Plan) -> Iterator[dict[str, int]]:
    """Experts divided over a domain of fast links, where they are not."""
    moe, domain = plan.model.moe, fast_domain_gpus(plan.cluster)
    if moe is not None:
        for ep in reversed(divisors(moe.num_experts)):
            if plan.layout.ep < ep <= domain:
                yield {"ep": ep, "expert_tp": 1}
                break


def _num_servers(plan: Plan, ranks: int) -> int:
    return -(-ranks // fast_domain_gpus(plan.cluster))


def _expert_words(plan: Plan) -> str:
    ep, servers = plan.layout.ep, _num_servers(plan, plan.layout.ep * plan.layout.expert_tp)
    return f"Expert parallelism over {ep} ranks of {servers} servers" if servers > 1 else ""


def _narrower_experts(plan: Plan) -> Edits:
    for ep in reversed(divisors(plan.layout.ep)):
        if ep * plan.layout.expert_tp <= fast_domain_gpus(plan.cluster):
            yield edit(plan, "more tokens for each expert's ranks", LAYOUT, ep=ep)


def _gather_words(plan: Plan) -> str:
    layout, rounds = plan.layout, plan.num_microbatches
    servers = _num_servers(plan, layout.tp * layout.state_shard_size)
    if layout.zero_stage < 3 or servers == 1 or layout.state_shard_size == 1:
        return ""
    times = f"in each of {rounds} micro-batches" if rounds > 1 else "in every step"
    return f"Gathering all weights from {layout.state_shard_size} ranks of {servers} servers {times}"


def _narrower_shards(plan: Plan) -> Edits:
    """HSDP whose shard groups fill a server or a few, also reducing once a step; then parameters that stay whole."""
    layout, cost = plan.layout, "more of the states on each GPU"
    for group in divisors(layout.dp_shard)[:-1]:
        if (layout.tp * layout.cp * group) % plan.cluster.node.gpus_per_node == 0:
            copies = layout.dp_replicate * layout.dp_shard // group
            yield edit(plan, cost, LAYOUT, dp_replicate=copies, dp_shard=group)
            if plan.num_microbatches > 1:
                yield edit(plan, cost, LAYOUT, dp_replicate=copies, dp_shard=group, defer_grad_reduce=True)
    for stage in (1, 2):
        yield edit(plan, cost, LAYOUT, zero_stage=stage)


def _schedule_words(plan: Plan) -> str:
    layout = plan.layout
    if layout.pp == 1 or not SCHEDULE_KINDS[layout.schedule].runs_forwards_first:
        return ""
    return f"The schedule {layout.schedule}, which keeps activations of all {plan.num_microbatches} micro-batches,"


def _stage_words(plan: Plan) -> str:
    layout, head = plan.layout, head_blocks(plan.model)
    if layout.pp == 1 or layout.stage_layers is not None or head < 1:
        return ""
    return f"The last of {layout.pp} even stages, slower by a head that weighs {head:.1f} layers,"


def _other_stages(plan: Plan) -> Edits:
    for spread, _ in zip(uneven_stages(plan), range(FEW_SPREADS), strict=False):
        yield edit(plan, "uneven stages", LAYOUT, stage_layers=spread)


def _recompute_words(plan: Plan) -> str:
    recipe = plan.recipe
    if recipe.recompute == "none":
        return ""
    what = f" of {', '.join(recipe.recompute_modules)}" if recipe.recompute_modules else f" ({recipe.recompute})"
    return f"Recomputation{what}"


def _less_recomputation(plan: Plan) -> Edits:
    yield recompute(plan, "none", "all activations are kept")
    yield recompute(plan, "selective", "more activations are kept")


def _micro_batch_words(plan: Plan) -> str:
    size, tokens = plan.recipe.micro_batch_size, plan.recipe.micro_batch_size * plan.recipe.seq_len
    return f"A micro-batch of {size} x {plan.recipe.seq_len:,} = {tokens:,} tokens, too small to fill the GPU,"


def _larger_micro_batches(plan: Plan) -> Edits:
    for times in LARGER_MICRO_BATCHES:
        yield larger_micro_batch(plan, times)


def _norm_words(plan: Plan) -> str:
    layout = plan.layout
    if layout.tp == 1 or layout.sequence_parallel:
        return ""
    return f"Tensor parallelism over {layout.tp} ranks without sequence parallelism"


def _switch(name: str) -> Callable[[Plan], Edits]:
    """The edit that turns a slow switch to its fast side; nothing where it is there."""
    return lambda plan: tuple(one for one in slow_switches(plan) if dict(one.changes).keys() == {name})


def _sixteen_bit_base(plan: Plan) -> Edits:
    """LoRA, also with half the micro-batch, whose activations make room for the weights."""
    size = plan.recipe.micro_batch_size
    for smaller in (size, size // 2) if size > 1 else (size,):
        yield edit(plan, "weights of 16 bits on each GPU", TRAINING, adapter="lora", micro_batch_size=smaller)


def _mixed_precision(plan: Plan) -> Edits:
    for precision in ("bf16-mixed", "fp16-mixed"):
        yield edit(plan, "16-bit matrix products: check the loss", TRAINING, precision=precision)


CHOICES = (
    Choice(
        words=lambda plan: "CUDA_LAUNCH_BLOCKING=1" if plan.recipe.blocking_launches else "",
        because="the host waits for every kernel before it launches the next; it is a flag for finding errors",
        edits=_switch("blocking_launches"),
    ),
    Choice(
        words=lambda plan: "" if plan.recipe.compile else "Running blocks that are not compiled",
        because="every small kernel is launched by itself and reads and writes the memory; compiled ones are fused",
        edits=_switch("compile"),
    ),
    Choice(
        words=lambda plan: "Reducing gradients after the backward pass" if plan.layout.data_parallel_size > 1 else "",
        because="all GPUs wait for the exchange; in buckets it hides behind the rest of the backward pass",
        edits=_switch("overlap_grad_reduce"),
    ),
    Choice(
        words=_norm_words,
        because="every rank keeps whole activations around the norms; sequence parallelism divides them and moves as "
        "many bytes",
        edits=lambda plan: (divided_norms(plan),),
    ),
    Choice(
        words=lambda plan: f"Tensor parallelism over {plan.layout.tp} ranks" if plan.layout.tp > 1 else "",
        because="every layer waits for exchanges between its ranks and its matrices are narrower; data parallelism "
        "exchanges nothing inside a layer, and experts divide whole",
        edits=_fewer("tp"),
    ),
    Choice(
        words=lambda plan: f"A pipeline of {plan.layout.pp} stages" if plan.layout.pp > 1 else "",
        because="its stages wait at the start and the end of each step; data parallelism has no bubble",
        edits=_fewer("pp"),
    ),
    Choice(
        words=lambda plan: (
            f"Context parallelism over {plan.layout.cp} ranks at {plan.recipe.seq_len:,} tokens"
            if plan.layout.cp > 1
            else ""
        ),
        because="keys and values travel between ranks in every layer; data parallelism needs no exchange where "
        "sequences are short enough for one GPU",
        edits=_fewer("cp"),
    ),
    Choice(
        words=_expert_words,
        because="every token's copies cross the network in every layer; inside a server they stay on its fast links",
        edits=_narrower_experts,
    ),
    Choice(
        words=_gather_words,
        because="weights cross the network whenever a layer is used; HSDP gathers inside a server and reduces once a "
        "step between replicas",
        edits=_narrower_shards,
    ),
    Choice(
        words=_schedule_words,
        because="1F1B starts a backward as soon as it can, so a stage holds activations of at most pp micro-batches",
        edits=lambda plan: (usual_schedule(plan),),
    ),
    Choice(
        words=_stage_words,
        because="all stages wait for the slowest one; fewer layers beside the head balance it",
        edits=_other_stages,
    ),
    Choice(
        words=_recompute_words,
        because="forward work is done twice for memory that is there, or that the kernels never kept",
        edits=_less_recomputation,
    ),
    Choice(
        words=_micro_batch_words,
        because="small kernels wait for their launches and for collectives, again in every micro-batch",
        edits=_larger_micro_batches,
    ),
    Choice(
        words=lambda plan: f"offload={plan.recipe.offload}" if plan.recipe.offload != "none" else "",
        because="the update or the weights wait for the host, though the GPU has room to spare",
        edits=lambda plan: (without_offload(plan),),
    ),
    Choice(
        words=lambda plan: "activation_offload=true" if plan.recipe.activation_offload else "",
        because="activations cross PCIe twice, though the GPU has room to spare",
        edits=lambda plan: (without_activation_offload(plan),),
    ),
    Choice(
        words=lambda plan: "Eager attention, which writes out all scores," if plan.recipe.writes_scores else "",
        because="scores grow with the square of the sequence; a fused kernel never stores them",
        edits=lambda plan: (fused_attention(plan),),
    ),
    Choice(
        words=lambda plan: "Training in fp32" if plan.recipe.precision == "fp32" else "",
        because="tensor cores compute in 16 bits, bf16 or fp16, several times faster",
        edits=_mixed_precision,
    ),
    Choice(
        words=lambda plan: "Unpacking weights of 4 bits (adapter=qlora)" if plan.recipe.adapter == "qlora" else "",
        because="every product waits until its weights are unpacked to 16 bits, which the GPU has room to hold",
        edits=_sixteen_bit_base,
    ),
)
