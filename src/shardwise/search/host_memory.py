"""What rows keep in the memory of their hosts and on their drives, and whether that is as large."""

import numpy as np

from shardwise.search.candidates import Candidates, FloatColumn, IntColumn, Mask
from shardwise.search.held_states import ON_HOST
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.probes import FIRST, LAST, SECOND, pipelines_of
from shardwise.units import Bytes

__all__ = ["fits_host", "host_needs"]


def fits_host(memory: MemoryEstimate, rows: Candidates, *, num_microbatches: IntColumn) -> Mask:
    """Rows whose hosts and drives hold what is offloaded to them, as far as their size is known.

    Args:
        memory: of the question.
        rows: the candidates.
        num_microbatches: of every row.
    """
    fits: Mask = np.ones(len(rows), dtype=np.bool_)
    moving = np.flatnonzero((rows.offload > 0) | (rows.activation_offload > 0))
    if not len(moving):
        return fits
    for needed, capacity_bytes in host_needs(memory, rows.take(moving), num_microbatches=num_microbatches[moving]):
        if capacity_bytes:
            fits[moving] &= needed <= capacity_bytes
    return fits


def host_needs(
    memory: MemoryEstimate, rows: Candidates, *, num_microbatches: IntColumn
) -> tuple[tuple[FloatColumn, Bytes], tuple[FloatColumn, Bytes]]:
    """Bytes that the fullest stage keeps in a host's memory and on its drives, each beside what that holds.

    Args:
        memory: of the question.
        rows: the candidates.
        num_microbatches: of every row.
    """
    probes, pipelines = memory.probes, pipelines_of(rows)
    cluster = probes.question.cluster
    node, ranks_per_node = cluster.node, min(cluster.node.gpus_per_node, cluster.num_gpus)
    states = memory.states.of_blocks(rows, ON_HOST)
    in_memory, on_drives = np.zeros(len(rows)), np.zeros(len(rows))
    for watched in (FIRST, SECOND, LAST, *probes.others(pipelines)):
        stage = probes.watched_of(pipelines, watched)
        of_stage, drives_of_stage = memory.states.moved_of_stage(states, stage)
        in_flight = memory.in_flight(pipelines, num_microbatches, stage)
        of_stage = of_stage + in_flight * memory.moved_by(rows, stage)
        in_memory = np.maximum(in_memory, ranks_per_node * of_stage)
        on_drives = np.maximum(on_drives, ranks_per_node * drives_of_stage)
    return (in_memory, node.host_memory_bytes), (on_drives, node.nvme_bytes)
