"""What ranks keep, against the papers, the closed forms and the inventory of memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.course.formulas import pipeline_in_flight as closed
from shardwise.schedules.actions import Action
from shardwise.schedules.kept_by_order import peak_in_flight, peak_sets
from shardwise.schedules.make import make_schedule
from shardwise.step.in_flight import in_flight_micro_batches
from simulate.pipelines import shape


def kept_micro_batches(schedule_shape, *, waiting_fraction=1.0):
    """Activation sets of a whole rank that each rank keeps at its worst moment."""
    schedule = make_schedule(schedule_shape)
    orders = schedule.orders
    return tuple(peak_sets(order, waiting_fraction=waiting_fraction) / schedule.chunks_per_rank for order in orders)


@pytest.mark.parametrize(
    ("name", "vpp", "expected"),
    [
        ("gpipe", 1, (16, 16, 16, 16)),
        ("1f1b", 1, (4, 3, 2, 1)),
        ("interleaved", 2, (5.5, 4.5, 3.5, 2.5)),
        ("interleaved", 4, (4.75, 4.25, 3.75, 3.25)),
        ("looped-bfs", 2, (16, 16, 16, 16)),
        ("zb-h1", 1, (4, 4, 4, 4)),
        ("zb-h1", 2, (4, 4, 4, 4)),
        ("zb-h2", 1, (7, 7, 7, 7)),
        ("zbv", 2, (4, 4, 4, 4)),
        ("dualpipev", 2, (4.5, 4.5, 4.5, 4.5)),
    ],
)
def test_activation_sets_of_four_ranks_with_sixteen_micro_batches(name, vpp, expected):
    """arXiv:2104.04473 section 2.2, 2205.05198 section 4.2.3, 2401.10241 table 1, DualPipe's README (P + 1 chunks)."""
    assert kept_micro_batches(shape(name, 4, 16, vpp)) == expected


@pytest.mark.parametrize(
    ("name", "before_backward", "waiting"),
    [
        ("zb-h1", [4, 3, 2, 1], [1, 2, 3, 4]),
        ("zb-h2", [7, 5, 3, 1], [1, 3, 5, 7]),
        ("zbv", [8, 8, 8, 8], [1, 3, 5, 7]),
        ("dualpipev", [9, 9, 9, 9], [1, 2, 3, 4]),
    ],
)
def test_whole_sets_and_those_that_wait_only_for_weights(name, before_backward, waiting):
    """ZB-H1's last rank holds one whole set and defers three weight gradients; its first rank the other way round."""
    peaks = peak_in_flight(shape(name, 4, 16))
    assert [peak.num_before_backward for peak in peaks] == before_backward
    assert [peak.num_waiting_for_weights for peak in peaks] == waiting


def test_part_of_a_set_may_be_freed_between_the_halves_of_a_backward():
    assert kept_micro_batches(shape("zb-h1", 4, 16), waiting_fraction=0.5) == (4.0, 3.5, 3.0, 2.5)


def test_sets_of_different_chunks_may_differ_in_size():
    order = (Action("forward", 0, 0), Action("forward", 1, 0), Action("backward", 1, 0), Action("forward", 0, 1))
    assert peak_sets(order, set_sizes=(3.0, 5.0)) == 8.0


@given(pp=st.integers(2, 10), m=st.integers(1, 40))
def test_counting_gives_the_closed_forms(pp, m):
    assert kept_micro_batches(shape("gpipe", pp, m))[0] == closed.gpipe_in_flight(num_microbatches=m)
    assert kept_micro_batches(shape("1f1b", pp, m)) == tuple(
        closed.one_f_one_b_in_flight(pp=pp, stage=stage, num_microbatches=m) for stage in range(pp)
    )
    assert set(kept_micro_batches(shape("zb-h1", pp, m))) == {closed.zb_h1_in_flight(pp=pp, num_microbatches=m)}
    assert set(kept_micro_batches(shape("zb-h2", pp, m))) == {closed.zb_h2_in_flight(pp=pp, num_microbatches=m)}
    if m >= 2 * pp:
        assert set(kept_micro_batches(shape("zbv", pp, m))) == {closed.zbv_in_flight(pp=pp, num_microbatches=m)}
        both = closed.dualpipe_in_flight(pp=pp, num_microbatches=m)
        assert set(kept_micro_batches(shape("dualpipev", pp, m))) == {both}


@given(pp=st.integers(2, 8), vpp=st.integers(2, 5), rounds=st.integers(2, 6))
def test_interleaving_keeps_what_korthikanti_counts_on_the_first_rank(pp, vpp, rounds):
    kept = kept_micro_batches(shape("interleaved", pp, rounds * pp, vpp))
    assert kept[0] == pytest.approx(closed.interleaved_in_flight(pp=pp, vpp=vpp), rel=1e-12)


@given(
    case=st.sampled_from(
        [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb-h1", 1), ("zb-h2", 1), ("zbv", 2)]
    ),
    pp=st.integers(2, 8),
    rounds=st.integers(2, 8),
)
def test_the_memory_inventory_counts_the_same_where_ranks_divide_the_micro_batches(case, pp, rounds):
    name, vpp = case
    expected = tuple(
        in_flight_micro_batches(schedule=name, stage=stage, pp=pp, vpp=vpp, num_microbatches=rounds * pp)
        for stage in range(pp)
    )
    assert kept_micro_batches(shape(name, pp, rounds * pp, vpp)) == expected


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_dualpipe_keeps_one_set_more_than_it_has_ranks(pp):
    """DeepSeek's table: PP + 1 activations a device, each of one chunk."""
    assert [peak.num_kept for peak in peak_in_flight(shape("dualpipe", pp, 4 * pp))] == [pp + 1] * pp
