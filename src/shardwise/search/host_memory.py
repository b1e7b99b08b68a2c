"""What rows keep in the memory of their hosts and on their drives, and whether that is as large."""

import numpy as np

from shardwise.search.candidates import Candidates, IntColumn, Mask
from shardwise.search.held_states import ON_HOST
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.probes import FIRST, LAST, SECOND, pipelines_of

__all__ = ["fits_host"]


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
    probes, some = memory.probes, rows.take(moving)
    cluster, pipelines = probes.question.cluster, pipelines_of(some)
    node, ranks_per_node = cluster.node, min(cluster.node.gpus_per_node, cluster.num_gpus)
    states = memory.states.of_blocks(some, ON_HOST)
    for watched in (FIRST, SECOND, LAST, *probes.others(pipelines)):
        stage = probes.watched_of(pipelines, watched)
        in_memory, on_drives = memory.states.moved_of_stage(states, stage)
        in_flight = memory.in_flight(pipelines, num_microbatches[moving], stage)
        in_memory = in_memory + in_flight * memory.moved_by(some, stage)
        for each, capacity_bytes in ((in_memory, node.host_memory_bytes), (on_drives, node.nvme_bytes)):
            if capacity_bytes:
                fits[moving] &= ranks_per_node * each <= capacity_bytes
    return fits
