"""Sweeps take precedence where they are, carry over where they fit, and never break what any link must obey."""

from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.catalog import read_cluster
from shardwise.catalog.hardware.sweeps import SweepPoint, link_bound_points, load_collective_sweeps
from shardwise.predict.collective_correction import at, sweep_book, sweep_kind, sweep_placement
from shardwise.predict.communication import collective_curve, curve_by
from shardwise.predict.group_placement import place_group
from shardwise.step.inventory import ExpertChoice
from shardwise.units import GIB, KIB, MIB

SWEEPS = load_collective_sweeps()
USED = [sweep for sweep in SWEEPS if sweep.confidence != "low"]
CHARTS = [sweep for sweep in SWEEPS if sweep.confidence == "low"]


def placed(cluster, size, stride=1, **settings):
    return place_group(cluster=read_cluster(cluster), size=size, stride=stride, **settings)


@pytest.mark.parametrize("sweep", USED, ids=lambda sweep: sweep.name)
def test_a_timed_group_takes_its_measured_time(sweep):
    """Exactly, but where more bytes took less time: those points take the time of the smaller message (7 %)."""
    alone = sweep_book([sweep])
    curve = curve_by(sweep_kind(sweep), sweep_placement(sweep), book=alone)
    for point in sweep.points:
        assert curve.time_s(point.num_bytes) == pytest.approx(point.duration_s, rel=0.07)
        assert curve.call(point.num_bytes).basis == "measured"
        assert curve.call(point.num_bytes).source == sweep.source


@pytest.mark.parametrize("sweep", CHARTS, ids=lambda sweep: sweep.name)
def test_readings_that_are_never_used_are_met(sweep):
    """64 MiB over InfiniBand, read off a chart to 5 GB/s: 64 to 4,096 H100 within 12 %."""
    curve = collective_curve(sweep_kind(sweep), sweep_placement(sweep))
    (reading,) = (point for point in sweep.points if point.num_bytes == 64 * MIB)
    assert curve.time_s(64 * MIB) == pytest.approx(reading.duration_s, rel=0.12)
    assert curve.call(64 * MIB).basis == "modelled"


def test_left_out_plateaus_are_met_within_a_seventh():
    """GB200 racks apart: no other sweep says how NVL72 domains and their fabric behave."""
    for index, sweep in enumerate(SWEEPS):
        if sweep.gpu_id == "gb200" or sweep.operation != "all_reduce" or sweep.points[-1].num_bytes < 4 * GIB:
            continue
        others = sweep_book((*SWEEPS[:index], *SWEEPS[index + 1 :]))
        last = sweep.points[-1]
        predicted_s = curve_by("all_reduce", sweep_placement(sweep), book=others).time_s(last.num_bytes)
        assert predicted_s == pytest.approx(last.duration_s, rel=1 / 7), sweep.name


@given(
    kind=st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast"]),
    cluster=st.sampled_from(["1 x dgx-h100", "4 x dgx-h100", "4 x aws-p6-b200.48xlarge", "2 x aws-p4de.24xlarge"]),
    size=st.sampled_from([2, 4, 8, 16]),
    stride=st.sampled_from([1, 2, 8]),
    num_bytes=st.integers(1, 2**36),
    more=st.floats(1, 64),
)
def test_more_bytes_never_take_less_time(kind, cluster, size, stride, num_bytes, more):
    machines = read_cluster(cluster)
    if size * stride > machines.num_gpus:
        return
    curve = collective_curve(kind, place_group(cluster=machines, size=size, stride=stride))
    assert 0 < curve.time_s(num_bytes) <= curve.time_s(num_bytes * more) * (1 + 1e-9)


@given(kind=st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]), num_bytes=st.integers(1, 2**36))
def test_more_ranks_never_take_less_time_in_nccls_model(kind, num_bytes):
    """Of rings and trees; that a fifth GPU makes the switch worth its while is measured and faster."""
    times = [
        curve_by(kind, placed("16 x dgx-h100", size, has_in_switch_reduction=False), book=sweep_book(())).time_s(
            num_bytes
        )
        for size in (2, 4, 8, 16, 32, 64, 128)
    ]
    assert times == sorted(times)


