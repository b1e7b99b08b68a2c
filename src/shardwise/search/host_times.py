"""What a step waits for when states or activations live on the host, for every candidate in array operations."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwise.layout import Layout
from shardwise.predict.offload_time import copy_s, host_copies, host_update_s
from shardwise.search.candidates import OFFLOADS, Candidates, FloatColumn, IntColumn
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.probes import LONGEST, Probes
from shardwise.search.stage_columns import Chosen
from shardwise.step.activation_tensors import kept_per_run, resident
from shardwise.step.stage_context import StageContext
from shardwise.step.step_operations import trained_elements
from shardwise.units import Seconds

__all__ = ["HostTimes"]

MANY_ELEMENTS = 10**9
"""The host's update is in proportion to the elements; it is asked once for so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSeconds:
    """Seconds per trained element of a rank under one mode of offload."""

    update_s: Seconds
    parameters_s: Seconds
    """To the device, in every pass."""
    gradients_s: Seconds
    weights_s: Seconds
    """To the device, after the update."""


@dataclass(frozen=True, kw_only=True)
class HostTimes:
    """The waiting for one question. Columns of results are in seconds per step."""

    probes: Probes
    memory: MemoryEstimate

    def update_s(self, rows: Candidates) -> FloatColumn:
        """The optimizer on the host and the way back of the weights, which hide under nothing."""
        total = np.zeros(len(rows))
        for mode, here in self._offloaded(rows):
            each = self._seconds[mode]
            total[here] = (each.update_s + each.weights_s) * self._shard(rows.take(here))
        return total

    def copies_s(self, rows: Candidates, num_microbatches: IntColumn, passes: FloatColumn) -> FloatColumn:
        """Copies that do not hide under the passes they belong to, each divided evenly among its blocks.

        Args:
            rows: what is estimated.
            num_microbatches: that a stage runs.
            passes: ``(rows, 2)``: seconds of the forward and the backward pass of one micro-batch.
        """
        streamed, gradients = np.zeros(len(rows)), np.zeros(len(rows))
        for mode, here in self._offloaded(rows):
            shard = self._shard(rows.take(here))
            streamed[here] = self._seconds[mode].parameters_s * shard
            gradients[here] = self._seconds[mode].gradients_s * shard
        moved = np.zeros(len(rows))
        here = np.flatnonzero(rows.activation_offload)
        if len(here):
            moved[here] = self._copy_s * self._moved_bytes(rows.take(here))
        blocks = np.maximum(1, self.probes.watched(rows, LONGEST).blocks.sum(axis=1))
        forward = _exposed_s(np.maximum(streamed, moved), passes[:, 0], blocks)
        backward = _exposed_s(streamed + moved, passes[:, 1], blocks)
        last = _exposed_s(np.maximum(streamed + moved, gradients), passes[:, 1], blocks)
        waits: FloatColumn = num_microbatches * forward + (num_microbatches - 1) * backward + last
        return waits

    def _offloaded(self, rows: Candidates) -> list[tuple[int, IntColumn]]:
        modes = range(1, len(OFFLOADS))
        return [(mode, here) for mode in modes if len(here := np.flatnonzero(rows.offload == mode))]

    def _shard(self, rows: Candidates) -> FloatColumn:
        """Elements that one rank of the longest stage updates."""
        shard = np.zeros(len(rows))
        for row, context in self._longest_stages(rows):
            shard[row] = trained_elements(context).shard
        return shard

    def _moved_bytes(self, rows: Candidates) -> FloatColumn:
        """Activations of one micro-batch that the longest stage moves to the host."""
        moved = np.zeros(len(rows))
        for row, context in self._longest_stages(rows):
            kept_bytes = sum(kept_per_run(context))
            moved[row] = kept_bytes - resident(context, kept_bytes)
        return moved

    def _longest_stages(self, rows: Candidates) -> Iterator[tuple[IntColumn, StageContext]]:
        return self.memory.stages.of(rows, self._longest)

    @cached_property
    def _longest(self) -> Chosen:
        return self.memory.stages.one(self.probes.longest_stage)

    @cached_property
    def _copy_s(self) -> Seconds:
        return copy_s(self.probes.context(Layout()), 1.0)

    @cached_property
    def _seconds(self) -> tuple[HostSeconds, ...]:
        """By position in ``OFFLOADS``."""
        return tuple(self._of_mode(mode) for mode in range(len(OFFLOADS)))

    def _of_mode(self, mode: int) -> HostSeconds:
        probe = self.probes.context(Layout())
        recipe = replace(probe.plan.recipe, offload=OFFLOADS[mode])
        context = replace(probe, plan=replace(probe.plan, recipe=recipe))
        copies, shard = host_copies(context), max(1, trained_elements(context).shard)
        cluster = context.plan.cluster
        update_s = host_update_s(MANY_ELEMENTS, cluster, on_drives=OFFLOADS[mode] == "nvme") / MANY_ELEMENTS
        return HostSeconds(
            update_s=update_s,
            parameters_s=self._copy_s * copies.parameter_bytes / shard,
            gradients_s=self._copy_s * copies.gradient_bytes / shard,
            weights_s=self._copy_s * copies.weight_bytes / shard,
        )


def _exposed_s(copied: FloatColumn, work: FloatColumn, blocks: FloatColumn) -> FloatColumn:
    """What copies add to a pass: their excess, and the first block's, which nothing runs before."""
    exposed: FloatColumn = np.maximum(0.0, copied - work) + copied / blocks
    return exposed
