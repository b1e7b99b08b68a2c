"""An estimate of the step time of every candidate, in array operations: good enough to order what is predicted next.

Compute comes from the inventory's operations and communication from its collectives, each asked once per combination of
the degrees it depends on. What the full prediction simulates (streams, schedules event by event) is a closed form here.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwise.cluster import Gpu
from shardwise.layout import Layout, Schedule
from shardwise.predict.communication import Placement, collective_time_s, place_group
from shardwise.predict.compute import PhaseTimes, phase_times
from shardwise.predict.concurrency import slowdown_ratio
from shardwise.predict.kernel_rates import KernelRates, kernel_rates
from shardwise.predict.stage_time import DATA_AXES
from shardwise.search.candidates import (
    RECOMPUTES,
    SCHEDULES,
    ZERO_STAGES,
    Candidates,
    FloatColumn,
    IntColumn,
    Key,
    look_up,
)
from shardwise.search.probes import ProbedBatch, Probes, WatchedStage
from shardwise.step.block_operations import block_operations, recomputed_operations
from shardwise.step.collectives import stage_collectives
from shardwise.step.data_parallel_collectives import data_parallel_collectives
from shardwise.step.inventory import Collective, Operation
from shardwise.step.operation_context import operation_context
from shardwise.step.stage_context import StageContext
from shardwise.step.step_operations import optimizer_operations, sharding_operations
from shardwise.step.table_operations import head_operations

__all__ = ["TimeEstimate"]

PROBED_MICROBATCHES = 2
"""With two micro-batches the inventory shows which collectives repeat with each of them."""
SATURATING_TOKENS = 16384
"""Beyond this many tokens of a micro-batch on a rank, kernels take time in proportion to them."""
SKEW_ONLY: tuple[Schedule, ...] = ("zbv", "dualpipev")
"""Schedules without a bubble inside, which still wait for the first chunk to reach the last stage."""
WAITING_SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe")
"""Schedules whose stages wait for each other's messages."""
BLOCK_KEYS = ("tp", "cp", "ep", "sequence_parallel", "micro_batch_size", "zero_stage")
NO_RECOMPUTE = RECOMPUTES.index("none")
PHASES = 5
"""forward, input and weight backward, the weight part of it, attention of both, recompute"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """One micro-batch on one stage of every row."""

    forward: FloatColumn
    backward: FloatColumn
    weight_backward: FloatColumn
    exposed: FloatColumn
    """Tensor, context and expert communication that nothing hides."""

    @property
    def total(self) -> FloatColumn:
        """Compute and exposed communication."""
        return self.forward + self.backward + self.exposed


@dataclass(frozen=True, kw_only=True)
class TimeEstimate:
    """The estimate for one question."""

    probes: Probes

    def step_s(self, rows: Candidates, *, num_microbatches: IntColumn) -> FloatColumn:
        """Seconds of one optimizer step of every row."""
        if not len(rows):
            return np.zeros(0)
        asked, scale = self._capped(rows)
        work = (
            self._block_seconds(asked) * scale[:, None, None],
            self._head_seconds(asked) * scale[:, None],
            self._block_exchanges(asked) * scale[:, None, None],
            self._sends(asked) * scale[:, None],
        )
        stages = [self._stage_seconds(stage, *work) for stage in self.probes.watched_stages(rows)]
        slowest: FloatColumn = np.max(np.stack([stage.total for stage in stages]), axis=0)
        steady: FloatColumn = slowest * num_microbatches.astype(np.float64)
        bubble = self._bubble_s(rows, stages[1], num_microbatches)
        return steady + bubble + self._data_parallel_s(rows, num_microbatches, steady)

    def _capped(self, rows: Candidates) -> tuple[Candidates, FloatColumn]:
        """The rows with micro-batches no larger than saturate a GPU, and how many times larger they really are."""
        sequences = np.maximum(1, SATURATING_TOKENS * rows.cp // self.probes.question.recipe.seq_len)
        asked = np.minimum(rows.micro_batch_size, 2 ** np.floor(np.log2(sequences)).astype(np.int64))
        return replace(rows, micro_batch_size=asked), rows.micro_batch_size / asked

    def _stage_seconds(
        self, stage: WatchedStage, block: FloatColumn, head: FloatColumn, exchanges: FloatColumn, sends: FloatColumn
    ) -> StageSeconds:
        times = np.sum(block * stage.blocks[:, :, None], axis=1) + head * stage.has_head[:, None]
        base, more = exchanges[:, :1], exchanges[:, 1:]
        exposed, hideable = (base[:, 0] + np.sum((more - base) * (stage.blocks - 1)[:, :, None], axis=1) + sends).T
        return StageSeconds(
            forward=times[:, 0],
            backward=times[:, 1] + times[:, 4],
            weight_backward=times[:, 2],
            exposed=np.maximum(0.0, exposed) + self._beyond(hideable, times[:, 3]),
        )

    def _bubble_s(self, rows: Candidates, middle: StageSeconds, num_microbatches: IntColumn) -> FloatColumn:
        """Idle time at both ends of a step.

        A micro-batch passes all stages however a rank's work is cut: fewer than pp of them leave the difference idle.
        """
        full = middle.total
        names = np.asarray(SCHEDULES)[rows.schedule]
        per_hop = np.where(
            names == "zb-h1",
            np.maximum(middle.forward, full - 2 * middle.weight_backward) / rows.vpp,
            np.where(np.isin(names, SKEW_ONLY), middle.forward / 2, full / rows.vpp),
        )
        filling = np.minimum(num_microbatches, rows.pp)
        bubble: FloatColumn = per_hop * (filling - 1) + full * (rows.pp - filling)
        return bubble

    def _block_seconds(self, rows: Candidates) -> FloatColumn:
        """``(rows, shapes, 5)``: one block, one micro-batch."""
        table = self._with_sharding_kind(rows).lookup(BLOCK_KEYS, self._times_of_each_shape)
        table = table.reshape(len(rows), len(self.probes.shapes), PHASES - 1 + len(RECOMPUTES))
        again = np.take_along_axis(table[:, :, PHASES - 1 :], rows.recompute[:, None, None], axis=2)
        times: FloatColumn = np.concatenate([table[:, :, : PHASES - 1], again], axis=2)
        return times

    def _times_of_each_shape(self, key: Key) -> tuple[float, ...]:
        """Four times of each shape, then what each recompute mode runs again."""
        context = self._probe(key, num_microbatches=PROBED_MICROBATCHES)
        operation = operation_context(context)
        policy = context.profile.selective_policy
        found: list[float] = []
        for layer in self.probes.shapes:
            operations = block_operations(layer, operation, context.plan.recipe)
            once = self._phase_times(operations)
            attention_s = once.attention_forward_s + once.attention_backward_s
            found += [once.forward_s, once.backward_s, once.weight_backward_s, attention_s]
            for name in RECOMPUTES:
                recipe = replace(context.plan.recipe, recompute=name)
                again = recomputed_operations(operations, recipe=recipe, policy=policy)
                found.append(self._phase_times(again).recompute_s)
        return tuple(found)

    def _phase_times(self, operations: tuple[Operation, ...]) -> PhaseTimes:
        return phase_times(operations, gpu=self._gpu, rates=self._rates)

    def _head_seconds(self, rows: Candidates) -> FloatColumn:
        def of_head(key: Key) -> tuple[float, ...]:
            tp, cp, micro_batch_size = key
            context = self.probes.context(
                Layout(tp=tp, cp=cp, zero_stage=0), batch=ProbedBatch(micro_batch_size=micro_batch_size)
            )
            times = self._phase_times(tuple(head_operations(context, operation_context(context))))
            return (times.forward_s, times.backward_s, times.weight_backward_s, 0.0, 0.0)

        return rows.lookup(("tp", "cp", "micro_batch_size"), of_head)

    def _block_exchanges(self, rows: Candidates) -> FloatColumn:
        """``(rows, 1 + shapes, 2)``: exposed and hideable seconds of tensor, context and expert parallelism.

        Per micro-batch of a stage with one block of each shape, then with one more of each. Full recomputation
        repeats what belongs to the forward pass.
        """

        def seconds(key: Key) -> tuple[float, ...]:
            if key[0] == key[1] == key[2] == 1:
                return (0.0,) * (4 * len(self.probes.one_more_of_each))
            found: list[float] = []
            for blocks in self.probes.one_more_of_each:
                every = stage_collectives(self._probe(key, blocks=blocks))
                calls = tuple(call for call in every if call.axis not in DATA_AXES and call.phase != "optimizer")
                forward = tuple(call for call in calls if call.phase == "forward")
                found += [*self._seconds(calls), *self._seconds(forward)]
            return tuple(found)

        table = self._with_sharding_kind(rows).lookup(BLOCK_KEYS, seconds).reshape(len(rows), -1, 4)
        repeats = (rows.recompute == RECOMPUTES.index("full"))[:, None, None]
        exchanges: FloatColumn = table[:, :, :2] + np.where(repeats, table[:, :, 2:], 0.0)
        return exchanges

    def _sends(self, rows: Candidates) -> FloatColumn:
        """``(rows, 2)``: exposed and hideable seconds per micro-batch of passing activations along the pipeline."""

        def of_one_send(key: Key) -> tuple[float]:
            tp, cp, sequence_parallel, micro_batch_size, stride = key
            layout = Layout(tp=tp, cp=cp, sequence_parallel=bool(sequence_parallel))
            block = self.probes.context(layout, batch=ProbedBatch(micro_batch_size=micro_batch_size)).block_context
            num_bytes = block.tokens * block.hidden_size * block.element_bytes // block.sequence_shards
            if not stride:
                return (0.0,)
            placement = self._placement(2, stride)
            send = Collective(
                name="send",
                kind="send_recv",
                axis="pp",
                group_size=2,
                num_bytes=num_bytes,
                count=1,
                phase="forward",
                is_overlappable=False,
                stride=stride,
            )
            return (collective_time_s(send, placement=placement),)

        stride = np.where(rows.pp > 1, rows.tp * rows.cp * rows.data_parallel_size, 0)
        one = look_up([rows.tp, rows.cp, rows.sequence_parallel, rows.micro_batch_size, stride], of_one_send)[:, 0]
        names = np.asarray(SCHEDULES)[rows.schedule]
        chunks = np.where(np.isin(names, SKEW_ONLY), 2, rows.vpp)
        total = 2 * chunks * one
        waits = np.isin(names, WAITING_SCHEDULES)
        sends: FloatColumn = np.stack([np.where(waits, total, 0.0), np.where(waits, 0.0, total)], axis=1)
        return sends

    def _data_parallel_s(self, rows: Candidates, num_microbatches: IntColumn, compute: FloatColumn) -> FloatColumn:
        """Gathers, reductions and the update: what sticks out behind the computation, and the optimizer."""

        def seconds(key: Key) -> tuple[float, ...]:
            layout = Layout(
                tp=key[0],
                cp=key[1],
                ep=key[2],
                dp_replicate=key[3],
                dp_shard=key[4],
                zero_stage=ZERO_STAGES[key[5]],
                pp=key[6],
                reshard_after_forward=bool(key[7]),
            )
            stages = self.probes.one_more_of_each
            return tuple(value for blocks in stages for value in self._sharding_seconds(layout, blocks))

        names = ("tp", "cp", "ep", "dp_replicate", "dp_shard", "zero_stage")
        columns = [*(rows.column(name) for name in names), np.minimum(rows.pp, 2), rows.reshard_after_forward]
        table = look_up(columns, seconds).reshape(len(rows), len(self.probes.one_more_of_each), -1)
        stage = self.probes.watched_stages(rows)[0]
        base, more = table[:, :1], table[:, 1:]
        totals = base[:, 0] + np.sum((more - base) * (stage.blocks - 1)[:, :, None], axis=1)
        once, each = np.maximum(0.0, totals[:, :3]), np.maximum(0.0, totals[:, 3:]) * num_microbatches[:, None]
        exposed, hideable, work = (once + each).T
        added: FloatColumn = exposed + self._beyond(hideable, compute) + work
        return added

    def _sharding_seconds(self, layout: Layout, blocks: tuple[int, ...]) -> tuple[float, ...]:
        """Exposed and hideable communication and work of data parallelism: once per step, then per micro-batch."""
        context = self.probes.context(layout, batch=ProbedBatch(num_microbatches=PROBED_MICROBATCHES), blocks=blocks)
        calls = tuple(data_parallel_collectives(context))
        operation = operation_context(context)
        update = self._phase_times(tuple(optimizer_operations(context, operation)))
        copies = self._phase_times(tuple(sharding_operations(context, operation)))
        once = self._seconds(tuple(call for call in calls if call.rounds < PROBED_MICROBATCHES))
        rounds = self._seconds(tuple(call for call in calls if call.rounds >= PROBED_MICROBATCHES))
        each = tuple(duration_s / PROBED_MICROBATCHES for duration_s in rounds)
        return (*once, update.optimizer_s, *each, copies.forward_s + copies.backward_s)

    def _with_sharding_kind(self, rows: Candidates) -> Candidates:
        """The rows with ``zero_stage`` reduced to whether blocks are gathered, which decides dtypes and host calls."""
        return replace(rows, zero_stage=(rows.zero_stage == 3).astype(np.int64))

    def _probe(self, key: Key, *, blocks: tuple[int, ...] | None = None, num_microbatches: int = 1) -> StageContext:
        tp, cp, ep, sequence_parallel, micro_batch_size, zero_stage = key
        layout = Layout(
            tp=tp,
            cp=cp,
            ep=ep,
            sequence_parallel=bool(sequence_parallel),
            zero_stage=3 if zero_stage else 0,
            dp_shard=2 if zero_stage else 1,
        )
        return self.probes.context(
            layout,
            batch=ProbedBatch(micro_batch_size=micro_batch_size, num_microbatches=num_microbatches),
            recompute=NO_RECOMPUTE,
            blocks=blocks,
            tables=(0, 0),
        )

    def _seconds(self, collectives: tuple[Collective, ...]) -> tuple[float, float]:
        """Exposed and hideable seconds of one step's calls."""
        exposed = hideable = 0.0
        for collective in collectives:
            placement = self._placement(collective.group_size, collective.stride)
            duration = collective.count * collective_time_s(collective, placement=placement)
            if collective.is_overlappable:
                hideable += duration
            else:
                exposed += duration
        return exposed, hideable

    def _placement(self, size: int, stride: int) -> Placement:
        key = (size, stride)
        if key not in self._placements:
            self._placements[key] = place_group(cluster=self.probes.question.cluster, size=size, stride=stride)
        return self._placements[key]

    @cached_property
    def _placements(self) -> dict[Key, Placement]:
        return {}

    @cached_property
    def _gpu(self) -> Gpu:
        return self.probes.question.cluster.gpu

    @cached_property
    def _rates(self) -> KernelRates:
        attention = self.probes.question.model.attention
        context = self.probes.context(Layout(zero_stage=0))
        return kernel_rates(
            gpu=self._gpu,
            profile=context.profile,
            head_dim=attention.head_dim if attention is not None else 128,
            is_compiled=self.probes.question.recipe.compile,
        )

    def _beyond(self, hideable: FloatColumn, work: FloatColumn) -> FloatColumn:
        """What communication adds to the work it runs under: its excess, and the slowing of both while they overlap.

        All groups slow computation as the widest one does: one ratio for a cluster.
        """
        hidden = np.minimum(np.maximum(0.0, hideable), work)
        added: FloatColumn = np.maximum(0.0, hideable) - hidden + (self._slowdown_ratio - 1) * hidden
        return added

    @cached_property
    def _slowdown_ratio(self) -> float:
        return slowdown_ratio(self._placement(self.probes.question.cluster.num_gpus, 1))