@given(num_bytes=st.integers(8 * MIB, 2**36), size=st.sampled_from([2, 3, 4, 6, 8]))
def test_a_ring_all_reduce_is_a_reduce_scatter_and_an_all_gather(num_bytes, size):
    """Both halves cost the same; only the call's base is paid twice when they are two calls."""
    placement = placed("1 x dgx-a100-640", size)
    whole, half = (
        min(
            c.time_s(num_bytes)
            for c in curve_by(kind, placement, book=sweep_book(())).candidates
            if c.algorithm == "ring"
        )
        for kind in ("all_reduce", "all_gather")
    )
    assert whole <= 2 * half <= whole + 14.0e-6 + 1e-9


@given(
    cluster=st.sampled_from(["1 x dgx-h100", "1 x dgx-b200", "4 x dgx-h200", "4 x dgx-a100-640"]),
    kind=st.sampled_from(["all_gather", "reduce_scatter", "all_to_all"]),
    num_bytes=st.integers(1, 2**36),
)
def test_nothing_is_faster_than_the_wire(cluster, kind, num_bytes):
    machines = read_cluster(cluster)
    size = machines.num_gpus
    wire_s = num_bytes / size * (min(size, 8) - 1) / machines.node.scale_up_bandwidth_bytes_per_s
    if size > 8:
        wire_s = max(wire_s, num_bytes / size * (size - 8) / 8 / machines.node.network.bandwidth_bytes_per_s)
    assert collective_curve(kind, placed(cluster, size)).time_s(num_bytes) >= wire_s


def test_between_two_timed_numbers_of_ranks_lies_a_time_between():
    two, three, four = (
        collective_curve("all_gather", placed("1 x dgx-h100", size)).time_s(256 * MIB)
        / curve_by("all_gather", placed("1 x dgx-h100", size), book=sweep_book(())).time_s(256 * MIB)
        for size in (2, 3, 4)
    )
    assert four < three < two


def test_the_correction_fades_below_the_smallest_timed_message():
    """8 bytes on 8 H100: 12.9 us measured, 15.0 by NCCL's model."""
    placement = placed("1 x dgx-h100", 8)
    assert collective_curve("all_reduce", placement).time_s(8) == pytest.approx(15.0e-6, rel=0.01)
    assert collective_curve("all_reduce", placement).time_s(KIB) < 17e-6


def test_tokens_sent_once_per_host_cross_the_network_less_often():
    """8 copies on 8 hosts reach 5.25 of them: 0.656 of the messages, at DeepEP's rate of 41.6 GB/s."""
    placement = placed("8 x dgx-h100", 64)
    eight = ExpertChoice(num_experts_per_tok=8)
    once, each = (collective_curve("all_to_all", placement, sent).time_s(GIB) for sent in (eight, None))
    assert once == pytest.approx(GIB * 56 / 64 * 0.656 / 41.6e9, rel=0.01)
    assert each == pytest.approx(GIB * 56 / 64 / 48e9, rel=0.01)
    inside = placed("1 x dgx-h100", 8)
    assert len({collective_curve("all_to_all", inside, sent).time_s(GIB) for sent in (eight, None)}) == 1


def test_points_that_the_host_decides_are_left_out():
    class Reading:
        def __init__(self, num_bytes, duration_s):
            self.message_bytes, self.duration_s = num_bytes, duration_s

    readings = [Reading(KIB, 50e-6), Reading(MIB, 40e-6), Reading(16 * MIB, 99e-6), Reading(64 * MIB, 350e-6)]
    assert link_bound_points(readings, ratio=2.5) == (SweepPoint(num_bytes=64 * MIB, duration_s=350e-6),)


def test_knots_are_joined_by_lines():
    knots = ((1.0, 10.0), (3.0, 20.0), (4.0, 0.0))
    assert [at(knots, x) for x in (0, 1, 2, 3, 3.5, 9)] == [10.0, 10.0, 15.0, 20.0, 10.0, 0.0]
    assert log2(8) == 3
