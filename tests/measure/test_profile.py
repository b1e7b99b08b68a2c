"""Collectives, units, waiting and findings of traces whose answers are known."""

import pytest

from measure.made_up_traces import AUTOGRAD, collective, kernel, mark, write_trace
from shardwise.measure.profile import profile_traces

GEMM = "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT"
FACTS = {"size": 2, "dtype": "BFloat16", "description": "mesh_dp_shard", "ranks": "[0, 1]"}


def fsdp_rank(late_us: float) -> list[dict[str, object]]:
    """Two units. Rank 0 enters its first gather ``late_us`` before rank 1, so its kernel lasts that much longer."""
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    scatter = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return [
        mark("ProfilerStep#3", 0, 400),
        mark("FSDP::all_gather (layers.0)", 1, 4),
        *collective(gather, 50 - late_us, 60, launch=2, word="_allgather_base", elements=500_000, **FACTS),
        *kernel(GEMM, 60, 160, launch=3),
        mark("FSDP::all_gather (layers.1)", 5, 8),
        *collective(gather, 100, 110, launch=6, word="_allgather_base", elements=500_000, **FACTS),
        mark("FSDP::post_backward_reduce (layers.1)", 200, 210, thread=AUTOGRAD),
        *kernel(GEMM, 205, 260, launch=201, thread=AUTOGRAD),
        *collective(
            scatter,
            250,
            290,
            launch=204,
            thread=AUTOGRAD,
            word="_reduce_scatter_base",
            elements=1_000_000,
            **FACTS,
        ),
    ]


@pytest.fixture
def profile(tmp_path):
    paths = [write_trace(tmp_path, fsdp_rank(late), rank=rank) for rank, late in enumerate((30.0, 0.0))]
    return profile_traces(paths)


def test_collectives_are_told_by_kind_axis_and_group(profile):
    gathers, scatters = sorted(profile.collectives, key=lambda family: family.kind)
    assert (gathers.kind, gathers.axis, gathers.group_size, gathers.num_calls) == ("all_gather", "dp_shard", 2, 2)
    assert (scatters.kind, scatters.axis, scatters.num_calls) == ("reduce_scatter", "dp_shard", 1)
    assert gathers.payload_bytes == 2 * 1_000_000


def test_collectives_that_overlap_are_exposed_once(tmp_path):
    """Two all-reduces at 10-90 and 20-100 us with nothing computed: exposed for 90 us of 110, not for 160."""
    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [
        mark("ProfilerStep#3", 0, 110),
        *collective(reduce, 10, 90, launch=2, word="allreduce", elements=500_000, **FACTS),
        *collective(reduce, 20, 100, launch=3, word="allreduce", elements=500_000, **FACTS),
        *kernel(GEMM, 100, 110, launch=4),
    ]
    found = profile_traces([write_trace(tmp_path, events, rank=0)])
    (family,) = found.collectives
    assert family.exposed_s * 1e6 == pytest.approx(90)
    assert family.work_s * 1e6 == pytest.approx(160)
    assert found.split.exposed_communication_s * 1e6 == pytest.approx(90)


def test_waiting_is_what_the_last_rank_to_come_does_not_spend(profile):
    """Gathers: 40 + 10 us on rank 0, 10 + 10 on rank 1, so 20 us are transfer and 15 us a rank are waiting."""
    gathers = next(family for family in profile.collectives if family.kind == "all_gather")
    assert gathers.work_s * 1e6 == pytest.approx(35)
    assert gathers.transfer_s * 1e6 == pytest.approx(20)
    assert gathers.wait_s * 1e6 == pytest.approx(15)
    assert [rank.wait_s * 1e6 for rank in profile.ranks] == pytest.approx([30, 0])


def test_the_rank_that_never_waits_is_the_straggler(profile):
    assert profile.straggler_rank == 1
    assert "rank 1 enters collectives last" in " ".join(finding.sentence for finding in profile.findings)


def test_bus_bandwidth_is_payload_times_the_ring_factor_over_transfer(profile):
    """1 MB gathered by two ranks in 10 us: half of it comes from the other rank, 50 GB/s."""
    gathers = next(family for family in profile.collectives if family.kind == "all_gather")
    assert gathers.bus_bandwidth_bytes_per_s == pytest.approx(50e9)


def test_exposed_time_is_laid_to_units(profile):
    exposed = {(unit.unit, unit.kind): unit.exposed_s * 1e6 for unit in profile.units}
    assert exposed["layers.0", "all_gather"] == pytest.approx((40 + 10) / 2)
    assert exposed["layers.1", "all_gather"] == pytest.approx(0)
    assert exposed["layers.1", "reduce_scatter"] == pytest.approx(30)
    assert {unit.is_backward for unit in profile.units if unit.kind == "reduce_scatter"} == {True}


