"""What of a block runs again in backward, by engine and by what ends the block."""

import pytest

from shardwise.families import read_model
from shardwise.step.recomputed_operations import unread_product
from step.test_operations import flop, plan_of

DOWN = 32 * 2 * 8192 * 14336 * 4096
"""FLOP of the last products of all blocks, forward."""


@pytest.mark.parametrize(
    ("settings", "unrepeated"),
    [
        ({"compile": True}, DOWN),
        ({"compile": False}, DOWN),
        ({"compile": True, "adapter": "lora"}, DOWN),
        ({"compile": False, "adapter": "lora"}, 0),
        ({"compile": False, "precision": "fp8-mixed"}, 0),
        ({"engine": "torchtitan"}, DOWN),
        ({"engine": "megatron"}, 0),
        ({"engine": "deepspeed"}, 0),
    ],
    ids=str,
)
def test_full_recompute_repeats_the_blocks_forward_up_to_what_backward_reads(settings, unrepeated):
    """torch's checkpointing stops before a last plain product; reentrant functions run all of it."""
    none, full = plan_of(**settings), plan_of(recompute="full", **settings)
    adapters = flop(none, "forward") - flop(plan_of(**settings | {"adapter": "none"}), "forward")
    head = 2 * 8192 * 4096 * 128256
    assert adapters == 0 or settings.get("adapter") == "lora"
    assert flop(full, "recompute") == pytest.approx(flop(none, "forward") - head - unrepeated, rel=1e-12)
    assert flop(none, "recompute") == 0


@pytest.mark.parametrize(
    ("name", "unread"),
    [
        ("llama-3.1-8b", "mlp.down_proj"),
        ("gpt2-xl", "mlp.c_proj"),
        ("olmo-2-7b", ""),
        ("mixtral-8x7b", ""),
        ("bert-base", ""),
        ("bart-large", ""),
        ("opt-350m", ""),
        ("opt-1.3b", "fc2"),
        ("t5-base", "layer.1.DenseReluDense.wo"),
    ],
)
def test_a_norm_and_router_weights_read_what_ends_a_block(name, unread):
    """BERT, BART and OPT-350M norm the sum with it, and their last product was left out of what is recomputed."""
    assert unread_product(read_model(name).layers[0]) == unread
