"""Our own trainer, whose units, loss and norms ``step/native_engine.py`` and its neighbours know."""

from shardwise.engines.engine import Engine
from shardwise.engines.profile import EngineProfile, GradientBucket
from shardwise.engines.torch_states import TORCH_STATES
from shardwise.schedules.table import TORCH_SCHEDULES
from shardwise.units import MIB

PROFILE = EngineProfile(
    sharding="fsdp2",
    has_fused_norm=False,
    has_fused_activation=False,
    saves_gathered_input=True,
    selective_policy="operations",
    loss="torch",
    compiles_loss=True,
    has_foreach_optimizer=False,
    has_persistent_gradients=False,
    keeps_dummy_weight_gradients=False,
    ddp_copies_gradients=False,
    bucket=GradientBucket(num_bytes=25 * MIB, option="bucket_cap_mb"),
    has_torch_norm_kernel=True,
    row_kernels="gather",
)

ENGINE = Engine(
    profile=PROFILE,
    states=TORCH_STATES,
    axes=frozenset(("tp", "cp", "pp", "ep")),
    zero_stages=frozenset((0, 1, 2, 3)),
    schedules=TORCH_SCHEDULES,
    offloads=frozenset(("none", "optimizer", "parameters")),
    # train/activation_offload.py; two runs on one H200 waited for every copy (benchmarks/results/2026-11-29-h200-*).
    activation_copies="between",
    planned_offloads=frozenset(("nvme",)),
    optimizers=frozenset(("adamw", "adamw-8bit", "sgd", "sgd-momentum", "adafactor", "lion", "muon")),
    precisions=frozenset(("fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed")),
    adapters=frozenset(("none", "lora", "qlora")),
    default_zero_stage=3,
    has_sequence_parallel=True,
    replicates_kv_heads=True,
    keeps_experts_whole=True,
    foreign_vendors=frozenset(("Google", "Intel")),
    compiles=True,
    runs_torch_pipelines=True,
    optimizer_offload_stage=1,
    has_async_tensor_parallel=True,
    has_small_shards=True,
    has_prefetch_units=True,
    source="torch 2.13 distributed/pipelining/schedules.py, distributed/fsdp/_fully_shard",
)
