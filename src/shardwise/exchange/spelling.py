"""Fields of a plan that a target needs several keys for are written here: the inverse of the tool's ``work_out``."""

from itertools import pairwise

from shardwise.exchange.facts import FactValue
from shardwise.exchange.megatron_model import megatron_model_keys
from shardwise.exchange.model_name import KERNEL_FLAVORS, flavor_of
from shardwise.exchange.tools.megatron import STAGES
from shardwise.exchange.tools.torchtitan import CHUNKS
from shardwise.layout import Layout
from shardwise.optimizers import OPTIMIZERS
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.step.layer_placement import pipeline_stages

Keys = dict[str, FactValue]
TRIAL_STEPS = 10
"""Steps of a plan that does not say for how many tokens it trains, as ``shardwise train`` takes."""
MEGATRON_TRAINING: Keys = {"lr": 3e-4, "lr_decay_style": "constant", "adam_beta2": 0.95, "weight_decay": 0.1}
"""Options that Megatron-LM does not start without, or whose defaults differ from those of ``shardwise train``."""


def torchtitan_keys(plan: Plan) -> Keys:
    """Batch, sharding and precision, and where the model and the data stand."""
    layout, recipe = plan.layout, plan.recipe
    share = plan.global_batch_size // layout.data_parallel_size
    name, flavor = flavor_of(plan.model)
    keys: Keys = {
        "job.dump_folder": "./outputs",
        "checkpoint.enable": True,  # a run that is started again goes on from the newest in its folder
        "model.name": name,
        "model.flavor": flavor + KERNEL_FLAVORS.get(((name, flavor), recipe.attention_kernel), ""),
        "model.hf_assets_path": "./assets/hf/MODEL",
        "training.dataset": "c4",
        "training.local_batch_size": share if layout.pp > 1 else recipe.micro_batch_size,
        "training.global_batch_size": plan.global_batch_size,
        **_formats(recipe),
        "parallelism.fsdp_reshard_after_forward": _resharding(layout),
    }
    if recipe.precision == "fp8-mixed":
        # 0.2.2 registers the converter by this name (components/quantization/float8.py).
        keys["model.converters"] = ("quantize.linear.float8",)
    if layout.pp > 1:
        keys["parallelism.pipeline_parallel_microbatch_size"] = recipe.micro_batch_size
        keys |= _stage_keys(plan, head="output")
    if recipe.recompute == "selective":
        keys["activation_checkpoint.selective_ac_option"] = "op"
    if recipe.tokens is not None:
        keys["training.steps"] = max(1, round(recipe.tokens / plan.tokens_per_step))
    return keys


def _resharding(layout: Layout) -> str:
    """torchtitan's word for when FSDP divides parameters again: by default after forward, and never in pipelines."""
    if layout.reshard_after_forward == (layout.pp == 1):
        return "default"
    return "always" if layout.reshard_after_forward else "never"


def recipe_keys(plan: Plan) -> Keys:
    """Settings of a recipe in Python, where batches are tokens."""
    layout, recipe = plan.layout, plan.recipe
    keys: Keys = {
        "training.num_tokens_per_microbatch_per_dp_rank": recipe.tokens_per_micro_batch,
        "training.num_tokens_per_train_step": plan.tokens_per_step,
        **_formats(recipe),
        "training.disable_cuda_graphs": True,  # pipelines and most exchanges of experts refuse them
        "parallelism.fsdp_reshard_after_forward": _resharding(layout),
        "parallelism.enable_sequence_parallel": layout.sequence_parallel if layout.tp > 1 else None,
    }
    if layout.pp > 1:
        keys["parallelism.num_pp_microbatches"] = plan.num_microbatches
        keys |= _stage_keys(plan, head="lm_head")
    if recipe.tokens is not None:
        keys["training.steps"] = max(1, round(recipe.tokens / plan.tokens_per_step))
    return keys


def _formats(recipe: Recipe) -> Keys:
    """Formats in which torchtitan keeps parameters and computes with them."""
    return {
        "training.dtype": "bfloat16" if recipe.precision == "bf16" else "float32",
        "training.mixed_precision_param": "float32" if recipe.precision == "fp32" else "bfloat16",
    }


