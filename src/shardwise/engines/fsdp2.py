"""A loop of one's own around torch: transformers' blocks, FSDP2, fused AdamW, DDP with bucket views."""

from dataclasses import replace

from shardwise.engines import native
from shardwise.engines.engine import Engine
from shardwise.engines.torch_states import TORCH_STATES
from shardwise.schedules.table import TORCH_SCHEDULES

PROFILE = replace(native.PROFILE, wraps_ends=False, row_kernels="fused")

ENGINE = Engine(
    profile=PROFILE,
    states=TORCH_STATES,
    axes=frozenset(("tp", "cp", "pp", "ep")),
    zero_stages=frozenset((0, 1, 3)),
    schedules=TORCH_SCHEDULES,
    offloads=frozenset(("none", "optimizer", "parameters")),
    optimizers=frozenset(("adamw", "adamw-8bit", "sgd", "sgd-momentum", "adafactor", "lion", "muon")),
    precisions=frozenset(("fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed")),
    adapters=frozenset(("none", "lora", "qlora")),
    default_zero_stage=3,
    foreign_vendors=frozenset(("Google",)),
    has_sequence_parallel=True,
    runs_torch_pipelines=True,
    has_optimizer_switch=True,
    has_liger_kernels=True,
    has_async_tensor_parallel=True,
    has_small_shards=True,
    has_prefetch_units=True,
    source="torch 2.13 distributed/pipelining/schedules.py, distributed/fsdp/_fully_shard",
)
