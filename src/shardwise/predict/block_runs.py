"""Both directions of every distinct block of a plan, run with the collectives inside them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.engines.table import engine_profile
from shardwise.model import LayerSpec
from shardwise.plan import Plan
from shardwise.predict.block_parts import Branch, TimedOperation, block_branches
from shardwise.predict.block_program import BlockHabits, backward_steps, forward_steps
from shardwise.predict.block_steps import BlockCall, Step, in_turn
from shardwise.predict.block_time import BlockRun, block_run
from shardwise.predict.tensor_parallel_steps import TensorHabits
from shardwise.recipe import Recipe
from shardwise.step.inventory import Collective, Operation, OperationPhase
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """One record of the inventory with the time of one call."""

    collective: Collective
    call_s: Seconds
    slowdown_ratio: float

    @property
    def total_s(self) -> Seconds:
        """Over the whole step."""
        return self.collective.count * self.call_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRuns:
    """One block for one micro-batch."""

    forward: BlockRun
    backward: BlockRun
    recompute: BlockRun | None
    """What is run again where the block is recomputed, when it communicates."""


def is_in_block(call: Collective) -> bool:
    """Whether a collective has its place in a block; exchanges that another micro-batch hides have none."""
    return call.axis in ("tp", "cp", "ep") and call.phase != "optimizer" and not is_under_other_blocks(call)


def is_under_other_blocks(call: Collective) -> bool:
    """Exchanges of experts that run under the blocks of another micro-batch (DualPipe)."""
    return call.axis == "ep" and call.is_overlappable


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSteps:
    """The programs of one block for one micro-batch, and what their computation takes alone."""

    forward: tuple[Step, ...]
    backward: tuple[Step, ...]
    again: tuple[Step, ...]
    """What communicates of the forward once more, where the block is recomputed; empty otherwise."""
    forward_s: Seconds
    backward_s: Seconds
    again_s: Seconds


def block_runs(
    plan: Plan,
    layer: LayerSpec,
    timed: Sequence[TimedOperation],
    calls: Iterable[TimedCall],
    *,
    time_of: Callable[[Operation], Seconds],
    moves_bytes_per_s: float,
) -> BlockRuns:
    """Run one block of a plan.

    Args:
        plan: whose engine runs it.
        layer: the block.
        timed: its operations, forward and backward.
        calls: its collectives for one micro-batch.
        time_of: the device's time for an operation.
        moves_bytes_per_s: memory traffic of elementwise kernels.
    """
    steps = block_steps(plan, layer, timed, calls, time_of=time_of, moves_bytes_per_s=moves_bytes_per_s)
    return BlockRuns(
        forward=block_run(steps.forward, compute_s=steps.forward_s),
        backward=block_run(steps.backward, compute_s=steps.backward_s),
        recompute=block_run(steps.again, compute_s=steps.again_s) if steps.again else None,
    )


def block_steps(
    plan: Plan,
    layer: LayerSpec,
    timed: Sequence[TimedOperation],
    calls: Iterable[TimedCall],
    *,
    time_of: Callable[[Operation], Seconds],
    moves_bytes_per_s: float,
) -> BlockSteps:
    """The programs that :func:`block_runs` runs."""
    calls = tuple(timed_call for timed_call in calls if is_in_block(timed_call.collective))
    habits = _habits(plan, calls, moves_bytes_per_s=moves_bytes_per_s)
    ranks = plan.layout.tp
    cut = (lambda product: _pieces_s(product, ranks, time_of)) if habits.tensor.is_async else None
    branches = block_branches(layer, timed, pieces_s=cut)
    own: dict[OperationPhase, tuple[BlockCall, ...]] = {
        phase: tuple(_block_calls(calls, phase)) for phase in ("forward", "backward", "recompute")
    }
    forward_s = sum(one.duration_s for one in timed if one.operation.phase == "forward")
    again, again_s = branches, forward_s
    if plan.recipe.recompute != "full":
        again = _repeated_branches(branches, plan.recipe) if own["recompute"] else ()
        again_s = sum(part.forward.total_s for branch in again for part in branch.parts.values())
    forward = forward_steps(branches, own["forward"], habits)
    backward = backward_steps(branches, own["backward"], habits)
    repeated = forward_steps(again, own["recompute"], habits, phase="recompute") if again else ()
    if plan.recipe.blocking_launches:
        forward, backward, repeated = (in_turn(steps) for steps in (forward, backward, repeated))
    return BlockSteps(
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
    )


def _pieces_s(product: Operation, ranks: int, time_of: Callable[[Operation], Seconds]) -> Seconds:
    """Time of a product in as many pieces as ranks, each of one rank's part of the rows."""
    piece = replace(
        product, m=max(1, product.m // ranks), flop=product.flop / ranks, num_bytes=round(product.num_bytes / ranks)
    )
    return ranks * time_of(piece)


def _block_calls(calls: Iterable[TimedCall], phase: OperationPhase) -> Iterator[BlockCall]:
    for timed in calls:
        call = timed.collective
        if call.phase != phase:
            continue
        for _ in range(call.count // call.rounds):
            yield BlockCall(
                name=call.name,
                kind=call.kind,
                axis=call.axis,
                duration_s=timed.call_s,
                slowdown_ratio=timed.slowdown_ratio,
            )
