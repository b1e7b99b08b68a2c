"""Trees beside rings as a lesson."""

import pytest

from shardwise.course.lessons import LessonRequest
from shardwise.course.lessons.tree import make_lesson
from shardwise.errors import SimulationError


def test_nodes_first_wins_on_nodes_and_sends_a_quarter_across():
    table = make_lesson(LessonRequest(num_ranks=8, ranks_per_node=4)).tables[0]
    on_nodes = {row[0]: row[4] for row in table.rows}
    assert min(list(on_nodes)[:4], key=on_nodes.get) == "hierarchical (node, across, node)"


def test_small_tensors_are_faster_on_a_tree_and_large_ones_on_a_ring():
    rows = make_lesson(LessonRequest(num_ranks=12, ranks_per_node=3)).tables[1].rows
    assert rows[0][-1] == "tree"
    assert rows[-1][-1] == "ring"


def test_a_group_that_is_no_power_of_two_is_shown_without_halving():
    lesson = make_lesson(LessonRequest(num_ranks=6, ranks_per_node=3))
    assert not any("halving" in str(row[0]) for row in lesson.tables[0].rows)
    assert all(check.holds for check in lesson.checks)


def test_latency_outweighs_bandwidth_for_a_bucket_over_1024_ranks():
    """2 x 1,023 x 14 us of latency beside 25 MB x 2 / 50 GB/s."""
    claim = make_lesson(LessonRequest()).claims[0]
    assert claim.verdict == "loose"
    assert "96.6%" in str(claim.computed)


def test_ranks_that_fill_no_node_are_refused_with_a_number_that_does():
    with pytest.raises(SimulationError) as refused:
        make_lesson(LessonRequest(num_ranks=10, ranks_per_node=4))
    assert refused.value.fix == "use --num-ranks 8"
