"""Words for what a plan gains and loses beside the recommended one."""

from shardwise.search.reasons import NOTEWORTHY_FRACTION, _share


def test_a_share_is_said_from_the_smallest_noteworthy_one_on():
    assert _share(NOTEWORTHY_FRACTION) == "0.5%"
    assert _share(0.99 * NOTEWORTHY_FRACTION) == "next to nothing"
