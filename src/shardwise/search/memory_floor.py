"""A lower bound on the device memory of every candidate, in array operations.

The bound adds what is certainly alive at the end of forward: states, activations of the micro-batches in flight, what
stays gathered, the logits, and the device's fixed share. Every term comes from the same inventory functions as the full
prediction, evaluated once per combination of the few degrees it depends on; what happens inside a block's backward is
left out, so the bound is below the prediction and a candidate above the capacity can be dropped without predicting it.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwise.layout import Layout
from shardwise.predict.device_overhead import fixed_bytes
from shardwise.search.candidates import (
    OFFLOADS,
    SCHEDULES,
    ZERO_STAGES,
    Candidates,
    FloatColumn,
    IntColumn,
    Key,
    look_up,
)
from shardwise.search.probes import PIPELINE_KEYS, ProbedBatch, Probes, WatchedStage, watched_index
from shardwise.step.activation_tensors import logit_tensors, resident
from shardwise.step.buffers import buffer_tensors
from shardwise.step.held_weights import HeldWeights
from shardwise.step.in_flight import in_flight_micro_batches
from shardwise.step.stage_context import StageContext, Unit
from shardwise.step.states import QUANTISED_BYTES, unit_states

__all__ = ["MemoryFloor"]

ONE_TOKEN = ProbedBatch(seq_len=1)
"""For what does not depend on the batch."""
NUM_STATES = 3
"""Parameters, gradients, optimizer."""


@dataclass(frozen=True, kw_only=True)
class MemoryFloor:
    """The bound for one question. Columns of results are in bytes."""

    probes: Probes

    def device_bytes(self, rows: Candidates, *, num_microbatches: IntColumn) -> FloatColumn:
        """The least device memory the worst rank of each candidate can do with."""
        if not len(rows):
            return np.zeros(0)
        bounds = [self._stage_bytes(rows, num_microbatches, stage) for stage in self.probes.watched_stages(rows)]
        bound: FloatColumn = np.max(np.stack(bounds), axis=0) + self._fixed(rows)
        return bound

    def state_bytes(self, rows: Candidates) -> FloatColumn:
        """Parameters, gradients and optimizer states of the worst watched stage."""
        sums = [np.sum(self._states(rows, stage), axis=0) for stage in self.probes.watched_stages(rows)]
        worst: FloatColumn = np.max(np.stack(sums), axis=0)
        return worst

    def _stage_bytes(self, rows: Candidates, num_microbatches: IntColumn, stage: WatchedStage) -> FloatColumn:
        parameters, gradients, optimizer = self._states(rows, stage)
        kept = np.sum(self._kept_by_each_block(rows) * stage.blocks, axis=1)
        activations = kept * rows.micro_batch_size * self._in_flight(rows, num_microbatches, stage.index)
        logits = self._logits(rows) * stage.has_head * rows.micro_batch_size
        at_forward, at_loss = self._buffers(rows, stage)
        transient = activations + np.maximum(at_forward, at_loss + logits)
        accumulated = np.where((num_microbatches > 1) | self._has_persistent_gradients, gradients, 0.0)
        held: FloatColumn = parameters + optimizer + np.maximum(gradients, transient + accumulated)
        return held

    @cached_property
    def _has_persistent_gradients(self) -> bool:
        return self.probes.context(Layout(zero_stage=0)).profile.has_persistent_gradients

    def _states(self, rows: Candidates, stage: WatchedStage) -> FloatColumn:
        """``(3, rows)``: parameters, gradients and optimizer of one rank, divided as the ZeRO stage says."""
        per_block = rows.lookup(("tp", "ep", "zero_stage"), self._block_states)
        per_block = per_block.reshape(len(rows), len(self.probes.shapes), NUM_STATES, 2)
        undivided = np.einsum("rsij,rs->ijr", per_block, stage.blocks)
        undivided += self._table_states(rows, stage)
        divided_from = np.asarray([3, 2, 1])[:, None]
        is_divided = rows.zero_stage[None, :] >= divided_from
        dense = np.where(is_divided, 1 / rows.state_shard_size, 1.0)
        routed = np.where(is_divided, 1 / rows.expert_state_shard_size, 1.0)
        states = undivided[:, 0] * dense + undivided[:, 1] * routed + self._frozen(rows, stage)
        keeps_optimizer = rows.offload == OFFLOADS.index("none")
        keeps_weights = keeps_optimizer | (rows.offload == OFFLOADS.index("optimizer"))
        held: FloatColumn = states * np.stack([keeps_weights, keeps_weights, keeps_optimizer])
        return held

    def _block_states(self, key: Key) -> tuple[float, ...]:
        """Bytes of one block of every shape: three states, dense and routed."""
        tp, ep, zero_stage = key
        context = self.probes.context(Layout(tp=tp, ep=ep, zero_stage=ZERO_STAGES[zero_stage]), tables=(0, 0))
        return tuple(value for unit in context.units for value in _unit_states(context, unit))

    def _table_states(self, rows: Candidates, stage: WatchedStage) -> FloatColumn:
        """``(3, 2, rows)``: states of embedding and head where the stage holds them."""

        def tables(key: Key) -> tuple[float, ...]:
            tp, zero_stage, has_embedding, has_head = key
            context = self.probes.context(
                Layout(tp=tp, zero_stage=ZERO_STAGES[zero_stage]),
                blocks=(0,) * len(self.probes.shapes),
                tables=(has_embedding, has_head),
            )
            sums = [_unit_states(context, unit) for unit in context.units if not context.has_adapter]
            return tuple(map(sum, zip(*sums, strict=True))) if sums else (0.0,) * (2 * NUM_STATES)

        table = look_up([rows.tp, rows.zero_stage, stage.has_embedding, stage.has_head], tables)
        return table.reshape(len(rows), NUM_STATES, 2).transpose(1, 2, 0)

    def _frozen(self, rows: Candidates, stage: WatchedStage) -> FloatColumn:
        """``(3, rows)``: the base weights under an adapter, at their smallest."""
        held = np.zeros((NUM_STATES, len(rows)))
        recipe = self.probes.question.recipe
        if recipe.adapter == "none":
            return held
        each = QUANTISED_BYTES if recipe.adapter == "qlora" else 2
        elements = rows.lookup(("tp", "ep"), self._block_elements)
        shards = np.where(rows.zero_stage >= 3, np.maximum(rows.state_shard_size, rows.expert_state_shard_size), 1)
        held[0] = each * np.sum(elements * stage.blocks, axis=1) / shards
        return held

    def _block_elements(self, key: Key) -> tuple[float, ...]:
        context = self.probes.context(Layout(tp=key[0], ep=key[1], zero_stage=0), tables=(0, 0))
        return tuple(float(unit.base.full) for unit in context.units)

    def _kept_by_each_block(self, rows: Candidates) -> FloatColumn:
        """``(rows, shapes)``: bytes one block keeps for backward per sequence of a micro-batch."""

        def kept(key: Key) -> tuple[float, ...]:
            tp, cp, sequence_parallel, recompute, is_gathered = key
            layout = Layout(tp=tp, cp=cp, sequence_parallel=bool(sequence_parallel), zero_stage=3 if is_gathered else 0)
            context = self.probes.context(layout, recompute=recompute)
            runs = range(len(self.probes.shapes))
            whole = [sum(tensor.num_bytes for tensor in saved) for saved in context.saved]
            # With recompute_layers only some blocks are recomputed; the smaller figure for all of them is a bound.
            each = [context.kept_bytes(run) if context.recomputed_layers(1) else whole[run] for run in runs]
            return tuple(float(resident(context, num_bytes)) for num_bytes in each)

        is_gathered = (rows.zero_stage == 3).astype(np.int64)
        return look_up([rows.tp, rows.cp, rows.sequence_parallel, rows.recompute, is_gathered], kept)

    def _in_flight(self, rows: Candidates, num_microbatches: IntColumn, watched: int) -> FloatColumn:
        def sets(key: Key) -> tuple[float]:
            pp, vpp, schedule, count = key
            return (
                in_flight_micro_batches(
                    schedule=SCHEDULES[schedule],
                    stage=watched_index(pp, watched),
                    pp=pp,
                    vpp=vpp,
                    num_microbatches=count,
                ),
            )

        return look_up([*(rows.column(name) for name in PIPELINE_KEYS), num_microbatches], sets)[:, 0]

    def _logits(self, rows: Candidates) -> FloatColumn:
        """Logits and the loss's own tensors per sequence, for a stage that holds the head."""

        def of_one_sequence(key: Key) -> tuple[float]:
            context = self.probes.context(Layout(tp=key[0], cp=key[1], zero_stage=0))
            at_loss = context.timeline.loss_forward
            return (float(sum(t.num_bytes for t in logit_tensors(context) if t.born <= at_loss)),)

        return rows.lookup(("tp", "cp"), of_one_sequence)[:, 0]

    def _buffers(self, rows: Candidates, stage: WatchedStage) -> tuple[FloatColumn, FloatColumn]:
        """What is gathered, cached or staged at the end of forward, and at the loss."""

        def alive(key: Key) -> tuple[float, ...]:
            tp, ep, is_gathered, reshards, is_piped, has_embedding, has_head, *blocks = key
            layout = Layout(
                tp=tp,
                ep=ep,
                pp=1 + is_piped,
                zero_stage=3 if is_gathered else 0,
                reshard_after_forward=bool(reshards),
            )
            context = self.probes.context(
                layout, batch=ONE_TOKEN, tables=(has_embedding, has_head), blocks=tuple(blocks)
            )
            moments = (context.timeline.forward, context.timeline.loss_forward)
            tensors = tuple(buffer_tensors(context))
            return tuple(float(sum(t.num_bytes for t in tensors if t.born <= at <= t.dies)) for at in moments)

        flags = [(rows.zero_stage == 3).astype(np.int64), rows.reshard_after_forward, np.minimum(rows.pp - 1, 1)]
        counts = [stage.blocks[:, shape].astype(np.int64) for shape in range(len(self.probes.shapes))]
        table = look_up([rows.tp, rows.ep, *flags, stage.has_embedding, stage.has_head, *counts], alive)
        return table[:, 0], table[:, 1]

    def _fixed(self, rows: Candidates) -> FloatColumn:
        """Context and communicators: they depend on which axes are in use, and on the peers of an all-to-all."""
        names = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep")

        def outside_allocator(key: Key) -> tuple[float]:
            layout = Layout(dp_replicate=key[0], dp_shard=key[1], tp=key[2], cp=key[3], pp=key[4], ep=key[5])
            return (float(fixed_bytes(replace(self.probes.question, layout=layout))),)

        limits = (*(2 for _ in names[:-1]), self.probes.question.cluster.node.gpus_per_node)
        columns = [np.minimum(rows.column(name), limit) for name, limit in zip(names, limits, strict=True)]
        return look_up(columns, outside_allocator)[:, 0]


def _unit_states(context: StageContext, unit: Unit) -> tuple[float, ...]:
    """Parameters, gradients and optimizer bytes of one unit, undivided, each as (dense, routed)."""
    held = unit.adapter if context.has_adapter else unit.base
    dense = replace(held, expert=0, expert_shard=0)
    routed = replace(held, dense=0, dense_shard=0, matrices=0, factored=0)
    parts = [_state_bytes(context, unit, part) for part in (dense, routed)]
    return tuple(float(parts[side][state]) for state in range(NUM_STATES) for side in range(2))


def _state_bytes(context: StageContext, unit: Unit, held: HeldWeights) -> tuple[int, int, int]:
    states = unit_states(
        held,
        states=context.states,
        recipe=context.plan.recipe,
        zero_stage=0,
        is_hidden_block=unit.is_block,
        matrices=held.matrices,
    )
    return states.parameters, states.gradients, states.master + states.moments
