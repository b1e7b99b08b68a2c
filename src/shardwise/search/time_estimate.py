"""An estimate of the step time of every candidate, in array operations, refined only where it can matter.

Computation comes from the inventory's operations and communication from its collectives, each asked once per
combination of the degrees it depends on. What the full prediction simulates (streams, schedules event by event) is a
closed form here.

The estimate of a row is made in three levels, each at least as long as the one before: from the fastest block of the
same tensor and expert degrees, however its tokens are cut; from its own blocks; and with data parallelism.
:mod:`shardwise.search.refinement` asks for a level only where the one before leaves a row in the running.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.predict.pipeline_time import gathers_at_step_begin, unpaired_fraction
from shardwise.schedules.table import DEFAULT_SCHEDULE, SCHEDULE_KINDS, SCHEDULES
from shardwise.search.block_times import (
    BLOCK_FIELDS,
    BLOCK_KEYS,
    MODULE_FIELDS,
    PIPED,
    SHARDING_FIELDS,
    UNPIPED,
    V_SHAPED_PIPE,
    BlockTimes,
)
from shardwise.search.candidates import (
    RECOMPUTES,
    Candidates,
    FloatColumn,
    IntColumn,
    Key,
    Mask,
)
from shardwise.search.host_times import HostTimes
from shardwise.search.machine import Machine
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.probes import FIRST, LAST, LONGEST, Probes, WatchedStage, pipelines_of
from shardwise.search.tables import Table
from shardwise.step.native_engine import exchanges_gradients, is_native_engine, spreads_vocabulary
from shardwise.step.operation_context import issues_each_expert

__all__ = ["TimeEstimate", "of_stage"]

KINDS = [SCHEDULE_KINDS[name] for name in SCHEDULES]
WAITS = np.asarray([kind.is_plain for kind in KINDS])
"""Schedules whose stages wait for each other's messages: nothing runs beside them."""
IS_V_SHAPED = np.asarray([kind.is_v_shaped for kind in KINDS])
"""Schedules of two chunks a stage whose last stage hands to itself."""
SPLITS = np.asarray([kind.splits_backward for kind in KINDS])
"""Schedules that may put off gradients of weights."""
HIDES = np.asarray([kind.overlaps_passes for kind in KINDS])
"""Schedules whose experts exchange tokens under the blocks of another micro-batch. All by position in ``SCHEDULES``."""
SATURATING_TOKENS = 16384
"""Beyond this many tokens of a micro-batch on a rank, kernels take time in proportion to them."""
ISSUED_SATURATING_TOKENS = 131072
"""Such tokens where the host issues every expert by itself, which takes it as long for however many: with 16,384, rows
of Qwen3-30B were estimated up to four times too slow; with these, planning it takes 1.3 s instead of 1.0."""
WATCHED = (FIRST, LONGEST, LAST)
"""The stages that are timed."""
LEAST_PASSING_FRACTION = 0.3
"""Smallest share of a block's time that the next stage waits for where gradients of weights are put off: these are a
third of the block's FLOP, and up to two thirds of its bytes."""
HIDDEN_PARTS = ("overlappable", "contention")
BOUND_FRACTION = 0.94
"""Kernels are fastest where a rank has most tokens at once. Tiles and waves make that untrue by 2.9 % at the most among
all cuts of 8B, 9B, 70B and 8x7B models on nodes of six and eight GPUs; bounds leave room for twice that."""

