"""torchtitan."""

from dataclasses import replace

from shardwise.attention_kernels import SINCE_AMPERE
from shardwise.engines import fsdp2
from shardwise.engines.engine import Engine
from shardwise.engines.torch_states import TORCH_STATES
from shardwise.schedules.table import TORCH_SCHEDULES

PROFILE = replace(
    fsdp2.PROFILE,
    has_torch_norm_kernel=False,
    partial_recompute="every",
    cudnn_attention_archs=SINCE_AMPERE,
    wraps_ends=True,
    row_kernels="index_put",
    gathers_sequences_in_8_bits=True,
)
"""``selective_ac_option`` recomputes every n-th block (``distributed/activation_checkpoint.py``, its counter starts at
1). AdamW is fused since pytorch/torchtitan@6e49885 (2025-02-24), and ``compile`` also compiles the loss since bbb1b61
(2025-04-02, ``components/loss.py``). It asks torch for cuDNN's attention first since 6a3a9da (2025-10-09,
``models/attention.py``), on B200 since 3b85aa3 (2025-05-14). ``tok_embeddings`` and ``[norm, output]`` are units of
their own since 83e6941 (2025-07-28, ``models/llama3/infra/parallelize.py``, ``apply_fsdp``), unless one table is both.
Tensor-wise 8-bit products cast before the all-gather of sequence
parallelism (``Float8ColwiseParallel``, ``Float8RowwiseParallel`` of torchao ``float8/float8_tensor_parallel.py``).
A recipe of what came before says ``fused_optimizer``, ``fused_loss`` and ``wrap_ends`` false and ``attention_kernel``
fa2; until ff0829c (2026-01-27) ``repeat_kv_heads``, too."""

ENGINE = Engine(
    profile=PROFILE,
    states=TORCH_STATES,
    axes=frozenset(("tp", "cp", "pp", "ep")),
    zero_stages=frozenset((0, 3)),
    schedules=TORCH_SCHEDULES,
    # One switch, training.enable_cpu_offload, moves parameters, gradients and optimizer states together.
    offloads=frozenset(("none", "parameters")),
    # Asked for in pytorch/torchtitan#2379 (open); #467 and #2375 were closed unmerged, #3064 is the graph trainer's.
    activation_copies="none",
    optimizers=frozenset(("adamw", "muon")),
    precisions=frozenset(("fp32", "bf16-mixed", "bf16", "fp8-mixed")),
    adapters=frozenset(("none", "lora")),
    default_zero_stage=3,
    foreign_vendors=frozenset(("Google",)),
    has_sequence_parallel=True,
    runs_torch_pipelines=True,
    refuses_one_chunk=True,
    names_replicas=True,
    has_optimizer_switch=True,
    has_async_tensor_parallel=True,
    has_deepep=True,
    # FullAC and SelectiveAC wrap every block alike (distributed/activation_checkpoint.py).
    program_choices=frozenset(("recompute_layers",)),
    source="pytorch/torchtitan@b5bcd76 config/configs.py, components/optimizer/optimizer.py, components/lora.py",
)
