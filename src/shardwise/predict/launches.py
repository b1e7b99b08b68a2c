"""The launching CPU beside the device: how long a line of pieces takes when both work through it.

A host that launches blocks compiled one by one, or of an engine whose host was timed, runs ahead of the device until
it has to wait for it: at the end of a step, when gradients' norm or the loss is read (messages of torch's pipelines
wait on the device). A piece starts once the one before it is done and launched, and ends no earlier than its own last
launch. Megatron's plain dispatcher of experts waits in every layer for the counts of the other ranks, so its host is
never ahead.

Any other eager host is taken to launch a phase of a block while the device runs that phase, not ahead, which makes up
for elementwise kernels of eager blocks that take longer than is counted: let to run ahead, our eager runs would be 16 %
too fast in the median instead of 9 (``benchmarks/results/2026-11-28-*.jsonl``). Where a calibration has timed our
blocks, those kernels are known, and eager hosts run ahead as they do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from shardwise.engines.table import engine_profile
from shardwise.plan import Plan
from shardwise.predict.compute import DeviceAndHost, PhaseTimes
from shardwise.predict.passes import Piece
from shardwise.step.expert_exchange import has_plain_dispatcher
from shardwise.step.native_engine import is_native_engine
from shardwise.units import Seconds

QUEUED_LAUNCHES = 1024
"""Launches that a CUDA stream takes before the host blocks: the depth commonly observed (NVIDIA developer forums)."""


def launches_ahead(plan: Plan) -> bool:
    """Whether the host of a plan launches blocks while the device still runs earlier ones."""
    calibration = plan.cluster.calibration
    if plan.recipe.blocking_launches:
        return False
    if calibration is not None and calibration.blocks and is_native_engine(plan):
        return True
    if has_plain_dispatcher(plan):
        return False
    profile = engine_profile(plan.engine)
    return profile.block_calls != (0, 0) or (plan.recipe.compile and profile.sharding != "megatron")


def launched_work(work: DeviceAndHost, *, is_ahead: bool) -> DeviceAndHost:
    """Seconds of a phase of a block on the device, and of launches that are left for another time."""
    return work if is_ahead else DeviceAndHost(max(work.device_s, work.host_s), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AheadBlock:
    """One of many equal blocks whose host never waits: the whole work of both sides counts, not that of each phase."""

    forward_s: Seconds
    backward_s: Seconds
    selective_s: Seconds
    """Seconds that selective recomputation adds."""
    full_s: Seconds
    exposed_fraction: float
    """Part of its collectives' exposed time on the device that its launches do not hide."""


