"""Seconds of the copies around the blocks of a micro-batch: out of and into flat buffers, casts, sums of gradients.

All of them move bytes in proportion to the parameters that a rank holds of a stage. How many these are is asked of the
inventory by the degrees that divide matrices, and how long each takes by what decides which copies there are.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwise.layout import Layout
from shardwise.search.candidates import ZERO_STAGES, Candidates, FloatColumn, Key, Mask
from shardwise.search.machine import Machine
from shardwise.search.probes import ProbedBatch, Probes, WatchedStage
from shardwise.search.tables import Table
from shardwise.step.operation_context import operation_context
from shardwise.step.own_runtime import exchanges_gradients, spreads_vocabulary
from shardwise.step.stage_context import StageContext
from shardwise.step.step_operations import sharding_operations

__all__ = ["CopyTimes"]

PROBED_MICROBATCHES = 2
"""Gradients are added up from the second micro-batch on."""


@dataclass(frozen=True, kw_only=True)
class CopyTimes:
    """Where copies are timed for one question."""

    probes: Probes
    machine: Machine

    def passes_s(self, rows: Candidates, stage: WatchedStage) -> tuple[FloatColumn, FloatColumn]:
        """Seconds in the forward and in the backward pass of one micro-batch."""
        plan = rows.columns(self.probes.question)
        spreads, exchanges = rows.of_each(spreads_vocabulary(plan)) > 0, rows.of_each(exchanges_gradients(plan))
        shards = np.where(exchanges > 0, rows.state_shard_size, np.minimum(rows.state_shard_size, 2))
        reshards = np.where(rows.zero_stage == 3, rows.reshard_after_forward, 1)
        divides = np.minimum(np.maximum(rows.tp, rows.ep) - 1, 1)
        is_piped = np.minimum(rows.pp - 1, 1)
        ways = [rows.zero_stage, shards, is_piped, reshards, divides, exchanges]
        forward, backward = (self._parameters(rows, stage, spreads=spreads)[:, None] * self._ways.look_up(ways)).T
        return forward, backward

    def _parameters(self, rows: Candidates, stage: WatchedStage, *, spreads: Mask) -> FloatColumn:
        """What a rank of a stage holds while it computes; a spread vocabulary is neither gathered nor cast."""
        blocks = np.sum(self._blocks.look_up([rows.tp, rows.ep, rows.expert_tp]) * stage.blocks, axis=1)
        tables = self._tables.look_up([rows.tp, stage.has_embedding, stage.has_head])[:, 0]
        found: FloatColumn = blocks + np.where(spreads, 0.0, tables)
        return found

    @cached_property
    def _blocks(self) -> Table:
        return Table(self._of_blocks)

    def _of_blocks(self, key: Key) -> tuple[float, ...]:
        """Parameters in a block of each shape on one rank, by tp, ep and expert_tp."""
        tp, ep, expert_tp = key
        context = self.probes.context(Layout(tp=tp, ep=ep, expert_tp=expert_tp, zero_stage=0), tables=(0, 0))
        return tuple(float(unit.base.full) for unit in context.units)

    @cached_property
    def _tables(self) -> Table:
        return Table(self._of_tables)

    def _of_tables(self, key: Key) -> tuple[float]:
        tp, has_embedding, has_head = key
        context = self.probes.context(
            Layout(tp=tp, zero_stage=0),
            tables=(has_embedding, has_head),
            blocks=(0,) * len(self.probes.shapes),
        )
        return (_parameters(context),)

    @cached_property
    def _ways(self) -> Table:
        return Table(self._of_way)

    def _of_way(self, key: Key) -> tuple[float, float]:
        """Seconds for each parameter in both passes.

        The key holds ZeRO stage, ranks that divide states, whether there is a pipeline, whether blocks are gathered
        again, whether matrices or experts are divided, and whether our trainer exchanges gradients.
        """
        zero_stage, shards, is_piped, reshards, divides, exchanges = key
        layout = Layout(
            tp=1 + divides,
            pp=1 + is_piped,
            dp_shard=shards,
            zero_stage=ZERO_STAGES[zero_stage],
            reshard_after_forward=bool(reshards),
            spread_vocabulary=False,
            exchange_gradients=bool(exchanges),
        )
        context = self.probes.context(layout, batch=ProbedBatch(num_microbatches=PROBED_MICROBATCHES))
        copies = tuple(sharding_operations(context, operation_context(context)))
        times = self.machine.phase_times(copies, part="sharding copies")
        parameters = _parameters(context)
        return times.forward_s / parameters, times.backward_s / parameters


def _parameters(context: StageContext) -> float:
    """Of a whole stage on one rank, before they are divided by data parallelism."""
    return float(sum(unit.base.full * unit.count for unit in context.units))
