"""Collectives that a calibration timed, their neighbours, and what it cannot have seen."""

from dataclasses import replace

import pytest

from calibrations import H100, calibration, tables
from shardwise.calibration import GroupTable, Residual, TimedBytes
from shardwise.catalog import read_cluster
from shardwise.predict.calibrated_cluster import calibrated_cluster
from shardwise.predict.communication import collective_call, collective_time_s
from shardwise.predict.concurrency import slowdown_ratio
from shardwise.predict.group_placement import place_group
from shardwise.step.inventory import Collective

ONE_HOST, TWO_HOSTS = read_cluster("8xh100-sxm"), read_cluster("16xh100-sxm")
GATHER = Collective(
    name="all-gather blocks[0]",
    kind="all_gather",
    axis="dp_shard",
    group_size=8,
    num_bytes=2**24,
    count=1,
    phase="forward",
    is_overlappable=True,
)


def placed(cluster, *, size=8, **parts):
    measured = calibrated_cluster(cluster, calibration(**parts)) if parts else cluster
    return place_group(cluster=measured, size=size, stride=1)


def table(size, *points, kind="all_gather"):
    found = tuple(TimedBytes(num_bytes=num_bytes, duration_s=duration_s) for num_bytes, duration_s in points)
    return GroupTable(kind=kind, group_size=size, stride=1, points=found)


def test_a_timed_call_takes_its_measured_time():
    where = placed(ONE_HOST, collectives=(table(8, (2**12, 20e-6), (2**24, 777e-6)),))
    assert collective_time_s(GATHER, placement=where) == pytest.approx(777e-6)
    assert collective_call(GATHER, placement=where).basis == "measured"


def test_between_two_messages_time_follows_the_logarithms():
    where = placed(ONE_HOST, collectives=(table(8, (2**12, 20e-6), (2**22, 100e-6), (2**26, 1600e-6)),))
    assert collective_time_s(GATHER, placement=where) == pytest.approx(400e-6)


def test_calls_that_the_host_decides_do_not_count_on_a_gpu_and_do_on_processors():
    points = (table(8, (2**12, 50e-6), (2**20, 60e-6), (2**24, 777e-6)),)
    small = replace(GATHER, num_bytes=2**20)
    on_gpu = placed(ONE_HOST, collectives=points)
    on_processors = placed(ONE_HOST, collectives=points, machine=replace(H100, device_kind="cpu"))
    assert collective_time_s(small, placement=on_gpu) != pytest.approx(60e-6)
    assert collective_time_s(small, placement=on_processors) == pytest.approx(60e-6)


def test_a_collective_that_was_not_timed_follows_one_that_moves_alike():
    scatter = replace(GATHER, kind="reduce_scatter")
    where = placed(ONE_HOST, collectives=(table(8, (2**12, 20e-6), (2**24, 777e-6)),))
    assert collective_time_s(scatter, placement=where) == pytest.approx(777e-6)
    assert collective_call(scatter, placement=where).basis == "scaled"


def test_a_group_of_another_size_takes_the_ratio_of_those_that_were_timed():
    plain = collective_time_s(GATHER, placement=placed(ONE_HOST))
    pair_s = 3 * collective_time_s(replace(GATHER, group_size=2), placement=placed(ONE_HOST, size=2))
    where = placed(ONE_HOST, collectives=(table(2, (2**12, 1e-6), (2**24, pair_s)),))
    assert collective_time_s(GATHER, placement=where) > 2 * plain


def test_across_hosts_the_catalogue_holds():
    cluster = calibrated_cluster(TWO_HOSTS, calibration(collectives=tables(bytes_per_s=1e9)))
    found = collective_time_s(GATHER, placement=place_group(cluster=cluster, size=16, stride=1))
    assert found == collective_time_s(GATHER, placement=place_group(cluster=TWO_HOSTS, size=16, stride=1))


def test_a_factor_of_one_family_of_axes_leaves_the_others():
    learned = placed(ONE_HOST, residuals=(Residual(name="communication dp", ratio=1.3, num_runs=4),))
    plain = placed(ONE_HOST)
    on_tp = replace(GATHER, axis="tp")
    assert collective_time_s(GATHER, placement=learned) == pytest.approx(
        1.3 * collective_time_s(GATHER, placement=plain)
    )
    assert collective_time_s(on_tp, placement=learned) == collective_time_s(on_tp, placement=plain)


def test_the_measured_slowdown_is_that_of_groups_inside_the_host():
    assert slowdown_ratio(placed(ONE_HOST, overlap_slowdown_ratio=1.07)) == 1.07
    across = calibrated_cluster(TWO_HOSTS, calibration(overlap_slowdown_ratio=1.07))
    assert slowdown_ratio(place_group(cluster=across, size=16, stride=1)) == 1.126


def test_ranks_that_computed_meet_later_than_those_of_a_loop():
    """Whatever the message; a factor from runs is one of calls as steps make them."""
    points = (table(8, (2**12, 20e-6), (2**24, 777e-6)),)
    processors = {"collectives": points, "meeting_s": 30e-6, "machine": replace(H100, device_kind="cpu")}
    learned = (Residual(name="communication dp", ratio=1.5, num_runs=4),)
    for num_bytes, alone_s in ((2**12, 20e-6), (2**24, 777e-6)):
        call = replace(GATHER, num_bytes=num_bytes)
        met = placed(ONE_HOST, **processors)
        corrected = placed(ONE_HOST, **processors, residuals=learned)
        assert collective_time_s(call, placement=met) == pytest.approx(alone_s + 30e-6)
        assert collective_time_s(call, placement=corrected) == pytest.approx(1.5 * (alone_s + 30e-6))


def test_arrival_skew_was_timed_inside_the_host():
    across = calibrated_cluster(TWO_HOSTS, calibration(meeting_s=1.0))
    assert collective_time_s(GATHER, placement=place_group(cluster=across, size=16, stride=1)) < 0.1
