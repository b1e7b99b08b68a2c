"""How long a pass takes in the event engine, and which collectives it waits for.

A run of equal pieces soon repeats: when all tasks of a piece end exactly as much later as those of the piece before,
and so did the piece before, every further piece shifts by that time again. Then the pieces that were not listed are
added as shifts (eventual periodicity, as :mod:`shardwise.simulate.steady_state` uses it for pipelines).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.predict.launches import through
from shardwise.predict.passes import PassProgram, Piece, is_launch_bound, pass_program
from shardwise.predict.tasks import ExposedCall, Shares, by_call, run_tasks
from shardwise.simulate.engine import Run
from shardwise.units import Seconds

FIRST_PIECES = 5
"""Pieces of a run listed at first; three of them are compared."""
RELATIVE_ROUNDING = 1e-9
"""Shifts that differ by less than this share of the pass are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTime:
    """One pass of a micro-batch."""

    duration_s: Seconds
    line_s: Seconds
    """Computation and the collectives that wait in line with it, as fast as they are launched."""
    exposed: tuple[ExposedCall, ...]
    """Exposed seconds by collective; they sum to ``duration_s`` less ``line_s``."""
    num_simulated: int
    """Pieces that went through the engine."""


def pass_time(
    runs: Sequence[Piece], *, is_throttled: bool, may_extrapolate: bool = True, prefetch_units: int = 1
) -> PassTime:
    """Time of a pass and of what it waits for; every piece is run when several are prefetched."""
    longest = max((piece.count for piece in runs), default=0)
    most_pieces = FIRST_PIECES if may_extrapolate and prefetch_units == 1 else longest
    while True:
        program = pass_program(runs, is_throttled=is_throttled, most_pieces=most_pieces, prefetch_units=prefetch_units)
        run = run_tasks(program.tasks)
        shifts = _shifts(runs, program, run) if most_pieces < longest else [0.0] * len(runs)
        if shifts is not None:
            return _measured(runs, program, run, shifts)
        most_pieces = min(longest, 4 * most_pieces)


def _shifts(runs: Sequence[Piece], program: PassProgram, run: Run) -> list[Seconds] | None:
    """Seconds by which each left-out piece of every run delays the rest; ``None`` when a run does not repeat yet."""
    tolerance_s = RELATIVE_ROUNDING * run.makespan_s
    left_over_s = _left_over_s(len(runs), program, run)
    shifts = []
    for index, piece in enumerate(runs):
        listed = [pieces for pieces in program.pieces if pieces.index == index]
        if len(listed) == piece.count:
            shifts.append(0.0)
            continue
        # The last listed piece already works ahead for what follows the run.
        *first, before, earlier, later, _ = listed
        # What is not compared must be over when the piece begins that stands for those left out.
        others_s = max((run.ends_s[position] for pieces in first for position in pieces.tasks), default=0.0)
        if max(left_over_s[index], others_s) > run.ends_s[earlier.last_work] + tolerance_s:
            return None
        shift_s = run.ends_s[later.last_work] - run.ends_s[earlier.last_work]
        pairs = [*zip(later.tasks, earlier.tasks, strict=True), *zip(earlier.tasks, before.tasks, strict=True)]
        if any(abs(run.ends_s[one] - run.ends_s[other] - shift_s) > tolerance_s for one, other in pairs):
            return None
        # A host that is still ahead and slower than the device would be caught up with by a later piece.
        if is_launch_bound(runs) and piece.issue_s > shift_s + tolerance_s:
            return None
        shifts.append(shift_s)
    return shifts


def _left_over_s(num_runs: int, program: PassProgram, run: Run) -> list[Seconds]:
    """For each run of pieces, when the last task of the runs before it ends."""
    ends_s = [0.0] * num_runs
    for pieces in program.pieces:
        ends_s[pieces.index] = max(ends_s[pieces.index], *(run.ends_s[position] for position in pieces.tasks))
    return [max(ends_s[:index], default=0.0) for index in range(num_runs)]


def _measured(runs: Sequence[Piece], program: PassProgram, run: Run, shifts: Sequence[Seconds]) -> PassTime:
    """The listed pieces as they ran, and a steady piece of each run again for every piece left out."""
    num_listed = [sum(pieces.index == index for pieces in program.pieces) for index in range(len(runs))]
    left_out = [piece.count - listed for piece, listed in zip(runs, num_listed, strict=True)]
    shares = Shares(run, (position for pieces in program.pieces for position in pieces.line))
    seen = [0] * len(runs)
    for pieces in program.pieces:
        seen[pieces.index] += 1
        is_steady = left_out[pieces.index] > 0 and seen[pieces.index] == num_listed[pieces.index] - 1
        shares.lay(pieces.line, times=1 + (left_out[pieces.index] if is_steady else 0))
    shares.lay_tail()
    added_s = sum(shift * count for shift, count in zip(shifts, left_out, strict=True))
    duration_s, line_s = run.makespan_s + added_s, through(runs).device_s
    scale = 1.0
    if is_launch_bound(runs):
        # Computation that waits for its launch may lie where a collective runs, too.
        total_s = sum(shares.found.values())
        scale = max(0.0, duration_s - line_s) / total_s if total_s else 0.0
    return PassTime(
        duration_s=duration_s,
        line_s=line_s,
        exposed=by_call(run.tasks, shares.found, scale=scale),
        num_simulated=len(program.pieces),
    )
