"""What each engine offers, as data, with the file each limit was read in.

Read at NVIDIA/Megatron-LM d98e8a6, pytorch/torchtitan b5bcd76, deepspeedai/DeepSpeed edaa722, huggingface/accelerate
16cb6eb (July and August 2026) and in torch 2.13; the rules that name a file mean these versions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from shardwise.layout import ZeroStage
from shardwise.optimizers import OptimizerName
from shardwise.plan import EngineName
from shardwise.recipe import Adapter, Offload, Precision
from shardwise.schedules.table import TORCH_SCHEDULES, Schedule

Axis = Literal["tp", "cp", "pp", "ep"]
ALL_OPTIMIZERS: frozenset[OptimizerName] = frozenset(get_args(OptimizerName))
ALL_PRECISIONS: frozenset[Precision] = frozenset(get_args(Precision))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOffer:
    """The choices one engine can run."""

    axes: frozenset[Axis]
    """Kinds of model parallelism."""
    zero_stages: frozenset[ZeroStage]
    schedules: frozenset[Schedule]
    forked_schedules: frozenset[Schedule] = frozenset()
    """Schedules that exist in a fork of the engine, not in its main branch."""
    offloads: frozenset[Offload]
    optimizers: frozenset[OptimizerName] = ALL_OPTIMIZERS
    precisions: frozenset[Precision] = ALL_PRECISIONS
    adapters: frozenset[Adapter] = frozenset(("none", "lora", "qlora"))
    replicates_kv_heads: bool = False
    """Whether tp may exceed the key-value heads, each then held by several ranks."""
    default_zero_stage: ZeroStage
    """What a plan file gets when it shards data-parallel ranks and names no stage."""
    has_sequence_parallel: bool
    """Whether tensor parallelism divides norms and residuals along the sequence by default."""
    compiles: bool = False
    """Whether a run that does not say compiles its blocks with torch.compile (torchtitan ``CompileConfig.enable``,
    Accelerate's dynamo plugin and DeepSpeed's ``compile`` are off; Megatron has none)."""
    source: str


_OFFERS: dict[EngineName, EngineOffer] = {
    "native": EngineOffer(
        axes=frozenset(("tp", "cp", "pp", "ep")),
        zero_stages=frozenset((0, 1, 2, 3)),
        schedules=TORCH_SCHEDULES,
        offloads=frozenset(("none", "optimizer", "parameters")),
        default_zero_stage=3,
        has_sequence_parallel=True,
        compiles=True,
        source="torch 2.13 distributed/pipelining/schedules.py, distributed/fsdp/_fully_shard",
    ),
    "torchtitan": EngineOffer(
        axes=frozenset(("tp", "cp", "pp", "ep")),
        zero_stages=frozenset((0, 2, 3)),
        schedules=TORCH_SCHEDULES,
        # One switch, training.enable_cpu_offload, moves parameters, gradients and optimizer states together.
        offloads=frozenset(("none", "parameters")),
        optimizers=frozenset(("adamw", "muon")),
        precisions=frozenset(("fp32", "bf16-mixed", "bf16", "fp8-mixed")),
        adapters=frozenset(("none", "lora")),
        default_zero_stage=3,
        has_sequence_parallel=True,
        source="pytorch/torchtitan@b5bcd76 config/configs.py, components/optimizer/optimizer.py, components/lora.py",
    ),
    "megatron": EngineOffer(
        axes=frozenset(("tp", "cp", "pp", "ep")),
        zero_stages=frozenset((0, 1, 2, 3)),
        schedules=frozenset(("1f1b", "interleaved")),
        forked_schedules=frozenset(("zb-h1", "zb-h2", "zbv")),
        offloads=frozenset(("none", "optimizer")),
        optimizers=frozenset(("adamw", "sgd", "sgd-momentum", "lion", "muon")),
        adapters=frozenset(("none", "lora")),
        replicates_kv_heads=True,
        default_zero_stage=1,
        has_sequence_parallel=True,
        source="NVIDIA/Megatron-LM@d98e8a6 training/arguments.py, core/pipeline_parallel/schedules.py",
    ),
    "deepspeed": EngineOffer(
        axes=frozenset(("tp", "cp", "pp", "ep")),
        zero_stages=frozenset((0, 1, 2, 3)),
        schedules=frozenset(("1f1b",)),
        offloads=frozenset(("none", "optimizer", "parameters", "nvme")),
        replicates_kv_heads=True,
        default_zero_stage=2,
        has_sequence_parallel=False,
        source="deepspeedai/DeepSpeed@edaa722 runtime/pipe/engine.py, runtime/zero/config.py",
    ),
    "fsdp2": EngineOffer(
        axes=frozenset(("tp", "cp", "pp", "ep")),
        zero_stages=frozenset((0, 1, 2, 3)),
        schedules=TORCH_SCHEDULES,
        offloads=frozenset(("none", "optimizer", "parameters")),
        default_zero_stage=3,
        has_sequence_parallel=True,
        source="torch 2.13 distributed/pipelining/schedules.py, distributed/fsdp/_fully_shard",
    ),
    "fsdp1": EngineOffer(
        axes=frozenset(),
        zero_stages=frozenset((0, 2, 3)),
        schedules=frozenset(),
        offloads=frozenset(("none", "parameters")),
        default_zero_stage=3,
        has_sequence_parallel=False,
        source="torch 2.13 distributed/fsdp/fully_sharded_data_parallel.py (ShardingStrategy, CPUOffload)",
    ),
    "accelerate": EngineOffer(
        axes=frozenset(("tp", "cp")),
        zero_stages=frozenset((0, 2, 3)),
        schedules=frozenset(),
        offloads=frozenset(("none", "parameters")),
        default_zero_stage=3,
        has_sequence_parallel=False,
        source="huggingface/accelerate@16cb6eb src/accelerate/parallelism_config.py",
    ),
    "hai-llm": EngineOffer(
        axes=frozenset(("tp", "pp", "ep")),
        zero_stages=frozenset((0, 1)),
        schedules=frozenset(("zb-h1", "dualpipe")),
        offloads=frozenset(("none",)),
        optimizers=frozenset(("adamw",)),
        precisions=frozenset(("bf16-mixed", "fp8-mixed")),
        adapters=frozenset(("none",)),
        default_zero_stage=1,
        has_sequence_parallel=False,
        source="DeepSeek-AI, arXiv:2405.04434, section 3.1.3 (zero-bubble pipeline, experts, ZeRO-1), and "
        "arXiv:2412.19437, sections 3.2 and 3.3 (DualPipe, fp8); the engine itself is not public",
    ),
}

OFFERS: Mapping[EngineName, EngineOffer] = MappingProxyType(_OFFERS)
