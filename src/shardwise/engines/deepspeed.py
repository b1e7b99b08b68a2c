"""DeepSpeed."""

from dataclasses import replace

from shardwise.engines import fsdp1
from shardwise.engines.engine import Engine
from shardwise.engines.profile import GradientBucket, StateBytes
from shardwise.engines.torch_states import TORCH_STATES
from shardwise.recipe import Precision

STATES: dict[Precision, StateBytes] = {
    "fp32": TORCH_STATES["fp32"],
    **{
        precision: StateBytes(
            weight_bytes=2,
            gradient_bytes=2,
            master_bytes=4,
            moment_bytes=4,
            compute_bytes=2,
            reduce_bytes=2,
            step_gradient_bytes=4,
        )
        for precision in ("bf16-mixed", "fp16-mixed", "fp8-mixed", "bf16")
    },
}
"""DeepSpeed ``runtime/zero/stage_1_and_2.py``: 2-byte weights and gradients, fp32 master and moments, and an fp32 copy
of the local gradient partition while it steps."""

BF16_ACCUMULATED_STATES = StateBytes(
    weight_bytes=2, gradient_bytes=6, master_bytes=4, moment_bytes=4, compute_bytes=2, reduce_bytes=4
)
"""DeepSpeed ``runtime/bf16_optimizer.py``, which its pipeline engine uses for bf16 below ZeRO 2 (BLOOM's set-up):
2-byte gradients and whole fp32 accumulators beside. Without a pipeline ZeRO 1 keeps 2-byte gradients."""

PROFILE = replace(
    fsdp1.PROFILE,
    sharding="deepspeed",
    has_foreach_optimizer=False,
    has_persistent_gradients=True,
    ddp_copies_gradients=False,
    # runtime/zero/config.py counts elements, whatever their dtype.
    bucket=GradientBucket(num_elements=500_000_000, option="reduce_bucket_size and allgather_bucket_size"),
)

ENGINE = Engine(
    profile=PROFILE,
    states=STATES,
    pipelined_states={"bf16-mixed": BF16_ACCUMULATED_STATES, "bf16": BF16_ACCUMULATED_STATES},
    axes=frozenset(("tp", "cp", "pp", "ep")),
    zero_stages=frozenset((0, 1, 2, 3)),
    schedules=frozenset(("1f1b",)),
    offloads=frozenset(("none", "optimizer", "parameters", "nvme")),
    optimizers=frozenset(("adamw", "adamw-8bit", "sgd", "sgd-momentum", "adafactor", "lion", "muon")),
    precisions=frozenset(("fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed")),
    adapters=frozenset(("none", "lora", "qlora")),
    replicates_kv_heads=True,
    default_zero_stage=2,
    pipeline_zero_stage=1,
    host_zero_stage=3,
    has_sequence_parallel=False,
    foreign_vendors=frozenset(("Google",)),
    exchanges_heads=True,
    optimizer_offload_stage=1,
    has_overlap_switch=True,
    has_small_shards=True,
    # The Trainer's gradient_checkpointing wraps every block whole; PipelineModule, MoE and MiCS_Init stand in programs.
    recomputes=frozenset(("none", "full")),
    program_choices=frozenset(("recompute_layers", "sequence_parallel", "dp_replicate", "pp", "ep")),
    has_liger_kernels=True,
    precision_notes={
        "fp8-mixed": "precision=fp8-mixed: deepspeed keeps 16-bit weights and gradients; only matrix products have 8 "
        "bits"
    },
    source="deepspeedai/DeepSpeed@edaa722 runtime/pipe/engine.py, runtime/zero/config.py",
)
