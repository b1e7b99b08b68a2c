"""Compute and exposed communication of one pipeline stage in one step."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from shardwise.cluster import Cluster
from shardwise.engine import engine_profile
from shardwise.plan import Plan
from shardwise.predict.communication import Placement, collective_time_s, place_group
from shardwise.predict.compute import PhaseTimes, phase_times
from shardwise.predict.kernel_rates import kernel_rates
from shardwise.step.collectives import stage_collectives
from shardwise.step.inventory import Collective, OperationPhase
from shardwise.step.operations import BlockBook, OperationGroup, operation_groups
from shardwise.step.placement import Stage
from shardwise.step.stage_context import StageContext
from shardwise.units import Flop, Seconds

OVERLAP_SLOWDOWN = 0.126
"""Compute and communication that run at once slow each other: the shipped coefficient of PKU-DAIR/Hetu-Galvatron is
1.126 for the overlapped time."""

DATA_AXES = ("dp_shard", "dp_replicate")

Cover = Literal["attention", "blocks", "blocks_and_waiting"]
"""Ring attention hides under the attention of the previous piece; exchanges of a micro-batch under another one's
blocks; data parallelism under blocks and whatever those wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """One record of the inventory with its time over the whole step."""

    collective: Collective
    total_s: Seconds
    exposed_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of one stage over a whole step, before the pipeline makes it wait."""

    stage: int
    compute: PhaseTimes
    collectives: tuple[CollectiveTime, ...]
    forward_flop: Flop
    """Of matrix products and attention on one rank."""
    recompute_flop: Flop

    @property
    def per_micro_batch(self) -> tuple[CollectiveTime, ...]:
        """Collectives every micro-batch waits for: tensor, context, expert, pipeline."""
        return tuple(time for time in self.collectives if _is_per_micro_batch(time.collective))

    @property
    def model_parallel_exposed_s(self) -> Seconds:
        """Exposed time of the collectives every micro-batch waits for."""
        return sum(time.exposed_s for time in self.per_micro_batch)

    @property
    def step_exposed_s(self) -> Seconds:
        """Communication that does not repeat with the pipeline: data parallelism and the optimizer's."""
        return sum(time.exposed_s for time in self.collectives if not _is_per_micro_batch(time.collective))

    @property
    def busy_s(self) -> Seconds:
        """Forward, backward, recomputation and what they wait for, all micro-batches."""
        compute = self.compute.forward_s + self.compute.backward_s + self.compute.recompute_s
        return compute + self.model_parallel_exposed_s


def _is_per_micro_batch(collective: Collective) -> bool:
    return collective.axis not in DATA_AXES and collective.phase != "optimizer"


