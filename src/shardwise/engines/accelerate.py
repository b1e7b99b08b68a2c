"""Hugging Face Accelerate over FSDP2."""

from dataclasses import replace

from shardwise.engines import fsdp2
from shardwise.engines.engine import Engine
from shardwise.engines.torch_states import TORCH_STATES

PROFILE = replace(
    fsdp2.PROFILE,
    selective_policy="core_attention",
    loss="huggingface",
    row_kernels="transformers",
    compiles_loss=False,
    has_foreach_optimizer=True,
    ddp_copies_gradients=True,
    has_torch_norm_kernel=False,
    has_fp32_adapters=True,
)

UNIT_STATES = {
    precision: replace(states, reduce_bytes=states.compute_bytes) for precision, states in TORCH_STATES.items()
}
"""FSDP reduces gradients in the dtype that it computes in:
``FullyShardedDataParallelPlugin.set_mixed_precision`` has one for
parameters and reduction (accelerate ``utils/dataclasses.py``). A plugin with a policy of its own says ``reduce_dtype``.
"""

ENGINE = Engine(
    profile=PROFILE,
    states=TORCH_STATES,
    unit_states=UNIT_STATES,
    axes=frozenset(("tp", "cp")),
    zero_stages=frozenset((0, 3)),
    schedules=frozenset(),
    offloads=frozenset(("none", "parameters")),
    optimizers=frozenset(("adamw", "adamw-8bit", "sgd", "sgd-momentum", "adafactor", "lion", "muon")),
    precisions=frozenset(("fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed")),
    adapters=frozenset(("none", "lora", "qlora")),
    default_zero_stage=3,
    has_sequence_parallel=False,
    has_optimizer_switch=True,
    # gradient_checkpointing and fsdp_activation_checkpointing wrap every block whole.
    recomputes=frozenset(("none", "full")),
    program_choices=frozenset(("recompute_layers", "sequence_parallel")),
    has_liger_kernels=True,
    source="huggingface/accelerate@16cb6eb src/accelerate/parallelism_config.py",
)
