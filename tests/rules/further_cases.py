"""Plans out of range, or against rules of DualPipe, recomputed modules, the optimizer, offload and few bits."""

from dataclasses import replace

from rules.samples import llama_8b, make_plan, named
from shardwise.catalog import read_cluster
from shardwise.layout import Layout


def on(gpu_id, num_gpus=1):
    """A host with GPUs of the catalogue."""
    return read_cluster({"gpu": gpu_id, "gpus_per_node": num_gpus, "num_nodes": 1})


FURTHER_CASES = {
    "recipe-range": (
        make_plan(seq_len=-1, tokens=float("nan")),
        "seq_len=-1 is outside 1 to 134217728, tokens=nan is outside 1 to 1000000000000000000",
        "set seq_len=4096 and tokens=null",
    ),
    "layout-dualpipe-microbatches": (
        make_plan(
            engine="hai-llm", num_gpus=4, layout=Layout(pp=4, zero_stage=1, schedule="dualpipe"), global_batch_size=9
        ),
        "schedule dualpipe runs micro-batches from both ends: it needs an even pp and an even number of at least 2 pp "
        "of them, and there are 9 with pp=4",
        "set global_batch_size=16",
    ),
    "layout-microbatches-per-round": (
        make_plan(
            engine="megatron",
            layout=Layout(pp=4, vpp=2, schedule="interleaved", zero_stage=1, num_microbatches_per_round=3),
            global_batch_size=12,
        ),
        "num_microbatches_per_round=3 is not between pp=4 and the 12 micro-batches of a step",
        "set num_microbatches_per_round=4",
    ),
    "engine-recompute-modules": (
        make_plan(recompute="selective", recompute_modules=("mlp", "core_attn")),
        "recompute_modules=mlp,core_attn, but native cannot recompute modules by name; megatron can",
        "set recompute_modules=null",
    ),
    "engine-recompute-layers": (
        make_plan(engine="megatron", recompute="selective", recompute_layers=5),
        "recompute_layers=5, but megatron recomputes selectively in every layer; recompute_layers counts layers "
        "that are recomputed whole",
        "set recompute_layers=null",
    ),
    "recipe-recompute-modules-idle": (
        make_plan(engine="megatron", recompute="full", recompute_modules=("mlp",)),
        "recompute_modules=mlp changes nothing with recompute=full",
        "set recompute=selective",
    ),
    "recipe-recompute-modules": (
        make_plan(engine="megatron", recompute="selective", recompute_modules=("core_attn", "layernorm", "moe_act")),
        "recompute_modules=layernorm,moe_act, but llama-3.1-8b has no norm outside the product that reads it (only "
        "before MLA and before experts), no routed experts",
        "set recompute_modules=[core_attn]",
    ),
    "recipe-attention-kernel-part": (
        make_plan(attention_kernel="fa4"),
        "attention_kernel=fa4: FlashAttention-4 does not run on test-gpu (test), which runs fa2, math",
        "set attention_kernel=fa2",
    ),
    "recipe-attention-kernel-heads": (
        make_plan(attention_kernel="fa2", precision="fp32", machine=on("a100-sxm-80")),
        "attention_kernel=fa2: FlashAttention-2 does not compute heads of 128 in fp32 on a100-sxm-80",
        "set attention_kernel=efficient",
    ),
    "layout-cp-flash-attention": (
        make_plan(layout=Layout(cp=2), precision="fp16-mixed", machine=on("v100-sxm2-32", num_gpus=2)),
        "cp=2 attends by FlashAttention-2, which does not run on v100-sxm2-32 (Volta)",
        "set cp=1 and dp_shard=2",
    ),
    "recipe-attention-kernel-eager": (
        make_plan(attention="eager", attention_kernel="cudnn"),
        "attention_kernel=cudnn computes scores inside one kernel, but attention=eager writes them out",
        "set attention=flash",
    ),
    "recipe-attention-kernel-dropout": (
        make_plan(replace(llama_8b(), attention_dropout_fraction=0.1), attention_kernel="fa3"),
        "attention_kernel=fa3: FlashAttention-3 drops nothing out, and llama-3.1-8b has attention dropout 0.1",
        "set attention_kernel=fa2",
    ),
    "engine-wrap-ends": (
        make_plan(engine="deepspeed", layout=Layout(dp_shard=2), wrap_ends=True),
        "wrap_ends=true is about units of FSDP2, which deepspeed with zero_stage=3 has not",
        "set wrap_ends=null",
    ),
    "engine-repeat-kv-heads": (
        make_plan(repeat_kv_heads=True),
        "repeat_kv_heads: native tells its attention kernel of groups",
        "set repeat_kv_heads=false",
    ),
    "engine-fused-optimizer": (
        make_plan(layout=Layout(dp_shard=2), fused_optimizer=False),
        "fused_optimizer=false, but how native updates with adamw is no choice",
        "set fused_optimizer=null",
    ),
    "engine-fused-loss-kernel": (
        make_plan(fused_loss_kernel="native"),
        "fused_loss_kernel=native, but native has no choice of kernels for its loss",
        "set fused_loss_kernel=null",
    ),
    "engine-liger-kernels": (
        make_plan(liger_kernels=True),
        "liger_kernels, but native has kernels of its own",
        "set liger_kernels=false",
    ),
    "engine-fp8-input-store": (
        make_plan(activation_func_fp8_input_store=True),
        "activation_func_fp8_input_store: native keeps what activations read in 16 bits",
        "set activation_func_fp8_input_store=null",
    ),
    "engine-moment-dtype": (
        make_plan(moment_dtype="bf16"),
        "moment_dtype=bf16, but native keeps moments in the dtype of its parameters or in fp32",
        "set moment_dtype=null",
    ),
    "engine-native-inside": (
        make_plan(named(llama_8b(), "gemma-like", "gemma3_text"), layout=Layout(dp_shard=2, tp=2, pp=2)),
        "our trainer does not divide the inside of gemma-like (pp=2): train it with these at 1, or run this plan with "
        "another engine",
        "set pp=1 and dp_shard=4",
    ),
    "engine-fsdp1-offload-accumulation": (
        make_plan(engine="fsdp1", layout=Layout(dp_shard=8), global_batch_size=24, offload="parameters"),
        "offload parameters with 3 micro-batches on fsdp1: every reduction overwrites the gradient on the host, so "
        "that only the last micro-batch would train",
        "set engine=fsdp2, or keep whole gradients on every GPU (defer_grad_reduce=true)",
    ),
    "recipe-fp8-quantised-base": (
        make_plan(layout=Layout(dp_shard=8), adapter="qlora", precision="fp8-mixed"),
        "precision fp8-mixed with adapter qlora: products in 8 bits do not take weights of 4 bits",
        "set precision=bf16-mixed",
    ),
}
