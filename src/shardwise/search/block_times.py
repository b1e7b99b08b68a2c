"""Seconds of one micro-batch in one block of each shape, in the tables at both ends, and between stages.

Each is asked of the inventory and of the machine once per combination of the few degrees it depends on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwise.layout import Layout
from shardwise.model import MoeSpec
from shardwise.predict.block_parts import TimedOperation, timed_operations
from shardwise.predict.compute import PhaseTimes, computed_again
from shardwise.predict.launches import ahead_block, launches_ahead
from shardwise.recipe import Recipe
from shardwise.schedules.table import SCHEDULE_KINDS, SCHEDULES, Schedule
from shardwise.search.candidates import RECOMPUTES, ZERO_STAGES, Key, modules_of
from shardwise.search.machine import Machine
from shardwise.search.probes import ProbedBatch, Probes
from shardwise.step.block_operations import block_operations
from shardwise.step.collectives import (
    block_collectives,
    gradients_over_tensor_ranks,
    joins_messages,
    message_bytes,
    model_parallel_collectives,
    repeats_modules,
    tied_table_sum,
)
from shardwise.step.data_parallel_collectives import data_parallel_collectives
from shardwise.step.inventory import Collective, Operation
from shardwise.step.muon_collectives import muon_collectives
from shardwise.step.operation_context import OperationContext, operation_context
from shardwise.step.recomputed_operations import recomputed_operations
from shardwise.step.stage_context import StageContext
from shardwise.step.step_operations import optimizer_operations, sharding_operations
from shardwise.step.table_operations import embedding_operations, head_operations
from shardwise.units import Seconds

__all__ = [
    "BLOCK_FIELDS",
    "BLOCK_KEYS",
    "MODULE_FIELDS",
    "PIPED",
    "SHARDING_FIELDS",
    "TABLE_FIELDS",
    "UNPIPED",
    "V_SHAPED_PIPE",
    "BlockTimes",
]

UNPIPED, PIPED, V_SHAPED_PIPE = range(3)
"""Whether the first stage holds both tables: it is the only one, it does not, it does because it is the last, too."""
PROBED_MICROBATCHES = 2
"""With two micro-batches the inventory shows which collectives repeat with each of them."""
NO_RECOMPUTE = RECOMPUTES.index("none")
BLOCK_KEYS = ("tp", "cp", "ep", "expert_tp", "sequence_parallel", "micro_batch_size", "zero_stage", "hides_exchanges")
"""The last one says whether experts exchange tokens under the blocks of another micro-batch, as in DualPipe."""
HIDING: Schedule = next(name for name in SCHEDULES if SCHEDULE_KINDS[name].overlaps_passes)
"""A schedule that hides them. The estimate takes it that they find room there."""
BLOCK_FIELDS = (
    "forward",
    "backward",
    "weight_backward",
    "recompute_none",
    "recompute_selective",
    "recompute_full",
    "exposed",
    "forward_exposed",
    "launches",
    "modules_exposed",
)
"""Seconds of one block and micro-batch: computation by phase (``forward`` to ``weight_backward``), computation that
each recompute mode repeats (``recompute_*``), exposed communication of both passes and of the forward pass alone, which
full recomputation repeats, host time to launch both passes (``launches``; where it exceeds the computation, it hides
the recomputed communication), and exposed communication that recomputed single modules repeat."""
MODULE_FIELDS = np.asarray([BLOCK_FIELDS.index(name) for name in ("recompute_selective", "modules_exposed")])
"""Places of the fields that depend on which modules are recomputed."""
TABLE_FIELDS = ("forward", "backward", "weight_backward", "exposed")
SHARDING_FIELDS = (
    "exposed",
    "forward_overlappable",
    "forward_contention",
    "backward_overlappable",
    "backward_contention",
    "optimizer",
    "exposed_each",
    "forward_overlappable_each",
    "forward_contention_each",
    "backward_overlappable_each",
    "backward_contention_each",
    "forward_copies",
    "backward_copies",
)
"""Data parallelism of the one micro-batch it accompanies and the update, then what repeats with every micro-batch.
Overlappable is the busiest axis, which runs beside the others. What is hidden slows computation
and is slowed by it, each group by its own ratio: contention is what that adds. Last, the copies out of and into flat
buffers, casts and sums of gradients around the passes of every micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Once:
    """Operations and times of one block without recomputation."""

    context: StageContext
    operation: OperationContext
    operations: tuple[Operation, ...]
    times: PhaseTimes
    exchanges: tuple[float, float]
    """Exposed communication of both passes, then of the forward pass alone."""


