"""Predicts the candidates that matter: in order of the estimate, skipping what is known not to fit.

Two facts save most predictions. Memory is monotone: when a candidate does not fit, neither does the same candidate with
a larger micro-batch, less recomputation or a lower ZeRO stage. And variants of one set of degrees resemble each other,
so a few of them stand for all.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.predict.memory import predict_memory
from shardwise.prediction import MemoryPrediction, Prediction
from shardwise.search.candidates import RECOMPUTES, Candidates, FloatColumn, IntColumn, Key, Mask
from shardwise.units import Bytes

__all__ = ["Evaluated", "Evaluation", "evaluate", "needed_bytes"]

MAX_PER_FAMILY = 4
"""Variants (schedule, ZeRO stage, micro-batch, recompute) predicted for one set of degrees."""
MEMORY_PREDICTIONS_PER_FULL = 4
ROOMY_FRACTION = 0.85
FAMILY = ("tp", "cp", "pp", "ep", "dp_replicate", "dp_shard")
RECOMPUTE_DEPTH = np.asarray([{"none": 0, "selective": 1, "full": 2}[name] for name in RECOMPUTES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A candidate that fits, with its prediction."""

    family: Key
    plan: Plan
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What predicting in order found."""

    fitting: tuple[Evaluated, ...]
    num_predicted: int
    num_too_big: int
    """Predicted not to fit, or implied by one that was."""
    nearest: tuple[Plan, MemoryPrediction] | None
    """The predicted candidate that misses the device by least, when none fits."""


def needed_bytes(memory: MemoryPrediction) -> Bytes:
    """What the worst device cannot do without: live tensors and what lies outside the allocator, no cached blocks."""
    return max(
        stage.device_used_bytes - stage.peak_reserved_bytes + stage.peak_allocated_bytes for stage in memory.stages
    )


def evaluate(
    rows: Candidates, *, order: IntColumn, floor_bytes: FloatColumn, question: Plan, max_predictions: int
) -> Evaluation:
    """Predict rows in ``order`` until ``max_predictions`` of them fit or the order ends."""
    capacity_bytes = question.cluster.gpu.memory_bytes
    alive: Mask = np.ones(len(rows), dtype=np.bool_)
    shares: dict[Key, int] = {}
    fitting: list[Evaluated] = []
    nearest: tuple[Plan, MemoryPrediction] | None = None
    num_predicted = 0
    for row in order:
        if len(fitting) >= max_predictions or num_predicted >= max_predictions * MEMORY_PREDICTIONS_PER_FULL:
            break
        family = tuple(int(rows.column(name)[row]) for name in FAMILY)
        if not alive[row] or shares.get(family, 0) >= MAX_PER_FAMILY:
            continue
        plan = rows.plan(int(row), question=question)
        num_predicted += 1
        # A roomy candidate is predicted in full at once; a tight one is asked for its memory first, which is cheaper.
        prediction = predict(plan) if floor_bytes[row] < ROOMY_FRACTION * capacity_bytes else None
        memory = prediction.memory if prediction else predict_memory(plan)
        if memory.fits_device and memory.fits_host:
            shares[family] = shares.get(family, 0) + 1
            fitting.append(Evaluated(family=family, plan=plan, prediction=prediction or predict(plan)))
            continue
        alive &= ~_at_least_as_big(rows, int(row))
        if nearest is None or needed_bytes(memory) < needed_bytes(nearest[1]):
            nearest = (plan, memory)
    return Evaluation(
        fitting=tuple(fitting),
        num_predicted=num_predicted,
        num_too_big=int(np.count_nonzero(~alive)),
        nearest=nearest,
    )


def _at_least_as_big(rows: Candidates, row: int) -> Mask:
    """Rows that differ from one only in ways that cannot need less memory, the row itself included."""
    same: Mask = np.ones(len(rows), dtype=np.bool_)
    for name in (*FAMILY, "vpp", "schedule", "sequence_parallel", "offload", "zero_stage"):
        same &= rows.column(name) == rows.column(name)[row]
    depth = RECOMPUTE_DEPTH[rows.recompute]
    same &= rows.micro_batch_size >= rows.micro_batch_size[row]
    same &= depth <= depth[row]
    return same


def estimate_order(estimate: FloatColumn, rows: Candidates) -> IntColumn:
    """Rows from the lowest estimate up; equal estimates by simplicity, so that the order never depends on chance."""
    keys = (rows.micro_batch_size, rows.recompute, rows.zero_stage, rows.vpp, rows.cp, rows.pp, rows.tp, estimate)
    order: IntColumn = np.lexsort(keys)
    return order
