"""The memory of every candidate: the tensors of its stages are added up at every moment, as ``predict`` does."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from shardwise.predict.memory import allocated_at, learned_bytes
from shardwise.search.candidates import Candidates, FloatColumn, Mask
from shardwise.search.probes import Probes
from shardwise.search.stage_columns import StageColumns
from shardwise.step.stage_inventory import inventory_of
from shardwise.step.state_tensors import held_states
from shardwise.units import Bytes

__all__ = ["MemoryEstimate"]

ROWS_AT_ONCE = 1 << 16
"""Rows whose tensors are added up together: some fifty columns of a megabyte at once."""
FIRST, OTHERS = slice(1), slice(1, None)
"""Parts of the list of stages that may be the fullest of a pipeline."""
STATES = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """The memory for one question. Columns of results are in bytes."""

    probes: Probes

    @cached_property
    def stages(self) -> StageColumns:
        """The stages of rows."""
        return StageColumns(question=self.probes.question)

    def device_bytes(self, rows: Candidates, *, enough_bytes: float = np.inf) -> FloatColumn:
        """Device memory of the fullest rank of each candidate, in bytes.

        Args:
            rows: the candidates.
            enough_bytes: a row of which the first stage needs more than this may be given with the need of that one.
        """

        def needed(start: int) -> FloatColumn:
            return self._device_bytes(rows.take(slice(start, start + ROWS_AT_ONCE)), enough_bytes)

        parts = [needed(start) for start in range(0, len(rows), ROWS_AT_ONCE)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _device_bytes(self, rows: Candidates, enough_bytes: float) -> FloatColumn:
        """The first stage of a pipeline keeps most micro-batches: where that is enough, no other one is looked at."""
        total = self._most_needed(rows, FIRST)
        left = np.flatnonzero(total <= enough_bytes)
        if len(left):
            total[left] = np.maximum(total[left], self._most_needed(rows.take(left), OTHERS))
        return total

    def _most_needed(self, rows: Candidates, part: slice) -> FloatColumn:
        total = np.zeros(len(rows))
        for row, context in self.stages.of(rows, self.stages.fullest, part):
            most = reduce(np.maximum, allocated_at(inventory_of(context)))
            np.maximum.at(total, row, learned_bytes(context.plan, most))
        return total

    def states_bytes(self, rows: Candidates) -> FloatColumn:
        """Parameters, gradients and optimizer states of the worst rank of each candidate."""
        total = np.zeros(len(rows))
        for row, context in self.stages.of(rows, self.stages.fullest):
            held = sum(tensor.num_bytes for tensor in held_states(context).tensors if tensor.component in STATES)
            np.maximum.at(total, row, held)
        return total

    def host_needs(self, rows: Candidates) -> Iterator[tuple[FloatColumn, Bytes]]:
        """Bytes that the fullest stage keeps in a host's memory, and on its drives, each beside what that holds."""
        cluster = self.probes.question.cluster
        node, ranks_per_node = cluster.node, min(cluster.node.gpus_per_node, cluster.num_gpus)
        in_memory, on_drives = np.zeros(len(rows)), np.zeros(len(rows))
        for row, context in self.stages.of(rows, self.stages.fullest):
            inventory = inventory_of(context)
            np.maximum.at(in_memory, row, inventory.node_host_bytes(ranks_per_node))
            np.maximum.at(on_drives, row, ranks_per_node * inventory.nvme_bytes)
        yield in_memory, node.host_memory_bytes
        yield on_drives, node.nvme_bytes

    def fits_host(self, rows: Candidates) -> Mask:
        """Rows whose hosts and drives hold what is offloaded to them, as far as their size is known."""
        fits: Mask = np.ones(len(rows), dtype=np.bool_)
        recipe = self.probes.question.recipe
        gathers = "full-on-host" in (recipe.load_state_dict, recipe.save_state_dict)
        moving = np.flatnonzero((rows.offload > 0) | (rows.activation_offload > 0) | gathers)
        if not len(moving):
            return fits
        for needed, capacity_bytes in self.host_needs(rows.take(moving)):
            if capacity_bytes:
                fits[moving] &= needed <= capacity_bytes
        return fits
