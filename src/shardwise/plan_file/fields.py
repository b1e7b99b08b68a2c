"""The fields of a plan file as a table: name, kind, range; and one function that checks a value against its row."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Literal, NoReturn, TypeAlias, get_args

from shardwise.errors import LayoutError, PlanError, RecipeError, ShardwiseError
from shardwise.optimizers import OPTIMIZERS
from shardwise.plan_file.text import key_text
from shardwise.recipe import (
    MAX_ROUTING_IMBALANCE_RATIO,
    MAX_SEQ_LEN,
    Adapter,
    Attention,
    Convention,
    LoraTargets,
    MomentDtype,
    Offload,
    Precision,
    Recompute,
    RecomputeModule,
    ReduceDtype,
)
from shardwise.retired import without_retired
from shardwise.schedules.table import SCHEDULES

Kind = Literal["count", "amount", "choice", "choices", "flag", "counts"]
Value: TypeAlias = int | float | str | bool | tuple[int, ...] | tuple[str, ...]

NEAR_RATIO = 0.6
"""Share of letters that a misspelt value has in common with what is proposed instead."""
MAX_DEGREE = 2**20
MAX_BATCH = 2**30
MAX_TOKENS = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field: what it holds and what values make sense."""

    name: str
    kind: Kind
    lowest: float = 1
    highest: float = MAX_DEGREE
    choices: tuple[str, ...] = ()
    example: str = "8"
    synonyms: tuple[str, ...] = ()
    """What other tools call it; named in the fix when somebody writes that."""
    instead_of_zero: str = ""
    """What says the thing that a zero might mean; named in the fix."""


