"""torchtitan: sections of a TOML file, or ``--section.key`` on a line. One table for both, and for export."""

import re
from collections.abc import Iterator
from dataclasses import replace

from shardwise.exchange.names import LINE, RECOMPUTE_EVERY, Claim, Readers, View
from shardwise.layout import Layout
from shardwise.schedules.table import SCHEDULE_KINDS, SCHEDULES, Schedule
from shardwise.step.layer_placement import chunk_owner

CHUNKS: dict[Schedule, int] = {name: SCHEDULE_KINDS[name].num_chunks or 2 for name in SCHEDULES}
"""Stages of a rank by schedule."""


FLAVOR_KERNELS = {"flex": "flex", "varlen": "fa2"}
"""Kernels of attention that the ending of a flavor names; the others are torch's choice."""
EVERY_SECOND = "2"
"""The default of ``selective_ac_option`` (torchtitan 0.2.2 ``config/job_config.py``)."""
LOSS_CHUNKS = 8
"""Pieces of the loss by default (``components/loss.py`` of main 2026-08)."""
LORA_TARGETS = {"wkv wo wq": "attention", "wo wqkv": "attention"}
"""Matrices that get an adapter, by the sorted names of torchtitan's modules."""


def _work_out(view: View) -> Iterator[Claim]:
    pp = view.number("parallelism.pipeline_parallel_degree") or 1
    local = "training.local_batch_size" if "training.local_batch_size" in view.by_key else "training.batch_size"
    share = view.number(local)
    if share is not None and pp > 1:
        piece = "parallelism.pipeline_parallel_microbatch_size"
        yield view.claim("micro_batch_size", view.number(piece) or 1, piece, local)
        yield view.claim("rank_share", share, local)
    elif share is not None:
        yield view.claim("micro_batch_size", share, local)
        yield view.claim("rank_share", share, local)
    total = view.number("training.global_batch_size")
    if total is not None and total > 0:
        yield view.claim("global_batch_size", total, "training.global_batch_size")
    yield from _sharding(view, pp)
    yield _precision(view)
    yield from _parts(view)
    if pp > 1:
        yield from _stages(view, pp)
    yield view.claim("engine", "torchtitan", *view.by_key)
    if view.number("parallelism.tensor_parallel_degree") not in (None, 1):
        yield view.claim("sequence_parallel", True, "parallelism.tensor_parallel_degree")
    else:
        yield view.claim("sequence_parallel", False, "parallelism.tensor_parallel_degree")
    if view.value("model.flavor") is not None:
        yield view.claim("model", f"{view.value('model.name')} {view.value('model.flavor')}", "model.flavor")
        ending = view.text("model.flavor").rpartition("_")[2]
        yield view.claim("attention_kernel", FLAVOR_KERNELS.get(ending), "model.flavor")


def _parts(view: View) -> Iterator[Claim]:
    """Blocks that selective recomputation recomputes whole, every so many, and whether ``compile`` is the model's."""
    option = "activation_checkpoint.selective_ac_option"
    every = view.text(option) or ("" if view.document.program == "log" else EVERY_SECOND)
    if view.text("activation_checkpoint.mode") in ("", "selective") and every.isdigit():
        yield view.claim(RECOMPUTE_EVERY, int(every[:4]), option)
    parts = "compile.components"
    if parts in view.by_key and "model" not in view.text(parts).split():
        yield replace(view.claim("compile", False, parts), strength=LINE)


def _stages(view: View, pp: int) -> Iterator[Claim]:
    """Stages of a rank: two for the schedules that take several, unless the modules of every stage are listed."""
    key, parts = "parallelism.pipeline_parallel_schedule", "parallelism.module_fqns_per_model_part"
    schedule: Schedule = next((one for one in SCHEDULES if one == view.tool.ours(key, view.text(key))), "1f1b")
    count = CHUNKS[schedule]
    listed = [view.text(one).split() for one in view.by_key if one.startswith(f"{parts}.")]
    layers = [sum(name.startswith("layers.") for name in names) for names in listed]
    if not layers or len(layers) % pp:
        if view.number("parallelism.pipeline_parallel_layers_per_stage") is None:
            yield view.claim("vpp", count, key)
        return
    vpp = count if SCHEDULE_KINDS[schedule].doubles_chunks else len(layers) // pp
    layout = Layout(pp=pp, vpp=vpp, schedule=schedule)
    stages = [0] * pp
    for chunk, number in enumerate(layers):
        stages[chunk_owner(chunk=chunk, layout=layout)] += number
    yield view.claim("vpp", vpp, f"{parts}.0")
    yield view.claim("stage_layers", tuple(stages), f"{parts}.0")


def _sharding(view: View, pp: int) -> Iterator[Claim]:
    """Weights are sharded over dp_shard and cp; after the forward pass they stay whole in pipelines, by default."""
    key = "parallelism.fsdp_reshard_after_forward"
    reshards = {"always": True, "never": False}.get(view.text(key), pp == 1)
    is_ddp = (
        view.number("parallelism.data_parallel_shard_degree") == 1
        and (view.number("parallelism.data_parallel_replicate_degree") or 1) > 1
        and (view.number("parallelism.context_parallel_degree") or 1) == 1
    )
    if is_ddp:
        yield view.claim("zero_stage", 0, "parallelism.data_parallel_shard_degree")
    elif view.text(key) == "never":
        yield view.claim("zero_stage", 2, key)
    else:
        yield view.claim("zero_stage", 3, key)
        yield view.claim("reshard_after_forward", reshards, key)


