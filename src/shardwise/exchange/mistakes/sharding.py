"""ZeRO, FSDP and offload: asked for where they do nothing, or where they cannot be."""

from collections.abc import Iterator

from shardwise.exchange.mistakes.model_parts import wrap_classes
from shardwise.exchange.mistakes.rule import Case, Conditions, Found

OFFLOADS = ("optimizer", "param")
READ_BY_ACCELERATE = frozenset(
    (
        *("deepspeed_config_file", "zero_stage", "gradient_accumulation_steps", "gradient_clipping", "zero3_init_flag"),
        *("offload_optimizer_device", "offload_param_device", "offload_optimizer_nvme_path", "offload_param_nvme_path"),
        *(
            "zero3_save_16bit_model",
            "deepspeed_multinode_launcher",
            "deepspeed_hostfile",
            "deepspeed_moe_layer_cls_names",
        ),
        *("deepspeed_inclusion_filter", "deepspeed_exclusion_filter"),
    )
)


BITSANDBYTES = ("adamw_bnb_8bit", "adamw_8bit")
"""Names of one optimizer of bitsandbytes."""


def _zero_with_pipeline(case: Case) -> Iterator[Found]:
    stage, pp = case.number("zero_stage"), case.number("pp")
    fact = case.fact("zero_stage", "megatron") or case.fact("zero_optimization.stage", "gpt-neox", "deepspeed")
    if stage > 1 and pp > 1 and fact:
        is_neox = any(case.views("gpt-neox"))
        yield Found(
            fact.place,
            f"ZeRO stage {stage} with {pp} pipeline stages: DeepSpeed's pipeline keeps gradients whole",
            (
                '"stage": 1, or "pipe_parallel_size": 0 for stages 2 and 3'
                if is_neox
                else "--zero-stage 1, or --pipeline-model-parallel-size 1 --no-pipeline-parallel"
            ),
        )


def _idle_offload(case: Case) -> Iterator[Found]:
    for view in case.views("deepspeed", "gpt-neox"):
        stage = view.number("zero_optimization.stage") or 0
        for part, least in zip(OFFLOADS, (1, 3), strict=True):
            key = f"zero_optimization.offload_{part}.device"
            if view.text(key) in ("cpu", "nvme") and stage < least:
                yield Found(
                    view.by_key[key].place,
                    f"offload_{part} does nothing at stage {stage}",
                    f'"stage": {least}, or drop offload_{part}',
                )


def _optimizer_on_host(case: Case) -> Iterator[Found]:
    offloaded = case.fact("zero_optimization.offload_optimizer.device", "deepspeed")
    forced = case.fact("zero_force_ds_cpu_optimizer", "deepspeed")
    program = case.fact("optimizer", "megatron")
    is_allowed = case.fact("cpu_optimizer", "megatron") or (forced and forced.value is False)
    if offloaded and offloaded.value == "cpu" and program and not is_allowed:
        yield Found(
            program.place,
            "an offloaded optimizer has to be DeepSpeed's CPU Adam, the program hands over one for GPUs",
            'add --cpu-optimizer, or "zero_force_ds_cpu_optimizer": false where slow is acceptable',
        )


def _disk_without_path(case: Case) -> Iterator[Found]:
    for view in case.views("deepspeed", "gpt-neox"):
        for part in OFFLOADS:
            section = f"zero_optimization.offload_{part}"
            if view.text(f"{section}.device") == "nvme" and f"{section}.nvme_path" not in view.by_key:
                yield Found(
                    view.by_key[f"{section}.device"].place,
                    f"offload_{part} goes to a disk that nothing names",
                    f'"nvme_path": "/local_nvme" in offload_{part}',
                )


def _small_group(case: Case) -> Iterator[Found]:
    fact = case.fact("zero_optimization.zero_hpz_partition_size", "deepspeed")
    if fact and fact.value not in (0, 1) and case.number("zero_stage") != 3:
        yield Found(
            fact.place,
            f"a second copy of the weights is kept at stage 3 only, this is stage {case.number('zero_stage')}",
            '"stage": 3, or drop zero_hpz_partition_size',
        )


