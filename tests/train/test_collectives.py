"""What a rank communicates in a step is what the plan's inventory says, kind by kind and byte by byte."""

from collections import Counter

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.plan import Plan
from shardwise.step.collectives import stage_collectives
from shardwise.step.gradient_buckets import bucketed_gradients
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.native_engine import SUMS_BYTES
from shardwise.step.stage_context import StageContext
from shardwise.train.job import Tuning
from train.collective_counter import Counted
from train.models import GLOBAL_BATCH_SIZE, LLAMA, MIXTRAL, make_job
from train.representatives import representatives
from train.world_member import count

SPREAD = {"spread_vocabulary": True}
EXCHANGED = {"exchange_gradients": True}
LAYOUTS = {
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}, (), 4),
    "zero 1": (2, {"dp_shard": 2, "zero_stage": 1}, (), 2),
    "zero 2": (2, {"dp_shard": 2, "zero_stage": 2}, (), 2),
    "fsdp": (2, {"dp_shard": 2}, (), 2),
    "fsdp, spread vocabulary": (2, {"dp_shard": 2, **SPREAD}, (), 2),
    "fsdp of four, spread vocabulary": (4, {"dp_shard": 4, **SPREAD}, (), 2),
    "fsdp without resharding": (2, {"dp_shard": 2, "reshard_after_forward": False}, (), 2),
    "hsdp": (4, {"dp_replicate": 2, "dp_shard": 2}, (), 2),
    "cp": (2, {"cp": 2}, (), 2),
    "tp": (2, {"tp": 2}, (), 2),
    "tp, sequence parallel": (2, {"tp": 2, "sequence_parallel": True}, (), 2),
    "pp": (2, {"pp": 2}, (2, 2), 4),
    "interleaved": (2, {"pp": 2, "vpp": 2, "schedule": "interleaved"}, (1, 1, 1, 1), 4),
    "fsdp x tp": (4, {"dp_shard": 2, "tp": 2}, (), 2),
    "fsdp x pp": (4, {"dp_shard": 2, "pp": 2}, (2, 2), 4),
    "fsdp x tp, sequence parallel": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True}, (), 2),
    "pp x tp": (4, {"pp": 2, "tp": 2, "sequence_parallel": True}, (2, 2), 4),
}
"""Processes, layout, chunks and micro-batches."""
COMBINED = ("zero 2", "tp", "fsdp of four, spread vocabulary", "fsdp x tp", "fsdp x tp, sequence parallel", "pp x tp")
KEPT = tuple(name for name in LAYOUTS if name not in COMBINED)


def predicted(job, model) -> list[Counter]:
    """Bytes by kind and group size, of each pipeline stage."""
    spec = read_model({**model, "hidden_act": "silu", "max_position_embeddings": 64, "tie_word_embeddings": False})
    cluster = read_cluster(f"{job.layout.world_size}xh100-sxm")
    plan = Plan(model=spec, cluster=cluster, recipe=job.recipe, layout=job.layout)
    stages = []
    for stage in pipeline_stages(model=spec, layout=job.layout):
        total: Counter = Counter()
        for call in stage_collectives(StageContext(plan=plan, stage=stage)):
            total[call.kind, call.group_size] += call.num_bytes * call.count
        stages.append(total)
    return stages


def counted(calls) -> Counter:
    total: Counter = Counter()
    for call, times in calls:
        total[call.kind, call.group_size] += call.num_bytes * times
    return total


@pytest.mark.parametrize("name", representatives(LAYOUTS, KEPT))
def test_counted_collectives_are_the_inventorys(worlds, name):
    size, layout, chunk_layers, num_microbatches = LAYOUTS[name]
    copies = layout.get("dp_shard", 1) * layout.get("dp_replicate", 1)
    micro_batch_size = GLOBAL_BATCH_SIZE // copies // num_microbatches
    job = make_job(layout=layout, chunk_layers=chunk_layers, micro_batch_size=micro_batch_size)
    answers = worlds[size].run(count, job)
    per_stage = size // job.layout.pp
    for stage, expected in enumerate(predicted(job, LLAMA)):
        assert counted(answers[stage * per_stage]) == expected


