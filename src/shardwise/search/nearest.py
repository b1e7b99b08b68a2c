"""When nothing fits: the candidate that lacks least of the device, of its host and of its drives together."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.memory import predict_fullest_memory
from shardwise.prediction import MemoryPrediction
from shardwise.rules import find_errors
from shardwise.search.bounds import SearchBounds
from shardwise.search.candidates import OFFLOADS, Candidates, FloatColumn, constant
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.one_pass import Found
from shardwise.search.probes import Probes
from shardwise.search.space import Space
from shardwise.search.validity import valid_candidates

__all__ = ["nearest_plan", "shortage_bytes"]

PREDICTED_OF_EACH = 3
"""Candidates that are predicted for each way to keep tensors on the host: those estimated to lack least memory."""


def nearest_plan(question: Plan, bounds: SearchBounds, found: Found) -> tuple[Plan, MemoryPrediction] | None:
    """The plan that lacks least, and its memory; ``None`` when every candidate breaks a rule.

    Args:
        question: a plan whose layout is ignored.
        bounds: limits of the space.
        found: a search of it that found nothing that fits.
    """
    seen = [found.evaluation.nearest[0]] if found.evaluation.nearest is not None else []
    seen += [found.smallest] if found.smallest is not None else []
    if not seen:
        return None
    every = dict.fromkeys([*seen, *_lacking_little(replace(question, layout=Layout()), bounds)])
    with_memory = [(plan, predict_fullest_memory(plan)) for plan in every if not find_errors(plan)]
    return min(with_memory, key=lambda pair: (shortage_bytes(pair[1], pair[0]), pair[1].needed_bytes), default=None)


def shortage_bytes(memory: MemoryPrediction, plan: Plan) -> float:
    """Bytes that one GPU lacks: of its own memory, and its share of those missing on its host and the host's drives.

    A host or drives of unknown size lack nothing.
    """
    ranks_per_node = min(plan.cluster.node.gpus_per_node, plan.cluster.num_gpus)
    return memory.missing_bytes + (memory.host_missing_bytes + memory.nvme_missing_bytes) / ranks_per_node


def _lacking_little(question: Plan, bounds: SearchBounds) -> Iterator[Plan]:
    """Candidates that are estimated to lack least, a few of every way to keep tensors on the host.

    Each is asked about as frugally as it may be: the smallest micro-batch, the most recomputation, divided norms.
    """
    asked = replace(question, layout=Layout(stage_layers=bounds.stage_layers))
    space = Space(question=asked, bounds=bounds)
    valid = valid_candidates(space)
    is_least = valid.rows.micro_batch_size == valid.rows.micro_batch_size.min(initial=1 << 62)
    rows = valid.rows.take(is_least)
    memory = MemoryEstimate(probes=Probes(question=asked))
    frugal = replace(rows, recompute=constant(max(space.recomputes), len(rows)))
    for offload in range(len(OFFLOADS)):
        offered = np.flatnonzero((frugal.offload_choices & (1 << offload)) > 0)
        for moves_activations in space.activation_offloads if len(offered) else ():
            moved = replace(
                frugal.take(offered),
                offload=constant(offload, len(offered)),
                activation_offload=constant(int(moves_activations), len(offered)),
            )
            lacking = _lacking_bytes(memory, moved)
            for row in np.argsort(lacking, kind="stable")[:PREDICTED_OF_EACH].tolist():
                yield moved.plan(row, question=asked)


def _lacking_bytes(memory: MemoryEstimate, rows: Candidates) -> FloatColumn:
    """An estimate of :func:`shortage_bytes` of every row."""
    cluster = memory.probes.question.cluster
    lacking: FloatColumn = memory.device_bytes(rows) - cluster.gpu.memory_bytes
    lacking = np.maximum(0.0, lacking)
    for needed, capacity_bytes in memory.host_needs(rows):
        if capacity_bytes:
            share = min(cluster.node.gpus_per_node, cluster.num_gpus)
            lacking = lacking + np.maximum(0.0, needed - capacity_bytes) / share
    return lacking
