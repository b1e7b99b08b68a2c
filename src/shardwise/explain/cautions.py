"""Known traps that a plan walks into: settings that do nothing, cost more than they save, or fail before training."""

from collections.abc import Callable
from dataclasses import replace

from shardwise.engines.table import ENGINES, OWN_ENGINE, engine_profile, state_bytes
from shardwise.explain.records import Finding, Quantity
from shardwise.explain.state_counts import counted_quantity, counted_states, engine_states, told_states, undivided
from shardwise.explain.told import told
from shardwise.ledger import MemoryComponent
from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.rules import find_refusals
from shardwise.step.reduction_policy import communicates_unit_by_unit
from shardwise.units import format_count, format_gib

__all__ = ["cautions"]

SMALL_MODEL_BUCKETS_FRACTION = 0.5
MANY_TIMES = 2
"""Gradients that reach this many times their divided size are kept whole for a while."""

Check = Callable[[Plan, Prediction], Finding | None]


def cautions(plan: Plan, prediction: Prediction) -> tuple[Finding, ...]:
    """Every trap that applies to the plan, rules of severity warning included.

    The textbook convention has no buffers, loading or master copies, so of its plans only the division is judged.
    """
    checks = _DIVISION_CHECKS if plan.recipe.convention == "seed" else (*_DIVISION_CHECKS, *_ENGINE_CHECKS)
    found = [check(plan, prediction) for check in checks]
    return (*(finding for finding in found if finding is not None), *_warnings(plan))


def _warnings(plan: Plan) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            topic="caution",
            claim=refusal.message,
            because=f"rule {refusal.rule}: it runs, with this consequence",
            suggestion=refusal.fix,
        )
        for refusal in find_refusals(plan)
        if refusal.severity == "warning"
    )


def _nothing_to_shard(plan: Plan, _: Prediction) -> Finding | None:
    """ZeRO with one rank divides by one, and its mixed-precision states are larger than plain bf16 training's."""
    layout = plan.layout
    if layout.zero_stage == 0 or layout.state_shard_size > 1:
        return None
    states = counted_states(plan)
    is_textbook = plan.recipe.convention == "seed"
    has_master = not is_textbook and plan.recipe.adapter == "none"
    pure = state_bytes(engine=OWN_ENGINE, precision="bf16")
    pure_bytes = pure.weight_bytes + pure.gradient_bytes + 2 * pure.moment_bytes
    in_bf16 = replace(undivided(plan), engine=OWN_ENGINE, recipe=replace(plan.recipe, precision="bf16"))
    pure_states = told_states("states of pure bf16 training", in_bf16)
    no_master = f". Training in pure bf16 keeps {pure_bytes} bytes per parameter, without a master copy"
    return Finding(
        topic="caution",
        claim=f"zero_stage={layout.zero_stage} divides nothing here: dp_shard x cp is 1, so all "
        f"{states.bytes_per_param:.3g} bytes per parameter ({format_gib(states.total_bytes)}) stay on each GPU.",
        numbers=(
            counted_quantity("states of this plan", plan),
            *((pure_states,) if has_master else ()),
        ),
        because="ZeRO and FSDP save memory by dividing states over data-parallel ranks; one rank has nobody to share "
        f"with{no_master if has_master else ''}",
        suggestion="use more GPUs with dp_shard>1; where it has to fit one, the changes below say how",
    )


def _frozen_replicas(plan: Plan, _: Prediction) -> Finding | None:
    """ZeRO-1 and 2 do not divide parameters, so every GPU holds the whole frozen base."""
    layout, recipe = plan.layout, plan.recipe
    if recipe.adapter == "none" or layout.zero_stage == 3 or layout.data_parallel_size == 1:
        return None
    if layout.zero_stage and layout.state_shard_size > 1 and communicates_unit_by_unit(plan):
        components: tuple[MemoryComponent, ...] = ("parameters", "gathered_parameters")
        held = told_states("frozen base per GPU, with the own shard", plan, components=components)
        return Finding(
            topic="caution",
            claim=f"Every GPU gathers the whole frozen base in every step and keeps it from the first forward to the "
            f"last backward, beside its own shard ({held.text}).",
            numbers=(held,),
            because=f"zero_stage={layout.zero_stage} of {plan.engine} is FSDP2 that divides all weights between steps, "
            "those that do not train included",
            suggestion="zero_stage=0 (DDP) keeps the base without gathering it, zero_stage=3 (FSDP) divides it",
        )
    base = told_states("frozen base per GPU", plan, components=("parameters",))
    return Finding(
        topic="caution",
        claim=f"Every GPU holds the whole frozen base ({base.text}): more data-parallel GPUs do not shrink it.",
        numbers=(base,),
        because=f"zero_stage={layout.zero_stage} divides optimizer states and gradients of trained weights, and the "
        "adapters are tiny",
        suggestion="zero_stage=3 (FSDP) divides frozen weights too",
    )


def _hybrid_sharding(plan: Plan, prediction: Prediction) -> Finding | None:
    """HSDP divides by the shard group, not by the world."""
    layout = plan.layout
    if layout.dp_replicate == 1 or layout.zero_stage == 0 or layout.state_shard_size == 1:
        return None
    full = replace(layout, dp_replicate=1, dp_shard=layout.dp_replicate * layout.dp_shard)
    inside = told_states("states at this shard size", plan)
    whole = told_states("states with full sharding", replace(plan, layout=full))
    return Finding(
        topic="caution",
        claim=f"Hybrid sharding divides states by dp_shard x cp = {layout.state_shard_size}, not by the "
        f"{layout.data_parallel_size} data-parallel ranks: {inside.text} per GPU, not {whole.text}.",
        numbers=(inside, whole),
        because="replicas keep whole copies of the shard group's states; in exchange gathers stay inside the group",
        suggestion="" if prediction.fits else f"dp_replicate=1 dp_shard={layout.data_parallel_size}",
    )


