"""Compute and exposed communication of one pipeline stage in one step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.model import LayerSpec
from shardwise.plan import Plan
from shardwise.predict.block_parts import timed_operations
from shardwise.predict.block_tasks import TimedCall, block_tasks, is_in_block, is_under_other_blocks
from shardwise.predict.block_time import BlockTimes, block_times
from shardwise.predict.call_times import CallTimes
from shardwise.predict.communication import TunedCall
from shardwise.predict.compute import PhaseTimes, computed_again
from shardwise.predict.concurrency import overlapped_s
from shardwise.predict.launches import QUEUED_LAUNCHES, Launched, launched, launches_ahead
from shardwise.predict.machine_rates import machine_rates
from shardwise.predict.pipeline_time import unpaired_fraction
from shardwise.predict.stage_passes import StagePass, exposed_calls, plain_runs, stage_passes
from shardwise.predict.stage_work import StageWork, WorkBook, chunk_times, stage_work
from shardwise.predict.tasks import ExposedCall
from shardwise.simulate.pipeline_times import ChunkTimes
from shardwise.step.collectives import block_collectives, stage_collectives
from shardwise.step.inventory import Collective, CollectiveKind, OperationPhase
from shardwise.step.layer_placement import Stage
from shardwise.step.operation_context import operation_context
from shardwise.step.operations import BlockBook, OperationGroup, operation_groups
from shardwise.step.stage_context import StageContext
from shardwise.step.step_operations import BEFORE_NORM
from shardwise.step.token_collectives import is_for_tokens
from shardwise.units import Flop, Seconds

DATA_AXES = ("dp_shard", "dp_replicate")
UPDATED_KINDS: tuple[CollectiveKind, ...] = ("all_gather", "broadcast")
"""How updated weights travel to the other ranks."""
PASS_PHASES: tuple[OperationPhase, OperationPhase] = ("forward", "backward")
CallKey = tuple[str, str, OperationPhase]
"""Name, axis and phase of collectives."""


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
    chunks: tuple[ChunkTimes, ...]
    """Times of one micro-batch in each chunk of the stage, in model order, with what it waits for."""
    collectives: tuple[CollectiveTime, ...]
    forward_flop: Flop
    """FLOP of matrix products and attention in forward on one rank."""
    recompute_flop: Flop
    norm_s: Seconds
    """The part of the optimizer's computation that the norm of all gradients needs."""
    work: StageWork
    """Work of one micro-batch, from which a timeline draws passes."""
    passes: tuple[StagePass, ...]
    """The passes that were simulated with their data parallelism."""

    @property
    def gathers_s(self) -> Seconds:
        """Seconds that data parallelism adds to the forwards of a step."""
        return sum(time.exposed_s for time in self.collectives if is_data_parallel(time.collective, "forward"))

    @property
    def reductions_s(self) -> Seconds:
        """Seconds that data parallelism adds to the backwards of a step."""
        return sum(time.exposed_s for time in self.collectives if is_data_parallel(time.collective, "backward"))

    @property
    def before_norm_s(self) -> Seconds:
        """Seconds from a rank's last reduction until it knows the norm of all gradients, if it waits for no other
        rank."""
        sums_s = sum(time.exposed_s for time in self.collectives if is_before_update(time.collective))
        return self.norm_s + sums_s

    @property
    def update_s(self) -> Seconds:
        """Seconds from knowing the norm to the end of the step: clipping, the update, and gathers of what was
        updated."""
        others_s = sum(
            time.exposed_s
            for time in self.collectives
            if time.collective.phase == "optimizer" and not is_before_update(time.collective)
        )
        return self.compute.optimizer_s - self.norm_s + others_s

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
        """Exposed communication that does not repeat with the pipeline: data parallelism and the optimizer's."""
        return sum(time.exposed_s for time in self.collectives if not _is_per_micro_batch(time.collective))

    @property
    def busy_s(self) -> Seconds:
        """Seconds of forward, backward, recomputation and what they wait for, over all micro-batches."""
        compute = self.compute.forward_s + self.compute.backward_s + self.compute.recompute_s
        return compute + self.model_parallel_exposed_s