def _precision(view: View) -> Claim:
    key = "model.converters"
    if "float8" in view.text(key) or "mx" in view.text(key):
        return view.claim("precision", "fp8-mixed", key)
    if view.text("training.dtype") == "bfloat16":
        return view.claim("precision", "bf16", "training.dtype")
    is_fp32 = view.text("training.mixed_precision_param") == "float32"
    return view.claim("precision", "fp32" if is_fp32 else "bf16-mixed", "training.mixed_precision_param")


def _recipe(view: View) -> Iterator[Claim]:
    """Batches are tokens; parts such as recomputation are classes, and numbers in 8 bits are a change of the model."""
    pp = view.number("parallelism.pipeline_parallel_degree") or 1
    yield view.claim("engine", "torchtitan", *view.by_key)
    yield from _sharding(view, pp)
    yield from _tokens(view, pp)
    if pp > 1:
        yield from _stages(view, pp)
    divides = (view.number("parallelism.tensor_parallel_degree") or 1) > 1
    key = "parallelism.enable_sequence_parallel"
    yield view.claim("sequence_parallel", divides and view.text(key) != "false", key)
    if view.is_recipe_named:  # what is not on the line, the recipe says
        return
    yield from _left_to_the_class(view)
    yield from _converters(view)
    if view.text("loss.kind").startswith("chunkedloss"):
        yield view.claim("loss_chunks", view.number("loss.num_chunks") or LOSS_CHUNKS, "loss.num_chunks", "loss.kind")
    elif view.text("loss.kind").startswith("crossentropy"):
        yield view.claim("loss_chunks", 1, "loss.kind")
    family = view.text("model_spec.module").rpartition(".models.")[2] or view.value("model.name")
    flavor = view.value("model_spec.0") or view.value("model.flavor")
    if family and flavor:
        if "model_spec.attn_backend" not in view.by_key:
            yield view.claim("attention_kernel", "fa2" if family == "gpt_oss" else "flex", "model_spec.attn_backend")
        yield view.claim("model", f"{family} {flavor}", "model_spec.0", "model.flavor")


def _left_to_the_class(view: View) -> Iterator[Claim]:
    """Claims on what a recipe leaves to the defaults of its dataclasses."""
    if "training.max_context_length" not in view.by_key:
        yield view.claim("seq_len", 2048, "training.max_context_length")
    for key, field in (("enable", "compile"), ("enable_async_tensor_parallel", "async_tensor_parallel")):
        if f"compile.{key}" not in view.by_key:
            yield view.claim(field, False, f"compile.{key}")
    kind = "activation_checkpoint"
    if kind in view.by_key and view.value(kind) is None:
        yield view.claim("recompute", "none", kind)
    elif f"{kind}.kind" not in view.by_key and f"{kind}.mode" not in view.by_key:
        yield view.claim("recompute", "selective", f"{kind}.kind")


def _tokens(view: View, pp: int) -> Iterator[Claim]:
    """Sequences of a micro-batch, of all of a rank, and of a step, each from its number of tokens."""
    length, whole = view.number("training.max_context_length"), "training.num_tokens_per_dp_rank"
    tokens = "training.num_tokens_per_microbatch_per_dp_rank"
    if pp == 1 and whole in view.by_key:  # a log names what the micro-batches of a pipeline are together
        tokens = whole
    count = view.number(tokens)
    if length and count and count % length == 0:
        yield view.claim("micro_batch_size", count // length, tokens)
        share = count // length * (view.number("parallelism.num_pp_microbatches") or 1 if pp > 1 else 1)
        yield view.claim("rank_share", share, tokens)
    step = view.number("training.num_tokens_per_train_step")
    if length and step and step > 0 and step % length == 0:
        yield view.claim("global_batch_size", step // length, "training.num_tokens_per_train_step")


def _converters(view: View) -> Iterator[Claim]:
    """Claims of the converters, which change the model before it is built: 8-bit products and adapters."""
    part = re.compile(r"model_spec\.converters\.\d+\.kind")
    kinds = {key: view.text(key) for key in view.by_key if part.fullmatch(key)}
    narrow = [key for key, name in kinds.items() if name.startswith(("float8", "mxfp8"))]
    if narrow:
        yield view.claim("precision", "fp8-mixed", narrow[0])
    elif all(name.startswith("loraconverter") for name in kinds.values()):  # 4 bits are no precision of a plan
        yield _precision(view)
    adapters = [key.removesuffix(".kind") for key, name in kinds.items() if name.startswith("loraconverter")]
    if not adapters:
        yield view.claim("adapter", "none", "model_spec.kind")
        return
    place = adapters[0]
    yield view.claim("adapter", "lora", f"{place}.kind")
    yield view.claim("lora_rank", view.number(f"{place}.rank") or 8, f"{place}.rank", f"{place}.kind")
    alpha = view.value(f"{place}.alpha")
    yield view.claim("lora_alpha", alpha if isinstance(alpha, int | float) else 16.0, f"{place}.alpha", f"{place}.kind")
    names = view.value(f"{place}.target_modules")
    ours = LORA_TARGETS.get(" ".join(sorted(map(str, names)))) if isinstance(names, tuple) else "all-linear"
    yield view.claim("lora_targets", ours, f"{place}.target_modules", f"{place}.kind")


READERS: Readers = {"torchtitan": _work_out, "torchtitan-recipe": _recipe}
