"""The device memory of every candidate, in array operations: the same moments and tensors as the full prediction.

A stage's memory is looked at where it can be highest: at the end of forward, in the loss, inside and after the backward
of the first and the last block of each shape, at the end of backward and in the optimizer. At every moment it is a sum
of few groups of tensors, each of which depends on few degrees: states, kept activations, logits, transients. Each group
comes from the inventory once per combination of those degrees; the sums over moments and stages are arrays.

Blocks of equal shape count as one run even where a model alternates shapes.
"""

from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from shardwise.layout import Layout
from shardwise.predict.device_overhead import fixed_bytes
from shardwise.schedules.table import DEFAULT_SCHEDULE, SCHEDULE_KINDS, SCHEDULES, SPLITTING_SCHEDULES
from shardwise.search.backward_memory import Backward, kept_in_backward, most_in_blocks
from shardwise.search.candidates import (
    RECOMPUTES,
    Candidates,
    FloatColumn,
    IntColumn,
    Key,
    Mask,
    take_rows,
)
from shardwise.search.held_states import BlockStates, HeldStates
from shardwise.search.memory_moments import TAIL, alive_bytes, exchanged_bytes
from shardwise.search.own_ways import vocabulary_ranks
from shardwise.search.probes import (
    FIRST,
    LAST,
    LONGEST,
    SECOND,
    ProbedBatch,
    Probes,
    WatchedStage,
    pipelines_of,
)
from shardwise.search.stage_buffers import StageBuffers
from shardwise.search.tables import Combined, Learned, Table
from shardwise.search.team import MEMBERS
from shardwise.search.weight_halves import held_by_weight_halves
from shardwise.step.activation_tensors import RESIDENT_LAYERS_WITH_OFFLOAD, logit_tensors, spread_tensors
from shardwise.step.activations import backward_temporaries
from shardwise.step.in_flight import in_flight_micro_batches
from shardwise.step.weight_half import block_gradients, head_gradients

__all__ = ["MemoryEstimate"]