def ahead_block(once: PhaseTimes, *, selective: DeviceAndHost, full: DeviceAndHost, exposed_s: Seconds) -> AheadBlock:
    """Forward, backward and recomputation of one block when the host runs ahead through all of them."""
    work = once.forward_work.plus(once.backward_work, times=1)

    def longest_s(*more: DeviceAndHost, waits_s: Seconds = 0.0) -> Seconds:
        device_s = work.device_s + waits_s + sum(one.device_s for one in more)
        return max(device_s, work.host_s + sum(one.host_s for one in more))

    whole_s = longest_s()
    forward_s = min(once.forward_s, whole_s)
    return AheadBlock(
        forward_s=forward_s,
        backward_s=whole_s - forward_s,
        selective_s=longest_s(selective) - whole_s,
        full_s=longest_s(full) - whole_s,
        exposed_fraction=(longest_s(waits_s=exposed_s) - whole_s) / exposed_s if exposed_s else 1.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Times until which the device and the host are busy."""

    device_s: Seconds = 0.0
    host_s: Seconds = 0.0

    def after(self, *, count: int, device_s: Seconds, issue_s: Seconds) -> "Clocks":
        """The clocks after ``count`` equal pieces.

        The first of n ends at ``max(max(d, h) + D, h + H)``, all of them at ``max(first + (n - 1) D, h + n H)``.

        >>> Clocks().after(count=3, device_s=2.0, issue_s=5.0).device_s
        15.0
        >>> Clocks(device_s=4.0).after(count=3, device_s=2.0, issue_s=3.0).device_s
        10.0
        """
        if not count:
            return self
        first_s = max(max(self.device_s, self.host_s) + device_s, self.host_s + issue_s)
        issued_s = self.host_s + count * issue_s
        return Clocks(device_s=max(first_s + (count - 1) * device_s, issued_s), host_s=issued_s)

    def behind(self, most_s: Seconds) -> "Clocks":
        """The clocks with the host no further ahead than its queue is long."""
        return Clocks(device_s=self.device_s, host_s=max(self.host_s, self.device_s - most_s))


def through(runs: Iterable[Piece], start: Clocks = Clocks(), *, with_waits: bool = True) -> Clocks:
    """The clocks after a pass of pieces."""
    now = start
    for piece in runs:
        computed_s = sum(work.duration_s for work in piece.works)
        device_s = piece.line_s if with_waits else computed_s
        now = now.after(count=piece.count, device_s=device_s, issue_s=piece.issue_s)
    return now


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLines:
    """Forward and backward passes of all micro-batches of a step."""

    forward_s: Seconds
    backward_s: Seconds


STEADY_ROUNDS = 3
"""Micro-batches after which the host is as far ahead at every one."""


def step_lines(
    forward: Sequence[Piece],
    backward: Sequence[Piece],
    *,
    num_microbatches: int,
    most_ahead_s: Seconds,
    with_waits: bool,
) -> StepLines:
    """The passes of one stage, one after the other.

    Args:
        forward: one micro-batch.
        backward: one micro-batch.
        num_microbatches: micro-batches of the step.
        most_ahead_s: how far the host can be ahead.
        with_waits: whether the collectives inside blocks take time, or are free.
    """
    totals = {True: 0.0, False: 0.0}
    clocks = Clocks()
    last = dict(totals)
    for _ in range(min(num_microbatches, STEADY_ROUNDS)):
        for is_forward, runs in ((True, forward), (False, backward)):
            start = clocks.behind(most_ahead_s)
            clocks = through(runs, start, with_waits=with_waits)
            last[is_forward] = clocks.device_s - start.device_s
            totals[is_forward] += last[is_forward]
    more = max(0, num_microbatches - STEADY_ROUNDS)
    return StepLines(forward_s=totals[True] + more * last[True], backward_s=totals[False] + more * last[False])


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A stage's computation as fast as the host launches it."""

    compute: PhaseTimes
    forward_fraction: float
    """Part of the exposed time inside blocks in forward that remains beside a host that is busy meanwhile."""
    backward_fraction: float


def launched(
    compute: PhaseTimes,
    forward: Sequence[Piece],
    backward: Sequence[Piece],
    *,
    copies: PhaseTimes,
    num_microbatches: int,
    most_ahead_s: Seconds,
) -> Launched:
    """The passes of a stage beside the launching host, with the collectives inside blocks and without.

    Args:
        compute: times of a whole step, with every group of kernels waiting for its own launches.
        forward: one micro-batch.
        backward: one micro-batch.
        copies: sharding copies around the blocks of one micro-batch, which no launch is ahead of.
        num_microbatches: micro-batches of a step.
        most_ahead_s: how far the host can run ahead.
    """

    def lines(*, with_waits: bool) -> StepLines:
        return step_lines(
            forward,
            backward,
            num_microbatches=num_microbatches,
            most_ahead_s=most_ahead_s,
            with_waits=with_waits,
        )

    alone, waiting = lines(with_waits=False), lines(with_waits=True)
    waits_s = [
        num_microbatches * sum(piece.count * call.duration_s for piece in runs for call in piece.waits)
        for runs in (forward, backward)
    ]
    longer_s = (waiting.forward_s - alone.forward_s, waiting.backward_s - alone.backward_s)
    shares = [
        min(1.0, max(0.0, longer) / waited) if waited else 1.0 for longer, waited in zip(longer_s, waits_s, strict=True)
    ]
    backward_s, recompute_s = _told_apart(alone.backward_s, backward)
    backward_s += num_microbatches * copies.backward_s
    slower = backward_s / compute.backward_s if compute.backward_s else 1.0
    return Launched(
        compute=replace(
            compute,
            forward_s=alone.forward_s + num_microbatches * copies.forward_s,
            backward_s=backward_s,
            recompute_s=recompute_s,
            weight_backward_s=slower * compute.weight_backward_s,
        ),
        forward_fraction=shares[0],
        backward_fraction=shares[1],
    )


def _told_apart(line_s: Seconds, runs: Sequence[Piece]) -> tuple[Seconds, Seconds]:
    """Seconds of backward and of recomputation in backward passes, divided as the device computes them."""
    again_s = total_s = 0.0
    for piece in runs:
        for work in piece.works:
            total_s += piece.count * work.duration_s
            again_s += piece.count * work.duration_s if work.category == "recompute" else 0.0
    share = again_s / total_s if total_s else 0.0
    return (1 - share) * line_s, share * line_s
