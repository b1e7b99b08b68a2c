import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from shardwise.errors import DataError
from shardwise.train.data.batches import GlobalBatches
from shardwise.train.data.order import SampleOrder
from shardwise.train.data.prefetch import PrefetchedBatches
from shardwise.train.data.samples import Sample

CPU = torch.device("cpu")


class NumberedSamples:
    """Sample ``n`` holds nothing but its own number, so that what a rank saw can be read off its batches."""

    seq_len = 2
    fingerprint = "numbered"

    def __init__(self, num_samples, *, takes_time=lambda: None, fails_at=None):
        self.num_samples = num_samples
        self.takes_time = takes_time
        self.fails_at = fails_at

    def sample(self, number):
        self.takes_time()
        if number == self.fails_at:
            raise DataError("the disk went away", code="data-text", fix="plug it in")
        values = np.full(2, number, dtype=np.int64)
        return Sample(inputs=values, labels=values.copy(), positions=np.arange(2))


def source(*, dp_rank=0, dp_size=1, micro_batch_size=1, num_samples=101, seed=4, **named):
    samples = NumberedSamples(num_samples, **named)
    order = SampleOrder(num_samples=num_samples, seed=seed)
    return GlobalBatches(samples, order=order, dp_rank=dp_rank, dp_size=dp_size, micro_batch_size=micro_batch_size)


def global_step(ranks, *, num_microbatches):
    """Samples of one step in global order: micro-batch by micro-batch, rank by rank."""
    rounds = [[next(rank).inputs[:, 0].tolist() for rank in ranks] for _ in range(num_microbatches)]
    return [number for batches in rounds for batch in batches for number in batch]


def world(dp_size, *, micro_batch_size, state=None):
    ranks = [source(dp_rank=rank, dp_size=dp_size, micro_batch_size=micro_batch_size) for rank in range(dp_size)]
    for rank in ranks:
        if state is not None:
            rank.load_state_dict(state)
    return ranks


def test_two_ranks_then_four_then_one_see_one_global_sequence():
    """Every change of layout keeps a global batch of 8; 30 steps pass the end of an epoch of 101 samples twice."""
    seen, state = [], None
    for dp_size, micro_batch_size in ((2, 2), (4, 1), (1, 4), (4, 2), (8, 1), (1, 1)):
        ranks = world(dp_size, micro_batch_size=micro_batch_size, state=state)
        for _ in range(5):
            seen += global_step(ranks, num_microbatches=8 // (dp_size * micro_batch_size))
        states = [rank.state_dict() for rank in ranks]
        assert all(other == states[0] for other in states)
        state = states[0]
    expected = SampleOrder(num_samples=101, seed=4).samples_at(np.arange(240)).tolist()
    assert seen == expected
    assert state["position"] == 240


def test_a_state_taken_in_the_middle_of_a_step_skips_and_repeats_nothing():
    ranks = world(2, micro_batch_size=1)
    seen = global_step(ranks, num_microbatches=3)
    seen += global_step(world(1, micro_batch_size=2, state=ranks[1].state_dict()), num_microbatches=2)
    assert seen == SampleOrder(num_samples=101, seed=4).samples_at(np.arange(10)).tolist()


@pytest.mark.parametrize(
    ("change", "says"),
    [({"seed": 5}, "seed was 4, now it is 5"), ({"num_samples": 102}, "num_samples was 101, now it is 102")],
)
def test_other_data_than_the_checkpoint_was_made_with_are_refused(change, says):
    state = source().state_dict()
    with pytest.raises(DataError, match=says):
        source(**change).load_state_dict(state)


def test_shapes_are_batch_by_sequence():
    batch = next(source(micro_batch_size=3))
    assert batch.inputs.shape == batch.labels.shape == batch.positions.shape == (3, 2)
    assert batch.inputs.dtype == batch.labels.dtype == torch.int64


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_prefetching_changes_nothing_but_time(depth):
    plain, ahead = source(micro_batch_size=3), PrefetchedBatches(source(micro_batch_size=3), device=CPU, depth=depth)
    for _ in range(10):
        assert next(ahead).inputs.tolist() == next(plain).inputs.tolist()
        assert ahead.state_dict() == plain.state_dict()
    ahead.close()


def test_the_state_is_of_what_was_handed_out_not_of_what_is_ready():
    ahead = PrefetchedBatches(source(), device=CPU, depth=4)
    first = [int(next(ahead).inputs[0, 0]) for _ in range(3)]
    time.sleep(0.1)
    assert ahead.state_dict()["position"] == 3
    state = ahead.state_dict()
    ahead.close()
    again = PrefetchedBatches(source(), device=CPU, depth=4)
    again.load_state_dict(state)
    rest = [int(next(again).inputs[0, 0]) for _ in range(3)]
    assert first + rest == SampleOrder(num_samples=101, seed=4).samples_at(np.arange(6)).tolist()
    again.close()


def test_closing_and_going_on_loses_nothing():
    ahead = PrefetchedBatches(source(), device=CPU, depth=4)
    seen = [int(next(ahead).inputs[0, 0])]
    ahead.close()
    seen += [int(next(ahead).inputs[0, 0]) for _ in range(2)]
    ahead.close()
    assert seen == SampleOrder(num_samples=101, seed=4).samples_at(np.arange(3)).tolist()


def test_an_error_in_the_thread_is_raised_where_the_batch_is_taken():
    number = int(SampleOrder(num_samples=101, seed=4).samples_at([2])[0])
    ahead = PrefetchedBatches(source(fails_at=number), device=CPU, depth=4)
    next(ahead)
    next(ahead)
    with pytest.raises(DataError, match="the disk went away"):
        next(ahead)
    ahead.close()


@pytest.mark.parametrize(("depth", "waited_s"), [(0, 10.0), (2, 1.0)])
def test_waiting_is_measured_and_prefetching_hides_it(monkeypatch, depth, waited_s):
    """Making a batch takes a second, and using it until the next one is made: ahead, only the first is waited for."""
    clock, may_begin, made = SimpleNamespace(now_s=0.0), threading.Semaphore(0), threading.Semaphore(0)

    def a_second():
        may_begin.acquire()
        clock.now_s += 1.0
        made.release()

    monkeypatch.setattr("shardwise.train.data.prefetch.time", SimpleNamespace(perf_counter=lambda: clock.now_s))
    batches = PrefetchedBatches(source(takes_time=a_second), device=CPU, depth=depth)
    may_begin.release()
    next(batches)
    made.acquire()
    for _ in range(9):
        may_begin.release()
        if depth:
            made.acquire()
        next(batches)
    assert batches.waited_s == waited_s
    may_begin.release(100)
    batches.close()


def test_closing_ends_the_thread():
    before = threading.enumerate()
    ahead = PrefetchedBatches(source(), device=CPU, depth=1)
    next(ahead)
    assert len(threading.enumerate()) == len(before) + 1
    ahead.close()
    assert threading.enumerate() == before
