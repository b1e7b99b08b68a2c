"""Updates under the next forward pass give bit for bit what updating everything at once gives."""

import pytest

from shardwise.train.job import Tuning
from train.models import MIXTRAL, make_job
from train.world_member import run

LATE, AT_ONCE = Tuning(updates_under_forward=True), Tuning(updates_under_forward=False)
CASES = {
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}, {}),
    "zero 1": (2, {"dp_shard": 2, "zero_stage": 1}, {}),
    "zero 2": (2, {"dp_shard": 2, "zero_stage": 2}, {}),
    "fsdp": (2, {"dp_shard": 2}, {}),
    "fsdp that gathers two ahead": (2, {"dp_shard": 2, "prefetch_units": 2}, {}),
    "fsdp that gathers nothing ahead": (2, {"dp_shard": 2, "prefetch_units": 0}, {}),
    "spread and exchanged": (
        2,
        {"dp_shard": 2, "spread_vocabulary": True, "exchange_gradients": True},
        {"precision": "bf16-mixed"},
    ),
    "tp": (2, {"tp": 2, "sequence_parallel": True}, {}),
    "pipeline": (2, {"pp": 2}, {"chunk_layers": (2, 2)}),
    "interleaved": (2, {"pp": 2, "vpp": 2, "schedule": "interleaved"}, {"chunk_layers": (1, 1, 1, 1)}),
    "zbv": (2, {"pp": 2, "schedule": "zbv"}, {"chunk_layers": (1, 1, 1, 1)}),
    "zbv under fsdp": (
        2,
        {"pp": 2, "schedule": "zbv"},
        {"chunk_layers": (1, 1, 1, 1), "precision": "bf16-mixed"},
    ),
    "replicated, cast": (2, {"dp_shard": 2, "zero_stage": 0}, {"precision": "bf16-mixed"}),
    "experts": (2, {"dp_shard": 2, "ep": 2}, {"model": MIXTRAL}),
    "full recomputation": (2, {"dp_shard": 2}, {"recompute": "full"}),
    "lora": (2, {"dp_shard": 2}, {"adapter": "lora", "lora_targets": "all-linear"}),
    "fp16": (2, {"dp_shard": 2}, {"precision": "fp16-mixed"}),
    "sgd": (2, {"dp_shard": 2}, {"optimizer": "sgd-momentum"}),
    "lion": (2, {"dp_shard": 2}, {"optimizer": "lion"}),
    "adamw-8bit": (2, {"dp_shard": 2}, {"optimizer": "adamw-8bit"}),
    "adafactor": (2, {"dp_shard": 2}, {"optimizer": "adafactor"}),
}


@pytest.mark.parametrize("name", CASES)
def test_late_updates_give_the_same_curve_bit_for_bit(worlds, name):
    size, layout, choices = CASES[name]
    curves = [
        worlds[size].run(run, make_job(layout=layout, num_steps=4, tuning=tuning, **choices))
        for tuning in (LATE, AT_ONCE)
    ]
    assert curves[0] == curves[1]
