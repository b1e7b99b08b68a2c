"""The step of representative ranks: it lasts as long as predicted, and a stream does one thing at a time."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import shapes
from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict.time import predict_time
from shardwise.predict.timeline import MOST_SPANS, predict_timeline
from shardwise.predict.timeline_split import is_computing, split_rank
from shardwise.recipe import Recipe
from shardwise.rules import find_errors


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
    "hsdp and recomputation": plan_of(Layout(dp_shard=4, dp_replicate=2), recompute="full"),
    "ddp": plan_of(Layout(dp_shard=8, zero_stage=0), global_batch_size=32),
    "zero-2 of deepspeed": plan_of(Layout(dp_shard=8, zero_stage=2), engine="deepspeed", global_batch_size=32),
    "tensor parallel": plan_of(Layout(tp=8, sequence_parallel=True), engine="megatron"),
    "ring": plan_of(Layout(cp=8), engine="megatron"),
    "1f1b": plan_of(Layout(pp=4, dp_shard=2, zero_stage=1), engine="megatron", global_batch_size=32),
    "interleaved": plan_of(Layout(pp=4, vpp=2, schedule="interleaved"), engine="megatron", global_batch_size=8),
    "zb-h1": plan_of(Layout(pp=4, schedule="zb-h1"), global_batch_size=8, offload="optimizer"),
    "deferred reductions": plan_of(Layout(dp_shard=8, defer_grad_reduce=True), global_batch_size=32),
    "offload": plan_of(Layout(dp_shard=8), engine="deepspeed", global_batch_size=16, offload="parameters"),
    "dualpipev": plan_of(Layout(pp=4, schedule="dualpipev"), global_batch_size=16),
}


DRAWN_LINES = (*range(4, 2400, 171), 913, 1129, 1399, 1579, 1777, 2245)
"""Some of the frozen plans, and six whose hosts, alternating blocks, hidden waits or slowdowns are hard to draw."""


def frozen_plans():
    lines = (Path(__file__).parents[2] / "benchmarks" / "same" / "plans.jsonl").read_text(encoding="utf-8").splitlines()
    plans = {number: read_plan(json.loads(lines[number - 1])) for number in DRAWN_LINES}
    return {f"line {number}": plan for number, plan in plans.items() if not find_errors(plan)}


ALL_PLANS = PLANS | frozen_plans()
COMPUTING = ("forward", "backward", "recompute", "optimizer")


@pytest.fixture(params=ALL_PLANS.values(), ids=ALL_PLANS.keys(), scope="module")
def drawn(request):
    """A plan, its prediction by component, its timeline and the rank that decides."""
    timeline = predict_timeline(request.param)
    if any("no order" in note for note in timeline.notes):
        pytest.skip("no order of passes can be written")
    prediction, _ = predict_time(request.param)
    slowest = next(rank for rank in timeline.ranks if rank.components == timeline.components)
    return request.param, prediction, timeline, slowest


def parts_of(rank):
    return {entry.component: entry.duration_s for entry in rank.components}


def axis_of(span):
    """Messages have a stream a direction, such as ``stage 0/pp forward``."""
    return span.stream.partition("/")[2].partition(" ")[0]


def test_the_drawn_step_ends_with_the_predicted_one(drawn):
    _, prediction, timeline, _ = drawn
    assert timeline.step_s == pytest.approx(prediction.step_s, rel=1e-12)
    last_s = max(span.end_s for rank in timeline.ranks for span in rank.spans)
    assert last_s == pytest.approx(prediction.step_s, rel=1e-9)


def test_every_collective_is_drawn_as_exposed_as_predicted(drawn):
    """Two roads: spans where passes have them, and the components; whatever the axis, blocks of pipelines included."""
    _, prediction, _, slowest = drawn
    found, predicted = Counter(), Counter()
    for span in slowest.spans:
        found[span.name, axis_of(span)] += span.exposed_s
    for entry in prediction.communication:
        predicted[entry.name, entry.axis] += entry.exposed_s
    within_s = 1e-9 * prediction.step_s
    for key in found | predicted:
        assert found[key] == pytest.approx(predicted[key], rel=1e-9, abs=within_s), key
    assert sum(found.values()) == pytest.approx(parts_of(slowest)["exposed_communication"], rel=1e-9, abs=within_s)


def test_parts_of_every_drawn_rank_sum_to_the_step(drawn):
    _, _, timeline, _ = drawn
    for rank in timeline.ranks:
        assert sum(parts_of(rank).values()) == pytest.approx(timeline.step_s, rel=1e-9)


def test_computation_takes_what_the_prediction_says(drawn):
    """Kernels take their predicted time and are slower by no more than what communication exposes."""
    plan, _, timeline, slowest = drawn
    parts, step_s = parts_of(slowest), timeline.step_s
    split = split_rank(slowest.spans, step_s=step_s)
    alone_s = sum(parts[name] for name in COMPUTING)
    assert split.compute_s >= alone_s - 1e-9 * step_s
    assert split.compute_s <= alone_s + parts["exposed_communication"] + 1e-9 * step_s
    if plan.layout.pp == 1:
        assert split.exposed_communication_s <= parts["exposed_communication"] + 1e-9 * step_s
        assert split.idle_s <= 1e-9 * step_s


def test_a_stream_does_one_thing_at_a_time(drawn):
    _, _, timeline, _ = drawn
    for rank in timeline.ranks:
        ends = {}
        for span in rank.spans:
            assert span.start_s >= ends.get(span.stream, 0.0) - 1e-9 * timeline.step_s, span
            ends[span.stream] = span.end_s


def test_tensor_parallel_waits_of_a_pipeline_are_drawn_in_every_micro_batch():
    """Fault B10: only the first and the last had their collectives, a tenth of what the step waits for."""
    layout = Layout(pp=4, tp=8, dp_shard=1, zero_stage=0, sequence_parallel=True)
    plan = plan_of(layout, engine="torchtitan", global_batch_size=512)
    timeline = predict_timeline(plan)
    assert len([note for note in timeline.notes if "block by block" in note]) == 1
    for rank in timeline.ranks:
        waits = [span for span in rank.spans if axis_of(span) == "tp" and span.micro_batch is not None]
        assert {span.micro_batch for span in waits} == set(range(512))
        computing = [span for span in rank.spans if is_computing(span)]
        computed_s = sum(span.duration_s for span in computing)
        assert computed_s == pytest.approx(sum(parts_of(rank)[name] for name in COMPUTING), rel=1e-9)
        waited_s = split_rank([*computing, *waits], step_s=timeline.step_s).exposed_communication_s
        assert waited_s == pytest.approx(sum(span.exposed_s for span in waits), rel=1e-9)


def test_gathers_run_ahead_of_the_blocks_that_need_them():
    """FSDP: after the first two, every gather of a forward pass starts with the block before its own."""
    spans = predict_timeline(PLANS["fsdp"]).ranks[0].spans
    forward = [span for span in spans if span.name == "forward blocks[0]" and span.micro_batch == 0]
    gathers = [span for span in spans if span.name == "all-gather blocks[0]" and span.micro_batch == 0][: len(forward)]
    assert len(forward) == 32
    for gather, block in zip(gathers[2:], forward[1:], strict=False):
        assert gather.start_s == pytest.approx(block.start_s, abs=1e-9)


def test_first_middle_last_and_slowest_stages_are_drawn():
    plan = plan_of(Layout(pp=16, zero_stage=0), global_batch_size=16)
    timeline = predict_timeline(plan)
    assert [rank.stage for rank in timeline.ranks] == [0, 1, 7, 14, 15]
    assert [rank.rank for rank in timeline.ranks] == [0, 1, 7, 14, 15]


def test_messages_connect_the_end_of_a_pass_with_the_beginning_of_the_next():
    timeline = predict_timeline(PLANS["1f1b"])
    assert len(timeline.flows) == 2 * 3 * 16
    assert all(abs(flow.from_stage - flow.to_stage) == 1 for flow in timeline.flows)
    assert all(flow.end_s >= flow.start_s for flow in timeline.flows)


def test_many_micro_batches_are_drawn_as_passes_between_the_first_and_the_last():
    timeline = predict_timeline(plan_of(Layout(dp_shard=8), global_batch_size=8 * 1000))
    assert timeline.num_spans < MOST_SPANS
    assert any("block by block" in note for note in timeline.notes)


def test_sixteen_thousand_gpus_are_drawn_by_representative_ranks():
    """``benchmarks/timeline_speed.py`` holds the time it takes."""
    plan = Plan(
        model=read_model("llama-3.1-405b"),
        cluster=read_cluster("2048 x dgx-h100"),
        recipe=Recipe(seq_len=8192, global_batch_size=2048),
        layout=Layout(dp_shard=128, tp=8, pp=16, vpp=7, schedule="interleaved", sequence_parallel=True, zero_stage=1),
        engine="megatron",
    )
    timeline = predict_timeline(plan)
    assert timeline.num_ranks == 16384
    assert [rank.rank for rank in timeline.ranks] == [0, 1024, 7 * 1024, 14 * 1024, 15 * 1024]
    assert timeline.num_spans < MOST_SPANS


def test_a_pipeline_whose_order_cannot_be_written_says_so():
    timeline = predict_timeline(plan_of(Layout(pp=4, schedule="dualpipev"), global_batch_size=4))
    assert any("no order" in note for note in timeline.notes)


def launches_of(plan):
    (rank,) = predict_timeline(plan).ranks
    return rank, [span for span in rank.spans if span.stream == "stage 0/launches"]


@pytest.mark.parametrize("compiled", [True, False])
def test_the_launching_cpu_has_a_row_where_it_is_waited_for(compiled):
    """Blocks of 256 tokens run faster than they are launched: every block of both passes is a span of the CPU."""
    rank, spans = launches_of(plan_of(Layout(tp=8, zero_stage=0), seq_len=256, compile=compiled))
    assert len([span for span in spans if "blocks" in span.name]) == 2 * 32
    assert {span.category for span in spans} == {"other"}
    busy_s = sum(span.duration_s for span in spans)
    computed_s = sum(span.duration_s for span in rank.spans if span.category in ("forward", "backward"))
    assert busy_s > 0.5 * computed_s
    for earlier, later in pairwise(spans):
        assert later.start_s >= earlier.end_s - 1e-12


def test_a_cpu_that_nobody_waits_for_has_no_row():
    _, spans = launches_of(plan_of(Layout(dp_shard=8)))
    assert spans == []


def test_launches_are_no_communication():
    plan = plan_of(Layout(zero_stage=0), seq_len=256, compile=False)
    timeline = predict_timeline(plan)
    (rank,) = timeline.ranks
    split = split_rank(rank.spans, step_s=timeline.step_s)
    assert any(span.stream.endswith("/launches") for span in rank.spans)
    assert split.exposed_communication_s == 0.0


@pytest.mark.parametrize(("offload", "streams"), [("optimizer", {"host"}), ("nvme", {"host", "drives"})])
def test_drives_have_a_row_beside_the_host(offload, streams):
    """Drives turn the states over while the host's CPUs update, and take longer."""
    timeline = predict_timeline(plan_of(Layout(dp_shard=8), engine="deepspeed", offload=offload))
    (rank,) = timeline.ranks
    updates = [span for span in rank.spans if span.name.startswith(("update on", "optimizer states"))]
    assert {span.stream.partition("/")[2] for span in updates} == streams
    assert len({span.start_s for span in updates}) == 1
    assert max(span.end_s for span in updates) == pytest.approx(timeline.step_s)
    if offload == "nvme":
        drives_s, host_s = (span.duration_s for span in sorted(updates, key=lambda span: span.stream))
        assert drives_s > 3 * host_s
