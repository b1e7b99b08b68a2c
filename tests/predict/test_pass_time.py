"""Passes in the event engine: prefetch, reductions, contention, and the shortcut through equal blocks."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.predict.pass_time import pass_time
from shardwise.predict.passes import Piece, pass_program
from shardwise.predict.tasks import run_tasks
from shardwise.simulate.engine import Task


def call(name, duration_s, *, kind="all_gather", axis="dp_shard", ratio=1.0):
    return Task(name=name, category=kind, stream=axis, duration_s=duration_s, slowdown_ratio=ratio)


def piece(duration_s, *, count=1, **calls):
    work = Task(stream="compute", name="block", category="forward", duration_s=duration_s)
    return Piece(works=(work,), count=count, **calls)


def gathered(compute_s, gather_s, *, ratio=1.0, count=7):
    return piece(compute_s, count=count, gathers=(call("gather", gather_s, ratio=ratio),))


def reduced(compute_s, reduce_s, *, ratio=1.0, count=7):
    reduction = call("reduce", reduce_s, kind="reduce_scatter", ratio=ratio)
    return piece(compute_s, count=count, reductions=(reduction,))


def shares(found):
    return {exposed.name: exposed.exposed_s for exposed in found.exposed}


def test_only_the_first_gather_is_exposed_when_blocks_take_longer():
    """7 blocks of 5 s and gathers of 3 s: one gather, then computation."""
    found = pass_time([gathered(5.0, 3.0)], is_throttled=True)
    assert found.duration_s == 38.0
    assert shares(found) == {"gather": 3.0}


def test_gathers_one_after_the_other_when_they_take_longer():
    """7 gathers of 5 s, then the last block of 3 s."""
    found = pass_time([gathered(3.0, 5.0)], is_throttled=True)
    assert found.duration_s == 38.0
    assert found.line_s == 21.0


def test_only_the_last_reduction_is_exposed_when_blocks_take_longer():
    found = pass_time([reduced(5.0, 3.0)], is_throttled=True)
    assert found.duration_s == 38.0


def test_a_gather_goes_ahead_of_the_reduction_so_that_it_hides():
    """Backward: computation 10, gather 4, reduction 5. Behind the reduction the gather would end after the block."""
    block = piece(
        10.0,
        count=3,
        gathers=(call("gather", 4.0),),
        reductions=(call("reduce", 5.0, kind="reduce_scatter"),),
    )
    found = pass_time([block], is_throttled=True)
    assert found.duration_s == 4.0 + 3 * 10.0 + 5.0


def test_overlapped_time_slows_both_sides():
    """1.5 while both run: a gather of 2 beside a block of 5 takes 3, the block 5 + 1."""
    found = pass_time([gathered(5.0, 2.0, ratio=1.5, count=2)], is_throttled=True)
    assert found.duration_s == pytest.approx(2.0 + 6.0 + 5.0)
    assert shares(found)["gather"] == pytest.approx(2.0 + 1.0)


def test_what_computation_waits_for_in_line_is_no_exposed_gather():
    block = piece(
        5.0, count=3, gathers=(call("gather", 1.0),), waits=(call("tensor", 2.0, kind="all_reduce", axis="tp"),)
    )
    found = pass_time([block], is_throttled=True)
    assert found.line_s == 21.0
    assert shares(found) == {"gather": 1.0}


def test_computation_runs_at_most_one_reduction_ahead_when_gradients_are_freed():
    """FSDP2 waits for the reduction before the last; DDP for none."""
    throttled = pass_time([reduced(1.0, 3.0, count=9)], is_throttled=True)
    free = pass_time([reduced(1.0, 3.0, count=9)], is_throttled=False)
    assert throttled.duration_s == free.duration_s == 1.0 + 9 * 3.0


SECONDS = st.sampled_from([0.0, 0.1, 0.7, 1.0, 1.3, 2.9])


@st.composite
def passes(draw):
    """A backward pass of a head, two runs of blocks and an embedding, some of it with nothing to do."""
    ratio = draw(st.sampled_from([1.0, 1.126, 1.5]))

    def block(name, count):
        return Piece(
            works=(Task(stream="compute", name=name, category="backward", duration_s=draw(SECONDS)),),
            waits=(call("tensor", draw(SECONDS), kind="all_reduce", axis="tp"),),
            gathers=(call(f"gather {name}", draw(SECONDS), ratio=ratio),),
            reductions=(
                call(f"reduce {name}", draw(SECONDS), kind="reduce_scatter", ratio=ratio),
                call(f"replicas {name}", draw(SECONDS), kind="all_reduce", axis="dp_replicate", ratio=1.126),
            ),
            count=count,
        )

    return [piece(draw(SECONDS)), block("a", draw(st.integers(1, 23))), block("b", draw(st.integers(1, 11)))]


@given(runs=passes(), is_throttled=st.booleans())
def test_a_few_blocks_and_their_shift_equal_all_blocks(runs, is_throttled):
    short = pass_time(runs, is_throttled=is_throttled)
    full = pass_time(runs, is_throttled=is_throttled, may_extrapolate=False)
    assert short.duration_s == pytest.approx(full.duration_s, rel=1e-9, abs=1e-9)
    assert short.line_s == pytest.approx(full.line_s, rel=1e-9, abs=1e-9)
    found = shares(short)
    for name, seconds in shares(full).items():
        assert found.get(name, 0.0) == pytest.approx(seconds, rel=1e-6, abs=1e-6)


def test_a_reduction_that_lags_by_several_pieces_is_no_part_of_the_steady_one():
    """The first replicas' reduction of the second run waits for that of the first run, and ends four pieces later."""

    def block(name, work_s, reduce_s, count):
        return Piece(
            works=(Task(stream="compute", name=name, category="backward", duration_s=work_s),),
            waits=(call("tensor", 0.1, kind="all_reduce", axis="tp"),),
            gathers=(call(f"gather {name}", 1.3, ratio=1.5),),
            reductions=(
                call(f"reduce {name}", 1.0, kind="reduce_scatter", ratio=1.5),
                call(f"replicas {name}", reduce_s, kind="all_reduce", axis="dp_replicate", ratio=1.126),
            ),
            count=count,
        )

    runs = [piece(2.9), block("a", 1.0, 2.9, 1), block("b", 0.0, 1.3, 7)]
    full = pass_time(runs, is_throttled=True, may_extrapolate=False)
    assert shares(pass_time(runs, is_throttled=True)) == pytest.approx(shares(full))


@given(runs=passes(), is_throttled=st.booleans())
def test_exposed_shares_sum_to_the_makespan_minus_that_with_free_communication(runs, is_throttled):
    found = pass_time(runs, is_throttled=is_throttled)
    program = pass_program(runs, is_throttled=is_throttled)
    makespan_s = run_tasks(program.tasks).makespan_s
    freed = [replace(task, duration_s=0.0) if _is_beside(task) else task for task in program.tasks]
    lost_s = makespan_s - run_tasks(freed).makespan_s
    assert sum(shares(found).values()) == pytest.approx(lost_s, rel=1e-9, abs=1e-9)
    assert found.duration_s == pytest.approx(makespan_s)


def _is_beside(task: Task) -> bool:
    return task.stream in ("dp_shard", "dp_replicate")


def test_long_runs_of_equal_blocks_take_few_pieces():
    found = pass_time([gathered(5.0, 3.0, ratio=1.5, count=1000)], is_throttled=True)
    assert found.num_simulated == 5