def test_a_single_rank_cannot_tell_waiting_from_transfer(tmp_path):
    profile = profile_traces([write_trace(tmp_path, fsdp_rank(0.0))])
    assert profile.straggler_rank is None
    assert all(family.wait_s is None for family in profile.collectives)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*)", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "send_recv"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None),
        ("void deep_ep::intranode::dispatch<8, 768>(int4*)", "all_to_all"),
    ],
)
def test_old_and_new_kernel_names_are_found(tmp_path, name, kind):
    """Without torch's arguments, as traces before 2.2 and of other libraries are."""
    path = write_trace(tmp_path, [*kernel(GEMM, 0, 10, launch=0), *collective(name, 5, 30, launch=1)])
    (family,) = profile_traces([path]).collectives
    assert (family.kind, family.exposed_s * 1e6) == (kind, pytest.approx(20))


def test_a_range_of_nccl_says_what_a_generic_kernel_is(tmp_path):
    generic = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    events = [mark("nccl:all_to_all", 1, 3), *kernel(GEMM, 0, 10, launch=0), *collective(generic, 5, 30, launch=2)]
    (family,) = profile_traces([write_trace(tmp_path, events)]).collectives
    assert family.kind == "all_to_all"


def test_kernels_that_a_graph_launched_are_counted(tmp_path):
    events = kernel(GEMM, 0, 10, launch=0)
    events[0]["name"] = "cudaGraphLaunch"
    assert profile_traces([write_trace(tmp_path, events)]).ranks[0].graph_launched_fraction == 1.0


def test_rates_follow_from_recorded_shapes(tmp_path):
    """(4096, 1024) x (1024, 512) in 10 us."""
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 100, "ts": 0, "dur": 2}
    shapes = {"External id": 17, "Input Dims": [[4096, 1024], [1024, 512]]}
    launched = kernel(GEMM, 5, 15, launch=1, arguments={"External id": 17})
    (share,) = profile_traces([write_trace(tmp_path, [{**operator, "args": shapes}, *launched])]).kernels
    assert (share.family, share.flop_per_s) == ("gemm", pytest.approx(2 * 4096 * 1024 * 512 / 10e-6))
    assert share.peak_fraction == pytest.approx(429.5 / 989.5, rel=1e-3)  # of H100's dense peak in bf16


def test_a_gloo_run_without_a_device_is_split_by_its_threads(tmp_path):
    operators = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": length}
        for name, thread, start, length in (
            ("aten::linear", 1, 0, 50),
            ("aten::mm", 1, 5, 40),
            ("c10d::allreduce_", 1, 60, 30),
            ("gloo:all_reduce", 2, 40, 60),
        )
    ]
    profile = profile_traces([write_trace(tmp_path, operators)])
    assert profile.split.compute_s * 1e6 == pytest.approx(50)
    assert profile.split.exposed_communication_s * 1e6 == pytest.approx(50)
    assert profile.collectives[0].kind == "all_reduce"
    assert "no device activity" in profile.warnings[0]


def test_several_files_of_one_rank_are_its_steps(tmp_path):
    """A profiler that writes a file for each step of two ranks: two ranks of two steps."""
    paths = []
    for step in (1, 2):
        folder = tmp_path / f"step{step}"
        folder.mkdir()
        for rank, late in enumerate((30.0, 0.0)):
            events = fsdp_rank(late)
            events[0] = mark(f"ProfilerStep#{step}", 0, 400)
            paths.append(write_trace(folder, events, rank=rank))
    profile = profile_traces(paths)
    assert [(rank.rank, rank.num_steps) for rank in profile.ranks] == [(0, 2), (1, 2)]
    assert [rank.wait_s * 1e6 for rank in profile.ranks] == pytest.approx([30, 0])
    gathers = next(family for family in profile.collectives if family.kind == "all_gather")
    assert gathers.num_calls == 2
    assert gathers.wait_s * 1e6 == pytest.approx(15)


def test_a_thread_that_waits_inside_an_operator_computes_nothing(tmp_path):
    """Autograd functions of tensor parallelism wait for gloo: of 100 us one computes in 60, and 40 are exposed."""

    def ran(name, start, end, *, thread=100):
        return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": end - start}

    events = [
        mark("ProfilerStep#1", 0, 100),
        ran("_GatherDim", 0, 100),
        ran("_c10d_functional::all_gather_into_tensor", 10, 20),
        ran("_c10d_functional::wait_tensor", 20, 50),
        ran("gloo:all_gather", 10, 50, thread=200),
    ]
    split = profile_traces([write_trace(tmp_path, events)]).split
    assert split.compute_s * 1e6 == pytest.approx(60)
    assert split.exposed_communication_s * 1e6 == pytest.approx(40)
