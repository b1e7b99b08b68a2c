"""Traces and pictures of a predicted step: valid, approved, self-contained, and marked as simulated."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from golden_files import assert_golden
from render.sample_records import PLAN
from shardwise.predict.timeline import NOTE, StepTimeline, TimelineCall, TimelineFlow, TimelineRank
from shardwise.prediction import TimeEntry
from shardwise.render.html_timeline import timeline_html
from shardwise.render.json_text import json_text
from shardwise.render.json_trace import trace_object
from shardwise.render.svg_timeline import LABEL_WIDTH, PLOT_WIDTH, timeline_svg
from shardwise.render.text_timeline import timeline_text
from shardwise.simulate.spans import Span

GOLDEN = Path(__file__).parent / "golden"
SVG = "{http://www.w3.org/2000/svg}"


def span(stream, name, category, start_s, end_s, micro_batch=0):
    return Span(
        stream=stream,
        name=name,
        category=category,
        start_s=start_s,
        end_s=end_s,
        micro_batch=micro_batch,
        chunk=int(stream.removeprefix("stage ")[0]),
    )


TIMELINE = StepTimeline(
    step_s=0.013,
    num_ranks=14,
    num_stages=2,
    ranks=(
        TimelineRank(
            rank=0,
            stage=0,
            spans=(
                span("stage 0/compute", "forward", "forward", 0.0, 0.002),
                span("stage 0/compute", "backward", "backward", 0.008, 0.013),
                span("stage 0/pp forward", "pipeline forward", "send_recv", 0.002, 0.003),
            ),
            components=(
                TimeEntry(component="forward", duration_s=0.002),
                TimeEntry(component="backward", duration_s=0.005),
                TimeEntry(component="exposed_communication", duration_s=0.0008),
                TimeEntry(component="pipeline_bubble", duration_s=0.0052),
            ),
        ),
        TimelineRank(
            rank=7,
            stage=1,
            spans=(
                span("stage 1/compute", "forward", "forward", 0.003, 0.005),
                span("stage 1/tp", "head all_gather", "all_gather", 0.005, 0.006),
            ),
            calls=(
                TimelineCall(
                    name="head all_gather",
                    axis="tp",
                    group_size=7,
                    num_bytes=1_100_000,
                    count=13,
                    algorithm="ring",
                    protocol="LL128",
                    bottleneck="NVLink",
                    basis="measured",
                ),
            ),
        ),
    ),
    components=(
        TimeEntry(component="forward", duration_s=0.002),
        TimeEntry(component="backward", duration_s=0.005),
        TimeEntry(component="pipeline_bubble", duration_s=0.006),
    ),
    flows=(
        TimelineFlow(name="pipeline forward", from_stage=0, to_stage=1, stream="compute", start_s=0.002, end_s=0.003),
    ),
    notes=(NOTE,),
)


def page_data(page):
    return json.loads(re.search(r"const data = (.*);\n", page)[1])


def events(phase):
    return [event for event in trace_object(plan=PLAN, timeline=TIMELINE)["traceEvents"] if event["ph"] == phase]


def test_a_small_trace_is_as_approved():
    assert_golden(GOLDEN / "timeline.json", json_text(trace_object(plan=PLAN, timeline=TIMELINE)) + "\n")


def test_every_event_names_a_process_and_a_thread_that_has_a_name():
    named = {(event["pid"], event["tid"]) for event in events("M") if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events("X")} == named
    assert {event["pid"] for event in events("M") if event["name"] == "process_name"} == {0, 7}


def test_spans_are_microseconds_from_the_beginning_of_the_step():
    assert [(event["ts"], event["dur"]) for event in events("X")] == [
        (0.0, 2000.0),
        (8000.0, 5000.0),
        (2000.0, 1000.0),
        (3000.0, 2000.0),
        (5000.0, 1000.0),
    ]


def test_a_collective_says_what_it_carries_and_how():
    (span_of_tp,) = [event for event in events("X") if event["name"] == "head all_gather"]
    assert span_of_tp["args"] == {
        "micro_batch": 0,
        "chunk": 1,
        "axis": "tp",
        "group_size": 7,
        "bytes": 1_100_000,
        "algorithm": "ring",
        "protocol": "LL128",
        "bottleneck": "NVLink",
        "basis": "measured",
    }
    page = page_data(timeline_html(plan=PLAN, timeline=TIMELINE))
    assert page["calls"] == ["1.10 MB over 7 ranks, ring LL128, limited by NVLink (measured)"]


def test_spans_that_touch_still_touch_when_rounded():
    """A start and a duration rounded apart would overlap the next span by a nanosecond."""
    third = 1e-6 / 3
    spans = tuple(span("stage 0/compute", "forward", "forward", i * third, (i + 1) * third) for i in range(7))
    timeline = StepTimeline(
        step_s=7 * third,
        num_ranks=1,
        num_stages=1,
        ranks=(TimelineRank(rank=0, stage=0, spans=spans),),
        flows=(),
        notes=(NOTE,),
    )
    found = [event for event in trace_object(plan=PLAN, timeline=timeline)["traceEvents"] if event["ph"] == "X"]
    assert [round(event["ts"] + event["dur"], 3) for event in found[:-1]] == [event["ts"] for event in found[1:]]


def test_the_page_shows_the_parts_of_the_step_and_what_each_rank_waits_for():
    page = page_data(timeline_html(plan=PLAN, timeline=TIMELINE))
    assert [part[:2] for part in page["parts"]] == [
        ["forward", 2000.0],
        ["backward", 5000.0],
        ["pipeline bubble", 6000.0],
    ]
    compute, sends = page["lanes"][:2]
    assert compute["split"] == [7000.0, 800.0, 5200.0]
    assert compute["exposed"] == [[2000.0, 1000.0]]
    assert sends["exposed"] == []


def test_moments_are_written_in_a_unit_that_fits():
    """Ten seconds are not ten thousand milliseconds."""
    timeline = StepTimeline(
        step_s=10.187644,
        num_ranks=1,
        num_stages=1,
        ranks=(TimelineRank(rank=0, stage=0, spans=(span("stage 0/compute", "forward", "forward", 0.0, 10.187644),)),),
        flows=(),
        notes=(NOTE,),
    )
    for text in (
        timeline_svg(timeline, title="sample"),
        timeline_html(plan=PLAN, timeline=timeline),
        timeline_text(plan=PLAN, timeline=timeline),
    ):
        assert "10.19 s" in text
        assert "10187" not in text.partition("<script>")[0]
    ticks = re.findall(r"fill='#666'>([^<]+)<", timeline_svg(timeline, title="sample"))
    assert ticks == [
        "0 s",
        "1.00 s",
        "2.00 s",
        "3.00 s",
        "4.00 s",
        "5.00 s",
        "6.00 s",
        "7.00 s",
        "8.00 s",
        "9.00 s",
        "10.00 s",
    ]


def test_a_flow_has_one_start_and_one_end_under_one_number():
    (start,), (end,) = events("s"), events("f")
    assert start["id"] == end["id"]
    assert (start["pid"], end["pid"]) == (0, 7)
    assert end["bp"] == "e"


def test_everything_drawn_says_that_it_is_simulated():
    trace = trace_object(plan=PLAN, timeline=TIMELINE)
    assert trace["otherData"]["is_simulated"] is True
    assert "simulated" in events("M")[0]["args"]["name"]
    assert "simulated" in timeline_svg(TIMELINE, title="sample")
    assert "simulated" in timeline_html(plan=PLAN, timeline=TIMELINE).lower()
    assert "Simulated" in timeline_text(plan=PLAN, timeline=TIMELINE)


def test_spans_are_drawn_in_proportion():
    bars = [
        rect
        for rect in ElementTree.fromstring(timeline_svg(TIMELINE, title="<b> & 'quotes'")).iter(f"{SVG}rect")
        if rect.find(f"{SVG}title") is not None
    ]
    assert len(bars) == 5
    assert float(bars[0].get("x")) == LABEL_WIDTH
    assert float(bars[1].get("width")) == pytest.approx(PLOT_WIDTH * 5 / 13, abs=0.01)


def test_spans_too_narrow_to_tell_apart_are_one_bar():
    many = tuple(span("stage 0/compute", "forward", "forward", i * 1e-6, (i + 1) * 1e-6) for i in range(1000))
    timeline = StepTimeline(
        step_s=1.0,
        num_ranks=1,
        num_stages=1,
        ranks=(TimelineRank(rank=0, stage=0, spans=many),),
        flows=(),
        notes=(NOTE,),
    )
    assert timeline_svg(timeline, title="sample").count("<title>") == 1


def test_the_page_loads_nothing_from_anywhere():
    page = timeline_html(plan=PLAN, timeline=TIMELINE)
    assert re.findall(r"<script [^>]*src|<link|@import|url\(|src=|https?://", page) == []
    assert page.count("<script>") == 1
    assert re.findall(r"@[A-Z]+@", page) == []


def test_the_data_of_the_page_is_json_that_cannot_end_its_script():
    hostile = StepTimeline(
        step_s=1.0,
        num_ranks=1,
        num_stages=1,
        ranks=(
            TimelineRank(
                rank=0, stage=0, spans=(span("stage 0/compute", "</script><b>", "forward", 0.0, 1.0, micro_batch=None),)
            ),
        ),
        flows=(),
        notes=(NOTE,),
    )
    page = timeline_html(plan=PLAN, timeline=hostile)
    assert page.count("</script>") == 1
    found = re.search(r"const data = (.*);\n", page)
    data = json.loads(found[1])
    assert data["names"][data["lanes"][0]["spans"][0][2]] == "</script><b>"
