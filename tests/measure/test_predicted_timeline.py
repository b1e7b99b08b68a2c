"""Two ends of one format: what ``timeline`` writes is a valid trace, and ``profile`` reads the prediction out of it."""

import json
from itertools import pairwise

import pytest

import shapes
from shardwise.catalog import read_cluster
from shardwise.layout import Layout
from shardwise.measure.predicted_timeline import SCHEMA, read_traces
from shardwise.measure.profile import profile_traces
from shardwise.measure.trace_steps import step_windows
from shardwise.plan import Plan
from shardwise.predict.time import predict_time
from shardwise.predict.timeline import predict_timeline
from shardwise.predict.timeline_split import split_rank
from shardwise.recipe import Recipe
from shardwise.render.json_text import json_line
from shardwise.render.json_trace import TRACE_SCHEMA, trace_object


def plan_of(layout, *, engine="native", **recipe):
    return Plan(
        model=shapes.llama_3_8b(),
        cluster=read_cluster(f"{max(1, layout.world_size // 8)} x dgx-h100"),
        recipe=Recipe(**({"seq_len": 8192} | recipe)),
        layout=layout,
        engine=engine,
    )


PLANS = {
    "fsdp": plan_of(Layout(dp_shard=8), global_batch_size=16),
    "ddp": plan_of(Layout(dp_shard=8, zero_stage=0), global_batch_size=32),
    "tensor parallel": plan_of(Layout(tp=8, sequence_parallel=True), engine="megatron"),
    "1f1b": plan_of(Layout(pp=4, dp_shard=2, zero_stage=1), engine="megatron", global_batch_size=32),
    "interleaved": plan_of(Layout(pp=4, vpp=2, schedule="interleaved"), engine="megatron", global_batch_size=8),
    "offload": plan_of(Layout(dp_shard=8), engine="deepspeed", global_batch_size=16, offload="optimizer"),
}
NUMBER = (int, float)


@pytest.fixture(params=PLANS.values(), ids=PLANS.keys(), scope="module")
def drawn(request, tmp_path_factory):
    """A plan, its timeline, the trace as an object, and the file."""
    timeline = predict_timeline(request.param)
    text = json_line(trace_object(plan=request.param, timeline=timeline))
    path = tmp_path_factory.mktemp("trace") / "step.json"
    path.write_text(text, encoding="utf-8")
    return request.param, timeline, json.loads(text), path


def by_stream(trace):
    streams = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            streams.setdefault((event["pid"], event["tid"]), []).append(event)
    return streams


def test_every_event_has_what_its_phase_requires(drawn):
    """Google, Trace Event Format: complete, metadata and flow events, times in microseconds."""
    _, _, trace, _ = drawn
    required = {
        "X": {"name": str, "cat": str, "ts": NUMBER, "dur": NUMBER, "pid": int, "tid": int},
        "M": {"name": str, "pid": int, "args": dict},
        "s": {"name": str, "cat": str, "id": int, "ts": NUMBER, "pid": int, "tid": int},
        "f": {"name": str, "cat": str, "id": int, "ts": NUMBER, "pid": int, "tid": int, "bp": str},
    }
    for event in trace["traceEvents"]:
        for key, kind in required[event["ph"]].items():
            assert isinstance(event[key], kind), event
        if event["ph"] == "X":
            assert event["ts"] >= 0, event
            assert event["dur"] >= 0, event


def test_every_process_and_stream_is_named_once(drawn):
    _, timeline, trace, _ = drawn
    named = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    processes = [event["pid"] for event in named if event["name"] == "process_name"]
    threads = [(event["pid"], event["tid"]) for event in named if event["name"] == "thread_name"]
    assert sorted(processes) == sorted(rank.rank for rank in timeline.ranks)
    assert sorted(threads) == sorted(by_stream(trace))
    assert len(set(threads)) == len(threads)


def test_spans_of_one_stream_follow_each_other_without_overlap(drawn):
    """A viewer nests spans that overlap, by a nanosecond even."""
    _, _, trace, _ = drawn
    for spans in by_stream(trace).values():
        for before, after in pairwise(spans):
            assert round(before["ts"] + before["dur"], 3) <= after["ts"], (before, after)


def test_the_last_span_ends_with_the_step_in_microseconds(drawn):
    _, timeline, trace, _ = drawn
    end_us = max(event["ts"] + event["dur"] for spans in by_stream(trace).values() for event in spans)
    assert end_us == pytest.approx(timeline.step_s * 1e6, rel=0.01)


