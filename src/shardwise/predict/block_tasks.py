"""The tasks of one block for one micro-batch, its collectives where they happen."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.engines.table import engine_profile
from shardwise.model import LayerSpec
from shardwise.plan import Plan
from shardwise.predict.block_parts import Branch, TimedOperation, block_branches
from shardwise.predict.context_parallel_tasks import attention_tasks
from shardwise.predict.task_writer import TaskWriter, in_turn
from shardwise.predict.tensor_parallel_tasks import (
    TensorHabits,
    column_backward,
    gathered_products,
    reduced_products,
)
from shardwise.recipe import Recipe
from shardwise.simulate.engine import Task
from shardwise.step.inventory import Collective, Operation, OperationPhase
from shardwise.step.native_engine import is_native_engine
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """One record of the inventory with the time of one call."""

    collective: Collective
    call_s: Seconds
    slowdown_ratio: float

    @property
    def total_s(self) -> Seconds:
        """Seconds of all calls of the step."""
        return self.collective.count * self.call_s

    def task(self) -> Task:
        """One call as a task beside computation."""
        call = self.collective
        return Task(
            name=call.name,
            stream=call.axis,
            duration_s=self.call_s,
            category=call.kind,
            slowdown_ratio=self.slowdown_ratio,
        )

    def wait(self, duration_s: Seconds) -> Task:
        """The part of one call that computation waits for, as a task."""
        call = self.collective
        return Task(name=call.name, stream=call.axis, duration_s=duration_s, category=call.kind)


def is_in_block(call: Collective) -> bool:
    """Whether a collective has its place in a block; exchanges that another micro-batch hides have none."""
    return call.axis in ("tp", "cp", "ep") and call.phase != "optimizer" and not is_under_other_blocks(call)


def is_under_other_blocks(call: Collective) -> bool:
    """Whether a call is an exchange of experts that runs under the blocks of another micro-batch (DualPipe)."""
    return call.axis == "ep" and call.is_overlappable


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTasks:
    """The programs of one block for one micro-batch, and what their computation takes alone."""

    forward: tuple[Task, ...]
    backward: tuple[Task, ...]
    again: tuple[Task, ...]
    """Communication of the forward that is repeated where the block is recomputed; empty otherwise."""
    forward_s: Seconds
    backward_s: Seconds
    again_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHabits:
    """Which computation an engine runs beside the collectives of a block."""

    tensor: TensorHabits
    cp: int
    hides_combine: bool
    """Whether shared experts run beside the way back of routed tokens."""
    traces_context: bool = False
    """Whether a compiler traces the calls of context parallelism."""


def forward_tasks(
    branches: Sequence[Branch],
    calls: Iterable[Task],
    habits: BlockHabits,
    *,
    phase: OperationPhase = "forward",
) -> tuple[Task, ...]:
    """Tasks of a block's forward, or of the same forward when it is recomputed."""
    writer = TaskWriter(calls, phase)
    pairs = _num_pairs(writer)
    for index, branch in enumerate(branches):
        is_paired = index < pairs
        writer.work(f"{branch.name} norm", branch.part("norm").forward.total_s)
        if branch.has_experts:
            _routed_forward(writer, branch, habits, is_paired=is_paired)
            continue
        inputs, outputs = branch.part("inputs").forward, branch.part("outputs").forward
        gathered_products(writer, f"{branch.name} inputs", inputs, habits.tensor, is_paired=is_paired)
        _core(writer, branch, branch.part("core").forward.total_s, habits)
        reduced_products(writer, f"{branch.name} outputs", outputs, habits.tensor, is_paired=is_paired)
    return writer.finished()


def backward_tasks(branches: Sequence[Branch], calls: Iterable[Task], habits: BlockHabits) -> tuple[Task, ...]:
    """Tasks of a block's backward, without recomputation."""
    writer = TaskWriter(calls, "backward")
    pairs = _num_pairs(writer)
    for index, branch in reversed(tuple(enumerate(branches))):
        is_paired = index < pairs
        if branch.has_experts:
            _routed_backward(writer, branch, is_paired=is_paired)
        else:
            outputs = branch.part("outputs")
            name = f"{branch.name} outputs"
            gathered_products(writer, name, outputs.backward, habits.tensor.backward, is_paired=is_paired)
            writer.work(f"{name} weights", outputs.weight_backward_s)
            _core(writer, branch, branch.part("core").backward.total_s, habits)
            inputs = branch.part("inputs")
            column_backward(writer, f"{branch.name} inputs", inputs, habits.tensor.backward, is_paired=is_paired)
        writer.work(f"{branch.name} norm", branch.part("norm").whole_backward_s)
    return writer.finished()


def _num_pairs(writer: TaskWriter) -> int:
    """Number of branches whose products communicate: one sum in each direction."""
    return max(writer.count("tp", "reduce_scatter"), writer.count("tp", "all_reduce"))


def _core(writer: TaskWriter, branch: Branch, duration_s: float, habits: BlockHabits) -> None:
    """Attention in pieces when the first branch's sequence is divided, or any other core."""
    if habits.cp > 1 and branch.name.startswith("attention"):
        attention_tasks(writer, branch.name, duration_s, cp=habits.cp, is_traced=habits.traces_context)
    else:
        writer.work(branch.name, duration_s)


