"""Seconds of operations and of collective calls for a search, all of them asked of ``predict``.

Everything that turns an inventory into seconds passes through here, so that rates measured on one machine reach the
whole search by being reached here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from shardwise.model import LayerSpec
from shardwise.plan import Plan
from shardwise.predict.block_parts import TimedOperation
from shardwise.predict.block_tasks import block_tasks
from shardwise.predict.block_time import block_waits_s
from shardwise.predict.call_times import CallTimes
from shardwise.predict.compute import PhaseTimes
from shardwise.predict.machine_rates import MachineRates, machine_rates
from shardwise.step.collectives import block_collectives
from shardwise.step.inventory import Operation
from shardwise.step.operations import GroupPart
from shardwise.step.stage_context import StageContext
from shardwise.units import Seconds

__all__ = ["Machine"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The rates of one question's cluster and engine."""

    question: Plan

    @cached_property
    def dividing_sequences(self) -> "Machine":
        """The rates for layouts with context parallelism, whose attention may be another kernel."""
        return Machine(question=replace(self.question, layout=replace(self.question.layout, cp=2)))

    def durations_s(self, operations: tuple[Operation, ...], *, part: GroupPart = "blocks") -> tuple[Seconds, ...]:
        """Seconds of every operation on the device."""
        return self._rates.durations_s(operations, part=part)

    def phase_times(
        self,
        operations: tuple[Operation, ...],
        *,
        part: GroupPart = "blocks",
        durations: tuple[Seconds, ...] | None = None,
    ) -> PhaseTimes:
        """Seconds of operations by phase."""
        timed = self.durations_s(operations, part=part) if durations is None else durations
        return self._rates.phase_times(operations, durations=timed)

    def block_waits_s(
        self, layer: LayerSpec, context: StageContext, timed: Sequence[TimedOperation]
    ) -> tuple[Seconds, Seconds]:
        """Exposed seconds of the collectives inside one block, forward and backward, for one micro-batch.

        Blocks whose kernels and messages take as long are run once: whether weights are gathered tells few apart.
        """
        calls = block_collectives(layer, context)
        durations = tuple(one.duration_s for one in timed if one.duration_s)
        key = (layer, context.plan.layout.tp, context.plan.layout.cp, durations, calls)
        found = self._waits.get(key)
        if found is None:
            tasks = block_tasks(
                context.plan,
                layer,
                timed,
                [self.calls.timed(call) for call in calls],
                time_of=self._rates.operation_s,
                moves_bytes_per_s=self._rates.moves_bytes_per_s,
            )
            found = self._waits[key] = (
                block_waits_s(tasks.forward, compute_s=tasks.forward_s),
                block_waits_s(tasks.backward, compute_s=tasks.backward_s),
            )
        return found

    @cached_property
    def _waits(self) -> dict[tuple[object, ...], tuple[Seconds, Seconds]]:
        return {}

    @cached_property
    def calls(self) -> CallTimes:
        """Seconds of collective calls."""
        return CallTimes(self.question)

    @cached_property
    def _rates(self) -> MachineRates:
        return machine_rates(self.question, num_gpus=self.question.cluster.num_gpus)
