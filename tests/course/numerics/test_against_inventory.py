"""Every simulated rank sends and holds what the inventory predicts for the same plan, to the byte."""

from collections import Counter

import pytest

from shapes import plan
from shardwise.course.numerics.against_inventory import differences, held_rows, traffic_rows, unequal
from shardwise.course.numerics.batch import random_batch
from shardwise.course.numerics.reenact import reenact
from shardwise.course.numerics.tiny_model import initial_weights, tiny_model
from shardwise.layout import Layout

DENSE = [
    ("fsdp2", {"zero_stage": 0, "dp_shard": 4}, 1),
    ("fsdp2", {"zero_stage": 0, "dp_shard": 2, "dp_replicate": 2}, 2),
    ("fsdp2", {"zero_stage": 1, "dp_shard": 2, "dp_replicate": 2}, 2),
    ("megatron", {"zero_stage": 1, "dp_shard": 2, "dp_replicate": 2}, 2),
    ("deepspeed", {"zero_stage": 1, "dp_shard": 4}, 2),
    ("megatron", {"zero_stage": 2, "dp_shard": 4}, 2),
    ("deepspeed", {"zero_stage": 2, "dp_shard": 2, "dp_replicate": 2}, 3),
    ("fsdp2", {"zero_stage": 3, "dp_shard": 4}, 2),
    ("fsdp2", {"zero_stage": 3, "dp_shard": 4, "reshard_after_forward": False}, 2),
    ("fsdp2", {"zero_stage": 3, "dp_shard": 2, "dp_replicate": 2}, 2),
    ("fsdp2", {"zero_stage": 3, "dp_shard": 4, "defer_grad_reduce": True}, 3),
    ("fsdp2", {"zero_stage": 0, "dp_shard": 4, "defer_grad_reduce": False}, 3),
    ("fsdp1", {"zero_stage": 3, "dp_shard": 4}, 2),
    ("deepspeed", {"zero_stage": 3, "dp_shard": 4}, 2),
    ("fsdp2", {"zero_stage": 1, "tp": 2, "dp_shard": 2}, 2),
    ("fsdp2", {"zero_stage": 1, "tp": 2, "dp_shard": 2, "sequence_parallel": True}, 2),
    ("fsdp2", {"zero_stage": 3, "tp": 2, "dp_shard": 2, "sequence_parallel": True}, 1),
    ("megatron", {"zero_stage": 1, "tp": 2, "dp_shard": 2, "sequence_parallel": True}, 2),
    ("megatron", {"zero_stage": 1, "tp": 4}, 1),
    ("megatron", {"zero_stage": 1, "tp": 4, "sequence_parallel": True}, 2),
    ("fsdp2", {"zero_stage": 3, "cp": 2, "dp_shard": 2}, 1),
    ("fsdp2", {"zero_stage": 3, "cp": 2, "tp": 2, "dp_shard": 2}, 1),
    ("megatron", {"zero_stage": 1, "cp": 4}, 2),
    ("megatron", {"zero_stage": 1, "cp": 2, "tp": 2, "sequence_parallel": True}, 2),
    ("torchtitan", {"zero_stage": 3, "pp": 2, "schedule": "gpipe", "dp_shard": 2}, 4),
    ("torchtitan", {"zero_stage": 3, "pp": 2, "schedule": "1f1b", "dp_shard": 2}, 4),
    ("torchtitan", {"zero_stage": 3, "pp": 2, "vpp": 2, "schedule": "interleaved", "dp_shard": 2}, 4),
    ("megatron", {"zero_stage": 1, "pp": 2, "tp": 2, "dp_shard": 2, "sequence_parallel": True}, 4),
    ("megatron", {"zero_stage": 1, "pp": 2, "vpp": 2, "schedule": "interleaved", "tp": 2}, 4),
    ("megatron", {"zero_stage": 1, "pp": 4, "schedule": "zb-h1"}, 8),
    ("megatron", {"zero_stage": 1, "pp": 2, "schedule": "zb-h2", "cp": 2}, 4),
    ("megatron", {"zero_stage": 1, "pp": 2, "schedule": "zbv"}, 4),
]
EXPERTS = [
    ("fsdp2", {"zero_stage": 0, "dp_shard": 4, "ep": 2}, 1),
    ("fsdp2", {"zero_stage": 3, "dp_shard": 4, "ep": 2}, 2),
    ("megatron", {"zero_stage": 1, "dp_shard": 4, "ep": 4}, 2),
    ("megatron", {"zero_stage": 1, "dp_shard": 2, "tp": 2, "sequence_parallel": True, "ep": 4, "dp_replicate": 2}, 1),
]