class StageClock:
    """Times the stages of one plan; equal blocks, calls and groups are timed once."""

    def __init__(self, plan: Plan) -> None:
        attention = plan.model.attention
        self._plan = plan
        self._cluster: Cluster = plan.cluster
        self._book = BlockBook(plan)
        self._rates = kernel_rates(
            gpu=plan.cluster.gpu,
            profile=engine_profile(plan.engine),
            head_dim=attention.head_dim if attention else 128,
            is_compiled=plan.recipe.compile,
        )
        self._groups: dict[int, PhaseTimes] = {}
        self._placements: dict[tuple[int, int], Placement] = {}
        self._calls: dict[tuple[str, int, int, int], Seconds] = {}
        self._stages: dict[tuple[object, ...], StageTime] = {}

    def stage_time(self, stage: Stage) -> StageTime:
        """Seconds of one stage; stages that hold equal blocks take equally long."""
        context = StageContext(plan=self._plan, stage=stage)
        ends = (stage.index == 0, stage.index == self._plan.layout.pp - 1, stage.has_embedding, stage.has_head)
        key = (ends, tuple((id(layer), count) for layer, count in context.layer_runs))
        found = self._stages.get(key)
        if found is None:
            found = self._stages[key] = self._time(context)
        return StageTime(
            stage=stage.index,
            compute=found.compute,
            collectives=found.collectives,
            forward_flop=found.forward_flop,
            recompute_flop=found.recompute_flop,
        )

    def _time(self, context: StageContext) -> StageTime:
        groups = operation_groups(context, self._book)
        compute = PhaseTimes()
        for group in groups:
            compute = compute.plus(self._group_times(group), times=group.count)
        return StageTime(
            stage=context.stage.index,
            compute=compute,
            collectives=self._collective_times(context, compute),
            forward_flop=_flop(groups, "forward"),
            recompute_flop=_flop(groups, "recompute"),
        )

    def _group_times(self, group: OperationGroup) -> PhaseTimes:
        """Blocks are shared by stages and remembered; tables and the optimizer are timed where they are."""
        found = self._groups.get(id(group.operations))
        if found is None:
            found = phase_times(group.operations, gpu=self._cluster.gpu, rates=self._rates)
            if self._book.owns(group.operations):
                self._groups[id(group.operations)] = found
        return found

    def _collective_times(self, context: StageContext, compute: PhaseTimes) -> tuple[CollectiveTime, ...]:
        timed = [(call, call.count * self._call_s(call)) for call in stage_collectives(context)]
        return tuple(_expose(timed, compute=compute, num_microbatches=self._plan.num_microbatches))

    def _call_s(self, call: Collective) -> Seconds:
        key = (call.kind, call.num_bytes, call.group_size, call.stride)
        found = self._calls.get(key)
        if found is None:
            where = (call.group_size, call.stride)
            placement = self._placements.get(where)
            if placement is None:
                placement = place_group(cluster=self._cluster, size=call.group_size, stride=call.stride)
                self._placements[where] = placement
            found = self._calls[key] = collective_time_s(call, placement=placement)
        return found


def _flop(groups: tuple[OperationGroup, ...], phase: OperationPhase) -> Flop:
    return sum(
        group.count * operation.flop
        for group in groups
        for operation in group.operations
        if operation.phase == phase and operation.kind != "memory"
    )


def _expose(
    timed: list[tuple[Collective, Seconds]], *, compute: PhaseTimes, num_microbatches: int
) -> Iterable[CollectiveTime]:
    """What of each collective is not hidden.

    A hideable call runs under the compute of its own phase, and of the collectives that phase waits for anyway (they
    use other links). What exceeds that window is exposed, and what is hidden slows both sides.
    """
    waited: dict[OperationPhase, Seconds] = {"forward": 0.0, "backward": 0.0, "recompute": 0.0, "optimizer": 0.0}
    hideable: dict[tuple[Cover, OperationPhase], Seconds] = {}
    rounds: dict[tuple[Cover, OperationPhase], int] = {}
    for call, total_s in timed:
        if call.is_overlappable:
            key = (_cover(call), call.phase)
            hideable[key] = hideable.get(key, 0.0) + total_s
            rounds[key] = max(rounds.get(key, 0), call.rounds)
        elif _is_per_micro_batch(call):
            waited[call.phase] += total_s
    shares: dict[tuple[Cover, OperationPhase], float] = {}
    for key, total_s in hideable.items():
        window_s = _window_s(*key, compute, waited) * min(1.0, rounds[key] / num_microbatches)
        hidden_s = min(total_s, window_s)
        shares[key] = (total_s - hidden_s + OVERLAP_SLOWDOWN * hidden_s) / total_s
    for call, total_s in timed:
        share = shares[_cover(call), call.phase] if call.is_overlappable else 1.0
        yield CollectiveTime(collective=call, total_s=total_s, exposed_s=share * total_s)


def _cover(call: Collective) -> Cover:
    """What a hideable collective hides under."""
    if call.axis == "cp":
        return "attention"
    return "blocks" if _is_per_micro_batch(call) else "blocks_and_waiting"


def _window_s(
    cover: Cover, phase: OperationPhase, compute: PhaseTimes, waited: dict[OperationPhase, Seconds]
) -> Seconds:
    """Seconds of a step under which hideable collectives of a phase can run."""
    if cover == "attention":
        return compute.attention_forward_s if phase == "forward" else compute.attention_backward_s
    waits = cover == "blocks_and_waiting"
    if phase == "forward":
        return compute.forward_s + (waited["forward"] if waits else 0.0)
    busy_s = compute.backward_s + compute.recompute_s
    return busy_s + (waited["backward"] + waited["recompute"] if waits else 0.0)
