"""Passes cut between buckets: the queue in one sweep against the event engine, and where a pass is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shapes
from shardwise.catalog import read_cluster
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.bucket_passes import queued_reductions
from shardwise.predict.pass_time import pass_time
from shardwise.predict.passes import Piece
from shardwise.predict.stage_passes import stage_passes
from shardwise.predict.stage_time import StageClock
from shardwise.predict.stage_work import stage_work
from shardwise.recipe import Recipe
from shardwise.simulate.engine import Task
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext


def bucket(*, compute_s, reduce_s, ratio=1.0, count=1):
    return Piece(
        works=(Task(stream="compute", name="backward of one bucket", category="backward", duration_s=compute_s),),
        reductions=(
            Task(
                name="all-reduce gradients",
                category="all_reduce",
                stream="dp_replicate",
                duration_s=reduce_s,
                slowdown_ratio=ratio,
            ),
        ),
        count=count,
    )


def queued_s(*pieces):
    found = queued_reductions(pieces)
    return None if found is None else sum(call.exposed_s for call in found)


@given(
    lengths_s=st.lists(
        st.tuples(st.sampled_from([0.0, 0.3, 1.0, 1.7]), st.sampled_from([0.1, 0.3, 1.0, 5.0])), min_size=1, max_size=20
    ),
    ratio=st.sampled_from([1.0, 1.126, 1.5]),
)
def test_a_queue_of_unequal_buckets_equals_the_event_engine(lengths_s, ratio):
    pieces = [bucket(compute_s=compute_s, reduce_s=reduce_s, ratio=ratio) for compute_s, reduce_s in lengths_s]
    simulated = pass_time(pieces, is_throttled=False, may_extrapolate=False)
    assert queued_s(*pieces) == pytest.approx(simulated.duration_s - simulated.line_s, rel=1e-9, abs=1e-9)


def test_all_but_the_last_bucket_hide():
    """40 buckets of 1 s under 40 pieces of 2 s, not slowed: the last one is left."""
    assert queued_s(bucket(compute_s=2.0, reduce_s=1.0, count=40)) == 1.0


def test_an_embedding_too_large_for_a_bucket_is_waited_for():
    """39 buckets hide, the last of them half; the embedding's takes 7 s when nothing is left to compute."""
    assert queued_s(bucket(compute_s=2.0, reduce_s=1.0, count=39), bucket(compute_s=0.5, reduce_s=7.0)) == 7.5


def test_reductions_over_two_groups_are_left_to_the_event_engine():
    one, other = bucket(compute_s=1.0, reduce_s=1.0), bucket(compute_s=1.0, reduce_s=1.0)
    shards = Task(name="x", category="all_reduce", stream="dp_shard", duration_s=1.0, slowdown_ratio=1.0)
    assert queued_reductions((one, Piece(works=other.works, reductions=(shards,)))) is None


def passes_of(layout, *, engine="fsdp2", layers=4, **recipe):
    plan = Plan(
        model=shapes.llama_3_8b(layers),
        cluster=read_cluster("8xh100-sxm"),
        recipe=Recipe(**({"seq_len": 8192} | recipe)),
        layout=layout,
        engine=engine,
    )
    (stage,) = pipeline_stages(model=plan.model, layout=layout)
    context, clock = StageContext(plan=plan, stage=stage), StageClock(plan)
    calls = clock.timed_calls(context)
    work = stage_work(context, clock.work_book(context), calls)
    data = [timed for timed in calls if timed.collective.axis in ("dp_shard", "dp_replicate")]
    return work, {one.phase: one.runs for one in stage_passes(context, data, work)}


def computed_s(runs):
    return sum(piece.count * work.duration_s for piece in runs for work in piece.works)


@pytest.mark.parametrize(
    ("layout", "engine", "phases"),
    [
        (Layout(dp_shard=8, zero_stage=0), "fsdp2", {"backward"}),
        (Layout(dp_shard=8, zero_stage=1), "megatron", {"forward", "backward"}),
        (Layout(dp_shard=4, dp_replicate=2, zero_stage=1), "megatron", {"forward", "backward"}),
    ],
)
def test_cutting_a_pass_loses_no_computation(layout, engine, phases):
    work, passes = passes_of(layout, engine=engine, recompute="full")
    assert set(passes) == phases
    whole_s = {
        "forward": sum(block.count * block.forward_s for block in work.blocks),
        "backward": sum(block.count * (block.backward_s + block.recompute_s) for block in work.blocks),
    }
    for phase, runs in passes.items():
        tables_s = sum(task.duration_s for table in (work.embedding, work.head) for task in table.works(phase))
        assert computed_s(runs) == pytest.approx(whole_s[phase] + tables_s, rel=1e-12)


def test_a_bucket_is_cut_where_its_last_gradient_is_there():
    """The head's matrix fills the first bucket; the next is full with the down projection, first of the last block."""
    work, passes = passes_of(Layout(dp_shard=8, zero_stage=0))
    first, second, *_, last = passes["backward"]
    (block,) = work.blocks
    block_elements = 218_112_000
    assert computed_s([first]) == pytest.approx(work.head.backward_s, rel=1e-4)
    assert computed_s([second]) == pytest.approx(block.backward_s * 4096 * 14336 / block_elements, rel=1e-3)
    assert computed_s([last]) == pytest.approx(work.embedding.backward_s + block.backward_s * 4096 / block_elements)


def test_equal_blocks_gather_as_one_run():
    _, passes = passes_of(Layout(dp_shard=8, zero_stage=1), engine="megatron", layers=32)
    assert max(piece.count for piece in passes["forward"]) >= 30
