"""A calibrated cluster says where its figures are from, and where they are another machine's."""

from calibrations import H100, calibration, full
from shardwise.catalog import read_cluster
from shardwise.predict.calibrated_cluster import calibrated_cluster


def test_the_origin_is_said():
    notes = calibrated_cluster(read_cluster("8xh100-sxm"), full()).assumptions
    assert notes[0] == (
        "calibrated on 2026-11-28, 8 x NVIDIA H100 80GB HBM3 (node-7): kernels, links and host as measured and factors "
        "from 3 run(s)"
    )
    assert not [note for note in notes if "another device" in note]


def test_another_device_is_warned_of():
    notes = calibrated_cluster(read_cluster("8xa100-sxm-80"), full()).assumptions
    (warning,) = (note for note in notes if "another device" in note)
    assert warning.startswith("the calibration is from another device: NVIDIA H100 80GB HBM3, while the plan's cluster")
    assert "A100" in warning


def test_hosts_and_ranks_that_it_did_not_see_are_named():
    few = calibration(machine=H100, products=full().products)
    notes = calibrated_cluster(read_cluster("16xh100-sxm"), few).assumptions
    assert "the calibration saw one host: links between hosts stay the catalogue's" in notes