def is_data_parallel(call: Collective, phase: OperationPhase) -> bool:
    """Whether a collective gathers parameters or reduces gradients in a phase."""
    return call.axis in DATA_AXES and call.phase == phase


def is_before_update(call: Collective) -> bool:
    """Whether a collective after the last backward changes gradients or their norm, which every update waits for."""
    return call.phase == "optimizer" and call.kind not in UPDATED_KINDS


def _is_per_micro_batch(collective: Collective) -> bool:
    return collective.axis not in DATA_AXES and collective.phase != "optimizer"


class StageClock:
    """Times the stages of one plan; equal blocks, calls and groups are timed once."""

    def __init__(self, plan: Plan, *, is_free: Callable[[Collective], bool] | None = None) -> None:
        self._plan = plan
        self._is_free = is_free
        self._book = BlockBook(plan)
        self._rates = machine_rates(plan, num_gpus=plan.layout.world_size)
        self._groups: dict[int, PhaseTimes] = {}
        self._durations: dict[int, tuple[Seconds, ...]] = {}
        self._blocks: dict[int, BlockTimes] = {}
        self._calls = CallTimes(plan)
        self._stages: dict[tuple[object, ...], StageTime] = {}

    def stage_time(self, stage: Stage) -> StageTime:
        """Seconds of one stage; stages that hold equal blocks take equally long."""
        key = self.stage_key(stage)
        found = self._stages.get(key)
        if found is None:
            found = self._stages[key] = self._time(StageContext(plan=self._plan, stage=stage))
        return replace(found, stage=stage.index)

    def stage_key(self, stage: Stage) -> tuple[object, ...]:
        """A key that is equal for stages that take equally long."""
        return (
            (stage.index == 0, stage.index == self._plan.layout.pp - 1, stage.has_embedding, stage.has_head),
            tuple((id(layer), count) for layer, count in stage.layer_runs),
            tuple(chunk.num_layers for chunk in stage.chunks),
        )

    def timed_calls(self, context: StageContext) -> tuple[TimedCall, ...]:
        """Every collective of a stage with the time of one call."""
        return tuple(self._timed(call) for call in stage_collectives(context))

    def work_book(self, context: StageContext) -> WorkBook:
        """The groups of a stage's operations, timed, and its blocks run with the collectives inside them."""
        groups = operation_groups(context, self._book)
        times = [self._group_times(group) for group in groups]
        if not launches_ahead(self._plan):
            for number, group in enumerate(groups):
                if group.part == "recomputed blocks":  # listed after the blocks themselves
                    times[number] = computed_again(times[number - 1], times[number])
        layout = self._plan.layout
        times_of_blocks: dict[int, BlockTimes] = {}
        if not layout.tp == layout.cp == layout.ep == 1:
            times_of_blocks = {id(layer): self._block_times(layer, context) for layer, _ in context.layer_runs}
        return WorkBook(groups=groups, times=tuple(times), blocks=self._book, block_times=times_of_blocks)

    def _block_times(self, layer: LayerSpec, context: StageContext) -> BlockTimes:
        found = self._blocks.get(id(layer))
        if found is None:
            operations = self._book.forward_and_backward(layer, operation_context(context))
            tasks = block_tasks(
                self._plan,
                layer,
                timed_operations(operations, self._durations[id(operations)]),
                [self._timed(call) for call in block_collectives(layer, context)],
                time_of=self._rates.operation_s,
                moves_bytes_per_s=self._rates.moves_bytes_per_s,
            )
            found = self._blocks[id(layer)] = block_times(tasks)
        return found

    def _time(self, context: StageContext) -> StageTime:
        book = self.work_book(context)
        calls = self.timed_calls(context)
        is_ahead = launches_ahead(self._plan)
        work = stage_work(context, book, calls, is_ahead=is_ahead)
        host = self._launched(context, book, work)
        times = _with_exposed(self._under_other_blocks(calls, compute=book.total), _in_blocks(context, work))
        data = [timed for timed in calls if timed.collective.axis in DATA_AXES and not is_for_tokens(timed.collective)]
        passes = tuple(stage_passes(context, data, work)) if data else ()
        collectives = _data_parallel(data, passes, tuple(_hidden_by_launches(times, host)))
        compute = host.compute
        return StageTime(
            stage=context.stage.index,
            compute=compute,
            chunks=chunk_times(context, book, compute, waited_s(collectives)),
            collectives=collectives,
            forward_flop=_flop(book.groups, "forward"),
            recompute_flop=_flop(book.groups, "recompute"),
            norm_s=self._norm_s(book),
            work=work,
            passes=passes,
        )

    def _under_other_blocks(self, calls: Sequence[TimedCall], *, compute: PhaseTimes) -> Iterator[CollectiveTime]:
        """Every collective in full, but for exchanges that run under the blocks of another micro-batch.

        Where a chunk goes forward while another goes backward, exchanges of both find room under the computation of
        both (arXiv:2412.19437, section 3.2.1, figure 4): what exceeds it is exposed, and what is hidden slows both
        sides. While the pipeline fills and drains a chunk has no partner, and nothing hides its exchanges. Sends of a
        pipeline are simulated with their schedule.
        """
        beside = [timed for timed in calls if is_under_other_blocks(timed.collective)]
        paired = 1 - min(1.0, unpaired_fraction(self._plan)) if beside else 1.0
        total_s = sum(timed.total_s for timed in beside)
        ratio = max((timed.slowdown_ratio for timed in beside), default=1.0)
        window_s = paired * (compute.forward_s + compute.backward_s + compute.recompute_s)
        added_s = overlapped_s(work_s=window_s, hidden_s=paired * total_s, ratio=ratio) - window_s
        exposed_fraction = (added_s + (1 - paired) * total_s) / total_s if total_s else 0.0
        for timed in calls:
            call = timed.collective
            share = exposed_fraction if is_under_other_blocks(call) else float(not call.is_overlappable)
            yield CollectiveTime(collective=call, total_s=timed.total_s, exposed_s=share * timed.total_s)

    def _norm_s(self, book: WorkBook) -> Seconds:
        """Kernels between the last reduction and the norm of all gradients."""
        operations = next((group.operations for group in book.groups if group.part == "optimizer"), ())
        before = tuple(operation for operation in operations if operation.name in BEFORE_NORM)
        return sum(self._rates.durations_s(before, part="optimizer"))

    def _group_times(self, group: OperationGroup) -> PhaseTimes:
        """Blocks are shared by stages and remembered; tables and the optimizer are timed where they are."""
        found = self._groups.get(id(group.operations))
        if found is None:
            timed = self._rates.durations_s(group.operations, part=group.part)
            found = self._rates.phase_times(group.operations, durations=timed)
            if self._book.owns(group.operations):
                self._groups[id(group.operations)] = found
                self._durations[id(group.operations)] = timed
        return found

    def _launched(self, context: StageContext, book: WorkBook, work: StageWork) -> Launched:
        """The stage's computation and exposed time inside blocks, as slow as the launching host makes them."""
        compute = book.total
        if not launches_ahead(self._plan):
            return Launched(compute=compute, forward_fraction=1.0, backward_fraction=1.0)
        forward, backward = (plain_runs(context, work, phase) for phase in PASS_PHASES)
        return launched(
            compute,
            forward,
            backward,
            copies=book.of_part("sharding copies"),
            num_microbatches=context.rounds,
            most_ahead_s=QUEUED_LAUNCHES * self._rates.kernels.host_forward_s,
        )

    def call(self, call: Collective) -> TunedCall:
        """The algorithm and protocol that NCCL chooses for one call of a collective, and what limits the call."""
        return self._calls.tuned(call)

    def _timed(self, call: Collective) -> TimedCall:
        if self._is_free is not None and self._is_free(call):
            return TimedCall(collective=call, call_s=0.0, slowdown_ratio=1.0)
        return self._calls.timed(call)


