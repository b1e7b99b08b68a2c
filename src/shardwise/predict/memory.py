"""Memory of every pipeline stage: high-water marks of the inventory, and what the allocator and device add to them."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate

from shardwise.columns import rounded
from shardwise.ledger import MEMORY_COMPONENTS, PHASES, MemoryComponent
from shardwise.plan import Plan
from shardwise.predict.device_overhead import fixed_bytes, has_stream_pools, reserved_bytes
from shardwise.predict.memory_band import memory_band
from shardwise.predict.seed_memory import predict_seed_memory
from shardwise.prediction import MemoryEntry, MemoryPrediction, PhaseMemory, StageMemory
from shardwise.step.held_stage import by_content, fullest_stages, pipeline_of
from shardwise.step.inventory import StageInventory, Tensor
from shardwise.step.layer_placement import Stage, pipeline_stages
from shardwise.step.stage_inventory import stage_inventories
from shardwise.units import Bytes


def predict_memory(plan: Plan) -> MemoryPrediction:
    """Memory of the worst rank of every stage, in every phase of the step."""
    if plan.recipe.convention == "seed":
        return predict_seed_memory(plan)
    return _memory_of(plan, pipeline_stages(model=plan.model, layout=plan.layout))


def predict_fullest_memory(plan: Plan) -> MemoryPrediction:
    """The memory of the fullest stages alone, which need as much of the device, its host and its drives as all do."""
    if plan.recipe.convention == "seed":
        return predict_seed_memory(plan)
    alike = by_content(pipeline_stages(model=plan.model, layout=plan.layout))
    return _memory_of(plan, fullest_stages(alike, pipeline_of(plan)))


def _memory_of(plan: Plan, stages: Iterable[Stage]) -> MemoryPrediction:
    held = tuple(stages)
    inventories = tuple(stage_inventories(plan, held))
    predicted = tuple(_stage_memory(plan, stage, inventory) for stage, inventory in zip(held, inventories, strict=True))
    node = plan.cluster.node
    ranks_per_node = min(node.gpus_per_node, plan.layout.world_size)
    low_fraction, high_fraction = memory_band(plan)
    return MemoryPrediction(
        capacity_bytes=plan.cluster.gpu.memory_bytes,
        stages=predicted,
        host_capacity_bytes=node.host_memory_bytes,
        host_bytes_per_node=max(inventory.node_host_bytes(ranks_per_node) for inventory in inventories),
        nvme_capacity_bytes=node.nvme_bytes,
        nvme_bytes_per_node=ranks_per_node * max(stage.nvme_bytes for stage in predicted),
        low_fraction=low_fraction,
        high_fraction=high_fraction,
    )


def most_bytes(plan: Plan, *components: MemoryComponent) -> Bytes:
    """The most that some components hold together at one moment, on a rank of any stage."""
    most = 0
    for inventory in stage_inventories(plan, pipeline_stages(model=plan.model, layout=plan.layout)):
        own = tuple(tensor for tensor in inventory.tensors if tensor.component in components)
        most = max(most, *allocated_at(replace(inventory, tensors=own)))
    return most


def allocated_at(inventory: StageInventory) -> tuple[Bytes, ...]:
    """Bytes alive at every moment of a stage."""
    change = [0] * (len(inventory.moments) + 1)
    for tensor in inventory.tensors:
        change[tensor.first_use] = change[tensor.first_use] + tensor.num_bytes
        change[tensor.last_use + 1] = change[tensor.last_use + 1] - tensor.num_bytes
    return tuple(accumulate(change[:-1]))


def learned_bytes(plan: Plan, peak_bytes: Bytes) -> Bytes:
    """Device memory of a rank whose tensors reach this peak, times the ratios that a calibration learned from runs."""
    calibration, ratio = plan.cluster.calibration, 1.0
    if calibration is not None:
        ratio = calibration.ratio_of("memory allocated") * calibration.ratio_of("memory reserved")
    return rounded(ratio * peak_bytes) + fixed_bytes(plan)


def _stage_memory(plan: Plan, stage: Stage, inventory: StageInventory) -> StageMemory:
    alive = allocated_at(inventory)
    peak = max(range(len(alive)), key=alive.__getitem__)
    fixed = fixed_bytes(plan)
    reserved = reserved_bytes(
        inventory,
        peak_bytes=alive[peak],
        capacity_bytes=plan.cluster.gpu.memory_bytes - fixed,
        has_stream_pools=has_stream_pools(plan),
        is_expandable=plan.recipe.expandable_segments,
    )
    calibration, learned_ratio = plan.cluster.calibration, 1.0
    if calibration is not None:
        learned_ratio = calibration.ratio_of("memory allocated")
        alive = tuple(round(learned_ratio * num_bytes) for num_bytes in alive)
        reserved = max(alive[peak], round(learned_ratio * calibration.ratio_of("memory reserved") * reserved))
    at_peak = [tensor for tensor in inventory.tensors if tensor.first_use <= peak <= tensor.last_use]
    return StageMemory(
        stage=stage.index,
        layers=stage.num_layers,
        in_flight_micro_batches=inventory.in_flight_micro_batches,
        peak_phase=inventory.moments[peak].phase,
        peak_moment=inventory.moments[peak].name,
        peak_allocated_bytes=alive[peak],
        peak_reserved_bytes=reserved,
        device_used_bytes=reserved + fixed,
        components=_components(at_peak, used_bytes=reserved + fixed, learned_ratio=learned_ratio),
        phases=_phases(inventory, alive, reserved_bytes=reserved, outside_bytes=fixed),
        largest_tensors=_largest(at_peak),
        host_bytes=inventory.host_bytes,
        nvme_bytes=inventory.nvme_bytes,
    )


def _components(tensors: list[Tensor], *, used_bytes: Bytes, learned_ratio: float) -> tuple[MemoryEntry, ...]:
    """The bytes of every component times what runs taught about them; what else is used is the framework's."""
    totals: dict[MemoryComponent, Bytes] = dict.fromkeys(MEMORY_COMPONENTS, 0)
    for tensor in tensors:
        totals[tensor.component] += tensor.num_bytes
    if learned_ratio != 1:
        totals = {name: round(learned_ratio * num_bytes) for name, num_bytes in totals.items()}
    totals["framework"] += used_bytes - sum(totals.values())
    return tuple(MemoryEntry(component=name, num_bytes=totals[name]) for name in MEMORY_COMPONENTS)


def _phases(
    inventory: StageInventory, alive: tuple[Bytes, ...], *, reserved_bytes: Bytes, outside_bytes: Bytes
) -> tuple[PhaseMemory, ...]:
    marks: list[PhaseMemory] = []
    for phase in PHASES:
        inside = [index for index, moment in enumerate(inventory.moments) if moment.phase == phase]
        if not inside:
            continue
        top = max(inside, key=alive.__getitem__)
        reserved = alive[top] if phase == "load" else reserved_bytes
        marks.append(
            PhaseMemory(
                phase=phase,
                allocated_bytes=alive[top],
                reserved_bytes=reserved,
                device_used_bytes=reserved + outside_bytes,
                moment=inventory.moments[top].name,
            )
        )
    return tuple(marks)


def _largest(tensors: list[Tensor]) -> tuple[tuple[str, Bytes], ...]:
    by_name: dict[str, Bytes] = {}
    for tensor in tensors:
        by_name[tensor.name] = by_name.get(tensor.name, 0) + tensor.num_bytes
    return tuple(sorted(by_name.items(), key=lambda item: (-item[1], item[0]))[:8])