def _unread_keys(case: Case) -> Iterator[Found]:
    for view in case.views("accelerate"):
        for key, fact in view.by_key.items():
            section, _, name = key.partition(".")
            if section == "deepspeed_config" and name and name.partition(".")[0] not in READ_BY_ACCELERATE:
                yield Found(
                    fact.place,
                    f"Accelerate does not read {name} in deepspeed_config",
                    "put it into a DeepSpeed JSON and name that in deepspeed_config.deepspeed_config_file",
                )


def _strategy_number(case: Case) -> Iterator[Found]:
    for view in case.views("accelerate", "training-arguments", "trl"):
        key = "fsdp_config.sharding_strategy"
        if view.text(key) == "3" and case.number("world_size") != 1:
            yield Found(
                view.by_key[key].place,
                "strategy 3 is NO_SHARD, not ZeRO 3: every GPU holds the whole model",
                "fsdp_sharding_strategy: FULL_SHARD",
            )


def _sharded_over_nothing(case: Case) -> Iterator[Found]:
    for view in case.views("accelerate"):
        key = "parallelism_config.dp_shard_size"
        degrees = [view.number(f"parallelism_config.{name}_size") or 1 for name in ("dp_shard", "cp")]
        others = [view.number(f"parallelism_config.{name}_size") or 1 for name in ("tp", "dp_replicate")]
        if view.text("distributed_type") == "fsdp" and "parallelism_config" in view.sections and max(degrees) == 1:
            place = view.by_key[key].place if key in view.by_key else f"{view.document.file}:parallelism_config"
            if others[1] > 1 and others[0] > 1:
                yield Found(place, "tp with dp_replicate needs dp_shard above 1", "dp_shard_size: 2 or more")
            elif max(others) > 1:
                yield Found(
                    place,
                    "FSDP is asked for and no axis is left to shard over",
                    "dp_shard_size above 1 and a smaller tp_size, or drop FSDP",
                )


def _both_ways_along_the_sequence(case: Case) -> Iterator[Found]:
    for view in case.views("accelerate"):
        keys = [f"parallelism_config.{name}_size" for name in ("cp", "sp")]
        if all((view.number(key) or 1) > 1 for key in keys):
            yield Found(view.by_key[keys[1]].place, "cp_size and sp_size exclude each other", "sp_size: 1")


def _wrapped_class(case: Case) -> Iterator[Found]:
    claim = case.reading.claim("wrap_class")
    if claim is None:
        model = str(case.reading.value("model") or "").lower()
        for view in case.views("training-arguments", "trl"):
            if "auto_wrap" in view.text("fsdp") and "llama-4" in model:
                yield Found(
                    f"{view.document.file}:fsdp_config.transformer_layer_cls_to_wrap",
                    "no class is given, and the model's own list names a vision layer that a text model lacks",
                    "transformer_layer_cls_to_wrap: Llama4TextDecoderLayer",
                )
        return
    right = wrap_classes(case.model, str(case.reading.value("model") or ""))
    named = str(claim.value).split(",")
    for name in (one.strip() for one in named):
        near = next((one for one in right.known if one.lower() == name.lower()), "")
        if (right.of_model and name not in right.of_model) or (near and near != name):
            yield Found(
                claim.place, f"the model has no class {name}", f"{right.of_model[0] if right.of_model else near}"
            )


def _embedding_class(case: Case) -> Iterator[Found]:
    claim = case.reading.claim("wrap_class")
    if claim is not None and case.reading.value("model") is None and claim.value == "BertLayer":
        yield Found(
            claim.place,
            "BertLayer is a class of BERT alone; XLM-RoBERTa and RoBERTa have their own",
            "XLMRobertaLayer or RobertaLayer, if the model is one of these",
        )


