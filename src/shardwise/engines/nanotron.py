"""Hugging Face nanotron: bf16 weights, whole fp32 gradients, a divided optimizer and eager kernels joined by hand.

Source: huggingface/nanotron@2411b02 (2026-04-07), of which the files are named beside each fact.
"""

from dataclasses import replace

from shardwise.engines import megatron
from shardwise.engines.engine import Engine
from shardwise.engines.profile import GradientBucket, StateBytes
from shardwise.engines.torch_states import TORCH_STATES
from shardwise.recipe import Precision
from shardwise.units import MIB

STATES: dict[Precision, StateBytes] = {
    "fp32": TORCH_STATES["fp32"],
    "bf16-mixed": StateBytes(
        weight_bytes=2, gradient_bytes=6, master_bytes=4, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
    "bf16": TORCH_STATES["bf16"],
}
"""``accumulate_grad_in_fp32`` keeps one fp32 buffer of all gradients beside the 2-byte ones of a backward pass, which
are added to it and let go when the pass is done, and fp32 weights of what a rank updates
(``optim/gradient_accumulator.py``, ``FP32GradientAccumulator``). Without it everything has the weights' dtype."""

PROFILE = replace(
    megatron.PROFILE,
    # nn/layer_norm.py takes flash-attn's Triton kernel; nn/activations.py multiplies after torch's silu.
    has_fused_norm=True,
    has_fused_activation=False,
    # parallel/tensor_parallel/functional.py: tp_recompute_allgather is on, and gathers the input again in backward.
    saves_gathered_input=False,
    # _ShardedCrossEntropy subtracts the maximum beside the fp32 copy that models/llama.py made of the logits.
    loss="vocab_parallel_upcast",
    has_persistent_gradients=True,
    keeps_dummy_weight_gradients=False,
    # model.ddp_bucket_cap_mb of torch's DDP, whose hook reduces in fp32 (parallel/data_parallel/utils.py).
    bucket=GradientBucket(num_bytes=25 * MIB, option="ddp_bucket_cap_mb"),
    has_in_switch_reduction=True,
    has_transformer_engine=False,
    block_calls=(0, 0),
    keeps_expert_outputs=True,
    partial_recompute="first of stage",
    expert_exchange="alltoall",
    # models/llama.py calls flash_attn_varlen_func on every part.
    cudnn_attention_archs=(),
)

ENGINE = Engine(
    profile=PROFILE,
    states=STATES,
    # config/parallelism_config.py; nn/llama3_ring_attention.py and nn/moe.py serve models/qwen.py.
    axes=frozenset(("tp", "cp", "pp", "ep")),
    zero_stages=frozenset((0, 1)),
    schedules=frozenset(("gpipe", "1f1b")),
    offloads=frozenset(("none",)),
    activation_copies="none",
    optimizers=frozenset(("adamw", "sgd")),
    precisions=frozenset(("fp32", "bf16-mixed", "bf16")),
    adapters=frozenset(("none",)),
    default_zero_stage=1,
    has_sequence_parallel=True,
    foreign_vendors=frozenset(("Google", "Intel")),
    has_compile_switch=False,
    has_optimizer_switch=True,
    # parallel/pipeline_parallel/engine.py: all micro-batches but the last run under no_sync.
    always_defers_reductions=True,
    assumptions=(
        "nanotron updates with torch's AdamW (torch_adam_is_fused) and runs blocks eagerly, as its own configs do",
    ),
    source="huggingface/nanotron@2411b02 config/parallelism_config.py, optim/zero.py, optim/gradient_accumulator.py, "
    "models/llama.py, parallel/pipeline_parallel/engine.py",
)
