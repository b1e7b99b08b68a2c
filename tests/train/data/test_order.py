import tracemalloc

import numpy as np
import pytest

from shardwise.train.data.order import SampleOrder


@pytest.mark.parametrize("num_samples", [1, 2, 3, 5, 16, 17, 1000, 4099])
@pytest.mark.parametrize("epoch", [0, 3])
def test_every_epoch_holds_every_sample_once(num_samples, epoch):
    order = SampleOrder(num_samples=num_samples, seed=11)
    seen = order.samples_at(np.arange(epoch * num_samples, (epoch + 1) * num_samples))
    assert sorted(seen.tolist()) == list(range(num_samples))


def test_epochs_and_seeds_have_other_orders():
    first = SampleOrder(num_samples=1000, seed=1)
    epochs = first.samples_at(np.arange(2000))
    other_seed = SampleOrder(num_samples=1000, seed=2).samples_at(np.arange(1000))
    assert (epochs[:1000] == epochs[1000:]).sum() < 20
    assert (epochs[:1000] == other_seed).sum() < 20


def test_a_position_has_the_same_sample_however_it_is_asked_for():
    order = SampleOrder(num_samples=101, seed=5)
    together = order.samples_at(np.arange(303))
    assert [int(order.samples_at([position])[0]) for position in range(303)] == together.tolist()


def test_the_order_is_the_same_on_every_machine():
    assert SampleOrder(num_samples=10, seed=7).samples_at(np.arange(10)).tolist() == [8, 1, 3, 9, 6, 2, 0, 4, 5, 7]


def test_unshuffled_order_counts_up_and_starts_again():
    order = SampleOrder(num_samples=3, is_shuffled=False)
    assert order.samples_at(np.arange(7)).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert order.epoch_of(7) == 2


def test_a_trillion_samples_cost_no_memory():
    order = SampleOrder(num_samples=10**12, seed=3)
    tracemalloc.start()
    samples = order.samples_at(np.arange(10**11, 10**11 + 1000))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000
    assert len(set(samples.tolist())) == 1000
    assert samples.max() > 9 * 10**11


def test_shuffled_neighbours_are_far_apart_and_every_tenth_is_hit_alike():
    """Mean distance of two independent draws from n is n/3; a tenth of 100,000 draws is 10,000 give or take 300."""
    samples = SampleOrder(num_samples=100_000, seed=9).samples_at(np.arange(100_000))
    assert np.abs(np.diff(samples)).mean() == pytest.approx(33_333, rel=0.02)
    first_tenth = samples[:10_000]
    assert np.histogram(first_tenth, bins=10, range=(0, 100_000))[0] == pytest.approx(1000, abs=120)