def _one_unit(case: Case) -> Iterator[Found]:
    for view in case.views("training-arguments", "trl"):
        words = view.text("fsdp").replace(",", " ").split()
        has_size = "fsdp_config.min_num_params" in view.by_key
        if words and "auto_wrap" not in words and not has_size and case.reading.value("wrap_class") is None:
            yield Found(
                view.by_key["fsdp"].place,
                "without auto_wrap the model is one unit: the whole of it is gathered on every GPU",
                f'fsdp: "{" ".join(words)} auto_wrap"',
            )


def _recomputed_twice(case: Case) -> Iterator[Found]:
    fsdp = next(
        (fact for view in case.views() if (fact := view.by_key.get("fsdp_config.activation_checkpointing"))), None
    )
    trainer = case.fact("gradient_checkpointing", "training-arguments", "trl", "llamafactory")
    if fsdp and trainer and fsdp.value is True and trainer.value is True:
        yield Found(
            trainer.place,
            "both gradient_checkpointing and FSDP's activation_checkpointing are on",
            "gradient_checkpointing: false",
        )


def _eight_bits_under_fsdp(case: Case) -> Iterator[Found]:
    """The combinations that axolotl refuses."""
    for view in case.views("axolotl"):
        optimizer = view.text("optimizer")
        is_second = "2" in (view.text("fsdp_version"), view.text("fsdp_config.version"))
        if is_second and optimizer in BITSANDBYTES and "fsdp_config" in view.sections:
            beside, fix = "FSDP2", "adamw_torch_8bit"
        elif "8bit" in optimizer and view.is_on("fsdp_config.offload_params") and not is_second:
            beside, fix = "parameters that FSDP 1 offloads", "adamw_torch_fused"
        elif (view.number("tensor_parallel_size") or 1) > 1 and optimizer in (*BITSANDBYTES, "paged_adamw_8bit"):
            beside, fix = "tensor parallelism", "adamw_torch_8bit"
        else:
            continue
        yield Found(view.by_key["optimizer"].place, f"{optimizer} does not go with {beside}", f"optimizer: {fix}")


def _missing_fsdp(case: Case) -> Iterator[Found]:
    for view in case.views("axolotl"):
        if (view.number("dp_shard_size") or 1) > 1 and "fsdp_config" not in view.sections:
            yield Found(
                view.by_key["dp_shard_size"].place,
                "dp_shard_size shards nothing without fsdp_config",
                "fsdp_version: 2 and fsdp_config: {reshard_after_forward: true}",
            )


def _no_masters(case: Case) -> Iterator[Found]:
    for view in case.views("training-arguments", "trl"):
        fact = view.by_key.get("torch_dtype") or view.by_key.get("dtype")
        if (
            fact
            and fact.value == "bfloat16"
            and case.reading.value("zero_stage") == 0
            and case.reading.value("adapter") is None
        ):
            yield Found(
                fact.place,
                "weights loaded in bfloat16 and copied over all GPUs have no fp32 masters: small updates are lost",
                "torch_dtype: float32 with bf16: true",
            )


CONDITIONS: Conditions = (
    ("offload-idle", _idle_offload),
    ("secondary-partition-idle", _small_group),
    ("deepspeed-keys-not-read", _unread_keys),
    ("strategy-number", _strategy_number),
    ("one-fsdp-unit", _one_unit),
    ("no-master-weights", _no_masters),
    ("zero-with-pipeline", _zero_with_pipeline),
    ("offload-optimizer-kind", _optimizer_on_host),
    ("nvme-without-path", _disk_without_path),
    ("fsdp-without-shard-axis", _sharded_over_nothing),
    ("cp-beside-sp", _both_ways_along_the_sequence),
    ("wrap-class-not-in-model", _wrapped_class),
    ("wrap-class-not-in-model", _embedding_class),
    ("recomputed-twice", _recomputed_twice),
    ("optimizer-under-fsdp", _eight_bits_under_fsdp),
    ("shards-without-fsdp", _missing_fsdp),
)
