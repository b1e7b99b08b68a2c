"""Memory under ``convention=seed``: the textbook arithmetic of the seeds, exactly, with its omissions."""

import json

from shardwise.formulas.seed import (
    SeedMemory,
    activation_bytes_per_layer,
    checkpointed_activation_bytes,
    fallback_activation_bytes,
    per_gpu_memory,
)
from shardwise.ledger import MEMORY_COMPONENTS, MemoryComponent
from shardwise.model import ModelSpec
from shardwise.optimizers import OPTIMIZERS
from shardwise.plan import Plan
from shardwise.prediction import MemoryEntry, MemoryPrediction, PhaseMemory, StageMemory
from shardwise.units import Bytes


def sized_num_params(model: ModelSpec) -> float | None:
    """The round number of a model known only by its size ("7B" is 7e9); ``None`` for a model with a shape."""
    described = json.loads(model.spec_json) if model.spec_json else None
    if isinstance(described, dict) and isinstance(described.get("num_parameters"), int | float):
        return float(described["num_parameters"])
    return None


def predict_seed_memory(plan: Plan) -> MemoryPrediction:
    """One stage whose components are the seeds': weights, gradients, Adam's two moments, activations.

    Nothing is counted for master weights, logits, buffers, the CUDA context or fragmentation, and the card has its
    decimal marketing capacity. Model states are divided over the GPUs that the ZeRO stage divides them over; the
    seeds' fallback activations (half of the weights, for a model known only by size) never are. Offload moves Adam's
    moments to the CPU (exercise 5).
    """
    memory = _seed_memory(plan)
    is_offloaded = plan.recipe.offload != "none"
    optimizer = round(memory.optimizer_bytes)
    totals: dict[MemoryComponent, Bytes] = dict.fromkeys(MEMORY_COMPONENTS, 0)
    totals["parameters"] = round(memory.weight_bytes)
    totals["gradients"] = round(memory.gradient_bytes)
    totals["optimizer"] = 0 if is_offloaded else optimizer
    totals["activations"] = round(memory.activation_bytes)
    host = optimizer if is_offloaded else 0
    gpu, node = plan.cluster.gpu, plan.cluster.node
    return MemoryPrediction(
        capacity_bytes=gpu.nominal_memory_bytes or gpu.memory_bytes,
        stages=(_stage(plan, totals, host_bytes=host),),
        host_capacity_bytes=node.host_memory_bytes,
        host_bytes_per_node=host * min(node.gpus_per_node, plan.layout.world_size),
        nvme_capacity_bytes=0,
        nvme_bytes_per_node=0,
        low_fraction=1.0,
        high_fraction=1.0,
    )


def _seed_memory(plan: Plan) -> SeedMemory:
    layout, recipe, model = plan.layout, plan.recipe, plan.model
    sized = sized_num_params(model)
    num_params = float(model.num_params) if sized is None else sized
    per_layer = activation_bytes_per_layer(
        seq_len=recipe.seq_len, micro_batch_size=recipe.micro_batch_size, hidden_size=model.hidden_size
    )
    precision_bytes, per_stage = 4 if recipe.precision == "fp32" else 2, num_params / (layout.tp * layout.pp)
    if sized is None:
        kept = per_layer * model.num_hidden_layers / (layout.tp * layout.pp * layout.cp)
    else:
        kept = fallback_activation_bytes(num_params=per_stage, precision_bytes=precision_bytes)
    if recipe.recompute == "full":
        layers = min(recipe.recompute_layers or model.num_hidden_layers, model.num_hidden_layers)
        share = layers / model.num_hidden_layers
        kept = (1 - share) * kept + share * checkpointed_activation_bytes(activation_bytes=kept)
    return per_gpu_memory(
        num_params=per_stage,
        num_gpus=layout.dp_shard,
        zero_stage=layout.zero_stage,
        activation_bytes=kept,
        precision_bytes=precision_bytes,
        optimizer=OPTIMIZERS[recipe.optimizer].seed_optimizer,
    )


def _stage(plan: Plan, totals: dict[MemoryComponent, Bytes], *, host_bytes: Bytes) -> StageMemory:
    total = sum(totals.values())
    mark = PhaseMemory(
        phase="backward",
        allocated_bytes=total,
        reserved_bytes=total,
        device_used_bytes=total,
        moment="all states and activations at once",
    )
    return StageMemory(
        stage=0,
        layers=plan.model.num_hidden_layers,
        in_flight_micro_batches=1.0,
        peak_phase="backward",
        peak_moment="the one moment the seeds look at",
        peak_allocated_bytes=total,
        peak_reserved_bytes=total,
        device_used_bytes=total,
        components=tuple(MemoryEntry(component=name, num_bytes=totals[name]) for name in MEMORY_COMPONENTS),
        phases=(mark,),
        largest_tensors=tuple(sorted(totals.items(), key=lambda item: -item[1])[:4]),
        host_bytes=host_bytes,
        nvme_bytes=0,
    )