@dataclass(frozen=True, kw_only=True)
class BlockTimes:
    """Probed seconds for one question."""

    probes: Probes
    machine: Machine

    def of_blocks(self, key: Key) -> tuple[float, ...]:
        """``BLOCK_FIELDS`` of one block of every shape, by the columns ``BLOCK_KEYS``."""
        return tuple(value for number in range(len(self.probes.shapes)) for value in self._fields(number, key, 0))

    def of_modules(self, key: Key) -> tuple[float, ...]:
        """``MODULE_FIELDS`` of one block of every shape, by the columns ``BLOCK_KEYS`` and the modules' bits."""
        *block, bits = key
        every = (self._fields(number, tuple(block), bits) for number in range(len(self.probes.shapes)))
        return tuple(fields[place] for fields in every for place in MODULE_FIELDS)

    def _fields(self, number: int, key: Key, bits: int) -> tuple[float, ...]:
        """``BLOCK_FIELDS`` of one block of a shape.

        A block without experts is the same whatever ranks these are divided over, and is timed once for all of them.
        """
        tp, cp, _, _, *others, _ = key
        has_experts = isinstance(self.probes.shapes[number].feed_forward, MoeSpec)
        own = key if has_experts else (tp, cp, 1, 1, *others, 0)
        if (number, own, bits) not in self._blocks:
            if (number, own) not in self._once:
                self._once[number, own] = self._run_once(number, own)
            self._blocks[number, own, bits] = self._of_block(number, self._once[number, own], bits)
        return self._blocks[number, own, bits]

    @cached_property
    def _blocks(self) -> dict[tuple[int, Key, int], tuple[float, ...]]:
        return {}

    @cached_property
    def _once(self) -> dict[tuple[int, Key], _Once]:
        return {}

    def _run_once(self, number: int, key: Key) -> _Once:
        """Operations and times of one block of a shape without recomputation."""
        context = self._block_context(key)
        operation, machine = operation_context(context), self._machine_of(context)
        operations = block_operations(self.probes.shapes[number], operation, context.plan.recipe)
        durations = machine.durations_s(operations)
        timed = timed_operations(operations, durations)
        return _Once(
            context=context,
            operation=operation,
            operations=operations,
            times=machine.phase_times(operations, durations=durations),
            exchanges=self._exchanges(_under_other_blocks(context) if key[-1] else context, number, timed),
        )

    def _of_block(self, number: int, block: _Once, bits: int) -> tuple[float, ...]:
        """``BLOCK_FIELDS`` of one block of a shape that recomputes some modules, or those of the question."""
        context, once, exchanges = block.context, block.times, block.exchanges
        recipe = context.plan.recipe
        selectively = replace(
            recipe, recompute="selective", recompute_modules=modules_of(bits) or recipe.recompute_modules
        )
        selective = self._again(number, block, selectively)
        full = self._again(number, block, replace(recipe, recompute="full"))
        is_ahead = launches_ahead(context.plan)
        launches_s = 0.0
        if is_ahead or selective.forward_work.host_s or full.forward_work.host_s:
            launches_s = once.forward_work.host_s + once.backward_work.host_s
        repeated_s = self._modules_s(context, number, selectively)
        if not is_ahead:
            again_s = [computed_again(once, again).recompute_s for again in (selective, full)]
            computed = (once.forward_s, once.backward_s, once.weight_backward_s)
            return (*computed, 0.0, *again_s, *exchanges, launches_s, repeated_s)
        ahead = ahead_block(
            once,
            selective=selective.forward_work.plus(selective.recompute_work, times=1),
            full=full.recompute_work,
            exposed_s=exchanges[0],
        )
        exposed = [ahead.exposed_fraction * seconds for seconds in exchanges]
        computed = (ahead.forward_s, ahead.backward_s, once.weight_backward_s)
        again_s = [ahead.selective_s, ahead.full_s]
        return (*computed, 0.0, *again_s, *exposed, launches_s, ahead.exposed_fraction * repeated_s)

    def _again(self, number: int, block: _Once, recipe: Recipe) -> PhaseTimes:
        """Times of the operations of a block that a recipe runs a second time."""
        policy, layer = block.context.profile.selective_policy, self.probes.shapes[number]
        again = recomputed_operations(block.operations, block.operation, layer=layer, recipe=recipe, policy=policy)
        return self._machine_of(block.context).phase_times(again)

    def of_tables(self, key: Key) -> tuple[float, ...]:
        """``TABLE_FIELDS`` of the embedding, then of the head.

        The key holds tp, cp, sequence parallelism, the micro-batch size, and ranks that a vocabulary is spread over.
        """
        tp, cp, sequence_parallel, micro_batch_size, ranks = key
        layout = Layout(tp=tp, cp=cp, sequence_parallel=bool(sequence_parallel), zero_stage=0)
        if ranks > 1:
            layout = Layout(dp_shard=ranks, spread_vocabulary=True)
        found: list[float] = []
        for tables in ((1, 0), (0, 1)):
            context = self.probes.context(
                layout,
                batch=ProbedBatch(micro_batch_size=micro_batch_size),
                tables=tables,
                blocks=(0,) * len(self.probes.shapes),
            )
            operation = operation_context(context)
            operations = (*embedding_operations(context, operation), *head_operations(context, operation))
            times = self.machine.phase_times(operations, part="embedding" if tables[0] else "head")
            exposed_s, _ = self._seconds(model_parallel_collectives(context))
            found += [times.forward_s, times.backward_s, times.weight_backward_s, exposed_s]
        return tuple(found)

    def of_send(self, key: Key) -> tuple[float]:
        """Seconds of one message between neighbours of a pipeline, whose ranks lie ``stride`` apart; 0 without."""
        tp, cp, sequence_parallel, micro_batch_size, stride = key
        if not stride:
            return (0.0,)
        layout = Layout(tp=tp, cp=cp, sequence_parallel=bool(sequence_parallel))
        context = self.probes.context(layout, batch=ProbedBatch(micro_batch_size=micro_batch_size))
        send = Collective(
            name="send",
            kind="send_recv",
            axis="pp",
            group_size=2,
            num_bytes=message_bytes(context),
            count=1,
            phase="forward",
            is_overlappable=False,
            stride=stride,
        )
        joined_s = 0.0
        if joins_messages(context):
            whole = replace(send, kind="all_gather", axis="tp", group_size=tp, num_bytes=tp * send.num_bytes, stride=1)
            joined_s = self.machine.calls.seconds(whole)
        return (self.machine.calls.seconds(send) + joined_s,)

    def of_sharding(self, key: Key) -> tuple[float, ...]:
        """``SHARDING_FIELDS`` of a stage with one block of each shape, then with one more of each in turn.

        The key holds tp, ep, expert_tp, replicas, ranks that divide states, ZeRO stage, which pipeline, whether blocks
        are gathered again, whether our trainer spreads the vocabulary and exchanges gradients, and whether
        tensor-parallel ranks add up gradients of experts that each saw part of a sequence. Context parallelism divides
        states exactly as data parallelism does.
        """
        tp, ep, expert_tp, dp_replicate, shards, zero_stage, pipeline, reshards, spreads, exchanges, sums = key
        layout = Layout(
            tp=tp,
            ep=ep,
            expert_tp=expert_tp,
            dp_replicate=dp_replicate,
            dp_shard=shards,
            zero_stage=ZERO_STAGES[zero_stage],
            pp=1 + int(pipeline > UNPIPED),
            reshard_after_forward=bool(reshards),
            spread_vocabulary=bool(spreads),
            exchange_gradients=bool(exchanges),
            sequence_parallel=bool(sums),
        )
        tables = (1, int(pipeline != PIPED))
        return tuple(
            value for blocks in self.probes.one_more_of_each for value in self._sharding(layout, tables, blocks)
        )

    def _sharding(self, layout: Layout, tables: tuple[int, int], blocks: tuple[int, ...]) -> tuple[float, ...]:
        context = self.probes.context(
            layout,
            batch=ProbedBatch(num_microbatches=PROBED_MICROBATCHES),
            tables=tables,
            blocks=blocks,
        )
        calls = (
            *data_parallel_collectives(context),
            *gradients_over_tensor_ranks(context),
            *muon_collectives(context),
            *tied_table_sum(context),
        )
        operation = operation_context(context)
        update = self.machine.phase_times(tuple(optimizer_operations(context, operation)), part="optimizer")
        once = self._passes(tuple(call for call in calls if call.rounds < PROBED_MICROBATCHES))
        rounds = self._passes(tuple(call for call in calls if call.rounds >= PROBED_MICROBATCHES))
        each = tuple(duration_s / PROBED_MICROBATCHES for duration_s in rounds)
        copies = self.machine.phase_times(tuple(sharding_operations(context, operation)), part="sharding copies")
        return (*once, update.optimizer_s, *each, copies.forward_s, copies.backward_s)

    def _passes(self, calls: tuple[Collective, ...]) -> tuple[float, ...]:
        """Exposed seconds, then of each pass those of the busiest axis, and the contention of all."""
        exposed_s, _ = self._seconds(calls)
        found: list[float] = []
        for phase in ("forward", "backward"):
            by_axis = {call.axis: 0.0 for call in calls}
            contention_s = 0.0
            for call in calls:
                if call.is_overlappable and call.phase == phase:
                    duration_s = call.count * self.machine.calls.seconds(call)
                    by_axis[call.axis] += duration_s
                    contention_s += (self.machine.calls.slowdown_ratio(call) - 1) * duration_s
            found += [max(by_axis.values(), default=0.0), contention_s]
        return (exposed_s, *found)

    def _exchanges(self, context: StageContext, shape: int, timed: Sequence[TimedOperation]) -> tuple[float, float]:
        """Exposed communication of one block of a shape, in seconds: of both passes, then of the forward pass alone."""
        layout = context.plan.layout
        if layout.tp == layout.cp == layout.ep == 1:
            return (0.0, 0.0)
        forward, backward = self._machine_of(context).block_waits_s(self.probes.shapes[shape], context, timed)
        return (forward + backward, forward)

    def _machine_of(self, context: StageContext) -> Machine:
        """The rates that time a block: attention runs other kernels where sequences are divided."""
        return self.machine.dividing_sequences if context.plan.layout.cp > 1 else self.machine

    def _modules_s(self, context: StageContext, shape: int, recipe: Recipe) -> Seconds:
        """Time of the collectives that recomputed single modules of a block repeat; 0 where none communicates."""
        if not repeats_modules(recipe):
            return 0.0
        selective = replace(context, plan=replace(context.plan, recipe=recipe))
        calls = block_collectives(self.probes.shapes[shape], selective)
        return sum(call.count * self.machine.calls.seconds(call) for call in calls if call.phase == "recompute")

    def _block_context(self, key: Key) -> StageContext:
        tp, cp, ep, expert_tp, sequence_parallel, micro_batch_size, zero_stage, _ = key
        layout = Layout(
            tp=tp,
            cp=cp,
            ep=ep,
            expert_tp=expert_tp,
            sequence_parallel=bool(sequence_parallel),
            zero_stage=ZERO_STAGES[zero_stage],
            dp_shard=2 if zero_stage else 1,
        )
        return self.probes.context(
            layout,
            batch=ProbedBatch(micro_batch_size=micro_batch_size, num_microbatches=PROBED_MICROBATCHES),
            recompute=(NO_RECOMPUTE, 0),
            tables=(0, 0),
        )

    def _seconds(self, calls: tuple[Collective, ...]) -> tuple[float, float]:
        """Exposed and overlappable seconds of one step's calls."""
        exposed = overlappable = 0.0
        for call in calls:
            duration_s = call.count * self.machine.calls.seconds(call)
            if call.is_overlappable:
                overlappable += duration_s
            else:
                exposed += duration_s
        return exposed, overlappable


def _under_other_blocks(context: StageContext) -> StageContext:
    """A stage whose experts exchange tokens under the blocks of another micro-batch."""
    layout = replace(context.plan.layout, schedule=HIDING)
    return replace(context, plan=replace(context.plan, layout=layout))