RECIPE_FIELDS: tuple[Field, ...] = (
    Field(
        name="seq_len",
        kind="count",
        highest=MAX_SEQ_LEN,
        example="4096",
        synonyms=("seq_length", "sequence_length", "max_seq_len", "context_length", "max_context_length", "seqlen"),
    ),
    Field(
        name="micro_batch_size",
        kind="count",
        synonyms=("micro_batch", "mbs", "batch_size", "train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ),
    Field(name="global_batch_size", kind="count", highest=MAX_BATCH, synonyms=("gbs", "train_batch_size")),
    Field(name="precision", kind="choice", choices=get_args(Precision), synonyms=("dtype", "mixed_precision")),
    Field(name="optimizer", kind="choice", choices=tuple(OPTIMIZERS), synonyms=("optim",)),
    Field(
        name="recompute",
        kind="choice",
        choices=get_args(Recompute),
        synonyms=("activation_checkpointing", "gradient_checkpointing", "recompute_granularity", "ac", "act_ckpt"),
    ),
    Field(
        name="recompute_layers",
        kind="count",
        highest=65536,
        synonyms=("recompute_num_layers",),
        instead_of_zero="recompute=none",
    ),
    Field(
        name="recompute_modules",
        kind="choices",
        choices=get_args(RecomputeModule),
        example="[layernorm, mla_up_proj]",
        synonyms=("modules", "recompute_module", "selective_modules"),
    ),
    Field(name="activation_func_fp8_input_store", kind="flag", synonyms=("fp8_input_store", "fp8_activations")),
    Field(name="offload", kind="choice", choices=get_args(Offload), synonyms=("cpu_offload", "offload_optimizer")),
    Field(name="attention", kind="choice", choices=get_args(Attention), synonyms=("attn_implementation",)),
    Field(name="compile", kind="flag", synonyms=("torch_compile",)),
    Field(name="activation_offload", kind="flag", synonyms=("cpu_offloading",)),
    Field(
        name="tokens",
        kind="amount",
        example="1.0e12",
        highest=MAX_TOKENS,
        synonyms=("num_tokens", "total_tokens", "train_tokens"),
    ),
    Field(name="adapter", kind="choice", choices=get_args(Adapter), synonyms=("peft", "lora")),
    Field(name="lora_rank", kind="count", highest=65536, synonyms=("lora_r", "rank", "r")),
    Field(name="lora_targets", kind="choice", choices=get_args(LoraTargets), synonyms=("target_modules",)),
    Field(name="lora_dropout_fraction", kind="amount", lowest=0, highest=1, example="0.05", synonyms=("lora_dropout",)),
    Field(name="loss_chunks", kind="count", highest=65536, synonyms=("chunked_loss",)),
    Field(name="fused_loss", kind="flag", synonyms=("fused_cross_entropy", "liger")),
    Field(name="fused_optimizer", kind="flag", synonyms=("fused_adamw", "optimizer_fused", "adamw_torch_fused")),
    Field(name="overlap_grad_reduce", kind="flag", synonyms=("overlap_comm", "overlap_communication")),
    Field(name="blocking_launches", kind="flag", synonyms=("cuda_launch_blocking", "launch_blocking")),
    Field(name="clip_gradients", kind="flag", synonyms=("gradient_clipping", "grad_clip")),
    Field(name="broadcast_weights", kind="flag", synonyms=("broadcast_params", "broadcast_parameters")),
    Field(
        name="reduce_dtype",
        kind="choice",
        choices=get_args(ReduceDtype),
        synonyms=("grad_reduce_in_bf16", "mixed_precision_reduce", "communication_data_type"),
    ),
    Field(
        name="moment_dtype",
        kind="choice",
        choices=get_args(MomentDtype),
        synonyms=("exp_avg_dtype", "exp_avg_sq_dtype", "optimizer_dtype"),
    ),
    Field(
        name="mean_document_len",
        kind="count",
        highest=MAX_SEQ_LEN,
        example="1024",
        synonyms=("document_len", "packed_len", "mean_doc_len"),
    ),
    Field(
        name="routing_imbalance_ratio",
        kind="amount",
        lowest=1,
        highest=MAX_ROUTING_IMBALANCE_RATIO,
        example="1.3",
        synonyms=("routing_imbalance", "expert_imbalance", "moe_imbalance"),
    ),
    Field(name="convention", kind="choice", choices=get_args(Convention)),
)

LAYOUT_FIELDS: tuple[Field, ...] = (
    Field(
        name="dp_replicate",
        kind="count",
        synonyms=("data_parallel_replicate_degree", "dp_replicate_size", "replicate", "ddp", "hsdp"),
    ),
    Field(
        name="dp_shard",
        kind="count",
        lowest=-1,
        synonyms=("dp", "fsdp", "data_parallel", "data_parallel_shard_degree", "dp_shard_size", "data_parallel_size"),
    ),
    Field(
        name="zero_stage",
        kind="count",
        lowest=0,
        highest=3,
        synonyms=("zero", "stage", "sharding_strategy", "use_distributed_optimizer", "distributed_optimizer"),
    ),
    Field(
        name="tp",
        kind="count",
        synonyms=("tensor_parallel", "tensor_parallel_degree", "tensor_model_parallel_size", "tp_size", "mp"),
    ),
    Field(name="cp", kind="count", synonyms=("context_parallel", "context_parallel_degree", "context_parallel_size")),
    Field(
        name="pp",
        kind="count",
        synonyms=("pipeline_parallel", "pipeline_parallel_degree", "pipeline_model_parallel_size", "pp_size"),
    ),
    Field(name="vpp", kind="count", synonyms=("vp", "virtual_pipeline_model_parallel_size", "interleave")),
    Field(
        name="ep", kind="count", synonyms=("expert_parallel", "expert_parallel_degree", "expert_model_parallel_size")
    ),
    Field(name="schedule", kind="choice", choices=SCHEDULES, synonyms=("pipeline_schedule", "pp_schedule")),
    Field(name="sequence_parallel", kind="flag", synonyms=("sp", "enable_sequence_parallel")),
    Field(name="expert_tp", kind="count", synonyms=("etp", "expert_tensor_parallel_size")),
    Field(name="stage_layers", kind="counts", highest=65536, synonyms=("pipeline_layout", "layers_per_stage")),
    Field(name="reshard_after_forward", kind="flag", synonyms=("fsdp_reshard_after_forward",)),
    Field(name="reshard_size", kind="count", synonyms=("zero_hpz_partition_size",)),
    Field(
        name="prefetch_units",
        kind="count",
        lowest=0,
        highest=64,
        example="2",
        synonyms=("forward_prefetch", "prefetch"),
    ),
    Field(
        name="async_tensor_parallel",
        kind="flag",
        synonyms=("async_tp", "enable_async_tensor_parallel", "tp_comm_overlap"),
    ),
    Field(name="defer_grad_reduce", kind="flag", synonyms=("no_sync",)),
    Field(name="spread_vocabulary", kind="flag", synonyms=("vocab_parallel", "vocabulary_parallel")),
    Field(name="exchange_gradients", kind="flag", synonyms=("all_to_all_reduce",)),
)

_ERRORS: Mapping[str, type[ShardwiseError]] = {"recipe": RecipeError, "layout": LayoutError}


def check_fields(section: str, given: object, fields: tuple[Field, ...]) -> dict[str, Value]:
    """The given values of one section, each checked; null counts as not given.

    Raises:
        RecipeError, LayoutError: naming the field's path, its value and what would be accepted.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise PlanError(
            f"{section} is {shown(given)}, not a group of fields",
            code="plan-wrong-type",
            fix=f"write {section} as a mapping, such as {{{fields[0].name}: ...}}",
        )
    rows = {field.name: field for field in fields}
    values: dict[str, Value] = {}
    for key, value in without_retired(section, given).items():
        row = rows.get(key) if isinstance(key, str) else None
        if row is None:
            refuse_unknown_key(section, key, fields)
        if value is not None:
            path = f"{section}.{row.name}" if section else row.name
            values[row.name] = _check(path, value, row, _ERRORS.get(section, PlanError))
    return values


def refuse_unknown_key(section: str, key: object, fields: tuple[Field, ...]) -> NoReturn:
    """Raise for a key no row has, naming the row that was most likely meant."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a misspelt key pays for it

    text = key_text(key)
    path = f"{section}.{text}" if section else text
    meant = next((field.name for field in fields if text.lower() in field.synonyms), None)
    near = get_close_matches(text.lower(), [field.name for field in fields], n=1, cutoff=0.5)
    if meant or near:
        fix = f"write {meant or near[0]}"
    else:
        fix = f"leave it out, or use one of {', '.join(field.name for field in fields)}"
    raise _ERRORS.get(section, PlanError)(f"{path} is not a field of a plan", code="plan-unknown-key", fix=fix)


def shown(value: object) -> str:
    """A value as the user may have written it, cut to a readable length."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}...")
    if value is None or isinstance(value, float):
        return "null" if value is None else repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**30 else "a number of more than 30 digits"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def _check(path: str, value: object, row: Field, error: type[ShardwiseError]) -> Value:
    if row.kind == "choice":
        return _choice(path, value, row, error)
    if row.kind == "flag":
        if not isinstance(value, bool):
            raise error(
                f"{path} is {shown(value)}, neither true nor false",
                code="plan-wrong-type",
                fix=f"write {row.name}: true or {row.name}: false, without quotes",
            )
        return value
    if row.kind == "counts":
        if not isinstance(value, list | tuple) or len(value) == 0:
            what = (
                "an empty list" if isinstance(value, list | tuple) else f"{shown(value)}, not a list of whole numbers"
            )
            raise error(
                f"{path} is {what}",
                code="plan-wrong-type",
                fix=f"write {row.name}: [15, 16, 16, 15]",
            )
        return tuple(_count(f"{path}[{index}]", item, row, error) for index, item in enumerate(value))
    if row.kind == "choices":
        return _choices(path, value, row, error)
    if row.kind == "amount":
        return _amount(path, value, row, error)
    return _count(path, value, row, error)


def _choice(path: str, value: object, row: Field, error: type[ShardwiseError]) -> str:
    if isinstance(value, str) and value in row.choices:
        return value
    options = ", ".join(row.choices)
    if value is False and "none" in row.choices:
        # YAML 1.1 reads an unquoted no as false.
        near = "none"
    else:
        from difflib import get_close_matches  # noqa: PLC0415 - only a misspelt value pays for it

        lowered = value.lower() if isinstance(value, str) else ""
        near = next(iter(get_close_matches(lowered, row.choices, n=1, cutoff=NEAR_RATIO)), "")
    raise error(
        f"{path} is {shown(value)}, not one of {options}",
        code="plan-unknown-choice",
        fix=f'write {row.name}: "{near}"' if near else f"write one of these names, or leave {row.name} out",
    )


def _choices(path: str, value: object, row: Field, error: type[ShardwiseError]) -> tuple[str, ...]:
    """Names out of a list, each once and in the order of the choices, however they were written."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or len(given) == 0:
        raise error(
            f"{path} is {shown(value)}, not a list of names",
            code="plan-wrong-type",
            fix=f"write {row.name}: {row.example}",
        )
    names = {
        _choice(f"{path}[{index}]", item.strip() if isinstance(item, str) else item, row, error)
        for index, item in enumerate(given)
    }
    return tuple(name for name in row.choices if name in names)


def _count(path: str, value: object, row: Field, error: type[ShardwiseError]) -> int:
    number = int(value) if isinstance(value, float) and isfinite(value) and value == int(value) else value
    if isinstance(number, bool) or not isinstance(number, int):
        quoted = isinstance(value, str) and value.strip().lstrip("-").isdigit()
        raise error(
            f"{path} is {shown(value)}, not a whole number",
            code="plan-wrong-type",
            fix=f"write {str(value).strip()[:20]} without quotes"
            if quoted
            else f"write a number such as {row.example}",
        )
    _require_range(path, number, row, error)
    return number


def _amount(path: str, value: object, row: Field, error: type[ShardwiseError]) -> float:
    # YAML 1.1 reads 1e12 as text because it has no point.
    number = _number_in(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise error(
            f"{path} is {shown(value)}, not a number",
            code="plan-wrong-type",
            fix=f"write a number such as {row.example}",
        )
    _require_range(path, number, row, error)
    return float(number)


def _number_in(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _require_range(path: str, number: float, row: Field, error: type[ShardwiseError]) -> None:
    if row.lowest <= number <= row.highest and not (row.name == "dp_shard" and number == 0):
        return
    lowest, highest = int(row.lowest), int(row.highest)
    bound = lowest if number < lowest or number == 0 else highest
    allowed = f"1 to {highest}, or -1 for the rest" if row.name == "dp_shard" else f"{lowest} to {highest}"
    raise error(
        f"{path} is {shown(number)}, outside {allowed}",
        code="plan-out-of-range",
        fix=f"set {row.instead_of_zero} and leave out {row.name}"
        if number == 0 and row.instead_of_zero
        else f"write {row.name}: {bound}",
    )
