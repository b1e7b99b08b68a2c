"""The step of representative ranks: it lasts as long as predicted, and a stream does one thing at a time."""

from itertools import pairwise

import pytest

import shapes
from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.time import predict_time
from shardwise.predict.timeline import MOST_SPANS, predict_timeline
from shardwise.predict.timeline_split import split_rank
from shardwise.recipe import Recipe


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


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_the_drawn_step_lasts_as_long_as_the_predicted_one(plan):
    timeline = predict_timeline(plan)
    assert timeline.step_s == pytest.approx(predict_time(plan)[0].step_s, rel=1e-9)
    ends = [max(span.end_s for span in rank.spans) for rank in timeline.ranks]
    assert max(ends) == pytest.approx(timeline.step_s, rel=0.01)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_a_stream_does_one_thing_at_a_time(plan):
    for rank in predict_timeline(plan).ranks:
        ends = {}
        for span in rank.spans:
            assert span.start_s >= ends.get(span.stream, 0.0) - 1e-9, span
            ends[span.stream] = span.end_s


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_computation_takes_what_the_prediction_says(plan):
    """Forward, backward, recomputation and optimizer of the slowest stage, before contention stretches them."""
    timeline = predict_timeline(plan)
    parts = {entry.component: entry.duration_s for entry in predict_time(plan)[0].components}
    computed_s = max(
        sum(span.duration_s for span in rank.spans if span.stream.endswith("/compute")) for rank in timeline.ranks
    )
    alone_s = parts["forward"] + parts["backward"] + parts["recompute"] + parts["optimizer"]
    assert alone_s * 0.999 <= computed_s <= alone_s + parts["exposed_communication"] + 1e-9


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
    """Drives turn the states over while the host's processors update, and take longer."""
    timeline = predict_timeline(plan_of(Layout(dp_shard=8), engine="deepspeed", offload=offload))
    (rank,) = timeline.ranks
    updates = [span for span in rank.spans if span.name.startswith(("update on", "optimizer states"))]
    assert {span.stream.partition("/")[2] for span in updates} == streams
    assert len({span.start_s for span in updates}) == 1
    assert max(span.end_s for span in updates) == pytest.approx(timeline.step_s)
    if offload == "nvme":
        drives_s, host_s = (span.duration_s for span in sorted(updates, key=lambda span: span.stream))
        assert drives_s > 3 * host_s
