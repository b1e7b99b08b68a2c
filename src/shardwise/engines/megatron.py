"""Megatron-LM, with Transformer Engine and its distributed optimizer."""

from shardwise.engines.engine import Engine
from shardwise.engines.profile import EngineProfile, GradientBucket, StateBytes
from shardwise.engines.torch_states import TORCH_STATES
from shardwise.recipe import Precision

STATES: dict[Precision, StateBytes] = {
    "fp32": TORCH_STATES["fp32"],
    "bf16-mixed": StateBytes(
        weight_bytes=2, gradient_bytes=4, master_bytes=4, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
    "fp16-mixed": StateBytes(
        weight_bytes=2,
        gradient_bytes=2,
        master_bytes=4,
        moment_bytes=4,
        compute_bytes=2,
        reduce_bytes=2,
        step_gradient_bytes=4,
    ),
    "fp8-mixed": StateBytes(
        weight_bytes=2, gradient_bytes=4, master_bytes=4, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
    "bf16": StateBytes(
        weight_bytes=2, gradient_bytes=4, master_bytes=4, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
}
"""Megatron-LM ``docs/user-guide/features/dist_optimizer.md``: 18 bytes, or 6 + 12/d with the distributed optimizer
(fp16: 20, or 4 + 16/d). It has no bf16 mode without fp32 master weights, so ``bf16`` means ``bf16-mixed`` there."""

BLOCK_CALLS = (41, 12)
"""Blocks too small to keep a device busy take 3.8 ms on the hosts of H100, whatever is divided, and 2.2 more where
their forward is run again. Fitted on three of Megatron-LM's own nightly runs on 8 H100: 12 layers of 512 and one
micro-batch of 4 x 1,024 tokens (50 ms a step), the same with full recomputation (76 ms), and tp 4 with four of them
(195 ms); NVIDIA/Megatron-LM@d98e8a6 ``tests/functional_tests/test_cases/gpt``, 2026-08. Most of it is Python: one
linear module of Transformer Engine keeps a host 2.7 times as long as torch's (NVIDIA/TransformerEngine#2053,
2025-08)."""

PROFILE = EngineProfile(
    sharding="megatron",
    has_fused_norm=True,
    has_fused_activation=True,
    saves_gathered_input=False,
    selective_policy="core_attention",
    loss="vocab_parallel_fused",
    compiles_loss=False,
    has_foreach_optimizer=False,
    has_persistent_gradients=True,
    keeps_dummy_weight_gradients=True,
    ddp_copies_gradients=False,
    bucket=GradientBucket(),
    has_in_switch_reduction=False,
    has_transformer_engine=True,
    block_calls=BLOCK_CALLS,
    keeps_expert_outputs=False,
    partial_recompute="first of chunk",
    expert_exchange="deepep",
    # NVIDIA/TransformerEngine@v2.9 pytorch/csrc/extensions/cast.cpp (split_quantize) and common/gemm/cublaslt_gemm.cu
    # (multi_stream_cublas_gemm) loop over experts. Eight narrow products of 128 x 2,048 x 2,048 take 0.267 ms so, 33 us
    # each, and 0.069 in one kernel (TransformerEngine pull 3134, 2026-06): as long as a kernel that Python issues. A
    # cast makes three tensors at 5 us (pull 865, 2024-05) and launches four kernels. 16 bits are not published.
    issues_experts_in_8_bits=True,
    # Transformer Engine prefers cuDNN from Hopper on and flash-attn before; below compute capability 8.0 and in fp32 it
    # has neither (NVIDIA/TransformerEngine@002a3e5 dot_product_attention/utils.py, get_attention_backend).
    cudnn_attention_archs=("Hopper", "Blackwell"),
    uses_sdpa=False,
)

ENGINE = Engine(
    profile=PROFILE,
    states=STATES,
    axes=frozenset(("tp", "cp", "pp", "ep")),
    zero_stages=frozenset((0, 1, 2, 3)),
    schedules=frozenset(("1f1b", "interleaved")),
    forked_schedules=frozenset(("zb-h1", "zb-h2", "zbv")),
    offloads=frozenset(("none", "optimizer")),
    optimizers=frozenset(("adamw", "sgd", "sgd-momentum", "lion", "muon")),
    precisions=frozenset(("fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed")),
    adapters=frozenset(("none", "lora")),
    replicates_kv_heads=True,
    default_zero_stage=1,
    # Stages 2 and 3 are Megatron-FSDP, whose documentation names tp, cp and ep beside it, no pipeline (NVIDIA/
    # Megatron-LM issue 1455, open); Megatron-Bridge has run it on two GPUs only (issue 4246, 2026-06-09).
    untried_pipeline_stages=frozenset((2, 3)),
    has_sequence_parallel=True,
    foreign_vendors=frozenset(("Google", "Intel")),
    interleaves_in_rounds_of_pp=True,
    lends_replicas=True,
    has_expert_tp=True,
    offloads_undivided=True,
    has_compile_switch=False,
    has_overlap_switch=True,
    has_async_tensor_parallel=True,
    has_deepep=True,
    always_defers_reductions=True,
    recomputes_modules=True,
    # --cpu-offloading-num-layers leaves at least one layer on the device, and takes neither stages nor recomputation.
    program_choices=frozenset(("activation_offload",)),
    # Its precision-aware optimizer is a distributed Adam (core/optimizer/optimizer_config.py).
    narrow_moments=frozenset(("adamw",)),
    source="NVIDIA/Megatron-LM@d98e8a6 training/arguments.py, core/pipeline_parallel/schedules.py",
)
