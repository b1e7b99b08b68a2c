"""Trees, halving-doubling, nodes first and all-to-all, on numbers and on a clock."""

import pytest

from shardwise.course.collectives.all_to_all import all_to_all
from shardwise.course.collectives.halving_doubling import halving_doubling_all_reduce
from shardwise.course.collectives.hierarchical import hierarchical_all_reduce
from shardwise.course.collectives.moves import CollectiveProgram, PieceMessage
from shardwise.course.collectives.ring import ring_all_reduce
from shardwise.course.collectives.timing import LinkTime, links_of_nodes, one_link, time_collective
from shardwise.course.collectives.tree import binary_tree, double_tree_all_reduce, second_tree, tree_depth
from shardwise.course.collectives.values import contributions, everything, final_state
from shardwise.errors import SimulationError

LINK = LinkTime(latency_s=1e-6, bandwidth_bytes_per_s=1e9)


def sums_everywhere(program):
    numbers = contributions(num_ranks=program.num_ranks, num_pieces=program.num_pieces, size=2, seed=3)
    state = final_state(program, everything(numbers))
    everyone = tuple(range(program.num_ranks))
    return all(
        (number == numbers[:, piece].sum(axis=0)).all() and state.contributors[rank, piece] == everyone
        for (rank, piece), number in state.held.items()
    )


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 12, 16, 33])
@pytest.mark.parametrize("pieces", [1, 3])
def test_two_trees_leave_the_sum_on_every_rank(n, pieces):
    assert sums_everywhere(double_tree_all_reduce(num_ranks=n, pieces_per_tree=pieces))


@pytest.mark.parametrize("n", [1, 2, 4, 8, 32])
def test_halving_and_doubling_leaves_the_sum_on_every_rank(n):
    assert sums_everywhere(halving_doubling_all_reduce(num_ranks=n))


@pytest.mark.parametrize(("n", "per_node"), [(8, 4), (8, 1), (8, 8), (12, 3), (15, 5)])
def test_nodes_first_leaves_the_sum_on_every_rank(n, per_node):
    assert sums_everywhere(hierarchical_all_reduce(num_ranks=n, ranks_per_node=per_node))


def test_a_lost_message_is_noticed():
    whole = ring_all_reduce(num_ranks=4)
    assert not sums_everywhere(
        CollectiveProgram(name="broken", num_ranks=4, num_pieces=4, messages=whole.messages[:-1])
    )


@pytest.mark.parametrize("n", [4, 8, 16, 64])
def test_the_leaves_of_one_tree_are_inside_the_other(n):
    assert not set(binary_tree(n).values()) & set(second_tree(n).values())
    assert tree_depth(binary_tree(n)) == n.bit_length() - 1


def test_halving_needs_two_log_n_steps_and_sends_what_a_ring_sends():
    program = halving_doubling_all_reduce(num_ranks=8)
    assert len(program.rounds) == 6
    assert [program.sent_fraction(rank) for rank in range(8)] == [1.75] * 8
    time = time_collective(program, payload_bytes=8e9, link_between=one_link(LINK))
    assert time.total_s == pytest.approx(14 + 6e-6, rel=1e-12)


@pytest.mark.parametrize(
    ("n", "fix"), [(6, "use --num-ranks 4 or --num-ranks 8"), (3, "use --num-ranks 2 or --num-ranks 4")]
)
def test_halving_refuses_other_than_powers_of_two_with_both_neighbours(n, fix):
    with pytest.raises(SimulationError) as refused:
        halving_doubling_all_reduce(num_ranks=n)
    assert refused.value.fix == fix


def test_ranks_that_fill_no_node_are_refused():
    with pytest.raises(SimulationError) as refused:
        hierarchical_all_reduce(num_ranks=10, ranks_per_node=4)
    assert refused.value.fix == "use --num-ranks 8"


def test_a_small_payload_is_faster_on_a_tree_and_a_large_one_on_a_ring():
    tree, ring = double_tree_all_reduce(num_ranks=16, pieces_per_tree=1), ring_all_reduce(num_ranks=16)
    for payload_bytes, is_tree_faster in ((1e3, True), (1e9, False)):
        times = [
            time_collective(program, payload_bytes=payload_bytes, link_between=one_link(LINK)).total_s
            for program in (tree, ring)
        ]
        assert (times[0] < times[1]) is is_tree_faster


def test_over_slow_nodes_reducing_inside_first_is_faster_than_one_ring():
    """14 GB on 2 nodes of 4: 2 (k - 1) / k S / g through each link between nodes, instead of 2 (n - 1) / n S."""
    links = links_of_nodes(ranks_per_node=4, inside=LinkTime(latency_s=0, bandwidth_bytes_per_s=1e12), across=LINK)
    nodes = time_collective(
        hierarchical_all_reduce(num_ranks=8, ranks_per_node=4), payload_bytes=14e9, link_between=links
    )
    ring = time_collective(ring_all_reduce(num_ranks=8), payload_bytes=14e9, link_between=links)
    assert nodes.total_s == pytest.approx(14 / 4 + 2 * 0.75 * 0.014, rel=1e-3)
    assert ring.total_s == pytest.approx(2 * 7 / 8 * 14, rel=1e-2)


def test_all_to_all_brings_every_part_to_its_receiver_in_n_minus_one_steps():
    program = all_to_all(num_ranks=5)
    assert len(program.rounds) == 4
    pairs = {(one.sender, one.receiver) for one in program.messages}
    assert pairs == {(sender, receiver) for sender in range(5) for receiver in range(5) if sender != receiver}


def test_a_rank_sends_one_message_at_a_time():
    """Two messages of one sender that do not touch the same piece still go one after the other."""
    program = CollectiveProgram(
        name="two at once",
        num_ranks=3,
        num_pieces=2,
        messages=(
            PieceMessage(sender=0, receiver=1, pieces=(0,), adds=False),
            PieceMessage(sender=0, receiver=2, pieces=(1,), adds=False),
        ),
    )
    assert program.rounds == ((0,), (1,))
    assert time_collective(program, payload_bytes=2e9, link_between=one_link(LINK)).total_s == pytest.approx(2 + 2e-6)
