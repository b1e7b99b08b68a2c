"""How long a block takes in the event engine, and what it waits for of each of its collectives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.predict.block_steps import Step, is_chain
from shardwise.predict.pass_time import ExposedCall, by_call, laid_to_calls
from shardwise.predict.passes import COMPUTE, contentions_of
from shardwise.simulate.contention import run_contended
from shardwise.simulate.engine import Run, Task
from shardwise.simulate.spans import Span
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """One direction of one block for one micro-batch."""

    steps: tuple[Step, ...]
    duration_s: Seconds
    exposed: tuple[ExposedCall, ...]
    """They sum to the duration minus that with free communication."""


def block_run(steps: Sequence[Step], *, compute_s: Seconds) -> BlockRun:
    """Run a block.

    Args:
        steps: its program.
        compute_s: what its computation takes alone and in whole products, which may be longer than in pieces; a block
            takes no less.
    """
    steps = tuple(steps)
    if is_chain(steps):
        total_s = max(sum(step.duration_s for step in steps), compute_s)
        calls = [step for step in steps if step.stream != COMPUTE]
        waits_s = sum(call.duration_s for call in calls)
        scale = (total_s - compute_s) / waits_s if waits_s else 0.0
        waits = [ExposedCall(name=call.name, axis=call.stream, exposed_s=scale * call.duration_s) for call in calls]
        return BlockRun(steps=steps, duration_s=total_s, exposed=_merged(waits))
    run = run_block_steps(steps)
    exposed = laid_to_calls(run, exposed_s=max(0.0, run.makespan_s - compute_s))
    return BlockRun(steps=steps, duration_s=max(run.makespan_s, compute_s), exposed=by_call(run, exposed))


def block_spans(block: BlockRun) -> tuple[Span, ...]:
    """When every step of a block runs, and how much of each of its collectives is exposed."""
    run = run_block_steps(block.steps)
    found = laid_to_calls(run, exposed_s=sum(call.exposed_s for call in block.exposed))
    return tuple(replace(span, exposed_s=found.get(position, 0.0)) for position, span in enumerate(run.spans))


def block_waits_s(steps: Sequence[Step], *, compute_s: Seconds) -> Seconds:
    """What all that a block waits for adds up to, without saying what it is laid to: the sum of ``exposed``."""
    if all(step.stream == COMPUTE for step in steps):
        return 0.0
    if is_chain(steps):
        return max(0.0, sum(step.duration_s for step in steps) - compute_s)
    return max(0.0, run_block_steps(steps).makespan_s - compute_s)


def run_block_steps(steps: Sequence[Step]) -> Run:
    """When every step runs."""
    tasks = [
        Task(
            name=step.name,
            stream=step.stream,
            duration_s=step.duration_s,
            depends_on=step.after,
            category=step.category,
        )
        for step in steps
    ]
    ratios: dict[str, float] = {}
    for step in steps:
        if step.slowdown_ratio > 1:
            ratios[step.stream] = max(ratios.get(step.stream, 1.0), step.slowdown_ratio)
    return run_contended(tasks, contentions_of(ratios))


def _merged(calls: Sequence[ExposedCall]) -> tuple[ExposedCall, ...]:
    totals: dict[tuple[str, str], Seconds] = {}
    for call in calls:
        key = (call.name, call.axis)
        totals[key] = totals.get(key, 0.0) + call.exposed_s
    return tuple(ExposedCall(name=name, axis=axis, exposed_s=seconds) for (name, axis), seconds in totals.items())