def _routed_forward(writer: TaskWriter, branch: Branch, habits: BlockHabits, *, is_paired: bool) -> None:
    """Route, send, compute and bring back; shared experts before the exchanges, or beside the way back."""
    writer.wait(writer.take("tp", "all_gather") if is_paired else None)
    shared_s = branch.part("shared experts").forward.total_s
    writer.work("routing", branch.part("inputs").forward.total_s)
    writer.work("shared experts", 0.0 if habits.hides_combine else shared_s)
    writer.wait(writer.take("ep", "all_to_all", name="expert dispatch"))
    writer.work("experts", branch.part("experts").forward.total_s)
    combine = writer.take("ep", "all_to_all", name="expert combine")
    writer.beside(combine, "shared experts", shared_s if habits.hides_combine else 0.0)
    writer.work("combined experts", branch.part("outputs").forward.total_s)
    writer.wait(_reduction(writer, is_paired=is_paired))


def _routed_backward(writer: TaskWriter, branch: Branch, *, is_paired: bool) -> None:
    writer.wait(writer.take("tp", "all_gather") if is_paired else None)
    writer.work("combined experts", branch.part("outputs").whole_backward_s)
    writer.wait(writer.take("ep", "all_to_all", name="expert combine"))
    writer.work("experts", branch.part("experts").whole_backward_s)
    writer.wait(writer.take("ep", "all_to_all", name="expert dispatch"))
    writer.work("shared experts", branch.part("shared experts").whole_backward_s)
    writer.work("routing", branch.part("inputs").whole_backward_s)
    again = writer.count("tp", "all_gather") > writer.count("tp", "reduce_scatter") if is_paired else False
    writer.wait(writer.take("tp", "all_gather") if again else None)
    writer.wait(_reduction(writer, is_paired=is_paired))


def _reduction(writer: TaskWriter, *, is_paired: bool) -> Task | None:
    if not is_paired:
        return None
    return writer.take("tp", "reduce_scatter") or writer.take("tp", "all_reduce")


def block_tasks(
    plan: Plan,
    layer: LayerSpec,
    timed: Sequence[TimedOperation],
    calls: Iterable[TimedCall],
    *,
    time_of: Callable[[Operation], Seconds],
    moves_bytes_per_s: float,
) -> BlockTasks:
    """The tasks of one block of a plan.

    Args:
        plan: whose engine runs it.
        layer: the block.
        timed: its operations, forward and backward.
        calls: its collectives for one micro-batch.
        time_of: the device's time for an operation.
        moves_bytes_per_s: memory traffic of elementwise kernels.
    """
    calls = tuple(timed_call for timed_call in calls if is_in_block(timed_call.collective))
    habits = _habits(plan, calls, moves_bytes_per_s=moves_bytes_per_s)
    ranks = plan.layout.tp
    cut = (lambda product: _pieces_s(product, ranks, time_of)) if habits.tensor.is_async else None
    branches = block_branches(layer, timed, pieces_s=cut)
    own: dict[OperationPhase, tuple[Task, ...]] = {
        phase: tuple(_block_calls(calls, phase)) for phase in ("forward", "backward", "recompute")
    }
    forward_s = sum(one.duration_s for one in timed if one.operation.phase == "forward")
    again, again_s = branches, forward_s
    if plan.recipe.recompute != "full":
        again = _repeated_branches(branches, plan.recipe) if own["recompute"] else ()
        again_s = sum(part.forward.total_s for branch in again for part in branch.parts.values())
    forward = forward_tasks(branches, own["forward"], habits)
    backward = backward_tasks(branches, own["backward"], habits)
    repeated = forward_tasks(again, own["recompute"], habits, phase="recompute") if again else ()
    if plan.recipe.blocking_launches:
        forward, backward, repeated = (in_turn(tasks) for tasks in (forward, backward, repeated))
    return BlockTasks(
        forward=forward,
        backward=backward,
        again=repeated,
        forward_s=forward_s,
        backward_s=sum(one.duration_s for one in timed if one.operation.phase == "backward"),
        again_s=again_s,
    )


def _repeated_branches(branches: Sequence[Branch], recipe: Recipe) -> tuple[Branch, ...]:
    """The feed-forward, where a module of it that communicates is recomputed; of shared experts nothing beside them."""
    (*_, last) = branches
    modules = recipe.recompute_modules or ()
    if last.has_experts and "moe" not in modules:
        return (Branch(name=last.name, parts={"inputs": last.part("shared experts")}),)
    return (last,)


def _habits(plan: Plan, calls: Sequence[TimedCall], *, moves_bytes_per_s: float) -> BlockHabits:
    layout, profile = plan.layout, engine_profile(plan.engine)
    scattered = [one.collective.num_bytes for one in calls if one.collective.kind == "reduce_scatter"]
    summed_bytes = max(scattered, default=0) * (1 + 1 / layout.tp)
    return BlockHabits(
        tensor=TensorHabits(
            ranks=layout.tp,
            overlaps_gradients=profile.sharding == "megatron",
            is_async=layout.async_tensor_parallel,
            partial_sum_s=summed_bytes / moves_bytes_per_s,
        ),
        cp=layout.cp,
        hides_combine=profile.sharding == "fsdp2",
        traces_context=plan.recipe.compile and not is_native_engine(plan),
    )


def _pieces_s(product: Operation, ranks: int, time_of: Callable[[Operation], Seconds]) -> Seconds:
    """Time of a product in as many pieces as ranks, each of one rank's part of the rows."""
    piece = replace(
        product, m=max(1, product.m // ranks), flop=product.flop / ranks, num_bytes=round(product.num_bytes / ranks)
    )
    return ranks * time_of(piece)


def _block_calls(calls: Iterable[TimedCall], phase: OperationPhase) -> Iterator[Task]:
    for timed in calls:
        call = timed.collective
        if call.phase != phase:
            continue
        for _ in range(call.count // call.rounds):
            yield timed.task()