KINDS = [SCHEDULE_KINDS[name] for name in SCHEDULES]
IS_SPLIT = np.asarray([kind.torch_splits_backward for kind in KINDS])
IS_PLAIN = np.asarray([kind.is_plain for kind in KINDS])
DOUBLES_CHUNKS = np.asarray([kind.doubles_chunks for kind in KINDS])
"""By position in ``SCHEDULES``."""
FEW_ROWS = 1 << 8
"""So few rows are not divided between processes."""
ROWS_AT_ONCE = 1 << 14
"""Rows whose moments are added up together: so few that what lies between stays in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes of a micro-batch on one rank: columns of ``(rows, shapes)`` per block, or of rows."""

    whole: FloatColumn
    """Kept by a block that is not recomputed."""
    kept: FloatColumn
    """Kept by a block that is."""
    live: FloatColumn
    """Brought back while a recomputed block runs backward."""
    working: FloatColumn
    """Gradients and exchanges inside a block's backward."""
    logits: FloatColumn
    """``(rows, 3)`` of the whole micro-batch: loss, its backward and the head's, where a stage holds the head."""
    boundary: FloatColumn
    """Messages of the pipeline."""
    waiting: FloatColumn
    """Gradients of the whole micro-batch that the loss made and that wait for its backward."""
    halves: FloatColumn
    """``(rows, shapes)``: what a block leaves for gradients of weights, where they are computed apart."""
    head_halves: FloatColumn
    """The same of the head, of the whole micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the memory of rows is made of, before one of their stages is looked at."""

    rows: Candidates
    num_microbatches: IntColumn
    pipelines: Combined
    activations: Activations
    states: BlockStates
    buffers: Combined
    """What buffers depend on."""

    def take(self, chosen: IntColumn) -> "Parts":
        """Of some of the rows."""
        return Parts(
            rows=self.rows.take(chosen),
            num_microbatches=self.num_microbatches[chosen],
            pipelines=self.pipelines.take(chosen),
            activations=take_rows(self.activations, chosen),
            states=self.states.take(chosen),
            buffers=self.buffers.take(chosen),
        )


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """The estimate for one question. Columns of results are in bytes."""

    probes: Probes

    @cached_property
    def states(self) -> HeldStates:
        """What is held from step to step."""
        return HeldStates(probes=self.probes)

    @cached_property
    def buffers(self) -> StageBuffers:
        """What is gathered, cached or staged."""
        return StageBuffers(probes=self.probes, states=self.states)

    def device_bytes(
        self,
        rows: Candidates,
        *,
        num_microbatches: IntColumn,
        enough_bytes: float = np.inf,
        among: IntColumn | None = None,
    ) -> FloatColumn:
        """What the worst rank of each candidate needs on its device.

        Args:
            rows: the candidates.
            num_microbatches: of every row.
            enough_bytes: a row of which one stage needs more than this may be given with the need of that stage.
            among: the rows that are asked about; all of them without.
        """
        num_rows = len(rows) if among is None else len(among)
        if not num_rows:
            return np.zeros(0)
        num_parts = MEMBERS * -(-num_rows // (MEMBERS * ROWS_AT_ONCE)) if num_rows > FEW_ROWS else 1
        size = -(-num_rows // num_parts)

        def weighed(start: int) -> tuple[FloatColumn, list[Learned]]:
            part = slice(start, start + size)
            chosen = part if among is None else among[part]
            known = [table.num_own for table in self._tables]
            needed_bytes = self._device_bytes(rows.take(chosen), num_microbatches[chosen], enough_bytes)
            return needed_bytes, [table.learned_since(num) for table, num in zip(self._tables, known, strict=True)]

        parts = self.probes.team.each(weighed, range(0, num_rows, size))
        for _, learned in parts:
            for table, answers in zip(self._tables, learned, strict=True):
                table.learn(answers)
        return np.concatenate([needed_bytes for needed_bytes, _ in parts])

    def _device_bytes(self, rows: Candidates, num_microbatches: IntColumn, enough_bytes: float) -> FloatColumn:
        parts = Parts(
            rows=rows,
            num_microbatches=num_microbatches,
            pipelines=pipelines_of(rows),
            activations=self._activations(rows),
            states=self.states.of_blocks(rows),
            buffers=self.buffers.kinds(rows, num_microbatches),
        )
        fixed, ratio = self._fixed(rows), self._learned_ratio
        total: FloatColumn = ratio * self._stage_bytes(parts, FIRST) + fixed
        for watched in (SECOND, LAST, *self.probes.others(parts.pipelines)):
            here = np.flatnonzero(self._differs(parts, watched) & (total <= enough_bytes))
            if len(here):
                need = self._stage_bytes(parts if len(here) == len(rows) else parts.take(here), watched)
                total[here] = np.maximum(total[here], ratio * need + fixed[here])
        return total

    def _differs(self, parts: Parts, watched: int) -> Mask:
        """Rows where a watched stage is none of those before it."""
        if watched in (SECOND, LAST):
            is_another: Mask = parts.rows.pp > (1 if watched == SECOND else 2)
            return is_another
        return self.probes.watched_of(parts.pipelines, watched).stage > 0

    @property
    def _learned_ratio(self) -> float:
        """What runs taught about what the allocator holds; what lies outside it has its own factor."""
        calibration = self.probes.question.cluster.calibration
        if calibration is None:
            return 1.0
        return calibration.ratio_of("memory allocated") * calibration.ratio_of("memory reserved")

    def _stage_bytes(self, parts: Parts, watched: int) -> FloatColumn:
        """The highest of all moments of one watched stage."""
        rows, num_microbatches, activations = parts.rows, parts.num_microbatches, parts.activations
        stage = self.probes.watched_of(parts.pipelines, watched)
        states = self.states.of_stage(parts.states, stage)
        in_flight = self.in_flight(parts.pipelines, num_microbatches, stage)
        comes_first = self._forwards_come_first(rows, num_microbatches, in_flight)
        buffers = self.buffers.at_moments(parts.buffers, stage, comes_first)
        recomputed = self.probes.recomputed(rows, stage)
        size = rows.micro_batch_size[:, None]
        kept = kept_in_backward(
            recomputed,
            blocks=stage.blocks,
            kept=size * activations.kept,
            whole=size * activations.whole,
            resident=self._resident_fraction(rows, stage)[:, None],
        )
        own_bytes = kept.at_end.sum(axis=1)
        boundary = self._boundary_bytes(parts, stage, np.where(comes_first, in_flight - 1, 0.0))
        waits = self.states.accumulates_whole(rows, num_microbatches)
        reduced = np.where(waits, 0.0, states.gradients)
        halves = held_by_weight_halves(
            parts.pipelines,
            stage,
            num_microbatches=num_microbatches,
            vpp=rows.vpp,
            gradients=(size * activations.halves, activations.head_halves),
            kept=kept.at_end,
        )
        during = np.maximum(0.0, in_flight - 1) * own_bytes + boundary + halves.during
        is_born_late = ((num_microbatches == 1) | (comes_first & ~waits)) & ~self.states.has_persistent_gradients(rows)
        # Under DDP nothing is cast or gathered: the head's gradient is there when its backward is.
        is_there = is_born_late & self.states.own_buckets(rows) & self.states.is_own_runtime
        born, born_of_head = np.where(is_born_late, 0.0, reduced), np.where(is_there, states.head_gradients, 0.0)
        backward = Backward(
            during=during,
            kept=kept,
            live=size * activations.live * (recomputed.blocks > 0),
            working=size * activations.working,
            born=born + born_of_head,
            of_blocks=np.where(is_born_late[:, None], states.block_gradients, 0.0),
        )
        logits = activations.logits * stage.has_head[:, None]
        highest = born + _most_until_head(during + own_bytes, logits, buffers, born_of_head)
        backward = halves.join(backward)
        in_blocks, in_first = most_in_blocks(stage, backward, recomputed, buffers)
        highest = np.maximum(highest, in_blocks)
        cut = np.flatnonzero(recomputed.is_cut)
        if len(cut):
            some, there = take_rows(recomputed, cut), take_rows(stage, cut)
            around = self.buffers.around_last_recomputed(parts.buffers.take(cut), there, comes_first[cut], some)
            around = around + backward.take(cut).around_last_recomputed(there.blocks, some)
            highest[cut] = np.maximum(highest[cut], around.max(axis=0))
        # What waits meets whole gradients: when the first micro-batch is through, and in the second one's first block.
        met = reduced + during + np.maximum(buffers[-TAIL], buffers[1 - TAIL] + in_first)
        highest = np.where(comes_first, np.maximum(highest, met), highest)
        end = reduced + buffers[-2] + boundary
        update = states.gradients + buffers[-1] + states.during_step
        peak: FloatColumn = states.parameters + states.optimizer + np.maximum(highest, np.maximum(end, update))
        return peak

    def _boundary_bytes(self, parts: Parts, stage: WatchedStage, num_waiting: FloatColumn) -> FloatColumn:
        """Messages of a pipeline, and what the losses of so many micro-batches made that waits for their backward."""
        rows, activations = parts.rows, parts.activations
        messages = np.where(rows.pp > 1, rows.micro_batch_size * activations.boundary, 0.0)
        found: FloatColumn = messages * self._message_buffers(rows, parts.num_microbatches, stage)
        return found + num_waiting * stage.has_head * activations.waiting

    def moved_bytes(self, rows: Candidates) -> FloatColumn:
        """Activations of one micro-batch that the longest stage moves to the host, where they are offloaded."""
        return self.moved_by(rows, self.probes.watched(rows, LONGEST))

    def moved_by(self, rows: Candidates, stage: WatchedStage) -> FloatColumn:
        """The same of another stage."""
        activations, again = self._activations(rows), self.probes.recomputed(rows, stage).blocks
        kept = (again * activations.kept + (stage.blocks - again) * activations.whole).sum(axis=1)
        moved: FloatColumn = rows.micro_batch_size * kept * (1 - self._resident_fraction(rows, stage))
        return moved

    def _resident_fraction(self, rows: Candidates, stage: WatchedStage) -> FloatColumn:
        num_layers = np.maximum(1, stage.blocks.sum(axis=1))
        kept = np.minimum(RESIDENT_LAYERS_WITH_OFFLOAD, num_layers) / num_layers
        fraction: FloatColumn = np.where(rows.activation_offload > 0, kept, 1.0)
        return fraction

    def _activations(self, rows: Candidates) -> Activations:
        num_shapes = len(self.probes.shapes)
        sharding = (rows.zero_stage == 3).astype(np.int64)
        # Token copies are exchanged or not: how many ranks they go to does not change how many there are.
        keys = [rows.tp, rows.cp, np.minimum(2, rows.ep), rows.expert_tp, rows.sequence_parallel, sharding]
        table = self._block_table.look_up(keys).reshape(len(rows), num_shapes, 2 + 3 * len(RECOMPUTES))
        mode = rows.recompute[:, None, None]
        by_mode = np.split(table[:, :, 2:], 3, axis=2)
        working, kept, live = (np.take_along_axis(columns, mode, axis=2)[:, :, 0] for columns in by_mode)
        is_split = IS_SPLIT[rows.schedule] & (rows.pp > 1)
        batch = [rows.micro_batch_size, is_split.astype(np.int64)]
        ranks = vocabulary_ranks(rows, self.probes.question)
        ends = self._end_table.look_up([rows.tp, rows.cp, rows.sequence_parallel, *batch, ranks])
        return Activations(
            whole=table[:, :, 0],
            kept=kept,
            live=live,
            working=working,
            logits=ends[:, :3],
            boundary=ends[:, 3],
            waiting=ends[:, 4],
            halves=table[:, :, 1],
            head_halves=ends[:, 5],
        )

    @property
    def _tables(self) -> tuple[Table, ...]:
        """What took long to fill in, so that what one process learned while it weighed rows the other need not."""
        return self._block_table, self._end_table, self.buffers.table, self.buffers.middle_table

    @cached_property
    def _block_table(self) -> Table:
        return self.probes.table(self._block_bytes, is_slow=True)

    def _block_bytes(self, key: Key) -> tuple[float, ...]:
        """Per shape: kept whole, left for gradients of weights, then working, kept and live under each recompute mode.

        Of one sequence.
        """
        tp, cp, ep, expert_tp, sequence_parallel, is_gathered = key
        layout = Layout(
            tp=tp,
            cp=cp,
            ep=ep,
            expert_tp=expert_tp,
            sequence_parallel=bool(sequence_parallel),
            zero_stage=3 if is_gathered else 0,
        )
        contexts = [self.probes.context(layout, recompute=(mode, 0), tables=(0, 0)) for mode in range(len(RECOMPUTES))]
        (context, *_) = contexts
        exchanges = exchanged_bytes(context)
        found: list[float] = []
        for run, shape in enumerate(self.probes.shapes):
            tensors = context.saved[run]
            whole = sum(tensor.num_bytes for tensor in tensors)
            routed = sum(tensor.num_bytes for tensor in tensors if tensor.is_routed)
            again = (context.live_block_copies - 1) * (whole - routed)
            kept = [each.kept_bytes(run) for each in contexts]
            working = [backward_temporaries(shape, each.block_context) + exchanges[run] for each in contexts]
            revived = [each.revived_bytes(run) for each in contexts]
            halves = block_gradients(shape, context.block_context) * context.is_own_runtime
            found += [whole, halves, *working, *kept, *(num_bytes + again for num_bytes in revived)]
        return tuple(found)

    @cached_property
    def _end_table(self) -> Table:
        return self.probes.table(self._end_bytes, is_slow=True)

    def _end_bytes(self, key: Key) -> tuple[float, ...]:
        """Logits with the head's input at the loss and in both backwards; of one sequence, the pipeline's messages.

        Last come the gradients that our trainer makes with the loss, and what it leaves for those of weights.
        """
        tp, cp, sequence_parallel, micro_batch_size, is_split, ranks = key
        layout = Layout(
            dp_shard=ranks,
            spread_vocabulary=ranks > 1,
            tp=tp,
            cp=cp,
            sequence_parallel=bool(sequence_parallel),
            zero_stage=3 if ranks > 1 else 0,
            pp=1 + is_split,
            schedule=SPLITTING_SCHEDULES[0] if is_split else DEFAULT_SCHEDULE,
        )
        context = self.probes.context(layout, batch=ProbedBatch(micro_batch_size=micro_batch_size))
        timeline = context.timeline
        at = (timeline.loss_forward, timeline.loss_backward, timeline.head_backward)
        block = context.block_context
        hidden = block.tokens * block.hidden_size * block.element_bytes
        message = hidden // block.sequence_shards // micro_batch_size
        logits = tuple(logit_tensors(context))
        waiting = sum(tensor.num_bytes for tensor in logits if tensor.name.startswith("gradient of the head"))
        halves = head_gradients(context) * context.is_own_runtime
        return (*alive_bytes((*logits, *spread_tensors(context)), at), 2 * message, waiting, halves)

    def _message_buffers(self, rows: Candidates, num_microbatches: IntColumn, stage: WatchedStage) -> FloatColumn:
        """Pairs of messages that have a buffer: one, or under our trainer every micro-batch's in each direction.

        There the last stage also keeps what it put out of earlier micro-batches, each as large as half a pair.
        """
        if not self.states.is_own_runtime:
            return np.ones(len(rows))
        chunks = np.where(DOUBLES_CHUNKS[rows.schedule], 2, rows.vpp)
        directions = 2 * chunks - stage.has_embedding - stage.has_head
        kept = stage.has_head * (num_microbatches - 1)
        pairs: FloatColumn = (num_microbatches * directions + kept) / 2
        return pairs

    def in_flight(self, pipelines: Combined, num_microbatches: IntColumn, stage: WatchedStage) -> FloatColumn:
        """Micro-batches whose activations a stage keeps at once."""
        asked = pipelines.beside([num_microbatches, stage.stage])
        found: FloatColumn = np.asarray([_in_flight_sets(key) for key in asked.keys])[asked.of_row]
        return found

    def _forwards_come_first(self, rows: Candidates, num_microbatches: IntColumn, in_flight: FloatColumn) -> Mask:
        """Rows whose stage runs all forward passes before the first backward, as the inventory says."""
        is_plain = (rows.pp > 1) & IS_PLAIN[rows.schedule] & self.states.is_own_runtime
        comes_first: Mask = is_plain & (num_microbatches > 1) & (num_microbatches <= in_flight)
        return comes_first

    def _fixed(self, rows: Candidates) -> FloatColumn:
        """Context and communicators: they depend on which axes are in use, and on the peers of an all-to-all."""
        names = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep")

        limits = (2, 2, 2, 2, 3, self.probes.question.cluster.node.gpus_per_node)
        columns = [np.minimum(rows.column(name), limit) for name, limit in zip(names, limits, strict=True)]
        return self._fixed_table.look_up(columns)[:, 0]

    @cached_property
    def _fixed_table(self) -> Table:
        return self.probes.table(self._outside_allocator)

    def _outside_allocator(self, key: Key) -> tuple[float]:
        layout = Layout(dp_replicate=key[0], dp_shard=key[1], tp=key[2], cp=key[3], pp=key[4], ep=key[5])
        return (float(fixed_bytes(replace(self.probes.question, layout=layout))),)


@cache
def _in_flight_sets(key: Key) -> float:
    """Micro-batches whose activations a stage holds at once."""
    pp, vpp, schedule, count, index = key
    return in_flight_micro_batches(schedule=SCHEDULES[schedule], stage=index, pp=pp, vpp=vpp, num_microbatches=count)


def _most_until_head(
    forward: FloatColumn, logits: FloatColumn, buffers: FloatColumn, born_of_head: FloatColumn
) -> FloatColumn:
    """The most of the end of forward, the loss, its backward and the head's, whose gradient is born there."""
    moments = [forward, *(forward + part for part in logits.T)]
    moments[-1] = moments[-1] + born_of_head
    most: FloatColumn = np.max(np.stack([m + b for m, b in zip(moments, buffers, strict=False)]), axis=0)
    return most