@pytest.mark.parametrize("recompute", representatives(("none", "full", "selective"), ("selective",)))
def test_blocks_that_are_made_again_in_two_halves_communicate_twice(worlds, recompute):
    """The first stage goes backward as a whole."""
    layout = {"pp": 2, "tp": 2, "sequence_parallel": True, "schedule": "zb-h1"}
    job = make_job(layout=layout, chunk_layers=(2, 2), recompute=recompute)
    answers = worlds[4].run(count, job)
    assert [counted(answers[stage * 2]) for stage in range(2)] == predicted(job, LLAMA)


WIDE = {**LLAMA, "hidden_size": 512, "intermediate_size": 2048}


def test_ddp_reduces_in_the_buckets_that_the_inventory_says(worlds):
    """Four blocks of 15 MiB: the first bucket ends with the first MiB, the others with the 25th, call by call."""
    job = make_job(layout={"dp_replicate": 2, "zero_stage": 0}, model=WIDE, micro_batch_size=4)
    calls = [(call, times) for call, times in worlds[2].run(count, job)[0] if call.num_bytes > SUMS_BYTES]
    spec = read_model({**WIDE, "hidden_act": "silu", "max_position_embeddings": 64, "tie_word_embeddings": False})
    plan = Plan(model=spec, cluster=read_cluster("2xh100-sxm"), recipe=job.recipe, layout=job.layout)
    (stage,) = pipeline_stages(model=spec, layout=job.layout)
    (gradients,) = bucketed_gradients(StageContext(plan=plan, stage=stage))
    expected = Counter(4 * bucket.elements for bucket in gradients.buckets)
    assert len(gradients.buckets) == 4
    assert Counter({call.num_bytes: times for call, times in calls}) == expected


EXCHANGING = {
    "both ways": (2, {"dp_shard": 2, **SPREAD, **EXCHANGED}),
    "zero 2": (2, {"dp_shard": 2, "zero_stage": 2, **EXCHANGED}),
    "hsdp": (4, {"dp_replicate": 2, "dp_shard": 2, **EXCHANGED}),
    "tp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True, **EXCHANGED}),
}


@pytest.mark.parametrize("name", representatives(EXCHANGING, ("both ways", "zero 2", "hsdp")))
def test_gradients_that_are_exchanged_travel_in_the_inventorys_bytes(worlds, name):
    size, layout = EXCHANGING[name]
    job = make_job(layout=layout, precision="bf16-mixed", num_steps=3)
    assert counted(worlds[size].run(count, job)[0]) == predicted(job, LLAMA)[0]


def test_experts_exchange_what_the_inventory_says_on_average(worlds):
    """How many rows go where depends on the tokens; over all ranks every copy of every token travels as said."""
    job = make_job(layout={"dp_shard": 2, "ep": 2}, model=MIXTRAL, num_steps=2, routing_imbalance_ratio=1.0)
    answers = worlds[2].run(count, job)
    moved = sum(call.num_bytes * times for answer in answers for call, times in answer if call.kind == "all_to_all")
    expected = predicted(job, MIXTRAL)[0]
    assert moved == len(answers) * expected["all_to_all", 2]


@pytest.mark.parametrize("dp_shard", [1, pytest.param(2, marks=pytest.mark.runs)])
def test_experts_that_tensor_ranks_hold_whole_are_summed_as_the_inventory_says(worlds, dp_shard):
    """Under sequence parallelism each rank sends them the tokens of its own part of a sequence."""
    job = make_job(
        layout={"dp_shard": dp_shard, "tp": 2, "sequence_parallel": True},
        model=MIXTRAL,
        micro_batch_size=1,
        num_steps=2,
    )
    assert counted(worlds[2 * dp_shard].run(count, job)[0]) == predicted(job, MIXTRAL)[0]


MUON = {
    "ddp": (2, LLAMA, {"dp_replicate": 2, "zero_stage": 0}, ()),
    "fsdp": (2, LLAMA, {"dp_shard": 2}, ()),
    "tp": (2, LLAMA, {"tp": 2}, ()),
    "cp": (2, LLAMA, {"cp": 2}, ()),
    "pp": (2, LLAMA, {"pp": 2}, (2, 2)),
    "hsdp": (4, LLAMA, {"dp_replicate": 2, "dp_shard": 2}, ()),
    "fsdp x tp": (4, LLAMA, {"dp_shard": 2, "tp": 2}, ()),
    "rows that two ranks do not divide evenly": (2, {**LLAMA, "intermediate_size": 129}, {"dp_shard": 2}, ()),
    "experts": (2, MIXTRAL, {"dp_shard": 2}, ()),
    "experts, tp": (4, MIXTRAL, {"dp_shard": 2, "tp": 2, "sequence_parallel": True}, ()),
}
KEPT_MUON = ("ddp", "tp", "rows that two ranks do not divide evenly")


