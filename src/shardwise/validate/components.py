"""Components of memory whose true size is known for a run, beside ours and the peers'."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from shardwise.ledger import MemoryComponent
from shardwise.model import Weight
from shardwise.plan import Plan
from shardwise.predict.memory import allocated_at
from shardwise.prediction import MemoryPrediction
from shardwise.step.layer_placement import Stage, pipeline_stages, tensor_shards
from shardwise.step.stage_inventory import stage_inventory
from shardwise.units import Bytes
from shardwise.validate.peers import peer_estimates
from shardwise.validate.records import MeasuredRun
from shardwise.validate.rows import MeasurementRow, read_rows
from shardwise.validate.shipped_runs import measured_runs

ComponentSet = Literal["weights_and_optimizer", "model_states", "activations_and_temporaries"]

MEGATRON_REPLICATED_BYTES = 6
"""bf16 weights and fp32 gradients, on every data-parallel rank of Megatron's distributed optimizer."""

MEGATRON_SHARDED_BYTES = 12
"""fp32 weights and two fp32 Adam moments, divided over data-parallel ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentComparison:
    """One component of one run: its true size, what we predict and what each peer does."""

    run_id: str
    component: ComponentSet
    true_bytes: Bytes
    how_known: str
    predicted_bytes: Bytes
    peers: tuple[tuple[str, Bytes], ...]
    """Estimator and its figure for the component; estimators that do not split it out are left out."""

    @property
    def predicted_error_fraction(self) -> float:
        """Predicted over true minus one."""
        return self.predicted_bytes / self.true_bytes - 1


def component_comparisons(predict: Callable[[Plan], MemoryPrediction]) -> tuple[ComponentComparison, ...]:
    """Every component with a known size over the shipped runs that train all their weights."""
    runs = {run.id: run for run in measured_runs().runs}
    comparisons: list[ComponentComparison] = []
    for run in runs.values():
        if run.family == "SIMUB200" and run.decides_outcome:
            comparisons.extend(_megatron_comparisons(run, predict(run.plan)))
    for row in read_rows("components"):
        if row.id in runs and runs[row.id].plan.recipe.adapter == "none":
            comparisons.append(_static_comparison(runs[row.id], row))
    return tuple(comparisons)


def megatron_state_bytes(plan: Plan, stage: Stage) -> Bytes:
    """Weights, gradients and optimizer states of one rank of a stage under Megatron's distributed optimizer.

    ``6 n + 12 n / d`` over the parameters ``n`` the rank holds after tensor parallelism, the table padded to 128 tp.

    Source: NVIDIA/Megatron-LM docs/user-guide/features/dist_optimizer.md (bf16 weights, fp32 gradients).
    Assumes: dense model; buffers padded by less than a megabyte.
    """
    held = sum(_held(weight, plan) for weight in _stage_weights(plan, stage))
    return round(held * (MEGATRON_REPLICATED_BYTES + MEGATRON_SHARDED_BYTES / plan.layout.state_shard_size))


def _stage_weights(plan: Plan, stage: Stage) -> Iterable[Weight]:
    for chunk in stage.chunks:
        for layer, count in chunk.layer_runs:
            for weight in layer.weights:
                yield from [weight] * count
    if stage.has_embedding:
        yield from plan.model.embedding_weights
    if stage.has_head:
        yield from plan.model.final_weights
        yield from plan.model.head_weights


def _held(weight: Weight, plan: Plan) -> float:
    if weight.split != "vocab":
        return weight.num_params / tensor_shards(weight, plan.layout)
    rows, columns = weight.shape
    multiple = 128 * plan.layout.tp
    return -(-rows // multiple) * multiple * columns / plan.layout.tp


def _megatron_comparisons(run: MeasuredRun, prediction: MemoryPrediction) -> tuple[ComponentComparison, ...]:
    stages = pipeline_stages(model=run.plan.model, layout=run.plan.layout)
    worst = max(prediction.stages, key=lambda stage: stage.peak_allocated_bytes)
    true_states = megatron_state_bytes(run.plan, stages[worst.stage])
    predicted_states = state_high_water(run.plan, stages[worst.stage], STATE_PARTS["model_states"])
    peers = peer_estimates(run.plan)
    return (
        ComponentComparison(
            run_id=run.id,
            component="model_states",
            true_bytes=true_states,
            how_known="parameters the rank holds times the documented bytes",
            predicted_bytes=predicted_states,
            peers=tuple((peer.name, peer.state_bytes) for peer in peers),
        ),
        ComponentComparison(
            run_id=run.id,
            component="activations_and_temporaries",
            true_bytes=(run.measured_low_bytes or 0) - true_states,
            how_known="measured peak allocated less the model states",
            predicted_bytes=worst.peak_allocated_bytes - predicted_states,
            peers=tuple((peer.name, peer.activation_bytes) for peer in peers if peer.activation_bytes is not None),
        ),
    )


STATIC_COMPONENTS: dict[str, ComponentSet] = {
    "weights_and_optimizer": "weights_and_optimizer",
    "model_states": "model_states",
}

STATE_PARTS: dict[ComponentSet, tuple[MemoryComponent, ...]] = {
    "weights_and_optimizer": ("parameters", "optimizer"),
    "model_states": ("parameters", "gradients", "optimizer"),
}


def _static_comparison(run: MeasuredRun, row: MeasurementRow) -> ComponentComparison:
    component = STATIC_COMPONENTS[row.text("component")]
    is_whole = component == "model_states"
    stage = pipeline_stages(model=run.plan.model, layout=run.plan.layout)[0]
    return ComponentComparison(
        run_id=run.id,
        component=component,
        true_bytes=row.integer("num_bytes") or 0,
        how_known="measured: allocated when training ends",
        predicted_bytes=state_high_water(run.plan, stage, STATE_PARTS[component]),
        peers=tuple(
            (peer.name, peer.state_bytes if is_whole else peer.weights_bytes + peer.optimizer_bytes)
            for peer in peer_estimates(run.plan)
        ),
    )


def state_high_water(plan: Plan, stage: Stage, components: tuple[MemoryComponent, ...]) -> Bytes:
    """The most bytes of some components alive at one moment of a stage's step."""
    inventory = stage_inventory(plan, stage)
    kept = tuple(tensor for tensor in inventory.tensors if tensor.component in components)
    return max(allocated_at(replace(inventory, tensors=kept)))
