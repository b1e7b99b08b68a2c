"""The collector is off inside, and as it was before outside."""

import gc

import pytest

from shardwise.collector import paused_collector
from shardwise.search import in_team


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


def test_a_search_runs_without_it():
    assert not in_team(lambda _team: gc.isenabled(), num_processes=1)
    assert gc.isenabled()