def _load_peak(plan: Plan, prediction: Prediction) -> Finding | None:
    """A rank that materialises the whole module before sharding needs it all at once."""
    layout, recipe = plan.layout, plan.recipe
    if layout.zero_stage < 3 or layout.state_shard_size == 1:
        return None
    params = plan.model.num_params / (layout.tp * layout.pp)
    each = 2 if recipe.precision == "bf16" or recipe.adapter != "none" else 4
    whole, capacity = each * params, prediction.memory.capacity_bytes
    if whole < capacity / 2:
        return None
    worse = whole > capacity
    return Finding(
        topic="caution",
        claim=f"Building the model on the GPU before it is sharded takes {format_gib(whole)} on every rank, "
        f"{'more than' if worse else 'most of'} the {format_gib(capacity)} there are.",
        numbers=(
            Quantity(name="whole module per rank", value=whole, unit="bytes"),
            told("capacity", prediction, "memory.capacity_bytes", "bytes"),
        ),
        because=f"{format_count(params)} parameters x {each} bytes exist before the first shard; the training peak is "
        "a separate budget",
        suggestion="build on the meta device and load shards (FSDP: meta-device init, sync_module_states; Accelerate: "
        "cpu_ram_efficient_loading; DeepSpeed: zero.Init)",
    )


def _buckets_above_model(plan: Plan, _: Prediction) -> Finding | None:
    """DeepSpeed's default buckets are as large as a small model."""
    bucket = engine_profile(plan.engine).bucket
    if not bucket.num_elements or plan.layout.zero_stage == 0:
        return None
    params = plan.model.num_params
    if params * SMALL_MODEL_BUCKETS_FRACTION > bucket.num_elements:
        return None
    return Finding(
        topic="caution",
        claim=f"DeepSpeed's buckets of {format_count(bucket.num_elements)} elements are not small beside "
        f"{format_count(params)} parameters: a higher ZeRO stage may use as much memory and run slower.",
        numbers=(Quantity(name="one 16-bit bucket", value=2 * bucket.num_elements, unit="bytes"),),
        because=f"{bucket.option} default to {format_count(bucket.num_elements)} elements, and gathers of small layers "
        "are bound by latency",
        suggestion="zero_stage=0 or 1 for a model this small, or smaller buckets",
    )


def _reduces_every_microbatch(plan: Plan, prediction: Prediction) -> Finding | None:
    """FSDP gathers and reduces in every micro-batch; accumulating without it keeps whole gradients."""
    layout = plan.layout
    if (
        layout.zero_stage < 2
        or layout.state_shard_size == 1
        or layout.pp > 1
        or ENGINES[plan.engine].always_defers_reductions
    ):
        return None
    if plan.num_microbatches == 1:
        return None
    states = engine_states(plan)
    whole = states.gradient_bytes * states.num_params / layout.tp
    spare = prediction.memory.spare_bytes
    affordable = whole < spare
    return Finding(
        topic="caution",
        claim=f"Gradients are reduced (and weights gathered) in each of {plan.num_microbatches} micro-batches; "
        f"reducing only in the last one would keep {format_gib(whole)} of whole gradients per GPU.",
        numbers=(
            Quantity(name="whole gradients", value=whole, unit="bytes"),
            told("spare", prediction, "memory.spare_bytes", "bytes"),
        ),
        because="FSDP and ZeRO-2 save gradient memory by dividing them as soon as they exist; DDP accumulates locally "
        "and communicates once",
        suggestion="there is room to skip the reduction on all but the last micro-batch"
        if affordable
        else "keep reducing every micro-batch, or use a larger micro_batch_size so that there are fewer",
    )


def _whole_gradients_in_pipeline(plan: Plan, prediction: Prediction) -> Finding | None:
    """FSDP inside a pipeline accumulates whole gradients: the schedule reduces once, after the last micro-batch."""
    layout = plan.layout
    is_torch = engine_profile(plan.engine).is_torch
    if not is_torch or layout.pp == 1 or layout.zero_stage < 2 or layout.state_shard_size == 1:
        return None
    states, whole = engine_states(plan), told_states("whole gradients", plan, components=("gradients",))
    divided = states.gradient_bytes * states.num_params / (layout.tp * layout.pp * layout.state_shard_size)
    if whole.value < MANY_TIMES * divided:
        return None
    return Finding(
        topic="caution",
        claim=f"In a pipeline every stage keeps whole gradients ({whole.text}) and gathered weights until the "
        f"last micro-batch, instead of {format_gib(divided)} per GPU.",
        numbers=(
            whole,
            Quantity(name="divided gradients", value=divided, unit="bytes"),
            told("gradients at the peak", prediction, "memory.components_bytes.gradients", "bytes"),
        ),
        because="gathering and reducing in each of many micro-batches would dominate, so the schedules do both once",
        suggestion="a larger pp or tp divides them; without a pipeline FSDP reduces every micro-batch",
    )


_DIVISION_CHECKS: tuple[Check, ...] = (_nothing_to_shard, _hybrid_sharding)
_ENGINE_CHECKS: tuple[Check, ...] = (
    _whole_gradients_in_pipeline,
    _frozen_replicas,
    _load_peak,
    _buckets_above_model,
    _reduces_every_microbatch,
)