def _data_parallel(
    data: Sequence[TimedCall], passes: Iterable[StagePass], times: tuple[CollectiveTime, ...]
) -> tuple[CollectiveTime, ...]:
    """The times of collectives with what passes expose of data parallelism."""
    exposed: dict[CallKey, Seconds] = {}
    for one in passes:
        for call in exposed_calls(one):
            key = (call.name, call.axis, one.phase)
            exposed[key] = exposed.get(key, 0.0) + one.rounds * call.exposed_s
        names = one.names
        for timed in data:
            if timed.collective.name in names:
                exposed.setdefault((timed.collective.name, timed.collective.axis, one.phase), 0.0)
    return tuple(_with_exposed(times, exposed)) if data else times


def _flop(groups: tuple[OperationGroup, ...], phase: OperationPhase) -> Flop:
    return sum(
        group.count * operation.flop
        for group in groups
        for operation in group.operations
        if operation.phase == phase and operation.kind != "memory"
    )


def waited_s(times: Iterable[CollectiveTime]) -> dict[OperationPhase, Seconds]:
    """Exposed seconds of all micro-batches by phase."""
    waited: dict[OperationPhase, Seconds] = {"forward": 0.0, "backward": 0.0, "recompute": 0.0, "optimizer": 0.0}
    for time in times:
        if _is_per_micro_batch(time.collective):
            waited[time.collective.phase] += time.exposed_s
    return waited


