"""``convention=seed`` gives every figure of the scaling lesson through the ordinary prediction."""

import pytest

from shardwise.plan_file import read_plan
from shardwise.predict.memory import predict_memory

GB = 1e9


def seed_plan(model, gpus, *, zero_stage, **recipe):
    sharded = zero_stage > 0
    return read_plan(
        {
            "model": model,
            "cluster": {"gpu": "a100-sxm-80", "gpus_per_node": min(gpus, 8), "num_nodes": max(1, gpus // 8)},
            "recipe": {"seq_len": 2048, "convention": "seed", **recipe},
            "layout": {
                "dp_shard": gpus if sharded else 1,
                "dp_replicate": 1 if sharded else gpus,
                "zero_stage": zero_stage,
            },
        }
    )


@pytest.mark.parametrize(
    ("size", "gpus", "zero_stage", "per_gpu_gb", "fits"),
    [
        ("7B", 1, 0, 91.0, False),
        ("7B", 8, 3, 17.5, True),
        ("70B", 1, 0, 910.0, False),
        ("70B", 8, 3, 175.0, False),
        ("70B", 16, 3, 122.5, False),
        ("405B", 64, 3, 480.9, False),
        ("405B", 128, 3, 443.0, False),
    ],
)
def test_the_calculator_table_is_reproduced(size, gpus, zero_stage, per_gpu_gb, fits):
    memory = predict_memory(seed_plan(size, gpus, zero_stage=zero_stage))
    assert memory.worst.device_used_bytes / GB == pytest.approx(per_gpu_gb, abs=0.05)
    assert memory.capacity_bytes == 80_000_000_000
    assert memory.fits_device is fits


@pytest.mark.parametrize(
    ("size", "weights_gb", "adam_gb", "gradients_gb"),
    [("124M", 0.248, 0.992, 0.248), ("8B", 16, 64, 16), ("70B", 140, 560, 140), ("405B", 810, 3240, 810)],
)
def test_the_memory_table_is_reproduced(size, weights_gb, adam_gb, gradients_gb):
    stage = predict_memory(seed_plan(size, 1, zero_stage=0)).worst
    found = [stage.component_bytes(name) / GB for name in ("parameters", "optimizer", "gradients")]
    assert found == pytest.approx([weights_gb, adam_gb, gradients_gb], rel=1e-6)


def test_full_precision_of_seven_billion_is_112_gb():
    stage = predict_memory(seed_plan("7B", 1, zero_stage=0, precision="fp32")).worst
    states = sum(stage.component_bytes(name) for name in ("parameters", "optimizer", "gradients"))
    assert states / GB == pytest.approx(112)


def test_offloading_adam_leaves_70_gb_on_each_of_four_gpus_and_560_on_the_host():
    """Exercise 5 with the lesson's own convention; 512 GB of host memory do not hold it."""
    memory = predict_memory(seed_plan("70B", 4, zero_stage=3, offload="optimizer"))
    stage = memory.worst
    assert sum(stage.component_bytes(name) for name in ("parameters", "gradients")) / GB == pytest.approx(70)
    assert stage.component_bytes("optimizer") == 0
    assert memory.host_bytes_per_node / GB == pytest.approx(560)


def test_a_model_with_a_shape_keeps_four_tensors_a_layer():
    """2,048 tokens, width 4,096: 67.1 MB a layer and 2.15 GB for 32 layers of one sample."""
    stage = predict_memory(seed_plan("llama-2-7b", 1, zero_stage=0)).worst
    assert stage.component_bytes("activations") == 32 * 67_108_864


@pytest.mark.parametrize(
    ("recompute", "activations_gb"),
    [
        ({"recompute": "none"}, 70.0),
        ({"recompute": "full"}, 17.5),
        ({"recompute": "full", "recompute_layers": 40}, 43.75),
    ],
)
def test_recomputed_layers_keep_their_input_alone_as_the_exercise_counts(recompute, activations_gb):
    """One of four tensors a layer; what is recomputed is charged in the step's time as well."""
    memory = predict_memory(seed_plan("70B", 64, zero_stage=3, **recompute))
    assert memory.worst.component_bytes("activations") / GB == pytest.approx(activations_gb)
