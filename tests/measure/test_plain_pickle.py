"""Pickles of plain values are read as Python reads them; what else a pickle can do is refused before it happens."""

import pickle
import resource
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.measure import plain_pickle
from shardwise.measure.plain_pickle import ForeignPickleError, plain_value

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=300)
KEYS = st.text(max_size=9) | st.integers()
TREES = st.recursive(
    LEAVES, lambda inside: st.lists(inside) | st.dictionaries(KEYS, inside) | st.tuples(inside, inside)
)


@settings(max_examples=60)
@given(TREES, st.sampled_from((2, 3, 4, 5)))
def test_plain_values_are_read_as_python_reads_them(tree, protocol):
    assert plain_value(pickle.dumps(tree, protocol=protocol)) == tree


def test_values_that_are_the_same_stay_the_same():
    frames = [{"name": "forward"}]
    found = plain_value(pickle.dumps([frames, frames]))
    assert found[0] is found[1]


TERABYTE = (1 << 40).to_bytes(8, "little")
BOMBS = {
    "bytes that are not there": b"\x80\x04\x8e" + TERABYTE + b"xyz.",
    "an array that is not there": b"\x80\x05\x96" + TERABYTE + b"xyz.",
    "text that is not there": b"\x80\x04\x8d" + TERABYTE + b"xyz.",
    "a number that is not there": b"\x80\x02\x8b\xff\xff\xff\x7fx.",
    "the last place of the memory": b"\x80\x02]r\xff\xff\xff\xff0j\xfe\xff\xff\xff.",
    "tuples in tuples as a key": b"\x80\x02}N" + b"\x85" * 200_000 + b"Ns.",
    "a class": b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.",
    "a class of the stack": b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    "a set": b"\x80\x04\x8f.",
    "an end without a beginning": b"\x80\x02t.",
    "nothing to take": b"\x80\x02s.",
    "no end": b"\x80\x02]]]",
    "nothing": b"",
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_bombs_are_refused_at_once_and_take_no_memory(data):
    before, started_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ForeignPickleError):
        plain_value(data)
    assert time.process_time() - started_s < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10, "KiB"


def test_a_claim_of_more_bytes_than_there_are_is_named():
    with pytest.raises(ForeignPickleError, match=r"expected 1099511627776 bytes .* but only 4 remain"):
        plain_value(BOMBS["text that is not there"])


def test_a_memory_place_far_away_takes_no_room():
    assert plain_value(b"\x80\x02]r\xff\xff\xff\xff.") == []


def test_no_more_instructions_are_followed_than_a_snapshot_has(monkeypatch):
    monkeypatch.setattr(plain_pickle, "MOST_VALUES", 100)
    with pytest.raises(ForeignPickleError, match="more than 100 instructions"):
        plain_value(pickle.dumps(list(range(200))))