def _in_blocks(context: StageContext, work: StageWork) -> dict[CallKey, Seconds]:
    """Exposed seconds of the collectives inside all blocks of a stage, over the whole step."""
    found: dict[CallKey, Seconds] = {}

    def add(phase: OperationPhase, calls: Iterable[ExposedCall], num_blocks: float) -> None:
        for call in calls:
            key = (call.name, call.axis, phase)
            found[key] = found.get(key, 0.0) + context.rounds * num_blocks * call.exposed_s

    for block in work.blocks:
        if block.times is None:
            continue
        num_recomputed = block.count * block.recomputed_fraction
        add("forward", block.times.forward.exposed, block.count)
        add("backward", block.times.backward.exposed, block.count)
        if block.times.recompute is not None:
            add("recompute", block.times.recompute.exposed, num_recomputed)
        elif context.plan.recipe.recompute_modules is None:  # what is gathered again hides as little as in forward
            gathers = (call for call in block.times.forward.exposed if call.name.endswith("all_gather"))
            add("recompute", gathers, num_recomputed)
    return found


def _with_exposed(times: Iterable[CollectiveTime], exposed: dict[CallKey, Seconds]) -> Iterable[CollectiveTime]:
    """The times with what passes found exposed, divided among the records of one name by their time.

    Passes run every block alike; a first block that needs no sum, as below adapters, exposes one call less than that.
    """
    times = tuple(times)
    totals: dict[CallKey, Seconds] = {}
    for time in times:
        key = (time.collective.name, time.collective.axis, time.collective.phase)
        totals[key] = totals.get(key, 0.0) + time.total_s
    for time in times:
        key = (time.collective.name, time.collective.axis, time.collective.phase)
        found = exposed.get(key)
        if found is None or not totals[key]:
            yield time
        else:
            yield replace(time, exposed_s=time.total_s * min(1.0, found / totals[key]))


def _hidden_by_launches(times: Iterable[CollectiveTime], host: Launched) -> Iterator[CollectiveTime]:
    """The times of collectives, with those inside blocks less exposed by what the host's launches hide."""
    for time in times:
        call = time.collective
        share = host.forward_fraction if call.phase == "forward" else host.backward_fraction
        yield replace(time, exposed_s=share * time.exposed_s) if share < 1.0 and is_in_block(call) else time
