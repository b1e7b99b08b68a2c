"""Several sources in shares, and samples that are held out of training."""

import json
from collections import Counter

import numpy as np
import pytest

from shardwise.errors import DataError
from shardwise.train.data.mixture import MAX_PERIOD, FilledUp, HeldOut, Joined, Mixed, Remaining
from shardwise.train.data.order import SampleOrder
from shardwise.train.data.request import open_samples, require_readable
from shardwise.train.data.samples import SyntheticTokens
from shardwise.train.job import DataSpec


def made_up(num_samples, seed):
    return SyntheticTokens(seq_len=4, vocab_size=50, seed=seed, num_samples=num_samples)


def drawn(samples, numbers):
    return [tuple(samples.sample(int(number)).inputs.tolist()) for number in numbers]


def test_an_epoch_of_a_mixture_has_the_shares_and_every_sample_of_the_longest():
    parts = [made_up(29, 1), made_up(5, 2)]
    mixed = Mixed(parts, [0.7, 0.3])
    assert mixed.num_samples == 50
    found = Counter(drawn(mixed, range(50)))
    first, second = ({*drawn(part, range(part.num_samples))} for part in parts)
    assert (sum(found[one] for one in first), sum(found[one] for one in second)) == (35, 15)
    assert set(found) == first | second
    assert {found[one] for one in second} == {3}


def test_shares_hold_in_every_period_also_without_shuffling():
    mixed = Mixed([made_up(100, 1), made_up(100, 2)], [3, 1])
    first = {*drawn(made_up(100, 1), range(100))}
    taken = [one in first for one in drawn(mixed, range(24))]
    assert [sum(taken[start : start + 4]) for start in range(0, 24, 4)] == [3] * 6


@pytest.mark.parametrize(
    "weights",
    [(0.9999, 0.0001), (0.137, 0.291, 0.883, 0.419), (2.0, 0.003, 0.00071), (15_000_000, 20_000), (3.14159, 2.71828)],
    ids=str,
)
def test_any_weights_are_kept(weights):
    """Each part has one sample, so that what a period holds of each is seen in the numbers."""
    mixed = Mixed([made_up(1, seed) for seed in range(len(weights))], weights)
    found = Counter(drawn(mixed, range(mixed.num_samples)))
    shares = [found[drawn(made_up(1, seed), [0])[0]] / mixed.num_samples for seed in range(len(weights))]
    assert shares == pytest.approx([weight / sum(weights) for weight in weights], rel=2e-2)
    assert mixed.num_samples <= MAX_PERIOD


@pytest.mark.parametrize(
    ("weights", "num_samples"),
    [
        ((0.7, 0.3), 340),
        ((0.3333, 0.6667), 300),
        ((0.1234, 0.8766), 859),
        ((0.3333, 0.3333, 0.3334), 300),
        ((0.123, 0.877), 1000),
        ((0.1234, 0.3766, 0.5), 1248),
    ],
    ids=str,
)
def test_an_epoch_of_a_few_samples_stays_one_whatever_digits_the_weights_have(weights, num_samples):
    """Sources of 100 samples each: no period of thousands is made for the fourth digit of a share."""
    assert Mixed([made_up(100, seed) for seed in range(len(weights))], weights).num_samples == num_samples


def test_a_shuffled_mixture_takes_each_of_its_samples_once_an_epoch():
    mixed = Mixed([made_up(13, 1), made_up(7, 2)], [1, 1])
    order = SampleOrder(num_samples=mixed.num_samples, seed=3)
    numbers = order.samples_at(np.arange(mixed.num_samples))
    assert sorted(drawn(mixed, numbers)) == sorted(drawn(mixed, range(mixed.num_samples)))


def test_joined_sources_have_every_sample_once():
    joined = Joined(parts=(made_up(3, 1), made_up(2, 2)))
    assert drawn(joined, range(5)) == [*drawn(made_up(3, 1), range(3)), *drawn(made_up(2, 2), range(2))]


@pytest.mark.parametrize("num_samples", [20, 23])
def test_what_is_held_out_is_not_trained_on_and_nothing_is_lost(num_samples):
    samples = made_up(num_samples, 1)
    held, left = HeldOut(samples=samples, num_in_period=5), Remaining(samples=samples, num_in_period=5)
    apart = [*drawn(held, range(held.num_samples)), *drawn(left, range(left.num_samples))]
    assert held.num_samples == 4
    assert sorted(apart) == sorted(drawn(samples, range(num_samples)))


def test_samples_are_filled_up_with_ones_that_teach_nothing():
    filled = FilledUp(samples=made_up(5, 1), num_together=4)
    assert filled.num_samples == 8
    assert [bool((filled.sample(number).labels >= 0).any()) for number in range(8)] == [True] * 5 + [False] * 3


def request_of(tmp_path, *sources, **choices):
    for name in ("a", "b"):
        rows = [json.dumps({"text": f"{name}{number:03}"}) + "\n" for number in range(20 if name == "a" else 5)]
        (tmp_path / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    first, *more = (str(tmp_path / source) for source in sources)
    return DataSpec(source=first, more_sources=tuple(more), packing="rows", **choices)


def test_files_are_mixed_by_weight_and_held_out_before_they_are_mixed(tmp_path):
    request = request_of(tmp_path, "a.jsonl:3", "b.jsonl:1", held_out_fraction=0.2)
    options = {"seq_len": 8, "vocab_size": 300, "cache": tmp_path / "tokens"}
    training, held = open_samples(request, **options), open_samples(request, **options, part="held out")
    assert (training.num_samples, held.num_samples) == (24, 5)
    trained, kept = {*drawn(training, range(24))}, {*drawn(held, range(5))}
    assert len(trained) == 20
    assert not trained & kept


@pytest.mark.parametrize(
    "sources", [("a.jsonl:3", "b.jsonl"), ("a.jsonl:1", "b.jsonl:0"), ("a.jsonl:1", "b.jsonl:0.00005")]
)
def test_sources_of_which_some_have_no_weight_or_hardly_any_are_refused(tmp_path, monkeypatch, sources):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with pytest.raises(DataError, match="of 2 sources have a weight") as refused:
        require_readable(request_of(tmp_path, *sources), seq_len=8, vocab_size=300)
    assert refused.value.code == "data-weights"


def test_a_share_of_less_than_a_sample_is_refused(tmp_path):
    request = request_of(tmp_path, "b.jsonl", held_out_fraction=0.1)
    with pytest.raises(DataError, match=r"a share of 0\.1 of 5 samples is less than one"):
        open_samples(request, seq_len=8, vocab_size=300, cache=tmp_path / "tokens")