def gathers_of_muon(calls_of) -> Counter:
    """What is gathered more than by AdamW, kind by kind and call by call."""
    more = calls_of("muon")
    more.subtract(calls_of("adamw"))
    return Counter({call: times for call, times in more.items() if times})


def by_bytes(calls) -> Counter:
    total: Counter = Counter()
    for call, times in calls:
        total[call.kind, call.group_size, call.num_bytes] += times
    return total


@pytest.mark.parametrize("name", representatives(MUON, KEPT_MUON))
def test_muon_gathers_what_the_inventory_says(worlds, name):
    size, model, layout, chunk_layers = MUON[name]
    job = make_job(layout=layout, model=model, chunk_layers=chunk_layers, optimizer="muon", num_steps=2)
    answers = worlds[size].run(count, job)
    for stage, expected in enumerate(predicted(job, model)):
        assert counted(answers[stage * size // job.layout.pp]) == expected


@pytest.mark.parametrize("dp_shard", [2, pytest.param(4, marks=pytest.mark.runs)])
def test_muon_gathers_experts_from_all_ranks_that_divide_them(worlds, dp_shard):
    """But for the tokens, whose way depends on the weights."""
    job = make_job(layout={"dp_shard": dp_shard, "ep": 2}, model=MIXTRAL, optimizer="muon", num_steps=2)
    ran, said = counted(worlds[dp_shard].run(count, job)[0]), predicted(job, MIXTRAL)[0]
    for calls in (ran, said):
        calls.pop(("all_to_all", 2), None)
    assert ran == said


def test_muon_gathers_matrix_by_matrix(worlds):
    """Of four blocks: q and o of 64 x 64 numbers, k and v of half of them, three of 128 x 64, all in fp32."""

    def calls_of(optimizer):
        job = make_job(layout={"dp_shard": 2}, optimizer=optimizer, num_steps=2)
        return by_bytes(worlds[2].run(count, job)[0])

    gathers = {16_384: 8, 8_192: 8, 32_768: 12}
    expected = Counter({("all_gather", 2, num_bytes): times for num_bytes, times in gathers.items()})
    assert gathers_of_muon(calls_of) == expected


OTHERWISE = Tuning(is_last_unit_kept=False, is_embedding_kept=True)


def test_the_last_block_is_kept_and_the_embedding_gathered_again(worlds):
    kept = worlds[2].run(count, make_job(layout={"dp_shard": 2}, num_steps=2))[0]
    plain = worlds[2].run(count, make_job(layout={"dp_shard": 2}, tuning=OTHERWISE, num_steps=2))[0]
    block_bytes, table_bytes, num_microbatches = 147_968, 65_536, 2
    saved = counted(plain)["all_gather", 2] - counted(kept)["all_gather", 2]
    assert saved == (block_bytes - table_bytes) * num_microbatches


def test_a_vocabulary_that_is_spread_moves_tokens_instead_of_matrices(worlds):
    """Of 32 tokens and labels a rank (int64), and of their 64 channels in fp32, per micro-batch; no row of a matrix."""
    calls = dict(worlds[2].run(count, make_job(layout={"dp_shard": 2, **SPREAD}, micro_batch_size=1, num_steps=2))[0])
    num_microbatches, ids_bytes, hidden_bytes = 4, 2 * 32 * 8, 2 * 32 * 64 * 4
    assert calls[Counted(kind="all_gather", group_size=2, num_bytes=ids_bytes)] == 2 * num_microbatches
    assert calls[Counted(kind="all_gather", group_size=2, num_bytes=hidden_bytes)] == 2 * num_microbatches
    assert calls[Counted(kind="reduce_scatter", group_size=2, num_bytes=hidden_bytes)] == num_microbatches
    assert calls[Counted(kind="all_to_all", group_size=2, num_bytes=hidden_bytes)] == num_microbatches
    table_bytes = 256 * 64 * 4
    assert not [call for call in calls if call.num_bytes == table_bytes]
