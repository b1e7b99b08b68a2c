"""Ring collectives carried out on numbers and on a clock."""

import numpy as np
import pytest

from shardwise.course.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from shardwise.course.collectives.timing import LinkTime, one_link, time_collective
from shardwise.course.collectives.values import contributions, everything, final_state, own_pieces, run_on_values

SIZES = [1, 2, 3, 4, 7, 8, 13]
LINK = LinkTime(latency_s=3e-6, bandwidth_bytes_per_s=1e9)


@pytest.mark.parametrize("n", SIZES)
def test_every_rank_ends_with_the_sum(n):
    numbers = contributions(num_ranks=n, num_pieces=n, size=3, seed=n)
    held = final_state(ring_all_reduce(num_ranks=n), everything(numbers)).held
    for rank in range(n):
        for piece in range(n):
            assert (held[rank, piece] == numbers[:, piece].sum(axis=0)).all()


@pytest.mark.parametrize("n", SIZES)
def test_reduce_scatter_leaves_each_rank_its_own_sum_and_gather_spreads_it(n):
    numbers = contributions(num_ranks=n, num_pieces=n, size=3, seed=n)
    scattered = final_state(ring_reduce_scatter(num_ranks=n), everything(numbers)).held
    assert all((scattered[rank, rank] == numbers[:, rank].sum(axis=0)).all() for rank in range(n))
    gathered = final_state(ring_all_gather(num_ranks=n), own_pieces(numbers)).held
    assert all((gathered[rank, piece] == numbers[piece, piece]).all() for rank in range(n) for piece in range(n))


def test_no_contribution_is_counted_twice_on_the_way():
    numbers = contributions(num_ranks=5, num_pieces=5, size=1, seed=0)
    for state in run_on_values(ring_all_reduce(num_ranks=5), everything(numbers)):
        assert all(len(set(origins)) == len(origins) for origins in state.contributors.values())


@pytest.mark.parametrize(("n", "steps", "sent"), [(2, 2, 1.0), (3, 4, 4 / 3), (4, 6, 1.5), (8, 14, 1.75)])
def test_steps_and_bytes_of_the_textbook(n, steps, sent):
    program = ring_all_reduce(num_ranks=n)
    assert len(program.rounds) == steps
    assert [program.sent_fraction(rank) for rank in range(n)] == pytest.approx([sent] * n)


def test_eight_ranks_and_8_gb_at_1_gb_per_s_take_14_seconds_and_14_latencies():
    time = time_collective(ring_all_reduce(num_ranks=8), payload_bytes=8e9, link_between=one_link(LINK))
    assert time.total_s == pytest.approx(14 + 14 * 3e-6, rel=1e-12)


def test_fp32_ranks_agree_to_the_last_bit_though_not_with_another_order():
    numbers = (contributions(num_ranks=8, num_pieces=8, size=50, seed=1) / 7).astype(np.float32)
    held = final_state(ring_all_reduce(num_ranks=8), everything(numbers)).held
    assert all((held[rank, piece] == held[0, piece]).all() for rank in range(8) for piece in range(8))
    ring_sum = np.concatenate([held[0, piece] for piece in range(8)])
    assert (ring_sum != numbers.sum(axis=0).reshape(-1)).any()
