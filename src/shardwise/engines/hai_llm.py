"""DeepSeek's own engine, of which reports alone are public (arXiv:2412.19437, section 3).

Where they say nothing, Megatron's kernels and buffers stand for its own: both divide the optimizer, keep 8-bit inputs
and recompute by module.
"""

from dataclasses import replace

from shardwise.engines import megatron
from shardwise.engines.engine import Engine

ENGINE = Engine(
    profile=replace(
        megatron.PROFILE,
        block_calls=(0, 0),
        issues_experts_in_8_bits=False,
        keeps_activation_inputs_in_8_bits=True,
        scales_tiles=True,
    ),
    # Section 3.3.3: of fp8 training, AdamW's moments are in bf16 and inputs of SwiGLU in fp8; masters and accumulated
    # gradients stay in fp32.
    states={**megatron.STATES, "fp8-mixed": replace(megatron.STATES["fp8-mixed"], moment_bytes=2)},
    axes=frozenset(("tp", "pp", "ep")),
    zero_stages=frozenset((0, 1)),
    schedules=frozenset(("zb-h1", "dualpipe")),
    offloads=frozenset(("none",)),
    activation_copies="none",
    optimizers=frozenset(("adamw",)),
    precisions=frozenset(("bf16-mixed", "fp8-mixed")),
    adapters=frozenset(("none",)),
    default_zero_stage=1,
    has_sequence_parallel=False,
    foreign_vendors=frozenset(("AMD", "Google", "Intel")),
    is_public=False,
    has_expert_tp=True,
    has_deepep=True,
    # Sections 3.2.3 and 3.3.3.
    recomputes_modules=True,
    narrow_moments=frozenset(("adamw",)),
    assumptions=("hai-llm is not public: Megatron's kernels, buffers and dtypes stand for its own",),
    source="DeepSeek-AI, arXiv:2405.04434, section 3.1.3 (zero-bubble pipeline, experts, ZeRO-1), and "
    "arXiv:2412.19437, sections 3.2 and 3.3 (DualPipe, fp8); the engine itself is not public",
)