def _stage_keys(plan: Plan, *, head: str) -> Keys:
    """The layers of a pipeline's stages, where the embedding and the head count as none."""
    return {
        "parallelism.pipeline_parallel_first_stage_less_layers": 0,
        "parallelism.pipeline_parallel_last_stage_less_layers": 0,
        "parallelism.module_fqns_per_model_part": _model_parts(plan, head=head),
    }


def _model_parts(plan: Plan, *, head: str) -> tuple[tuple[str, ...], ...] | None:
    """The modules of every stage, by the names of torchtitan; ``None`` where it divides the layers so by itself.

    Args:
        plan: of a pipeline.
        head: the name of the module after the last norm.
    """
    layout = plan.layout
    counts = _chunk_layers(plan)
    if layout.stage_layers is None and len(set(counts)) == 1 and len(counts) == layout.pp * CHUNKS[layout.schedule]:
        return None
    starts = [sum(counts[:index]) for index in range(len(counts) + 1)]
    parts = [[f"layers.{layer}" for layer in range(*ends)] for ends in pairwise(starts)]
    return tuple(map(tuple, [["tok_embeddings", *parts[0]], *parts[1:-1], [*parts[-1], "norm", head]]))


def _chunk_layers(plan: Plan) -> list[int]:
    """Layers of every chunk of a pipeline, in the order of the model."""
    chunks = [chunk for stage in pipeline_stages(model=plan.model, layout=plan.layout) for chunk in stage.chunks]
    return [chunk.num_layers for chunk in sorted(chunks, key=lambda chunk: chunk.index)]


def megatron_keys(plan: Plan) -> Keys:
    """Sharding, precision and recomputation, the model, and where data, tokenizer and checkpoints stand."""
    layout, recipe = plan.layout, plan.recipe
    strategy = next(name for name, stage in STAGES.items() if stage == layout.zero_stage)
    keys: Keys = {
        **megatron_model_keys(plan.model, seq_len=plan.recipe.seq_len),
        **MEGATRON_TRAINING,
        "global_batch_size": plan.global_batch_size,
        "sequence_parallel": layout.sequence_parallel and layout.tp > 1,
        "use_distributed_optimizer": layout.zero_stage == 1,
        "use_megatron_fsdp": layout.zero_stage > 1,
        "data_parallel_sharding_strategy": strategy if layout.zero_stage > 1 else None,
        "num_distributed_optimizer_instances": layout.dp_replicate
        if layout.zero_stage and layout.dp_replicate > 1
        else None,
        "num_virtual_stages_per_pipeline_rank": layout.vpp if layout.vpp > 1 else None,
        "bf16": recipe.precision in ("bf16-mixed", "fp8-mixed"),
        "fp16": recipe.precision == "fp16-mixed",
        "fp8_format": "hybrid" if recipe.precision == "fp8-mixed" else None,
        # The optimizer on the host is a part of the precision-aware one.
        "use_precision_aware_optimizer": recipe.moment_dtype is not None or recipe.offload != "none",
        "cross_entropy_loss_fusion": recipe.fused_loss is not False,
        # Its arguments refuse Transformer Engine's kernel as unstable (training/arguments.py).
        "cross_entropy_fusion_impl": "native" if recipe.fused_loss is not False else None,
        "data_path": "DATA",
        "ckpt_format": "fsdp_dtensor" if layout.zero_stage > 1 else None,
        "save": "CHECKPOINTS",
        "save_interval": 1000,
        "load": "CHECKPOINTS",
        "clip_grad": None if recipe.clip_gradients else 0.0,
        "exit_signal_handler": True,  # saves when it is asked to stop
    }
    if layout.zero_stage > 1 and OPTIMIZERS[recipe.optimizer].orthogonalises_matrices:
        keys["optimizer"] = None  # Megatron FSDP takes Adam and SGD.
    if recipe.recompute != "none":
        keys["recompute_granularity"] = recipe.recompute
    if recipe.recompute_modules is not None:
        keys["recompute_modules"] = recipe.recompute_modules
    if recipe.recompute == "full":
        keys["recompute_method"] = "uniform" if recipe.recompute_layers is None else "block"
        keys["recompute_num_layers"] = recipe.recompute_layers or 1
    if layout.pp > 1:
        keys |= _megatron_stage_keys(plan)
    steps = recipe.tokens / plan.tokens_per_step if recipe.tokens is not None else TRIAL_STEPS
    keys["train_iters"] = max(1, round(steps))
    return keys


