"""Time a step waits for the host when states or activations live there, for all candidates in array operations."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.predict.offload_time import HostCopies, copy_s, host_copies, host_update_s
from shardwise.search.candidates import Candidates, FloatColumn, IntColumn, distinct_keys
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.probes import LONGEST, Probes
from shardwise.search.stage_columns import Chosen
from shardwise.step.stage_context import StageContext
from shardwise.step.step_operations import trained_elements

__all__ = ["HostTimes"]

MANY_ELEMENTS = 10**9
"""The host's update is in proportion to the elements; it is asked once for so many."""


@dataclass(frozen=True, kw_only=True)
class HostTimes:
    """The waiting for one question, of the longest stage of every row. Columns of results are in seconds per step."""

    probes: Probes
    memory: MemoryEstimate

    def update_s(self, rows: Candidates) -> FloatColumn:
        """The optimizer on the host and the way back of the weights, which hide under nothing."""
        total = np.zeros(len(rows))
        for row, context, copies in self._moving(rows):
            if context.plan.recipe.offload != "none":
                many_s = host_update_s(context, MANY_ELEMENTS)
                shard = trained_elements(context).shard
                total[row] = many_s * shard / MANY_ELEMENTS + copy_s(context, copies.weight_bytes)
        return total

    def copies_s(self, rows: Candidates, num_microbatches: IntColumn, passes: FloatColumn) -> FloatColumn:
        """Copies that do not hide under the passes they belong to, each divided evenly among its blocks.

        Args:
            rows: what is estimated.
            num_microbatches: that a stage runs.
            passes: ``(rows, 2)``: seconds of the forward and the backward pass of one micro-batch.
        """
        streamed, gradients, moved, between = np.zeros((4, len(rows)))
        for row, context, copies in self._moving(rows):
            streamed[row] = copy_s(context, copies.ahead_bytes)
            gradients[row] = copy_s(context, copies.gradient_bytes)
            moved[row] = copy_s(context, copies.beside_bytes)
            between[row] = copy_s(context, copies.between_bytes)
        blocks = np.maximum(1, self.probes.watched(rows, LONGEST).blocks.sum(axis=1))
        forward = _exposed_s(np.maximum(streamed, moved), passes[:, 0], blocks)
        backward = _exposed_s(streamed + moved, passes[:, 1], blocks)
        last = _exposed_s(np.maximum(streamed + moved, gradients), passes[:, 1], blocks)
        passing = forward + 2 * between
        waits: FloatColumn = num_microbatches * passing + (num_microbatches - 1) * backward + last
        return waits

    def _moving(self, rows: Candidates) -> Iterator[tuple[IntColumn, StageContext, HostCopies]]:
        """Rows that move something, those together that move the same, with their stages and what these exchange."""
        ways, of_row = distinct_keys([rows.offload, rows.activation_offload])
        for way, key in enumerate(ways):
            here = np.flatnonzero(of_row == way) if any(key) else of_row[:0]
            if len(here):
                for row, context in self.memory.stages.of(rows.take(here), self._longest):
                    yield here[row], context, host_copies(context)

    @cached_property
    def _longest(self) -> Chosen:
        return self.memory.stages.one(self.probes.longest_stage)


def _exposed_s(copied: FloatColumn, work: FloatColumn, blocks: FloatColumn) -> FloatColumn:
    """Exposed seconds of a pass's copies: their excess over it, and the first block's, which nothing runs before."""
    exposed: FloatColumn = np.maximum(0.0, copied - work) + copied / blocks
    return exposed