Work = NDArray[np.float64]
"""``(rows, shapes, BLOCK_FIELDS)``"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """One micro-batch on one stage of every row."""

    forward: FloatColumn
    backward: FloatColumn
    weight_backward: FloatColumn
    exposed: FloatColumn
    """Tensor, context and expert communication that nothing hides."""
    forward_exposed: FloatColumn
    """The part of it in the forward pass."""

    @property
    def total(self) -> FloatColumn:
        """Compute and exposed communication."""
        return self.forward + self.backward + self.exposed


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds of all micro-batches of a step, one entry per row, before data parallelism adds to them."""

    steady: FloatColumn
    """Seconds the slowest stage works in a step, without waiting for other stages, one entry per row."""
    bubble: FloatColumn
    host: FloatColumn
    """Waiting for the host."""
    compute_s: FloatColumn
    """``(rows, 2, 2)``: seconds of one micro-batch on the longest stage, under which data parallelism hides: forward
    and backward, each first with its waits for communication, then the computation alone."""

    @property
    def total(self) -> FloatColumn:
        """Seconds from the first forward to the last backward."""
        return self.steady + self.bubble + self.host


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """The estimate for one question. Columns of results are in seconds."""

    memory: MemoryEstimate

    @property
    def probes(self) -> Probes:
        """The operations, collectives and tensors of single blocks and stages of the question."""
        return self.memory.probes

    @cached_property
    def host(self) -> HostTimes:
        """Times of waiting for the host."""
        return HostTimes(probes=self.probes, memory=self.memory)

    @cached_property
    def times(self) -> BlockTimes:
        """Times of blocks, of the embedding and head, and of data-parallel collectives."""
        return BlockTimes(probes=self.probes, machine=self.machine)

    @cached_property
    def machine(self) -> Machine:
        """The rates of the cluster and engine, which turn operations and collectives into seconds."""
        return Machine(question=self.probes.question)

    def step_s(self, rows: Candidates, *, num_microbatches: IntColumn) -> FloatColumn:
        """Seconds of one optimizer step of every row, all levels of all rows."""
        if not len(rows):
            return np.zeros(0)
        sharding = self.sharding(rows)
        found = self._passes(rows, num_microbatches, sharding)
        longest = of_stage(sharding, self.probes.watched(rows, LONGEST))
        step_s: FloatColumn = found.total + self._data_parallel_s(rows, num_microbatches, longest, found.compute_s)
        return step_s

    def block_columns(self, rows: Candidates) -> list[IntColumn]:
        """The columns that a row's block work depends on, micro-batches no larger than saturate a GPU.

        Of sharding it is whether blocks are gathered one by one, as our trainer does wherever states are divided.
        """
        asked = self._asked(rows)
        gathers = rows.zero_stage > 0 if is_native_engine(self.probes.question) else rows.zero_stage == 3
        gathered = np.where(gathers & (rows.state_shard_size > 1), 3, 0)
        hides = (HIDES[rows.schedule] & (rows.ep > 1)).astype(np.int64)
        hides *= not self.probes.question.recipe.blocking_launches
        return [*(asked.column(name) for name in BLOCK_KEYS[:-2]), gathered, hides]

    @cached_property
    def block_table(self) -> Table:
        """Block fields by the values of :meth:`block_columns`."""
        return Table(self.times.of_blocks)

    @cached_property
    def modules_table(self) -> Table:
        """What modules that are recomputed take, by the values of :meth:`block_columns` and the modules' bits."""
        return Table(self.times.of_modules)

    def block_work(self, rows: Candidates) -> Work:
        """Seconds of one micro-batch in one block of every shape."""
        columns, shapes = self.block_columns(rows), len(self.probes.shapes)
        table = self.block_table.look_up(columns).reshape(len(rows), shapes, len(BLOCK_FIELDS))
        named = np.flatnonzero(rows.recompute_modules)
        if len(named):
            again = self.modules_table.look_up([column[named] for column in (*columns, rows.recompute_modules)])
            places = np.ix_(named, np.arange(shapes), MODULE_FIELDS)
            table[places] = again.reshape(len(named), shapes, len(MODULE_FIELDS))
        scale = rows.micro_batch_size / self._asked(rows).micro_batch_size
        work: Work = table * scale[:, None, None]
        return work

    def wider(self, key: Key) -> Key | None:
        """A cut of the tokens that is at least as fast per token, ``None`` for the fastest.

        As many tokens on fewer context-parallel ranks exchange less; more tokens at once run in fuller kernels.
        """
        tp, cp, ep, expert_tp, sequence_parallel, size, *others = key
        if cp == 1:
            most = max(1, self.saturating_tokens // self.probes.question.recipe.seq_len)
            return (tp, cp, ep, expert_tp, sequence_parallel, 2 * size, *others) if 2 * size <= most else None
        ranks = next(factor for factor in range(2, cp + 1) if cp % factor == 0)
        fewer = size // ranks if size % ranks == 0 else size
        most = max(1, self.saturating_tokens * (cp // ranks) // self.probes.question.recipe.seq_len)
        fewer = min(fewer, 1 << (most.bit_length() - 1))
        return (tp, cp // ranks, ep, expert_tp, sequence_parallel, fewer, *others)

    def passes_weight(self, rows: Candidates, num_microbatches: IntColumn) -> FloatColumn:
        """``(rows, shapes)``: how often a step runs through a block of each shape, bubble included, at the least."""
        size = rows.micro_batch_size / self._asked(rows).micro_batch_size
        rounds, waits = self._least_rounds(rows, num_microbatches)
        depth, pipelines = rows.pp // rows.model_copies, pipelines_of(rows)
        first, longest, last = (self.probes.watched_of(pipelines, watched).blocks for watched in WATCHED)
        others = _of_others(first, longest, last, slowest=longest, depth=depth[:, None])
        weight: FloatColumn = (rounds * size)[:, None] * longest + (waits * size)[:, None] * others
        return weight

    def _filled_work(self, rows: Candidates) -> Work:
        """Block work with the exchanges of experts that nothing hides while DualPipe fills and drains."""
        work = self.block_work(rows)
        found = np.flatnonzero(HIDES[rows.schedule] & (rows.ep > 1))
        if len(found):
            hiding = rows.take(found)
            alone = self.block_work(replace(hiding, schedule=np.full(len(found), SCHEDULES.index(DEFAULT_SCHEDULE))))
            plan = hiding.columns(self.probes.question)
            unpaired = np.broadcast_to(np.minimum(1.0, unpaired_fraction(plan)), (len(found),))
            for field in (BLOCK_FIELDS.index(name) for name in ("exposed", "forward_exposed")):
                work[found, :, field] += unpaired[:, None] * (alone[:, :, field] - work[found, :, field])
        return work

    def _least_rounds(self, rows: Candidates, num_microbatches: IntColumn) -> tuple[IntColumn, FloatColumn]:
        """How often a step runs through its slowest stage, and waits for one of the others at the least."""
        per_hop = np.where(SPLITS[rows.schedule], 0.0, 1.0 / rows.vpp)
        least = np.where(SPLITS[rows.schedule], LEAST_PASSING_FRACTION, 1.0)
        depth, rounds = _depth_and_rounds(rows, num_microbatches)
        filling = np.minimum(rounds, depth)
        waits: FloatColumn = per_hop * (filling - 1) + least * (depth - filling)
        return rounds, waits

    @cached_property
    def saturating_tokens(self) -> int:
        """Tokens of a micro-batch on one rank from which on the time of a block grows in proportion to them."""
        question = self.probes.question
        is_issued = question.model.is_moe and issues_each_expert(question)
        return ISSUED_SATURATING_TOKENS if is_issued else SATURATING_TOKENS

    def _asked(self, rows: Candidates) -> Candidates:
        """The rows with micro-batches no larger than saturate a GPU."""
        sequences = np.maximum(1, self.saturating_tokens * rows.cp // self.probes.question.recipe.seq_len)
        most = 2 ** np.floor(np.log2(sequences)).astype(np.int64)
        return replace(rows, micro_batch_size=np.minimum(rows.micro_batch_size, most))

    def _passes(self, rows: Candidates, num_microbatches: IntColumn, sharding: Work) -> Passes:
        """Time of all micro-batches."""
        depth, rounds = _depth_and_rounds(rows, num_microbatches)
        work, ends, message_s = self._filled_work(rows), self._ends(rows), self._message_s(rows)
        pipelines = pipelines_of(rows)
        watched = [self.probes.watched_of(pipelines, watched) for watched in WATCHED]
        stages = [
            self._stage_seconds(rows, stage, work, ends, message_s, of_stage(sharding, stage)) for stage in watched
        ]
        totals = np.stack([stage.total for stage in stages])
        steady: FloatColumn = np.max(totals, axis=0) * rounds.astype(np.float64)
        longest, others = stages[1], _other_stages(stages, slowest=np.argmax(totals, axis=0), depth=depth)
        compute_s = np.stack(
            [
                longest.forward + longest.forward_exposed,
                longest.forward,
                longest.backward + longest.exposed - longest.forward_exposed,
                longest.backward,
            ],
            axis=1,
        ).reshape(-1, 2, 2)
        return Passes(
            steady=steady,
            bubble=_bubble_s(rows, others, num_microbatches, watched[1].largest_chunk_fraction)
            + _messages_s(rows, longest, num_microbatches, message_s),
            host=self.host.update_s(rows) + self.host.copies_s(rows, rounds, compute_s[:, :, 0]),
            compute_s=compute_s,
        )

    def _stage_seconds(
        self,
        rows: Candidates,
        stage: WatchedStage,
        work: Work,
        ends: FloatColumn,
        message_s: FloatColumn,
        sharding: Mapping[str, FloatColumn],
    ) -> StageSeconds:
        recomputed = self.probes.recomputed_blocks(rows, stage)
        fields = dict(zip(BLOCK_FIELDS, np.einsum("rsf,rs->fr", work, stage.blocks), strict=True))
        again = np.einsum("rsf,rs->fr", work, recomputed)
        modes = [again[BLOCK_FIELDS.index(f"recompute_{name}")] for name in RECOMPUTES]
        repeats = rows.recompute == RECOMPUTES.index("full")
        exposed_again = np.where(repeats, again[BLOCK_FIELDS.index("forward_exposed")], 0.0)
        is_selective = rows.recompute == RECOMPUTES.index("selective")
        exposed_again = np.where(is_selective, again[BLOCK_FIELDS.index("modules_exposed")], exposed_again)
        held = np.stack([stage.has_embedding, stage.has_head], axis=1)[:, :, None]
        forward, backward, weight_backward, exposed = np.sum(ends * held, axis=1).T
        forward += fields["forward"]
        repeated = np.choose(rows.recompute, modes)
        backward += fields["backward"] + repeated
        waits = np.where(WAITS[rows.schedule], 2 * rows.vpp * message_s, 0.0)
        return StageSeconds(
            forward=forward + sharding["forward_copies"],
            backward=backward + sharding["backward_copies"],
            weight_backward=fields["weight_backward"] + weight_backward,
            exposed=fields["exposed"] + exposed_again + exposed + waits,
            forward_exposed=fields["forward_exposed"],
        )

    def _ends(self, rows: Candidates) -> FloatColumn:
        """``(rows, 2, TABLE_FIELDS)``: the embedding and the head of one micro-batch."""
        asked = self._asked(rows)
        ranks = np.where(spreads_vocabulary(rows.columns(self.probes.question)), rows.dp_shard, 1)
        columns = [asked.tp, asked.cp, asked.sequence_parallel, asked.micro_batch_size, ranks]
        scale = rows.micro_batch_size / asked.micro_batch_size
        return self._ends_table.look_up(columns).reshape(len(rows), 2, -1) * scale[:, None, None]

    @cached_property
    def _ends_table(self) -> Table:
        return Table(self.times.of_tables)

    def _message_s(self, rows: Candidates) -> FloatColumn:
        """Seconds of passing one micro-batch's activations to the next stage; 0 without a pipeline."""
        asked = self._asked(rows)
        stride = np.where(rows.pp > 1, rows.tp * rows.cp * rows.data_parallel_size, 0)
        columns = [asked.tp, asked.cp, asked.sequence_parallel, asked.micro_batch_size, stride]
        seconds: FloatColumn = self._send_table.look_up(columns)[:, 0] * rows.micro_batch_size / asked.micro_batch_size
        return seconds

    @cached_property
    def _send_table(self) -> Table:
        return Table(self.times.of_send)

    def sharding_columns(self, rows: Candidates) -> list[IntColumn]:
        """The columns that data parallelism depends on, apart from the batch and the blocks."""
        reshards = np.where(rows.zero_stage == 3, rows.reshard_after_forward, 1)
        group = [rows.dp_replicate, rows.state_shard_size, rows.zero_stage]
        question = self.probes.question
        plan = rows.columns(question)
        own = [rows.of_each(spreads_vocabulary(plan)), rows.of_each(exchanges_gradients(plan))]
        sums = rows.sequence_parallel * int(question.model.is_moe)
        pipeline = np.where(rows.pp > 1, np.where(IS_V_SHAPED[rows.schedule], V_SHAPED_PIPE, PIPED), UNPIPED)
        return [rows.tp, rows.ep, rows.expert_tp, *group, pipeline, reshards, *own, sums]

    @cached_property
    def sharding_table(self) -> Table:
        """Sharding fields by the values of :meth:`sharding_columns`."""
        return Table(self.times.of_sharding)

    def sharding(self, rows: Candidates) -> Work:
        """``(rows, 1 + shapes, SHARDING_FIELDS)``: a stage with one block of each shape, then with one more of each."""
        table = self.sharding_table.look_up(self.sharding_columns(rows))
        return table.reshape(len(rows), -1, len(SHARDING_FIELDS))

    def _data_parallel_s(
        self,
        rows: Candidates,
        num_microbatches: IntColumn,
        sharding: Mapping[str, FloatColumn],
        compute_s: FloatColumn,
    ) -> FloatColumn:
        """Gathers, reductions and the update: what sticks out of the passes it accompanies, and the optimizer.

        Args:
            rows: what is estimated.
            num_microbatches: of every row.
            sharding: of the longest stage.
            compute_s: of :class:`Passes`.
        """
        depth, rounds = _depth_and_rounds(rows, num_microbatches)
        # The first chunks are done while the others still run some micro-batches: two at the least, of as many.
        beside = np.maximum(1.0, np.minimum(2, np.minimum(rounds, depth)) * (1 - 1 / rows.vpp))[:, None]
        passes = {"forward": np.where(self._gathers_in_turn(rows), depth, 1), "backward": np.ones_like(depth)}
        once = sharding["exposed"] + sharding["optimizer"]
        each = sharding["exposed_each"]
        for position, name in enumerate(passes):
            one_pass_s = compute_s[:, position]
            parts = [sharding[f"{name}_{part}"] for part in HIDDEN_PARTS]
            once = once + passes[name] * _overlapped_s(*parts, pass_s=beside * one_pass_s)
            each = each + _overlapped_s(*(sharding[f"{name}_{part}_each"] for part in HIDDEN_PARTS), pass_s=one_pass_s)
        added: FloatColumn = once + rounds * each
        return added

    def _gathers_in_turn(self, rows: Candidates) -> Mask:
        """Whether a stage gathers its parameters when its first input arrives, and so after the stages before it."""
        question = self.probes.question
        plans = (replace(question, layout=replace(question.layout, schedule=name)) for name in SCHEDULES)
        in_turn = np.asarray([not gathers_at_step_begin(plan) for plan in plans])
        found: Mask = in_turn[rows.schedule]
        return found


def of_stage(sharding: Work, stage: WatchedStage) -> dict[str, FloatColumn]:
    """``SHARDING_FIELDS`` of a stage of every row, with the embedding or head that the first one holds."""
    base, more = sharding[:, :1], sharding[:, 1:]
    totals = base[:, 0] + np.sum((more - base) * (stage.blocks - 1)[:, :, None], axis=1)
    return dict(zip(SHARDING_FIELDS, np.maximum(0.0, totals).T, strict=True))


def _depth_and_rounds(rows: Candidates, num_microbatches: IntColumn) -> tuple[IntColumn, IntColumn]:
    """Ranks from one end of a pipeline to the other, and how often each runs its blocks.

    DualPipe is a V cut in half: every rank runs half of the micro-batches through the chunks of a V of half the ranks.
    """
    copies = rows.model_copies
    depth: IntColumn = rows.pp // copies
    rounds: IntColumn = -(-num_microbatches // copies)
    return depth, rounds


def _of_others(
    first: FloatColumn, longest: FloatColumn, last: FloatColumn, *, slowest: FloatColumn, depth: IntColumn
) -> FloatColumn:
    """The mean of a figure over all stages but the slowest; those between the ends are like the longest."""
    every = first + last + (depth - 2) * longest
    found: FloatColumn = (every - slowest) / np.maximum(1, depth - 1)
    return found


def _other_stages(stages: Sequence[StageSeconds], *, slowest: IntColumn, depth: IntColumn) -> StageSeconds:
    """The mean of all stages but the slowest.

    Args:
        stages: the first, the longest and the last.
        slowest: which of these is.
        depth: stages from one end of the pipeline to the other.
    """
    figures: dict[str, FloatColumn] = {}
    for field in fields(StageSeconds):
        columns: list[FloatColumn] = [getattr(stage, field.name) for stage in stages]
        figures[field.name] = _of_others(*columns, slowest=np.choose(slowest, columns), depth=depth)
    return StageSeconds(**figures)


def _bubble_s(
    rows: Candidates, others: StageSeconds, num_microbatches: IntColumn, chunk_fraction: FloatColumn
) -> FloatColumn:
    """Idle time of the slowest stage at both ends of a step, while its micro-batches are on the other stages.

    A micro-batch passes all stages however a rank's work is cut: fewer than pp of them leave the difference idle. Where
    gradients of weights can be put off, none waits for those of the stages before, and they fill part of what is idle.
    """
    depth, rounds = _depth_and_rounds(rows, num_microbatches)
    splits, total = SPLITS[rows.schedule], others.total
    passing = total - np.where(splits, others.weight_backward, 0.0)
    forward = others.forward + others.forward_exposed
    per_hop = np.where(splits, np.maximum(forward, passing - others.weight_backward), total)
    per_hop *= np.where(IS_V_SHAPED[rows.schedule], 0.5, chunk_fraction)
    filling = np.minimum(rounds, depth)
    bubble: FloatColumn = per_hop * (filling - 1) + passing * (depth - filling)
    return bubble


def _messages_s(
    rows: Candidates, longest: StageSeconds, num_microbatches: IntColumn, message_s: FloatColumn
) -> FloatColumn:
    """Time that overlapped messages between stages add to a step; 0 for schedules whose stages wait for each message.

    Each takes its time once around the pipeline while it fills and drains. Of the micro-batches between, those of every
    chunk take what they need beyond the forward pass that runs meanwhile.
    """
    depth, rounds = _depth_and_rounds(rows, num_microbatches)
    chunks = np.where(IS_V_SHAPED[rows.schedule], 2, rows.vpp)
    each = np.maximum(0.0, chunks * message_s - longest.forward - longest.forward_exposed)
    added = 2 * (chunks * depth - 1) * message_s + np.maximum(0, rounds - depth) * each
    found: FloatColumn = np.where(WAITS[rows.schedule] | (depth == 1), 0.0, added)
    return found


def _overlapped_s(overlappable: FloatColumn, contention: FloatColumn, *, pass_s: FloatColumn) -> FloatColumn:
    """Seconds data parallelism adds to a pass it overlaps: what exceeds the pass, and the slowdown of the computation.

    What waits in the pass is not slowed. ``pass_s`` is one pass of :class:`Passes`.
    """
    whole, computing = pass_s.T
    room = np.maximum(whole, overlappable)
    fraction = np.divide(computing, room, out=np.zeros_like(whole), where=room > 0)
    added: FloatColumn = np.maximum(0.0, overlappable - whole) + fraction * contention
    return added
