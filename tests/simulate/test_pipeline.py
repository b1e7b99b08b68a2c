"""Steps of every schedule against published and hand-derived numbers, closed forms and the event engine."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.course.formulas import pipeline_bubbles as closed
from shardwise.errors import SimulationError
from shardwise.schedules.make import settled
from shardwise.simulate.contention import run_contended
from shardwise.simulate.engine import Task
from shardwise.simulate.pipeline import bubble_over_ideal, idle_fraction, pipeline_spans, run_pipeline
from shardwise.simulate.pipeline_graph import FirstPass
from shardwise.simulate.pipeline_times import ChunkTimes, PipelineTimes, even_chunks, time_pipeline
from simulate.pipelines import cases, chunk, even_run, shape


@pytest.mark.parametrize(
    ("name", "vpp", "expected_s"),
    [
        ("gpipe", 1, 57.0),
        ("1f1b", 1, 57.0),
        ("interleaved", 2, 52.5),
        ("interleaved", 4, 50.25),
        ("looped-bfs", 2, 52.5),
        ("zb-h1", 1, 51.0),
        ("zb-h1", 2, 49.5),
        ("zb-h2", 1, 51.0),
        ("zbv", 2, 49.5),
        ("dualpipev", 2, 51.0),
    ],
)
def test_four_equal_ranks_and_sixteen_micro_batches_of_three_seconds(name, vpp, expected_s):
    """F = B = W = 1: 48 s of work, and the bubble of arXiv:2104.04473, 2401.10241 table 1 and DualPipe's README.

    (p - 1)(F + B + W) = 9 for 1F1B, divided by v when interleaved; (p - 1)(F + B - W) = 3 for ZB-H1; the first
    forwards' (p - 1) F for ZB-H2 and half of it for ZBV; (P/2 - 1)(F&B + B - 3W) = 3 for DualPipeV with P = 8.
    """
    assert even_run(name, vpp=vpp).makespan_s == pytest.approx(expected_s, rel=1e-14)


def test_bubble_over_ideal_and_idle_share_of_the_same_step():
    """15.79 % of total = 18.75 % of ideal: both right, different denominators."""
    run = even_run("1f1b")
    assert bubble_over_ideal(run) == pytest.approx(0.1875, abs=1e-15)
    assert idle_fraction(run) == pytest.approx(0.15789473684210525, abs=1e-15)
    assert [rank.waiting_s for rank in run.ranks] == [9.0, 6.0, 3.0, 0.0]
    assert [run.idle_s(rank) for rank in range(4)] == [9.0] * 4


@pytest.mark.parametrize("name", ["zb-h2", "zbv"])
def test_zero_bubble_ranks_never_wait_but_start_one_after_the_other(name):
    vpp = 2 if name == "zbv" else 1
    run = even_run(name, vpp=vpp)
    assert [rank.waiting_s for rank in run.ranks] == [0.0] * 4
    assert [rank.first_start_s for rank in run.ranks] == [rank / vpp for rank in range(4)]


@pytest.mark.parametrize(("last", "expected_s", "mean_based_low"), [(1.3, 71.4, 0.142), (1.6, 85.8, 0.236)])
def test_1f1b_with_a_slow_last_stage_is_paced_by_it(last, expected_s, mean_based_low):
    """15 * 3.9 + 12.9 = 71.4 and 15 * 4.8 + 13.8 = 85.8; the closed form of the mean stage is 14 % and 24 % low."""
    chunks = (chunk(), chunk(), chunk(), chunk(last, last, last))
    run = run_pipeline(shape("1f1b", 4, 16), PipelineTimes(chunks=chunks))
    assert run.makespan_s == pytest.approx(expected_s, rel=1e-14)
    mean_based_s = 19 * (9 + 3 * last) / 4
    assert 1 - mean_based_s / run.makespan_s == pytest.approx(mean_based_low, abs=5e-4)


def test_a_slow_first_stage_costs_less_than_a_slow_last_one():
    """Its backwards hide nothing, but no other rank waits behind it: by hand, 2 ranks, 2 micro-batches.

    Rank 0 with F = 2, B + W = 4: 2, 4, then backwards behind rank 1's 1 + 2: 5 to 9, 9 to 13. (m - 1) max + sum = 15.
    """
    chunks = (chunk(2.0, 2.0, 2.0), chunk(1.0, 1.0, 1.0))
    assert run_pipeline(shape("1f1b", 2, 2), PipelineTimes(chunks=chunks)).makespan_s == 13.0


POSITIVE = st.floats(0.1, 3.0)


@given(pp=st.integers(1, 8), m=st.integers(1, 30), forward=POSITIVE, back=POSITIVE, weights=POSITIVE)
def test_1f1b_and_gpipe_idle_as_long_as_the_closed_form_says(pp, m, forward, back, weights):
    expected_s = closed.one_f_one_b_idle_s(pp=pp, forward_s=forward, backward_s=back + weights)
    for name in ("1f1b", "gpipe"):
        run = even_run(name, pp=pp, m=m, fbw=(forward, back, weights))
        assert run.idle_s(0) == pytest.approx(expected_s, rel=1e-9, abs=1e-9)
        assert bubble_over_ideal(run) == pytest.approx(closed.bubble_over_ideal(pp=pp, num_microbatches=m), abs=1e-9)
        assert idle_fraction(run) == pytest.approx(closed.idle_fraction(pp=pp, num_microbatches=m), abs=1e-9)


@given(pp=st.integers(2, 6), vpp=st.integers(2, 4), rounds=st.integers(1, 6), forward=POSITIVE, back=POSITIVE)
def test_interleaving_divides_the_bubble_by_the_chunks(pp, vpp, rounds, forward, back):
    expected_s = closed.interleaved_idle_s(pp=pp, vpp=vpp, forward_s=forward, backward_s=back)
    run = even_run("interleaved", pp=pp, m=rounds * pp, vpp=vpp, fbw=(forward, back / 2, back / 2))
    assert run.idle_s(0) == pytest.approx(expected_s, rel=1e-9, abs=1e-9)


@given(pp=st.integers(2, 8), rounds=st.integers(2, 6), forward=POSITIVE, back=POSITIVE, weights=POSITIVE)
def test_zb_h1_idles_as_the_paper_says_unless_the_weight_gradient_is_the_longest(pp, rounds, forward, back, weights):
    """(p - 1)(F + B - W) where W is the shortest; never below (p - 1) F of the start nor (p - 1) B of the drain."""
    run = even_run("zb-h1", pp=pp, m=rounds * pp, fbw=(forward, back, weights))
    per_rank_s = max(forward, back, forward + back - weights)
    assert run.idle_s(0) == pytest.approx((pp - 1) * per_rank_s, rel=1e-9, abs=1e-9)
    if weights <= min(forward, back):
        expected_s = closed.zb_h1_idle_s(pp=pp, forward_s=forward, input_backward_s=back, weight_backward_s=weights)
        assert run.idle_s(0) == pytest.approx(expected_s, rel=1e-9, abs=1e-9)


@given(pp=st.integers(2, 8), rounds=st.integers(3, 6), forward=POSITIVE, back=POSITIVE, weights=POSITIVE)
def test_zb_h2s_first_rank_waits_as_the_paper_says_unless_its_input_gradient_is_long(
    pp, rounds, forward, back, weights
):
    """(p - 1)(F + B - 2W) or 0, but at least (p - 1)(B - F); the makespan keeps the first forwards' skew besides.

    The skew is what the paper's optimizer post-validation removes (section 4).
    """
    run = even_run("zb-h2", pp=pp, m=rounds * pp, fbw=(forward, back, weights))
    published_s = closed.zb_h2_idle_s(pp=pp, forward_s=forward, input_backward_s=back, weight_backward_s=weights)
    at_least_s = (pp - 1) * max(0.0, back - forward)
    assert run.ranks[0].waiting_s == pytest.approx(max(published_s, at_least_s), rel=1e-9, abs=1e-9)
    skew_s = closed.start_skew_s(pp=pp, chunk_forward_s=forward)
    assert run.idle_s(0) == pytest.approx(max(published_s, at_least_s, skew_s), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
def test_dualpipev_idles_as_deepseeks_table_says_when_its_blocks_take_the_sum_of_both(pp):
    """P = 2 pp stages of half a rank each; F&B = F + B."""
    expected_s = closed.dualpipe_idle_s(pp=2 * pp, forward_backward_s=1.5, backward_s=1.0, weight_backward_s=0.5)
    for ratio in (1.0, None):
        run = even_run("dualpipev", pp=pp, m=4 * pp, vpp=2, joined_ratio=ratio)
        assert run.idle_s(0) == pytest.approx(expected_s, abs=1e-9)


@given(st.data())
def test_pairs_in_turn_are_never_slower_than_blocks_that_wait_for_both_inputs(data):
    chunks = tuple(chunk(*(data.draw(POSITIVE) for _ in range(3))) for _ in range(6))
    together, in_turn = (
        run_pipeline(shape("dualpipev", 3, 8, 2), PipelineTimes(chunks=chunks, sends_s=(0.3,) * 5, joined_ratio=ratio))
        for ratio in (1.0, None)
    )
    assert in_turn.makespan_s <= together.makespan_s + 1e-9


def test_blocks_that_hide_their_communication_shorten_dualpipev():
    """Rank 0 joins 21 pairs of 1.5 s, so at a ratio of 0.8 it is busy 48 - 21 * 0.3 = 41.7 s."""
    run = even_run("dualpipev", vpp=2, joined_ratio=0.8)
    assert run.ranks[0].busy_s == pytest.approx(41.7, rel=1e-12)
    assert run.makespan_s == pytest.approx(43.2, rel=1e-12)


@pytest.mark.parametrize(("blocking", "expected_s"), [(False, 19.0), (True, 19.5)])
def test_sends_delay_the_next_rank_and_block_the_sender_only_if_they_must(blocking, expected_s):
    """Two ranks, two micro-batches, F = 2, B + W = 4, sends of 0.5 s, by hand.

    Overlapped: rank 1 runs 2.5 to 4.5 forward, to 8.5 back, to 10.5 forward, to 14.5 back; rank 0 runs its last
    backward from 15 to 19. Blocking: rank 1 holds still from 8.5 to 9 to send, so everything after is 0.5 s later.
    """
    times = PipelineTimes(chunks=(chunk(2.0, 2.0, 2.0),) * 2, sends_s=(0.5,), is_send_blocking=blocking)
    assert run_pipeline(shape("1f1b", 2, 2), times).makespan_s == expected_s


def test_a_pipeline_that_does_nothing_has_no_bubble():
    run = run_pipeline(shape("1f1b", 2, 4), PipelineTimes(chunks=(ChunkTimes(),) * 2))
    assert (run.makespan_s, bubble_over_ideal(run), idle_fraction(run)) == (0.0, 0.0, 0.0)


def test_even_chunks_put_the_embedding_first_and_the_head_last():
    chunks = even_chunks(num_chunks=3, chunk=chunk(), embedding=ChunkTimes(forward_s=0.2), head=chunk(0.5, 0.25, 0.125))
    assert [times.forward_s for times in chunks] == [1.2, 1.0, 1.5]
    assert [times.total_s for times in chunks] == [3.2, 3.0, 3.875]


@pytest.mark.parametrize(
    "times", [PipelineTimes(chunks=(chunk(),) * 3), PipelineTimes(chunks=(chunk(),) * 4, sends_s=(1.0,))]
)
def test_times_that_do_not_match_the_chunks_are_refused(times):
    with pytest.raises(SimulationError) as caught:
        run_pipeline(shape("1f1b", 4, 8), times)
    assert caught.value.code == "schedule-times"


def tasks_of(timed):
    """The step as a program of tasks, each waiting for the one before it on its stream and for at most one other."""
    graph = timed.graph
    stream_of = {node: str(stream) for stream, nodes in enumerate(graph.streams) for node in nodes}
    return [
        Task(
            name=graph.kind(node),
            stream=stream_of[node],
            duration_s=timed.durations_s[work],
            depends_on=(second - 1,) if second else (),
        )
        for node, (second, work) in enumerate(zip(graph.second, graph.work, strict=True), start=1)
    ]


@given(cases())
def test_the_event_engine_ends_every_task_when_the_sweep_over_the_graph_does(case):
    asked, times = case
    timed = time_pipeline(settled(asked), times)
    assert list(run_contended(tasks_of(timed), ()).ends_s) == timed.ends_s[1:]


@given(cases())
def test_every_pass_runs_after_the_one_that_makes_its_input(case):
    asked, times = case
    spans = pipeline_spans(asked, times)
    end_s = {(span.name, span.chunk, span.micro_batch): span.end_s for span in spans}
    last = len(times.chunks) - 1
    for span in spans:
        kind, number, number_of_chunk = span.name, span.micro_batch, span.chunk
        if kind == "forward" and number_of_chunk > 0:
            sent_s = end_s.get(("send_forward", number_of_chunk - 1, number), 0.0)
            assert span.start_s >= max(sent_s, end_s["forward", number_of_chunk - 1, number]) - 1e-9
        if kind == "weight_backward":
            assert span.start_s >= end_s["input_backward", number_of_chunk, number] - 1e-9
        if kind in ("backward", "input_backward"):
            assert span.start_s >= end_s["forward", number_of_chunk, number] - 1e-9
            if number_of_chunk < last:
                below_s = [end_s.get((kind, number_of_chunk + 1, number)) for kind in ("backward", "input_backward")]
                assert span.start_s >= max(end for end in below_s if end is not None) - 1e-9


@given(cases())
def test_spans_of_one_compute_stream_never_overlap_and_fill_its_busy_time(case):
    asked, times = case
    run = run_pipeline(asked, times)
    spans = pipeline_spans(asked, times)
    for rank in run.ranks:
        own = sorted(
            (span.start_s, span.end_s)
            for span in spans
            if span.stream == f"stage {rank.rank}/compute" and span.category != "send_recv"
        )
        assert sum(end - start for start, end in own) == pytest.approx(rank.busy_s, abs=1e-9)
        assert all(before[1] <= after[0] + 1e-9 for before, after in pairwise(own))


@given(cases())
def test_a_step_is_never_shorter_than_its_busiest_rank_or_a_lone_micro_batch(case):
    asked, times = case
    run = run_pipeline(asked, times)
    lone_s = sum(one.forward_s + one.input_backward_s for one in times.chunks)
    assert run.makespan_s >= max(*(rank.busy_s for rank in run.ranks), lone_s) - 1e-9
    assert 0 <= idle_fraction(run) < 1
    assert bubble_over_ideal(run) == pytest.approx(idle_fraction(run) / (1 - idle_fraction(run)), abs=1e-9)


@settings(max_examples=50)
@given(cases(), st.data())
def test_a_slower_chunk_never_makes_a_step_faster(case, data):
    asked, times = case
    position = data.draw(st.integers(0, len(times.chunks) - 1))
    slower = list(times.chunks)
    slower[position] = chunk(
        *(2 * part for part in (slower[position].forward_s, slower[position].input_backward_s, 1.5))
    )
    later = PipelineTimes(chunks=tuple(slower), sends_s=times.sends_s, is_send_blocking=times.is_send_blocking)
    assert run_pipeline(asked, later).makespan_s >= run_pipeline(asked, times).makespan_s - 1e-9


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize(
    ("first_pass", "expected"),
    [
        (FirstPass(), 57.0),
        (FirstPass(not_before_s=1.0), 58.0),  # the first stage waits; the second has its input no earlier anyway
        (FirstPass(not_before_s=9.0), 66.0),
        (FirstPass(longer_s=2.0), 65.0),  # the first micro-batch meets it on four stages
    ],
)
def test_first_forwards_wait_for_what_is_gathered(name, first_pass, expected):
    """Four stages, 16 micro-batches, F = B = W = 1: 57 without gathers."""
    times = PipelineTimes(chunks=(chunk(),) * 4, first_passes=(first_pass,) * 4)
    assert run_pipeline(shape(name, 4, 16), times).makespan_s == expected


def test_gathers_that_end_when_the_input_arrives_cost_nothing():
    """Stage s has s seconds until its first input."""
    first_passes = tuple(FirstPass(not_before_s=float(stage)) for stage in range(4))
    run = run_pipeline(shape("1f1b", 4, 64), PipelineTimes(chunks=(chunk(),) * 4, first_passes=first_passes))
    assert run.makespan_s == 201.0
    assert run.is_extrapolated


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
@pytest.mark.parametrize("ratio", [1.0, None])
def test_dualpipe_idles_as_deepseeks_table_says(pp, ratio):
    """(P/2 - 1)(F&B + B - 3W) on P ranks of two chunks, at F = B = W of 0.5 s each and F&B = F + B."""
    times = PipelineTimes(chunks=(chunk(0.5, 0.5, 0.5),) * (2 * pp), joined_ratio=ratio)
    run = run_pipeline(shape("dualpipe", pp, 4 * pp), times)
    expected_s = closed.dualpipe_idle_s(pp=pp, forward_backward_s=1.5, backward_s=1.0, weight_backward_s=0.5)
    assert [run.idle_s(rank) for rank in range(pp)] == pytest.approx([expected_s] * pp, abs=1e-9)


@given(pp=st.sampled_from([2, 4, 6]), rounds=st.integers(1, 3), data=st.data())
def test_dualpipe_is_dualpipev_on_half_the_ranks_with_half_the_micro_batches(pp, rounds, data):
    """Sends are free, and both copies of the model take the same time: each half of the ranks is a V of its own."""
    model = [chunk(*(data.draw(POSITIVE) for _ in range(3))) for _ in range(pp)]
    m = 2 * rounds * pp
    dual = run_pipeline(shape("dualpipe", pp, m), PipelineTimes(chunks=(*model, *model)))
    v = run_pipeline(shape("dualpipev", pp // 2, m // 2, 2), PipelineTimes(chunks=tuple(model)))
    assert dual.makespan_s == pytest.approx(v.makespan_s, rel=1e-9)
    halves = [rank.busy_s for rank in dual.ranks]
    assert halves == pytest.approx([*(rank.busy_s for rank in v.ranks), *(rank.busy_s for rank in reversed(v.ranks))])


def test_every_micro_batch_of_dualpipe_runs_through_one_copy_of_the_model():
    spans = pipeline_spans(shape("dualpipe", 4, 8), PipelineTimes(chunks=(chunk(),) * 8))
    forwards = {(span.micro_batch, span.chunk) for span in spans if span.name == "forward"}
    expected = {(number, place) for number in range(4) for place in range(4)}
    assert forwards == expected | {(number + 4, place + 4) for number, place in expected}


def test_middle_ranks_of_dualpipe_send_each_other_what_the_v_keeps():
    """The V hands over at its turn without a message; with slow messages both copies of DualPipe are later."""
    chunks = (chunk(),) * 4
    dual = run_pipeline(shape("dualpipe", 4, 16), PipelineTimes(chunks=chunks * 2, sends_s=(0.25,) * 7))
    v = run_pipeline(shape("dualpipev", 2, 8, 2), PipelineTimes(chunks=chunks, sends_s=(0.25,) * 3))
    assert dual.makespan_s > v.makespan_s
