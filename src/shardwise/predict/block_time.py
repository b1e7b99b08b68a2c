"""How long a block takes in each direction, and what it waits for of each of its collectives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.predict.block_tasks import BlockTasks
from shardwise.predict.task_writer import is_chain
from shardwise.predict.tasks import COMPUTE, ExposedCall, by_call, laid_to_calls, run_tasks
from shardwise.simulate.engine import Task
from shardwise.simulate.spans import Span
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTime:
    """One direction of one block for one micro-batch."""

    tasks: tuple[Task, ...]
    duration_s: Seconds
    exposed: tuple[ExposedCall, ...]
    """Exposed seconds of each collective; they sum to the duration minus that with free communication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """One block for one micro-batch."""

    forward: BlockTime
    backward: BlockTime
    recompute: BlockTime | None
    """The recomputed forward, where it communicates."""


def block_times(tasks: BlockTasks) -> BlockTimes:
    """Run one block in all directions."""
    return BlockTimes(
        forward=block_time(tasks.forward, compute_s=tasks.forward_s),
        backward=block_time(tasks.backward, compute_s=tasks.backward_s),
        recompute=block_time(tasks.again, compute_s=tasks.again_s) if tasks.again else None,
    )


def block_time(tasks: Sequence[Task], *, compute_s: Seconds) -> BlockTime:
    """Run one direction of a block.

    Args:
        tasks: the tasks of that direction.
        compute_s: seconds of its computation alone and in whole products, which may be longer than in pieces; a block
            takes no less.
    """
    tasks = tuple(tasks)
    if is_chain(tasks):
        total_s = max(sum(task.duration_s for task in tasks), compute_s)
        calls = {position: task.duration_s for position, task in enumerate(tasks) if task.stream != COMPUTE}
        waits_s = sum(calls.values())
        scale = (total_s - compute_s) / waits_s if waits_s else 0.0
        return BlockTime(tasks=tasks, duration_s=total_s, exposed=by_call(tasks, calls, scale=scale))
    run = run_tasks(tasks)
    exposed = laid_to_calls(run, exposed_s=max(0.0, run.makespan_s - compute_s))
    return BlockTime(tasks=tasks, duration_s=max(run.makespan_s, compute_s), exposed=by_call(tasks, exposed))


def block_waits_s(tasks: Sequence[Task], *, compute_s: Seconds) -> Seconds:
    """Seconds that a block waits for all its collectives together: the sum of ``exposed``."""
    if all(task.stream == COMPUTE for task in tasks):
        return 0.0
    if is_chain(tasks):
        return max(0.0, sum(task.duration_s for task in tasks) - compute_s)
    return max(0.0, run_tasks(tasks).makespan_s - compute_s)


def block_spans(block: BlockTime) -> tuple[Span, ...]:
    """When every task of a block runs, and how much of each of its collectives is exposed."""
    run = run_tasks(block.tasks)
    found = laid_to_calls(run, exposed_s=sum(call.exposed_s for call in block.exposed))
    return tuple(replace(span, exposed_s=found.get(position, 0.0)) for position, span in enumerate(run.spans))
