"""What a rank communicates in a step is what the plan's inventory says, kind by kind and byte by byte."""

from collections import Counter

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.plan import Plan
from shardwise.step.collectives import stage_collectives
from shardwise.step.placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.train.counting import Counted
from shardwise.train.job import Tuning
from train.models import GLOBAL_BATCH_SIZE, LLAMA, MIXTRAL, make_job
from train.world_member import count

PLAIN = Tuning(is_last_unit_kept=False, is_embedding_kept=True, is_vocabulary_spread=False)
"""The inventory gathers every block again in backward and the embedding once; the runtime keeps the last block instead,
which backward needs at once, and not the embedding, which it needs last."""
GATHERED = Tuning(is_vocabulary_spread=False)
SUMS_BYTES = 32
"""Loss, tokens, squared norm and stop requests travel over all ranks in one call of four fp64 sums; the inventory has
one scalar per axis, named ``gradient norm``. Both are left out."""
LAYOUTS = {
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}, (), 4),
    "zero 2": (2, {"dp_shard": 2, "zero_stage": 2}, (), 1),
    "fsdp": (2, {"dp_shard": 2}, (), 4),
    "fsdp without resharding": (2, {"dp_shard": 2, "reshard_after_forward": False}, (), 4),
    "hsdp": (4, {"dp_replicate": 2, "dp_shard": 2}, (), 1),
    "tp": (2, {"tp": 2}, (), 8),
    "tp, sequence parallel": (2, {"tp": 2, "sequence_parallel": True}, (), 8),
    "pp": (2, {"pp": 2}, (2, 2), 8),
    "interleaved": (2, {"pp": 2, "vpp": 2, "schedule": "interleaved"}, (1, 1, 1, 1), 8),
    "fsdp x tp": (4, {"dp_shard": 2, "tp": 2}, (), 4),
    "fsdp x pp": (4, {"dp_shard": 2, "pp": 2}, (2, 2), 4),
    "pp x tp": (4, {"pp": 2, "tp": 2, "sequence_parallel": True}, (2, 2), 8),
}
"""Processes, layout, chunks and micro-batches. With several micro-batches our runtime communicates less than the
inventory says under ZeRO-2 and HSDP: parameters stay gathered over the step, and replicas reduce once."""


def predicted(job, model) -> list[Counter]:
    """Bytes by kind and group size, of each pipeline stage."""
    spec = read_model({**model, "hidden_act": "silu", "max_position_embeddings": 64, "tie_word_embeddings": False})
    cluster = read_cluster(f"{job.layout.world_size}xh100-sxm")
    plan = Plan(model=spec, cluster=cluster, recipe=job.recipe, layout=job.layout)
    stages = []
    for stage in pipeline_stages(model=spec, layout=job.layout):
        total: Counter = Counter()
        for call in stage_collectives(StageContext(plan=plan, stage=stage)):
            if call.name != "gradient norm":
                total[call.kind, call.group_size] += call.num_bytes * call.count
        stages.append(total)
    return stages


def counted(calls) -> Counter:
    total: Counter = Counter()
    for call, times in calls:
        if (call.kind, call.num_bytes) != ("all_reduce", SUMS_BYTES):
            total[call.kind, call.group_size] += call.num_bytes * times
    return total


@pytest.mark.parametrize("name", LAYOUTS)
def test_counted_collectives_are_the_inventorys(worlds, name):
    size, layout, chunk_layers, num_microbatches = LAYOUTS[name]
    copies = layout.get("dp_shard", 1) * layout.get("dp_replicate", 1)
    micro_batch_size = GLOBAL_BATCH_SIZE // copies // num_microbatches
    job = make_job(layout=layout, chunk_layers=chunk_layers, tuning=PLAIN, micro_batch_size=micro_batch_size)
    answers = worlds[size].run(count, job)
    per_stage = size // job.layout.pp
    for stage, expected in enumerate(predicted(job, LLAMA)):
        assert counted(answers[stage * per_stage]) == expected


def test_experts_exchange_what_the_inventory_says_on_average(worlds):
    """How many rows go where depends on the tokens; over all ranks every copy of every token travels as said."""
    job = make_job(layout={"dp_shard": 2, "ep": 2}, model=MIXTRAL, tuning=PLAIN, num_steps=2)
    answers = worlds[2].run(count, job)
    rows = [(call, times) for answer in answers for call, times in answer if call.num_bytes > ROUTING_BYTES]
    moved = sum(call.num_bytes * times for call, times in rows if call.kind == "all_to_all")
    expected = predicted(job, MIXTRAL)[0]
    assert moved == len(answers) * expected["all_to_all", 2]


ROUTING_BYTES = 32
"""How many rows each expert gets: one int64 per expert, beside the rows themselves."""


def test_the_last_block_is_kept_and_the_embedding_gathered_again(worlds):
    kept = worlds[2].run(count, make_job(layout={"dp_shard": 2}, tuning=GATHERED, num_steps=2))[0]
    plain = worlds[2].run(count, make_job(layout={"dp_shard": 2}, tuning=PLAIN, num_steps=2))[0]
    block_bytes, table_bytes, num_microbatches = 147_968, 65_536, 4
    saved = counted(plain)["all_gather", 2] - counted(kept)["all_gather", 2]
    assert saved == (block_bytes - table_bytes) * num_microbatches


def test_zero_1_scatters_gradients_and_gathers_weights_once_a_step(worlds):
    """All of the model's 180,800 fp32 gradients and weights, however many micro-batches there are."""
    answer = worlds[2].run(count, make_job(layout={"dp_shard": 2, "zero_stage": 1}))[0]
    assert counted(answer) == {("all_gather", 2): 723_200, ("reduce_scatter", 2): 723_200}


def test_context_parallelism_keeps_what_it_gathered(worlds):
    """Keys and values of 32 tokens, 4 heads of 8, in 4 blocks and 8 micro-batches: gathered once, scattered once."""
    calls = dict(worlds[2].run(count, make_job(layout={"cp": 2}, tuning=PLAIN))[0])
    keys_and_values = 2 * 32 * 4 * 8 * 4
    assert calls[Counted(kind="all_gather", group_size=2, num_bytes=keys_and_values)] == 32
    assert calls[Counted(kind="reduce_scatter", group_size=2, num_bytes=keys_and_values)] == 32


def test_a_vocabulary_that_is_spread_moves_tokens_instead_of_matrices(worlds):
    """Of 32 tokens and labels a rank (int64), and of their 64 channels in fp32, per micro-batch; no row of a matrix."""
    calls = dict(worlds[2].run(count, make_job(layout={"dp_shard": 2}, num_steps=2))[0])
    num_microbatches, ids_bytes, hidden_bytes = 4, 2 * 32 * 8, 2 * 32 * 64 * 4
    assert calls[Counted(kind="all_gather", group_size=2, num_bytes=ids_bytes)] == 2 * num_microbatches
    assert calls[Counted(kind="all_gather", group_size=2, num_bytes=hidden_bytes)] == 2 * num_microbatches
    assert calls[Counted(kind="reduce_scatter", group_size=2, num_bytes=hidden_bytes)] == num_microbatches
    assert calls[Counted(kind="all_to_all", group_size=2, num_bytes=hidden_bytes)] == num_microbatches
    table_bytes = 256 * 64 * 4
    assert not [call for call in calls if call.num_bytes == table_bytes]
