"""torch's first FSDP, which flattens the weights of a unit into one, under transformers' trainer."""

from dataclasses import replace

from shardwise.engines import accelerate
from shardwise.engines.engine import Engine
from shardwise.engines.torch_states import TORCH_STATES

# Its adapters widen whole blocks, which the memory counts by itself (``live_block_copies``).
PROFILE = replace(accelerate.PROFILE, sharding="fsdp1", saves_gathered_input=False, has_fp32_adapters=False)

ENGINE = Engine(
    profile=PROFILE,
    states=TORCH_STATES,
    axes=frozenset(),
    zero_stages=frozenset((0, 3)),
    schedules=frozenset(),
    offloads=frozenset(("none", "parameters")),
    # Its offload_wrapper is save_on_cpu, which copies on the stream that computes (pytorch/pytorch#106360, #175421).
    activation_copies="between",
    optimizers=frozenset(("adamw", "adamw-8bit", "sgd", "sgd-momentum", "adafactor", "lion", "muon")),
    precisions=frozenset(("fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed")),
    adapters=frozenset(("none", "lora", "qlora")),
    default_zero_stage=3,
    foreign_vendors=frozenset(("Google",)),
    has_sequence_parallel=False,
    has_optimizer_switch=True,
    has_liger_kernels=True,
    source="torch 2.13 distributed/fsdp/fully_sharded_data_parallel.py (ShardingStrategy, CPUOffload)",
)
