"""Graphs of passes and sends."""

import pytest
from hypothesis import given

from shardwise.errors import SimulationError
from shardwise.schedules.make import make_schedule
from shardwise.schedules.shape import PipelineSchedule
from shardwise.simulate.pipeline_graph import GraphStyle, build_graph, end_times_s, pipeline_graph
from shardwise.simulate.pipeline_times import PipelineTimes, node_durations_s
from simulate.pipelines import cases, chunk, shape


def test_a_graph_has_a_node_per_pass_and_per_send():
    """16 ranks, 512 micro-batches: 16,384 passes and 2 * 15 * 512 sends."""
    assert pipeline_graph(shape("1f1b", 16, 512), GraphStyle()).num_nodes == 16_384
    assert pipeline_graph(shape("1f1b", 16, 512), GraphStyle(sends="overlapped")).num_nodes == 16_384 + 15_360


def test_the_turn_of_a_v_sends_nothing():
    """Chunks 1 and 2 of a V of two ranks are neighbours on rank 1."""
    graph = pipeline_graph(shape("zbv", 2, 1), GraphStyle(sends="overlapped"))
    sends = {
        (graph.kind(node), graph.chunk(node)) for node in range(1, graph.num_nodes + 1) if "send" in graph.kind(node)
    }
    assert sends == {("send_forward", 0), ("send_forward", 2), ("send_backward", 1), ("send_backward", 3)}


def test_pairs_cost_dualpipev_the_half_of_its_bubble():
    """Taken apart, a forward is sent before the backward beside it has run: (p - 1) chunk forwards, 1.5 s, not 3."""
    made = make_schedule(shape("dualpipev", 4, 16))
    apart = tuple(tuple(action._replace(joins_next=False) for action in order) for order in made.orders)
    times = node_durations_s(PipelineTimes(chunks=(chunk(parts=2),) * 8), made)
    ends = [
        max(end_times_s(build_graph(PipelineSchedule(made.shape, "v", orders), GraphStyle()), times))
        for orders in (made.orders, apart)
    ]
    assert ends == [51.0, 49.5]


@given(cases())
def test_every_node_comes_after_those_it_waits_for(case):
    asked, times = case
    graph = pipeline_graph(asked, times.style)
    for node, (first, second) in enumerate(zip(graph.first, graph.second, strict=True), start=1):
        assert 0 <= first < node
        assert 0 <= second < node
    assert sorted(node for nodes in graph.streams for node in nodes) == list(range(1, graph.num_nodes + 1))


def test_ranks_that_wait_for_each_other_are_named():
    """Rank 0 wants its first backward before it has sent the second forward that rank 1 insists on."""
    made = make_schedule(shape("1f1b", 2, 2))
    first, last = made.orders
    turned = (last[2], last[0], last[1], last[3])
    with pytest.raises(SimulationError) as caught:
        build_graph(
            PipelineSchedule(
                shape=made.shape, placement="loop", orders=((first[0], first[2], first[1], first[3]), turned)
            ),
            GraphStyle(),
        )
    assert caught.value.code == "schedule-deadlock"
    assert "rank 0 before 0B0, rank 1 before 1F1" in caught.value.message
