"""The collector is off inside, and as it was before outside."""

import gc

import pytest

from shardwise.collector import paused_collector


def test_no_cycles_are_looked_for_meanwhile():
    with paused_collector():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_failure_turns_the_collector_on_again():
    with pytest.raises(KeyError), paused_collector():
        raise KeyError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with paused_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