def test_arrows_are_pairs_that_begin_and_end_inside_spans(drawn):
    _, _, trace, _ = drawn
    streams = by_stream(trace)
    starts = {event["id"]: event for event in trace["traceEvents"] if event["ph"] == "s"}
    ends = {event["id"]: event for event in trace["traceEvents"] if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] <= end["ts"]
        assert any(
            span["ts"] <= start["ts"] < span["ts"] + span["dur"] for span in streams[start["pid"], start["tid"]]
        ), start
        assert any(span["ts"] <= end["ts"] <= span["ts"] + span["dur"] for span in streams[end["pid"], end["tid"]]), end


def test_every_collective_says_what_it_carries_and_how(drawn):
    _, _, trace, _ = drawn
    others = ("forward", "backward", "recompute", "optimizer", "offload", "other")  # other: launches of the CPU
    spans = [event for events in by_stream(trace).values() for event in events if event["cat"] not in others]
    assert spans
    for span in spans:
        arguments = span["args"]
        assert arguments["bytes"] > 0, span
        assert arguments["group_size"] > 1, span
        assert all(arguments[key] for key in ("axis", "algorithm", "protocol", "bottleneck", "basis")), span


def test_the_names_of_collectives_are_those_of_the_prediction(drawn):
    plan, _, trace, _ = drawn
    predicted = {(entry.name, entry.axis) for entry in predict_time(plan)[0].communication}
    drawn_names = {
        (event["name"], event["args"]["axis"])
        for events in by_stream(trace).values()
        for event in events
        if "axis" in event.get("args", {})
    }
    assert predicted & drawn_names
    slowest_axes = {axis for _, axis in predicted}
    assert {axis for _, axis in drawn_names} <= slowest_axes


def test_profile_finds_what_predict_says(drawn):
    """Two roads: the parts of the slowest rank read back from the file, and the prediction's own.

    Computation is drawn as slow as communication beside it makes it, and the prediction counts that slowdown as exposed
    communication; so the two together agree.
    """
    plan, timeline, _, path = drawn
    parts = {entry.component: entry.duration_s for entry in predict_time(plan)[0].components}
    computed_s = parts["forward"] + parts["backward"] + parts["recompute"] + parts["optimizer"]
    profile = profile_traces([path])
    assert [rank.rank for rank in profile.ranks] == [rank.rank for rank in timeline.ranks]
    found = max((rank.split for rank in profile.ranks), key=lambda split: split.compute_s)
    assert found.step_s == pytest.approx(timeline.step_s, rel=1e-6)
    assert found.compute_s >= computed_s * 0.9999
    both_s = computed_s + parts["exposed_communication"]
    if plan.layout.pp == 1:
        assert found.compute_s + found.exposed_communication_s == pytest.approx(both_s, rel=1e-4)
        assert found.idle_s + found.host_s == pytest.approx(0.0, abs=1e-4 * found.step_s)
        assert found.copies_s == pytest.approx(parts["offload"], rel=1e-3, abs=1e-6)
    else:
        waits_s = found.exposed_communication_s + found.idle_s
        assert waits_s == pytest.approx(parts["exposed_communication"] + parts["pipeline_bubble"], rel=0.01)


def test_profile_splits_every_rank_as_the_page_does(drawn):
    _, timeline, _, path = drawn
    for trace, rank in zip(read_traces(path), timeline.ranks, strict=True):
        (window,) = step_windows(trace)
        assert window.duration_s == timeline.step_s
        own = split_rank(rank.spans, step_s=timeline.step_s)
        profile = next(one for one in profile_traces([path]).ranks if one.rank == rank.rank)
        assert profile.split.compute_s == pytest.approx(own.compute_s, abs=1e-6)
        assert profile.split.exposed_communication_s == pytest.approx(own.exposed_communication_s, abs=1e-6)


def test_ranks_of_different_stages_are_not_taken_for_one_group(drawn):
    _, _, _, path = drawn
    profile = profile_traces([path])
    assert all(rank.wait_s is None for rank in profile.ranks)
    assert profile.straggler_rank is None


def test_the_report_says_that_it_was_simulated(drawn):
    _, _, _, path = drawn
    assert [warning for warning in profile_traces([path]).warnings if "simulated" in warning]
    assert len(profile_traces([path]).warnings) == 1


def test_writer_and_reader_name_one_schema():
    assert SCHEMA == TRACE_SCHEMA
