"""Accelerate's YAML, TrainingArguments and TRL, and what is built on them: axolotl, LLaMA-Factory, PEFT."""

from collections.abc import Iterator
from dataclasses import replace

from shardwise.exchange.names import LINE, Claim, Readers, View
from shardwise.exchange.tools.deepspeed import clipping
from shardwise.exchange.tools.megatron import recomputation

DEEPSPEED = "deepspeed"
"""The key that names its file, and the kind of run that Accelerate calls so."""
STRATEGIES = {
    **{"full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 0, "3": 0},
    **{"hybrid_shard": 3, "4": 3, "hybrid_shard_zero2": 2, "5": 2},
}
"""ZeRO stages of ``torch.distributed.fsdp.ShardingStrategy``: by name, and by the number that Accelerate takes."""
HYBRID = ("hybrid_shard", "4", "hybrid_shard_zero2", "5")


def _fsdp(view: View) -> Iterator[Claim]:
    """FSDP's version, stage and offload, in ``fsdp_config`` or, of TrainingArguments, in words of ``fsdp``."""
    words = view.text("fsdp").replace(",", " ").split()
    is_second = "2" in (view.text("fsdp_config.version"), view.text("fsdp_version"))
    versions = ("fsdp_config.version", "fsdp_version", "fsdp", *view.by_key)
    yield view.claim("engine", "accelerate" if is_second else "fsdp1", *versions)
    strategy, reshards = "fsdp_config.sharding_strategy", "fsdp_config.reshard_after_forward"
    named = next((word for word in words if word in STRATEGIES), view.text(strategy) or "full_shard")
    if is_second or view.text(reshards) in ("true", "false"):
        yield view.claim("zero_stage", 2 if view.text(reshards) == "false" else 3, reshards)
    else:
        yield view.claim("zero_stage", STRATEGIES.get(named), strategy, "fsdp")
        if named in HYBRID and view.number("num_machines"):
            yield view.claim("dp_replicate", view.number("num_machines"), strategy)
    is_offloaded = view.is_on("fsdp_config.offload_params") or "offload" in words
    yield view.claim("offload", "parameters" if is_offloaded else "none", "fsdp_config.offload_params", "fsdp")
    if view.is_on("fsdp_config.activation_checkpointing"):
        yield view.claim("recompute", "full", "fsdp_config.activation_checkpointing")


def _is_fsdp(view: View) -> bool:
    """Whether a file asks for FSDP: where ``fsdp`` says nothing, as in what the Trainer writes, its section is idle."""
    if "fsdp" in view.by_key:
        return view.text("fsdp") not in ("", "false")
    return "fsdp_config" in view.sections


def _accelerate(view: View) -> Iterator[Claim]:
    kind = view.text("distributed_type")
    if kind == "fsdp" or (not kind and "fsdp_config" in view.sections):
        yield from _fsdp(view)
    elif kind == DEEPSPEED or "deepspeed_config" in view.sections:
        yield view.claim("engine", "deepspeed", "distributed_type")
        for part, value in (("param", "parameters"), ("optimizer", "optimizer")):
            key = f"deepspeed_config.offload_{part}_device"
            if view.text(key) in ("cpu", "nvme"):
                yield view.claim("offload", value if view.text(key) == "cpu" else "nvme", key)
                break
    elif kind in ("multi_gpu", "no"):
        yield view.claim("engine", "accelerate", "distributed_type")
        yield view.claim("zero_stage", 0, "distributed_type")
        if kind == "no" and not view.is_line:  # the launcher then starts one process, whatever their number
            yield view.claim("world_size", 1, "distributed_type")


def _formats(view: View) -> Iterator[Claim]:
    """The format of matrix products: 8 bits and weights without masters say more than ``bf16`` beside them."""
    for key, precision in (("fp8", "fp8-mixed"), ("pure_bf16", "bf16")):
        if view.is_on(key):
            yield view.claim("precision", precision, key)
            return
    for key in ("bf16", "fp16"):
        if view.is_on(key) or view.text(key) == "auto":
            yield view.claim("precision", f"{key}-mixed", key)
            return


def _arguments(view: View) -> Iterator[Claim]:
    is_sharded = _is_fsdp(view)
    if is_sharded:
        yield from _fsdp(view)
    yield from _formats(view)
    yield from clipping(view, "max_grad_norm")
    if view.text(DEEPSPEED) not in ("", "false") or "zero_stage" in view.by_key:
        yield view.claim("engine", "deepspeed", "deepspeed", "zero_stage")
        is_sharded = True
    if "max_length" not in view.by_key and view.number("max_completion_length"):
        # A trainer that writes completions reads a prompt and what it wrote as one sequence.
        lengths = [view.number(key) or 0 for key in ("max_prompt_length", "max_completion_length")]
        yield view.claim("seq_len", sum(lengths) if all(lengths) else None, "max_completion_length")
    if view.is_line and is_sharded:
        # A line holds every argument; a YAML may be read by Trainer (off by default) or by TRL (on).
        yield view.claim("recompute", "none", "")
    if view.is_on("use_peft") or view.is_on("load_in_4bit"):
        yield view.claim("adapter", "qlora" if view.is_on("load_in_4bit") else "lora", "load_in_4bit", "use_peft")


def _recomputation(view: View) -> Iterator[Claim]:
    """The Trainer's own recomputation; where it is off, FSDP's is what counts."""
    kept = view.text("gradient_checkpointing")
    if kept not in ("", "false"):
        yield view.claim("recompute", "full", "gradient_checkpointing")
    elif not view.is_on("fsdp_config.activation_checkpointing"):
        yield view.claim("recompute", "none", "gradient_checkpointing")


def _axolotl(view: View) -> Iterator[Claim]:
    if view.text("deepspeed"):
        yield view.claim("engine", "deepspeed", "deepspeed")
    elif _is_fsdp(view):
        yield from _fsdp(view)
    yield from _formats(view)
    yield from _recomputation(view)
    if view.is_on("lora_target_linear"):  # beside whatever list of matrices there is
        yield replace(view.claim("lora_targets", "all-linear", "lora_target_linear"), strength=LINE)
    if view.text("adapter") in ("lora", "qlora"):
        yield view.claim("adapter", "qlora" if view.is_on("load_in_4bit") else "lora", "adapter")
    yield from clipping(view, "max_grad_norm")
    shard = view.number("dp_shard_size")
    if shard is not None:
        # Expert parallelism is an axis of its own here: dense layers are copied over it.
        replicas = (view.number("dp_replicate_size") or 1) * (view.number("expert_parallel_size") or 1)
        yield view.claim("dp_replicate", replicas, "dp_replicate_size", "expert_parallel_size", "dp_shard_size")


def _llama_factory(view: View) -> Iterator[Claim]:
    if any(key.endswith("model_parallel_size") or key == "use_distributed_optimizer" for key in view.by_key):
        yield view.claim("engine", "megatron", *view.by_key)
        yield view.claim("zero_stage", int(view.is_on("use_distributed_optimizer")), "use_distributed_optimizer")
        yield from recomputation(view)
        yield from _formats(view)
    else:
        yield from (claim for claim in _arguments(view) if claim.field != "recompute" or claim.strength)
        is_off = view.is_on("disable_gradient_checkpointing")
        yield view.claim("recompute", "none" if is_off else "full", "disable_gradient_checkpointing")
    if view.text("finetuning_type") == "lora":
        is_quantized = view.number("quantization_bit") == 4
        yield view.claim("adapter", "qlora" if is_quantized else "lora", "quantization_bit", "finetuning_type")
    elif view.text("finetuning_type") == "full":
        yield view.claim("adapter", "none", "finetuning_type")


def _llama_factory_v1(view: View) -> Iterator[Claim]:
    """LLaMA-Factory's v1 trainer: FSDP2 or DeepSpeed, and Ulysses along the sequence."""
    kind, reshards = view.text("dist_config.name"), "dist_config.reshard_after_forward"
    if kind != DEEPSPEED and view.tool.ours("dist_config.name", kind) is not None:
        yield view.claim("zero_stage", 2 if view.text(reshards) == "false" else 3, reshards, "dist_config.name")
        is_offloaded = view.is_on("dist_config.offload_params")
        yield view.claim("offload", "parameters" if is_offloaded else "none", "dist_config.offload_params")
    yield view.claim("sp", view.number("cp_size"), "cp_size")
    if view.text("peft_config.name") == "lora":
        is_quantized = view.number("quant_config.quantization_bit") == 4
        yield view.claim("adapter", "qlora" if is_quantized else "lora", "peft_config.name")


READERS: Readers = {
    "accelerate": _accelerate,
    "training-arguments": _arguments,
    "trl": _arguments,
    "axolotl": _axolotl,
    "llamafactory": _llama_factory,
    "llamafactory-v1": _llama_factory_v1,
}
