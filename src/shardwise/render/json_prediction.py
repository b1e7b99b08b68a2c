"""A prediction as ``shardwise.prediction/1``, the contract other programs read."""

from collections.abc import Sequence

from shardwise.calibration import Calibration
from shardwise.ledger import MEMORY_COMPONENTS, TIME_COMPONENTS
from shardwise.plan import Plan
from shardwise.prediction import (
    CommunicationEntry,
    CostPrediction,
    CostSensitivity,
    ExposedCommunication,
    MemoryEntry,
    MemoryPrediction,
    Prediction,
    StageMemory,
    Throughput,
    TimePrediction,
)
from shardwise.render.names import plan_warnings, stated_assumptions

PREDICTION_SCHEMA = "shardwise.prediction/1"


def prediction_object(
    *, plan: Plan, prediction: Prediction, exposed: ExposedCommunication | None = None
) -> dict[str, object]:
    """The whole prediction; ``cost`` is there only when the recipe names its tokens, ``exposed`` when it was asked."""
    model = plan.model
    written: dict[str, object] = {
        "schema": PREDICTION_SCHEMA,
        "fits": prediction.fits,
        "parameters": {
            "total": model.num_params,
            "active": model.num_active_params,
            "embedding": model.num_embedding_params,
        },
        "memory": memory_object(prediction.memory),
        "time": time_object(prediction.time),
        "throughput": throughput_object(prediction.throughput),
    }
    if exposed is not None:
        written["exposed"] = exposed_object(exposed)
    if prediction.cost is not None:
        written["cost"] = cost_object(prediction.cost)
    if plan.cluster.calibration is not None:
        written["calibration"] = calibration_origin_object(plan.cluster.calibration)
    written["warnings"] = [
        {"rule": refusal.rule, "warning": refusal.message, "fix": refusal.fix} for refusal in plan_warnings(plan)
    ]
    written["assumptions"] = list(stated_assumptions(plan=plan, prediction=prediction))
    return written


def calibration_origin_object(calibration: Calibration) -> dict[str, object]:
    """When and where the calibration behind a prediction was taken."""
    machine = calibration.machine
    return {
        "digest": calibration.digest,
        "date": calibration.date,
        "machine": {"device": machine.device, "host": machine.host, "num_processes": machine.num_processes},
        "is_measured": calibration.is_measured,
        "num_residuals": len(calibration.residuals),
    }


def memory_object(memory: MemoryPrediction) -> dict[str, object]:
    """Memory of the worst rank, then the same of every pipeline stage."""
    worst = memory.worst
    return {
        "capacity_bytes": memory.capacity_bytes,
        "peak_allocated_bytes": worst.peak_allocated_bytes,
        "peak_reserved_bytes": worst.peak_reserved_bytes,
        "device_used_bytes": worst.device_used_bytes,
        "needed_bytes": memory.needed_bytes,
        "spare_bytes": memory.spare_bytes,
        "missing_bytes": memory.missing_bytes,
        "low_fraction": memory.low_fraction,
        "high_fraction": memory.high_fraction,
        "fits_device": memory.fits_device,
        "fits_host": memory.fits_host,
        "worst_stage": worst.stage,
        "peak_phase": worst.peak_phase,
        "peak_moment": worst.peak_moment,
        "components_bytes": components_object(worst.components),
        "stages": [stage_object(stage) for stage in memory.stages],
        "host_bytes": memory.host_bytes_per_node,
        "host_capacity_bytes": memory.host_capacity_bytes,
        "nvme_bytes": memory.nvme_bytes_per_node,
        "nvme_capacity_bytes": memory.nvme_capacity_bytes,
    }


def components_object(entries: Sequence[MemoryEntry]) -> dict[str, int]:
    """The nine components by name, in the ledger's order, a missing one as zero."""
    known = {entry.component: entry.num_bytes for entry in entries}
    return {name: known.get(name, 0) for name in MEMORY_COMPONENTS}


