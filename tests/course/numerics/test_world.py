"""Ranks that wait for each other: what they receive, what is counted, and what can never end."""

import numpy as np
import pytest

from shapes import llama_3_8b, plan
from shardwise.course.numerics.exchange import exchange
from shardwise.course.numerics.world import Rank, run_world
from shardwise.errors import SimulationError
from shardwise.layout import Layout


def ranks_of(layout):
    made = plan(llama_3_8b(), layout=layout)
    return [Rank(number=number, plan=made) for number in range(layout.world_size)]


def test_each_group_of_an_axis_adds_its_own_numbers():
    ranks = ranks_of(Layout(tp=2, dp_shard=2, zero_stage=0))

    def program(rank):
        number = np.array([float(rank.number)])
        inside = yield from rank.all_reduce(number, rank.groups.tensor, name="inside")
        across = yield from rank.all_reduce(number, rank.groups.shards, name="across")
        return inside[0], across[0]

    assert run_world(ranks, [program(rank) for rank in ranks]) == ((1, 2), (1, 4), (5, 2), (5, 4))


def test_a_message_may_be_sent_long_before_it_is_received():
    ranks = ranks_of(Layout(pp=2))
    group = ranks[0].groups.pipeline

    def first(rank):
        yield from rank.send(np.array([1.0]), 1, group, name="early")
        yield from rank.send(np.array([2.0]), 1, group, name="late")
        return 0.0

    def second(rank):
        late = yield from rank.receive(0, group, name="late")
        early = yield from rank.receive(0, group, name="early")
        return 10 * late[0] + early[0]

    assert run_world(ranks, [first(ranks[0]), second(ranks[1])]) == (0.0, 21.0)
    assert [message.sent_bytes for message in ranks[0].messages] == [8, 8]
    assert ranks[1].messages == []


def test_ranks_that_wait_for_ever_are_named():
    ranks = ranks_of(Layout(tp=2))

    def program(rank):
        if rank.number == 0:
            yield from rank.all_reduce(np.ones(1), rank.groups.tensor, name="lonely")

    with pytest.raises(SimulationError, match="rank 0 at all_reduce 'lonely'") as refused:
        run_world(ranks, [program(rank) for rank in ranks])
    assert refused.value.code == "simulate-deadlock"


def test_a_group_that_calls_different_collectives_is_refused():
    ranks = ranks_of(Layout(tp=2))

    def program(rank):
        if rank.number == 0:
            yield from rank.all_reduce(np.ones(1), rank.groups.tensor, name="sum")
        else:
            yield from rank.all_gather(np.ones(1), rank.groups.tensor, name="sum")

    with pytest.raises(SimulationError, match="different exchanges") as refused:
        run_world(ranks, [program(rank) for rank in ranks])
    assert refused.value.code == "simulate-mismatch"


def test_a_group_of_one_exchanges_nothing():
    (rank,) = ranks_of(Layout())

    def program():
        return (yield from rank.all_reduce(np.ones(3), rank.groups.tensor, name="alone"))

    (result,) = run_world([rank], [program()])
    assert result.tolist() == [1, 1, 1]
    assert rank.messages == []


@pytest.mark.parametrize("size", [2, 3, 5])
def test_pieces_of_an_all_to_all_are_transposed(size):
    brought = [tuple(np.array([float(10 * one + other)]) for other in range(size)) for one in range(size)]
    outcomes = exchange("all_to_all", brought)
    received = [[piece[0] for piece in outcome.received] for outcome in outcomes]
    assert received == [[10 * other + one for other in range(size)] for one in range(size)]
    assert {outcome.sent_bytes for outcome in outcomes} == {8 * (size - 1)}


@pytest.mark.parametrize(
    ("kind", "brought", "sent_bytes"),
    [
        ("all_reduce", [(np.arange(6.0),)] * 6, 2 * 5 * 8),
        ("all_gather", [(np.arange(6.0),)] * 6, 5 * 6 * 8),
        ("broadcast", [(np.arange(6.0),), *([()] * 5)], 6 * 8),
        ("send_recv", [(np.arange(6.0),)] * 6, 6 * 8),
    ],
)
def test_a_ring_of_six_sends_what_its_algorithm_says(kind, brought, sent_bytes):
    assert exchange(kind, brought)[0].sent_bytes == sent_bytes


def test_uneven_pieces_are_counted_piece_by_piece():
    pieces = [(np.ones(3), np.ones(1), np.ones(2))] * 3
    outcomes = exchange("reduce_scatter", pieces)
    assert [outcome.sent_bytes for outcome in outcomes] == [24, 40, 32]
    assert [outcome.received[0].tolist() for outcome in outcomes] == [[3, 3, 3], [3], [3, 3]]
