"""When our trainer spreads the vocabulary and exchanges gradients by itself, and what that makes of the inventory."""

from dataclasses import replace

import pytest

from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.step.collectives import stage_collectives
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.native_engine import exchanges_gradients, spreads_vocabulary
from shardwise.step.operation_context import operation_context
from shardwise.step.stage_context import StageContext
from shardwise.step.stage_inventory import stage_inventory
from shardwise.step.step_operations import optimizer_operations
from shardwise.step.token_collectives import is_for_tokens


def planned(*, model="llama-3.1-8b", cluster="8xh100-sxm", engine="native", layout=None, **recipe) -> Plan:
    return read_plan(
        {
            "model": model,
            "cluster": cluster,
            "recipe": {"seq_len": 4096, **recipe},
            "layout": layout or {"dp_shard": 8},
            "engine": engine,
        }
    )


@pytest.mark.parametrize(
    ("plan", "spreads", "exchanges"),
    [
        (planned(), True, True),
        (planned(micro_batch_size=4), False, True),  # 131,072 tokens and 128,256 rows
        (planned(precision="fp32"), True, False),
        (planned(adapter="lora"), False, False),
        (planned(model="llama-3.2-1b"), False, True),  # tied
        (planned(engine="torchtitan"), False, False),
        (planned(cluster="16xh100-sxm", layout={"dp_shard": 16}), False, False),
        (planned(layout={"dp_shard": 4, "tp": 2}), False, True),
        (planned(cluster="16xh100-sxm", layout={"dp_shard": 4, "tp": 4}), False, False),  # four ranks on two servers
        (planned(layout={"dp_shard": 8, "zero_stage": 1}), False, False),
        (planned(layout={"dp_shard": 8, "defer_grad_reduce": True}), True, False),
        (planned(layout={"dp_shard": 8, "spread_vocabulary": False, "exchange_gradients": False}), False, False),
        (planned(micro_batch_size=4, layout={"dp_shard": 8, "spread_vocabulary": True}), True, True),
    ],
)
def test_it_does_so_where_it_is_no_slower_or_where_it_is_asked_to(plan, spreads, exchanges):
    assert spreads_vocabulary(plan) is spreads
    assert exchanges_gradients(plan) is exchanges


def test_tokens_of_all_ranks_travel_four_times_and_their_ids_twice():
    """8 ranks of 4,096 tokens with 4,096 channels of 2 bytes, ids and labels of 8, three fp32 sums."""
    plan = planned()
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    calls = [c for c in stage_collectives(StageContext(plan=plan, stage=stage)) if is_for_tokens(c)]
    tokens = 8 * 4096
    assert sum(c.num_bytes * c.count for c in calls) == tokens * (4 * 4096 * 2 + 2 * 8 + 3 * 4)
    assert not any(c.is_overlappable for c in calls)


def test_nothing_of_the_vocabulary_is_gathered_and_gradients_take_half_the_bytes():
    plan = planned()
    plain = replace(plan, layout=replace(plan.layout, spread_vocabulary=False, exchange_gradients=False))
    moved = {}
    for one in (plan, plain):
        (stage,) = pipeline_stages(model=one.model, layout=one.layout)
        calls = stage_collectives(StageContext(plan=one, stage=stage))
        blocks = [c for c in calls if "blocks" in c.name and c.phase == "backward" and c.kind != "all_gather"]
        moved[one is plan] = sum(c.num_bytes * c.count for c in blocks)
        largest_gather = max(c.num_bytes for c in calls if c.kind == "all_gather")
        table_bytes = 128_256 * 4096 * 2
        assert (largest_gather < table_bytes) is (one is plan)
    assert 2 * moved[True] == moved[False]


def test_what_is_done_by_itself_is_predicted_to_take_less_time_and_memory():
    plan = planned(recompute="full")
    plain = replace(plan, layout=replace(plan.layout, spread_vocabulary=False, exchange_gradients=False))
    fast, slow = predict(plan), predict(plain)
    assert fast.time.step_s < slow.time.step_s
    assert fast.memory.worst.peak_allocated_bytes < slow.memory.worst.peak_allocated_bytes


@pytest.mark.parametrize(("schedule", "batch", "late"), [("1f1b", 4, 1), ("1f1b", 8, 0), ("gpipe", 8, 4)])
def test_stages_whose_forward_passes_all_come_first_meet_no_gradients_in_them(schedule, batch, late):
    plan = planned(cluster="4xh100-sxm", layout={"pp": 4, "schedule": schedule}, global_batch_size=batch)
    with_none = 0
    for stage in pipeline_stages(model=plan.model, layout=plan.layout):
        inventory = stage_inventory(plan, stage)
        held = [t for t in inventory.tensors if t.component == "gradients" and t.first_use <= 1 <= t.last_use]
        names = [moment.name for moment in inventory.moments]
        assert (not held) == ("end of the first micro-batch's backward" in names)
        with_none += not held
    assert with_none == late


def test_the_last_stage_of_gpipe_keeps_what_the_losses_of_all_micro_batches_made():
    """128,256 x 4,096 bf16 gradients of the head, made with each of eight losses."""
    plan = planned(cluster="4xh100-sxm", layout={"pp": 4, "schedule": "gpipe"}, global_batch_size=8)
    inventory = stage_inventory(plan, pipeline_stages(model=plan.model, layout=plan.layout)[-1])
    made = [tensor.num_bytes for tensor in inventory.tensors if tensor.name.startswith("gradient of the head of other")]
    assert made == [7 * 128_256 * 4_096 * 2]


@pytest.mark.parametrize(("ranks", "traced_gib"), [(1, 14.58), (8, 2.33)])
def test_eight_bit_moments_become_numbers_a_piece_at_a_time(ranks, traced_gib):
    """16,777,216 elements of 33 bytes each, beside 10 bytes of states for each of 1.5B: `shardwise trace`, torch 2.13.

    Whole matrices, as before, were traced at 24.48 and 3.12 GiB.
    """
    model = {
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": 128256,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
    }
    plan = planned(
        model=model,
        cluster=f"{ranks}xh100-sxm",
        layout={"dp_shard": ranks},
        compile=False,
        optimizer="adamw-8bit",
        recompute="full",
    )
    phases = {phase.phase: phase.allocated_bytes for phase in predict(plan).memory.worst.phases}
    assert phases["optimizer"] / 2**30 == pytest.approx(traced_gib, rel=0.003)


def updates_of(plan) -> dict[str, int]:
    stage = pipeline_stages(model=plan.model, layout=plan.layout)[0]
    context = StageContext(plan=plan, stage=stage)
    found = optimizer_operations(context, operation_context(context))
    return {operation.name: operation.num_bytes for operation in found}


def test_an_update_reads_every_number_once_and_the_norm_the_gradients_before():
    """8,030,261,248 parameters over 8 ranks: 28 bytes each, and 4 for the norm."""
    elements = 8_030_261_248 // 8
    assert updates_of(planned()) == {"gradient norm": 4 * elements, "update": 28 * elements}


@pytest.mark.parametrize(
    ("plan", "is_a_pass"),
    [
        (planned(layout={"dp_shard": 4, "pp": 2}), False),
        (planned(layout={"dp_shard": 8, "zero_stage": 0}, precision="bf16"), False),
        (planned(model="gpt2", seq_len=1024), False),
        (planned(optimizer="lion"), True),
        (planned(cluster="8xcpu"), True),
        (planned(engine="torchtitan"), True),
    ],
)
def test_clipping_is_no_pass_of_its_own_where_our_kernel_updates(plan, is_a_pass):
    assert ("gradient clipping" in updates_of(plan)) is is_a_pass
