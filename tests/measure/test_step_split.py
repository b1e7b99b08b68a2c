"""The parts of a step whose every microsecond is known."""

import pytest

from measure.made_up_traces import collective, kernel, mark, write_trace
from shardwise.measure.profile import profile_traces
from shardwise.measure.rank_trace import read_rank_trace
from shardwise.measure.step_split import split_step
from shardwise.measure.trace_steps import step_windows

GEMM = "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT"
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def one_step(shift: float = 0.0) -> list[dict[str, object]]:
    """100 us: compute 0-40 and 70-90, a gather 30-60, a copy 60-65, host 65-70 (launched at 69), and 90-100.

    From 90 the device waits for the next step, which the host launches at 97: 7 us for the host, 3 us of other waiting.
    """
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 9}
    return [
        mark(f"ProfilerStep#{round(shift / 100)}", shift - 5, shift + 95),
        *kernel(GEMM, shift, shift + 40, launch=shift - 3),
        *collective(GATHER, shift + 30, shift + 60, launch=shift + 1),
        {**copy, "ts": shift + 60, "dur": 5, "args": {"stream": 9, "correlation": 1 + round(shift)}},
        *kernel("triton_poi_fused_add_0", shift + 70, shift + 90, launch=shift + 69),
    ]


@pytest.fixture
def steps(tmp_path):
    following = [mark("ProfilerStep#1", 95, 195), *kernel(GEMM, 100, 140, launch=97)]
    return step_windows(read_rank_trace(write_trace(tmp_path, [*one_step(), *following])))


def test_every_part_is_exact_and_they_sum_to_the_step(steps):
    split = split_step(steps[0])
    parts = (split.compute_s, split.exposed_communication_s, split.copies_s, split.host_s, split.idle_s)
    assert [round(part * 1e6, 6) for part in parts] == [60, 20, 5, 4 + 7, 1 + 3]
    assert split.step_s * 1e6 == pytest.approx(100)
    assert split.overlap_fraction == pytest.approx(10 / 30)


def test_a_step_ends_where_the_next_one_begins_on_the_device(steps):
    assert [window.name for window in steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert [window.duration_s * 1e6 for window in steps] == pytest.approx([100, 40])


def test_work_belongs_to_the_step_that_launched_it(tmp_path):
    """The host runs ahead: the second kernel starts after the mark of step 1 began, but step 0 launched it."""
    events = [
        mark("ProfilerStep#0", 0, 10),
        mark("ProfilerStep#1", 10, 20),
        *kernel(GEMM, 5, 30, launch=2),
        *kernel(GEMM, 30, 60, launch=9),
        *kernel(GEMM, 60, 90, launch=15),
    ]
    windows = step_windows(read_rank_trace(write_trace(tmp_path, events)))
    assert [len(window.works) for window in windows] == [2, 1]
    assert windows[0].duration_s * 1e6 == pytest.approx(55)


def test_without_marks_a_step_ends_with_its_optimizer(tmp_path):
    events = [
        *kernel(GEMM, 5, 10, launch=2),
        mark("Optimizer.step#AdamW.step", 20, 30),
        *kernel(GEMM, 45, 50, launch=42),
        mark("Optimizer.step#AdamW.step", 60, 70),
    ]
    windows = step_windows(read_rank_trace(write_trace(tmp_path, events)))
    assert [window.name for window in windows] == ["step 0", "step 1"]


def test_without_either_the_trace_is_one_step(tmp_path):
    (window,) = step_windows(read_rank_trace(write_trace(tmp_path, kernel(GEMM, 5, 10, launch=2))))
    assert window.name == "the whole trace"


def test_the_mean_of_equal_steps_is_one_of_them(tmp_path):
    path = write_trace(tmp_path, [*one_step(), *one_step(100.0), *one_step(200.0)])
    profile = profile_traces([path])
    assert profile.ranks[0].num_steps == 3
    assert profile.split.compute_s * 1e6 == pytest.approx(60)