def enacted(engine, layout, num_microbatches, model):
    made = plan(
        model,
        engine=engine,
        layout=layout,
        seq_len=16,
        micro_batch_size=2,
        global_batch_size=2 * num_microbatches * layout.data_parallel_size,
        precision="fp32",
        routing_imbalance_ratio=1.0 if layout.ep > 1 else None,
    )
    batch = random_batch(num_sequences=made.global_batch_size, seq_len=16, vocab_size=model.vocab_size)
    return reenact(made, initial_weights(model, dtype="float32"), [batch])


@pytest.mark.parametrize(("engine", "layout", "num_microbatches"), DENSE)
def test_every_rank_sends_and_holds_what_is_predicted(engine, layout, num_microbatches):
    run = enacted(engine, Layout(**layout), num_microbatches, tiny_model(num_hidden_layers=4))
    rows = traffic_rows(run)
    assert len(rows) >= len(run.ranks)
    assert unequal(rows) == ()
    assert unequal(held_rows(run)) == ()


@pytest.mark.parametrize(("engine", "layout", "num_microbatches"), DENSE)
def test_sent_bytes_are_the_payload_times_the_factor_of_a_ring(engine, layout, num_microbatches):
    """Over all ranks to the byte; scalars, and payloads that ranks do not divide, are cut unevenly between them."""
    sent, predicted = Counter(), Counter()
    for row in traffic_rows(enacted(engine, Layout(**layout), num_microbatches, tiny_model(num_hidden_layers=4))):
        if row.kind != "broadcast":
            sent[row.axis, row.kind] += row.sent_bytes
            predicted[row.axis, row.kind] += row.predicted_sent_bytes
    assert dict(sent) == pytest.approx(dict(predicted), rel=1e-12)


@pytest.mark.parametrize(("engine", "layout", "num_microbatches"), EXPERTS)
def test_experts_send_and_hold_together_what_is_predicted(engine, layout, num_microbatches):
    """How many tokens an expert gets is up to the router: only the sum over ranks is predicted."""
    run = enacted(engine, Layout(**layout), num_microbatches, tiny_model(num_experts=4))
    rows = traffic_rows(run)
    assert unequal(row for row in rows if row.axis != "ep") == ()
    routed = [row for row in rows if row.axis == "ep"]
    assert sum(row.payload_bytes for row in routed) == sum(row.predicted_payload_bytes for row in routed)
    held = held_rows(run)
    assert unequal(row for row in held if row.component != "activations") == ()


def test_experts_hold_activations_for_the_copies_they_receive():
    run = enacted("fsdp2", Layout(zero_stage=0, dp_shard=4, ep=2), 1, tiny_model(num_experts=4, num_hidden_layers=1))
    kept = [row for row in held_rows(run) if row.component == "activations"]
    assert sum(row.held_bytes for row in kept) == sum(row.predicted_bytes for row in kept)
    assert len({row.held_bytes for row in kept}) > 1


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ("fsdp2", {"zero_stage": 3, "dp_shard": 3}),
        ("fsdp2", {"zero_stage": 3, "dp_shard": 5}),
        ("deepspeed", {"zero_stage": 3, "dp_shard": 3}),
    ],
)
def test_where_ranks_cannot_divide_evenly_the_worst_is_predicted(engine, layout):
    run = enacted(engine, Layout(**layout), 1, tiny_model())
    assert set(differences(run)) == {0}
    assert unequal(held_rows(run)) != ()


def test_a_rank_that_sends_something_else_is_found():
    run = enacted("fsdp2", Layout(zero_stage=3, dp_shard=4), 1, tiny_model())
    left_out = run.ranks[0].messages.pop()
    assert left_out.name == "gradient norm"
    (row,) = unequal(traffic_rows(run))
    assert (row.rank, row.axis, row.kind, row.payload_bytes, row.predicted_payload_bytes) == (
        0,
        "dp_shard",
        "all_reduce",
        0,
        4,
    )
