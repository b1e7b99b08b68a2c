"""What is gathered, cached or staged on the device of every row, apart from activations."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwise.layout import Layout
from shardwise.search.candidates import RECOMPUTES, ZERO_STAGES, Candidates, FloatColumn, IntColumn, Key, Mask
from shardwise.search.held_states import HeldStates
from shardwise.search.memory_moments import alive_bytes, watched_moments
from shardwise.search.own_ways import exchanges_gradients, vocabulary_ranks
from shardwise.search.partial_recompute import Recomputed
from shardwise.search.probes import ONE_TOKEN, Probes, WatchedStage
from shardwise.search.tables import Combined, Table
from shardwise.step.buffers import buffer_tensors
from shardwise.step.stage_context import StageContext

__all__ = ["StageBuffers"]

NUM_ENDS = 3
"""What a key says before the blocks of every shape: whether forwards come first, and the tables of the stage."""
AROUND = 4
"""Moments around a block's backward: inside the one before it, between them, inside it, after."""
BETWEEN, VERY_FIRST, LAST_BUT_ONE = range(3)
"""Where the last recomputed block of a stage is."""


@dataclass(frozen=True, kw_only=True)
class StageBuffers:
    """The buffers for one question. Columns of results are in bytes."""

    probes: Probes
    states: HeldStates

    def at_moments(self, kinds: Combined, stage: WatchedStage, comes_first: Mask) -> FloatColumn:
        """``(moments, rows)``: what is gathered, cached or staged at every moment, apart from activations."""
        counts = stage.blocks.T.astype(np.int64)
        asked = kinds.beside([comes_first.astype(np.int64), stage.has_embedding, stage.has_head, *counts])
        table = np.asarray(self.table.rows(asked.keys), dtype=np.float64)
        found: FloatColumn = np.take(np.ascontiguousarray(table.T), asked.of_row, axis=1)
        return found

    def kinds(self, rows: Candidates, num_microbatches: IntColumn) -> Combined:
        """What buffers depend on whatever a stage holds."""
        profile = self.states.profile
        is_own = self.states.is_own_runtime
        is_gathered = ~self.states.own_buckets(rows) if is_own else rows.zero_stage == 3
        tells_stages = profile.ddp_copies_gradients or profile.sharding == "deepspeed"
        kind = np.where(is_gathered | tells_stages, rows.zero_stage, 0)
        kind = np.where(is_own & (rows.state_shard_size == 1), 0, kind)
        is_torch = profile.is_torch
        is_sharded = (rows.zero_stage > 0) & (rows.state_shard_size > 1)
        is_parallel = (rows.data_parallel_size > 1) | (is_own & is_sharded)
        flags: list[Mask] = [
            rows.pp > 1,
            is_parallel & is_torch,
            (num_microbatches > 1) & (~is_gathered | is_own) & (not profile.has_persistent_gradients),
            (rows.recompute > 0) & ~is_gathered & is_torch,
            # On one rank our trainer leaves plain weights to DDP, unless something moves to the host.
            is_own & (rows.state_shard_size == 1) & (rows.offload > 0),
        ]
        layers = np.where(is_gathered | (not is_torch), 0, rows.recompute_layers)
        reshards = np.where(is_gathered, rows.reshard_after_forward, 1)
        question = self.probes.question
        own = [vocabulary_ranks(rows, question), exchanges_gradients(rows, question).astype(np.int64)]
        degrees = [rows.tp, rows.ep, rows.expert_tp, kind, reshards]
        return Combined.of([*degrees, *(flag.astype(np.int64) for flag in flags), layers, *own])

    @cached_property
    def table(self) -> Table:
        """At the watched moments of a stage."""
        return self.probes.table(self._transients, is_slow=True)

    def _transients(self, key: Key) -> tuple[float, ...]:
        context = self._bare_stage(key)
        blocks = key[-len(self.probes.shapes) :]
        return alive_bytes(tuple(buffer_tensors(context)), tuple(watched_moments(context, blocks)))

    def around_last_recomputed(
        self, kinds: Combined, stage: WatchedStage, comes_first: Mask, recomputed: Recomputed
    ) -> FloatColumn:
        """``(4, rows)``: the same inside the last kept block behind the last recomputed one of every row as they go
        backward, and before, inside and after that one.

        They grow evenly from the second block of a shape on; with one block before it, or one behind it, a block has
        its own.
        """
        counts = stage.blocks.T.astype(np.int64)
        place, behind = recomputed.place(stage.blocks), recomputed.behind.sum(axis=1)
        where = np.where(behind == 1, LAST_BUT_ONE, np.where(place == 1, VERY_FIRST, BETWEEN))
        held = [comes_first.astype(np.int64), stage.has_embedding, stage.has_head]
        asked = kinds.beside([recomputed.last_shape, where, *held, *counts])
        lowest, *each = self.middle_table.of(asked).T
        low, rise = np.stack(each[:AROUND]), np.stack(each[AROUND:])
        found: FloatColumn = low + rise * (place - lowest)
        return found

    @cached_property
    def middle_table(self) -> Table:
        """Around the backward of a block that is not the first of a stage to go backward."""
        return self.probes.table(self._middle, is_slow=True)

    def _middle(self, key: Key) -> tuple[float, ...]:
        """A block's number among those of its shape, what there is around its backward, how much more for each
        further block."""
        num_ends = NUM_ENDS + len(self.probes.shapes)
        *kind, shape, where = key[:-num_ends]
        ends = key[-num_ends:]
        blocks = ends[NUM_ENDS:]
        before, count = sum(blocks[:shape]), blocks[shape]
        low = {VERY_FIRST: 1, LAST_BUT_ONE: sum(blocks) - 1 - before}.get(where, 2)
        high = max(2, min(count, sum(blocks) - 2 - before)) if where == BETWEEN else low
        found = [self._around((*kind, *ends), before + number) for number in dict.fromkeys((low, high))]
        rise = ((most - least) / max(1, high - low) for least, most in zip(found[0], found[-1], strict=True))
        return (float(low), *found[0], *rise)

    def _around(self, key: Key, num_recomputed: int) -> tuple[float, ...]:
        context = self._bare_stage(key, num_recomputed=num_recomputed)
        runs = context.timeline.runs
        last = max(number for number, run in enumerate(context.held_runs) if run.num_recomputed)
        inside, after = runs[last].first_backward, runs[last].after_first
        behind, before = (
            (inside, inside) if last + 1 == len(runs) else (runs[last + 1].last_backward, runs[last + 1].after_last)
        )
        return alive_bytes(tuple(buffer_tensors(context)), (behind, before, inside, after))

    def _bare_stage(self, key: Key, *, num_recomputed: int = 0) -> StageContext:
        """A stage as the key of the transients says, with one token."""
        tp, ep, expert_tp, kind, reshards, is_piped, is_parallel, *rest = key
        repeats, recomputes, is_moved, layers, ranks, exchanges, *rest = rest
        comes_first, has_embedding, has_head, *blocks = rest
        layout = Layout(
            tp=tp,
            ep=ep,
            expert_tp=expert_tp,
            pp=1 + is_piped,
            dp_shard=max(ranks, 1 + is_parallel),
            zero_stage=ZERO_STAGES[kind],
            reshard_after_forward=bool(reshards),
            spread_vocabulary=ranks > 1,
            exchange_gradients=bool(exchanges),
        )
        context = self.probes.context(
            layout,
            # The first of two stages holds two micro-batches: all of two, not of three.
            batch=replace(ONE_TOKEN, num_microbatches=1 if not repeats else 2 if comes_first else 3),
            recompute=(len(RECOMPUTES) - 1 if recomputes or num_recomputed else 0, num_recomputed or layers),
            tables=(has_embedding, has_head),
            blocks=tuple(blocks),
        )
        if is_moved:
            recipe = replace(context.plan.recipe, offload="optimizer")
            context = replace(context, plan=replace(context.plan, recipe=recipe))
        return context