def stage_object(stage: StageMemory) -> dict[str, object]:
    """One pipeline stage."""
    return {
        "stage": stage.stage,
        "layers": stage.layers,
        "in_flight_micro_batches": stage.in_flight_micro_batches,
        "peak_allocated_bytes": stage.peak_allocated_bytes,
        "peak_reserved_bytes": stage.peak_reserved_bytes,
        "device_used_bytes": stage.device_used_bytes,
        "needed_bytes": stage.needed_bytes,
        "peak_phase": stage.peak_phase,
        "peak_moment": stage.peak_moment,
        "components_bytes": components_object(stage.components),
        "phases": [
            {
                "phase": phase.phase,
                "allocated_bytes": phase.allocated_bytes,
                "reserved_bytes": phase.reserved_bytes,
                "device_used_bytes": phase.device_used_bytes,
                "moment": phase.moment,
            }
            for phase in stage.phases
        ],
        "largest_tensors": [{"name": name, "bytes": num_bytes} for name, num_bytes in stage.largest_tensors],
        "host_bytes": stage.host_bytes,
        "nvme_bytes": stage.nvme_bytes,
    }


def time_object(time: TimePrediction) -> dict[str, object]:
    """Step time with its band and its eight parts, a missing one as zero."""
    known = {entry.component: entry.duration_s for entry in time.components}
    return {
        "step_s": time.step_s,
        "step_low_s": time.step_low_s,
        "step_high_s": time.step_high_s,
        "components_s": {name: known.get(name, 0.0) for name in TIME_COMPONENTS},
        "communication": [communication_object(entry) for entry in time.communication],
    }


def exposed_object(exposed: ExposedCommunication) -> dict[str, object]:
    """What the step would lose with free communication, and with only one axis or unit of it free."""
    return {
        "total_s": exposed.total_s,
        "axes_s": {share.name: share.exposed_s for share in exposed.axes},
        "shared_by_axes_s": exposed.shared_by_axes_s,
        "units_s": {share.name: share.exposed_s for share in exposed.units},
        "shared_by_units_s": exposed.shared_by_units_s,
    }


def communication_object(entry: CommunicationEntry) -> dict[str, object]:
    """One kind of collective over one axis."""
    return {
        "name": entry.name,
        "kind": entry.kind,
        "axis": entry.axis,
        "group_size": entry.group_size,
        "bytes": entry.num_bytes,
        "count": entry.count,
        "total_s": entry.total_s,
        "exposed_s": entry.exposed_s,
        "algorithm": entry.algorithm,
        "protocol": entry.protocol,
        "bottleneck": entry.bottleneck,
        "basis": entry.basis,
    }


def throughput_object(throughput: Throughput) -> dict[str, object]:
    """Rates and utilisation, with the convention they are counted in."""
    return {
        "tokens_per_s": throughput.tokens_per_s,
        "tokens_per_s_per_gpu": throughput.tokens_per_s_per_gpu,
        "mfu_fraction": throughput.mfu_fraction,
        "hfu_fraction": throughput.hfu_fraction,
        "mfu_convention": throughput.mfu_convention,
        "model_flop_per_step": throughput.model_flop_per_step,
        "peak_flop_per_s": throughput.peak_flop_per_s,
    }


def cost_object(cost: CostPrediction) -> dict[str, object]:
    """The whole run; dollars are null when no price is known."""
    return {
        "tokens": cost.tokens,
        "gpu_hours": cost.gpu_hours,
        "days": cost.days,
        "usd": cost.usd,
        "usd_per_gpu_hour": cost.usd_per_gpu_hour,
        "price_source": cost.price_source,
        "goodput_fraction": cost.goodput_fraction,
        "goodput_low_fraction": cost.goodput_low_fraction,
        "goodput_high_fraction": cost.goodput_high_fraction,
        "energy_mwh": cost.energy_mwh,
        "assumptions": list(cost.assumptions),
        "sensitivities": [_sensitivity_object(row) for row in cost.sensitivities],
    }


def _sensitivity_object(row: CostSensitivity) -> dict[str, object]:
    return {
        "assumption": row.assumption,
        "basis": row.basis,
        "low_gpu_hours": row.low_gpu_hours,
        "high_gpu_hours": row.high_gpu_hours,
        "low_usd": row.low_usd,
        "high_usd": row.high_usd,
        "swing_ratio": row.swing_ratio,
    }