def _megatron_stage_keys(plan: Plan) -> Keys:
    """The layers of the stages: by the flags of the first and the last where these can say them, or written out."""
    layout, counts = plan.layout, _chunk_layers(plan)
    most = max(counts)
    if layout.stage_layers is None and set(counts[1:-1]) <= {most} and min(counts) >= most - 1:
        return {
            "account_for_embedding_in_pipeline_split": counts[0] < most,
            "account_for_loss_in_pipeline_split": counts[-1] < most,
        }
    stages = layout.stage_layers or ()
    if stages and len(set(stages[1:-1])) < 2 and not any(layers % layout.vpp for layers in stages):
        return {"decoder_first_pipeline_num_layers": stages[0], "decoder_last_pipeline_num_layers": stages[-1]}
    layers = "|".join(f"t*{count}" for count in counts)
    return {"pipeline_model_parallel_layout": f"E{layers}L", "num_virtual_stages_per_pipeline_rank": None}


def deepspeed_keys(plan: Plan) -> Keys:
    """The batch triple, formats and offload; optimizer and recomputation are the program's."""
    recipe = plan.recipe
    keys: Keys = {
        "train_batch_size": plan.global_batch_size,
        "gradient_accumulation_steps": plan.num_microbatches,
        "bf16.enabled": recipe.precision in ("bf16-mixed", "fp8-mixed"),
        "fp16.enabled": recipe.precision == "fp16-mixed",
        "zero_optimization.contiguous_gradients": True,
        "gradient_clipping": float(recipe.clip_gradients),  # to a norm of 1, as it does where nothing is said
    }
    device = "nvme" if recipe.offload == "nvme" else "cpu"
    parts = {"none": (), "optimizer": ("optimizer",)}.get(recipe.offload, ("optimizer", "param"))
    for part in parts:
        keys[f"zero_optimization.offload_{part}.device"] = device
        if device == "nvme":
            keys[f"zero_optimization.offload_{part}.nvme_path"] = "/local_nvme"
    return keys


def accelerate_keys(plan: Plan) -> Keys:
    """Processes, machines and FSDP2; version 1 is not written."""
    layout = plan.layout
    # FSDP on replicas alone is refused; one process may offload.
    is_alone = layout.world_size == 1 and plan.recipe.offload != "none"
    is_sharded = layout.zero_stage > 0 and (layout.state_shard_size > 1 or is_alone)
    keys: Keys = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if is_sharded else "MULTI_GPU",
        "num_machines": plan.cluster.num_nodes,
        "num_processes": layout.world_size,
        "machine_rank": 0,
    }
    if is_sharded:
        keys["fsdp_config.version"] = 2
        keys["fsdp_config.reshard_after_forward"] = layout.reshard_after_forward and layout.zero_stage == 3
        keys["fsdp_config.offload_params"] = plan.recipe.offload == "parameters"
        keys["fsdp_config.auto_wrap_policy"] = "TRANSFORMER_BASED_WRAP"
    return keys


def argument_keys(plan: Plan) -> Keys:
    """Arguments of TRL's SFTConfig, which are TrainingArguments with a length of sequences."""
    recipe = plan.recipe
    keys: Keys = {
        "model_name_or_path": plan.model.name,
        "dataset_name": "DATASET",
        "output_dir": "CHECKPOINTS",
        "gradient_accumulation_steps": plan.num_microbatches,
        "bf16": recipe.precision == "bf16-mixed",
        "fp16": recipe.precision == "fp16-mixed",
        "packing": True,
        "max_grad_norm": float(recipe.clip_gradients),
    }
    if recipe.adapter != "none":
        keys["use_peft"] = True
        keys["load_in_4bit"] = recipe.adapter == "qlora"
        targets = {"attention": ("q_proj", "k_proj", "v_proj", "o_proj"), "qv": ("q_proj", "v_proj")}
        keys["lora_target_modules"] = targets.get(recipe.lora_targets, tuple(recipe.lora_targets.split(",")))
    if recipe.tokens is not None:
        keys["max_steps"] = max(1, round(recipe.tokens / plan.tokens_per_step))
    return keys
