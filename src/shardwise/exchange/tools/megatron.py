"""Megatron-LM's arguments, and what speaks their names: Megatron-Bridge, NeMo and the Megatron of DeepSpeed."""

import re
from collections.abc import Iterator
from dataclasses import replace

from shardwise.exchange.names import UNREAD_RECIPE, Claim, Readers, View
from shardwise.exchange.tools.deepspeed import clipping
from shardwise.fields import MANY_LAYERS
from shardwise.recipe import FusedLossKernel, Precision
from shardwise.step.layer_placement import spread_layers

DEEPSPEED = "deepspeed"
RECOMPUTE = "recompute"
OLDER_SWITCHES = ("checkpoint_activations", "activations_checkpoint_method")
"""Flags of Megatron-LM of 2021 and its forks that recompute every layer."""
STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
FORMATS: tuple[tuple[str, Precision], ...] = (
    ("fp8_format", "fp8-mixed"),
    ("fp8", "fp8-mixed"),
    ("bf16", "bf16-mixed"),
    ("fp16", "fp16-mixed"),
)
NEMO_FORMATS: dict[str, Precision] = {
    "bf16": "bf16-mixed",
    "bf16-mixed": "bf16-mixed",
    "16": "fp16-mixed",
    "16-mixed": "fp16-mixed",
    "32": "fp32",
}
NEMO_STRATEGIES = {"": 3, "full": 3, "hybrid": 3, "grad": 2}
KERNELS: dict[str, FusedLossKernel] = {"te": "te", "native": "native", "": "native"}
SHARDED_OPTIMIZERS = ("distributed_fused_adam", "mcore_distributed_optim")


def _work_out(view: View) -> Iterator[Claim]:
    engine = "deepspeed" if view.is_on("deepspeed") else "megatron"
    yield view.claim("engine", engine, "deepspeed", *view.by_key)
    yield from _sharding(view)
    yield from recomputation(view)
    yield from _sequence_parallel(view)
    yield from clipping(view, "clip_grad")
    if view.is_on("group_query_attention"):  # without it groups are not read, and a log says 1
        yield view.claim("num_key_value_heads", view.number("num_query_groups"), "num_query_groups")
    if "micro_batch_size" in view.by_key and not {"global_batch_size", "step_batch_size_schedule"} & set(view.by_key):
        yield view.claim("num_microbatches", 1, "")
    if not view.is_on("deepspeed"):
        yield from _loss(view, "")
    yield from _routing(view, "")
    for key, precision in FORMATS:
        if view.is_on(key) or view.text(key) in ("e4m3", "hybrid"):
            yield view.claim("precision", precision, key)
            if key == "bf16" and "main_grads_dtype" not in view.by_key:
                # Gradients of bf16 weights are added up and reduced in fp32, unless a flag says otherwise.
                yield view.claim("reduce_dtype", "fp32", "")
            return
    if view.document.program == "log":  # a log says every argument
        yield view.claim("precision", "fp32", "bf16")


def _sharding(view: View) -> Iterator[Claim]:
    """The distributed optimizer is ZeRO 1; the two kinds of FSDP say their stage."""
    if view.is_on("use_torch_fsdp2"):
        yield view.claim("zero_stage", 3, "use_torch_fsdp2")
    elif view.is_on("use_megatron_fsdp"):
        key = "data_parallel_sharding_strategy"
        yield view.claim("zero_stage", STAGES.get(view.text(key), 0), key, "use_megatron_fsdp")
    elif "zero_stage" in view.by_key:
        yield view.claim("zero_stage", view.number("zero_stage"), "zero_stage")
    elif DEEPSPEED not in view.others:
        yield view.claim("zero_stage", int(view.is_on("use_distributed_optimizer")), "use_distributed_optimizer")
    yield from _uneven_stages(view)
    yield from _written_stages(view)
    copies = view.number("num_distributed_optimizer_instances")
    if copies is not None:
        yield view.claim("dp_replicate", copies, "num_distributed_optimizer_instances")


def _loss(view: View, prefix: str) -> Iterator[Claim]:
    """Whether the loss is fused, and by which kernel: Megatron's own where a fused one says nothing more."""
    fused, kernel = f"{prefix}cross_entropy_loss_fusion", f"{prefix}cross_entropy_fusion_impl"
    yield view.claim("fused_loss", view.is_on(fused), fused)
    if view.is_on(fused):
        yield view.claim("fused_loss_kernel", KERNELS.get(view.text(kernel)), kernel, fused)


def _routing(view: View, prefix: str) -> Iterator[Claim]:
    """Routing that a benchmark balances by force."""
    key = f"{prefix}moe_router_force_load_balancing"
    if view.is_on(key):
        yield view.claim("routing_imbalance_ratio", 1.0, key)


def _uneven_stages(view: View) -> Iterator[Claim]:
    """Layers of the first and the last stage; those between share the rest."""
    keys = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    first, last = (view.number(key) for key in keys)
    pp, layers = view.number("pipeline_model_parallel_size") or 1, view.number("num_layers")
    ends = [end for end in (first, last) if end is not None]
    between = pp - len(ends)
    rest = (layers or 0) - sum(ends)
    is_whole = rest % between == 0 if between > 0 else rest == 0
    if layers and ends and between >= 0 and pp > 1 and is_whole:
        middle = rest // max(1, between)
        stages = [middle] * pp
        stages[0], stages[-1] = first or middle, last or middle
        yield view.claim("stage_layers", tuple(stages), *keys)


def _written_stages(view: View) -> Iterator[Claim]:
    """Chunks a stage of a written layout, and the layers of its stages where they are not those of a plan anyway."""
    key = "pipeline_model_parallel_layout"
    text, pp = view.value(key), view.number("pipeline_model_parallel_size") or 1
    chunks = written_chunks(text) if isinstance(text, str) else ()
    if pp == 1 or not chunks or len(chunks) % pp:
        return
    yield view.claim("vpp", len(chunks) // pp, key)
    if chunks != spread_layers(num_layers=sum(chunks), num_chunks=len(chunks)):
        yield view.claim("stage_layers", tuple(sum(chunks[stage::pp]) for stage in range(pp)), key)


def written_chunks(text: str) -> tuple[int, ...]:
    """Decoder layers of each chunk of a layout as Megatron writes it, in the order of the model; none if it is none.

    Source: NVIDIA/Megatron-LM@00caa53 core/transformer/pipeline_parallel_layer_layout.py.

    >>> written_chunks("Ettt|(tt|)*3,m|L")
    (3, 2, 2, 2, 0, 0)
    """
    for pattern in (r"\(([^)]+)\)\*(\d{1,3})(?!\d)", r"(.)\*(\d{1,3})(?!\d)"):
        if len(text) > MANY_LAYERS:
            return ()
        text = re.sub(pattern, lambda found: found[1] * int(found[2]), text.replace(",", ""))
    is_layout = text.startswith("E") and text.endswith("L") and set(text) <= set("ELtm|")
    return tuple(chunk.count("t") for chunk in text.split("|")) if is_layout else ()


def recomputation(view: View, *, prefix: str = RECOMPUTE) -> Iterator[Claim]:
    """Yield the claims on recomputation: its kind, and the number of layers of a stage."""
    key = f"{prefix}_granularity"
    if view.text(key) in ("full", "selective"):
        yield view.claim("recompute", view.text(key), key)
        layers = view.number(f"{prefix}_num_layers")
        if view.text(f"{prefix}_method") == "block" and layers:
            yield view.claim("recompute_layers", layers, f"{prefix}_num_layers")
        modules = view.value(f"{prefix}_modules")
        if modules is not None:
            names = modules if isinstance(modules, tuple) else (modules,)
            yield view.claim("recompute_modules", tuple(str(name) for name in names), f"{prefix}_modules")
        return
    for older in OLDER_SWITCHES if prefix == RECOMPUTE else ():
        if view.text(older) not in ("", "false", "none"):
            yield view.claim("recompute", "full", older)
            return
    if view.is_on("recompute_activations"):
        yield view.claim("recompute", "selective", "recompute_activations")
    elif "$" not in view.text(key):
        yield view.claim("recompute", "none", key)


def _sequence_parallel(view: View) -> Iterator[Claim]:
    """Sequence parallelism, which Megatron turns off with tp 1 without saying so."""
    is_on = view.is_on("sequence_parallel") and view.value("tensor_model_parallel_size") not in (None, 1)
    yield view.claim("sequence_parallel", is_on, "sequence_parallel")


def _inside(view: View, section: str) -> View:
    """The keys of one section as if they stood at the top."""
    return replace(view, by_key={key.removeprefix(f"{section}."): fact for key, fact in view.by_key.items()})


def _bridge(view: View) -> Iterator[Claim]:
    yield view.claim("engine", "megatron", *view.by_key)
    yield view.claim("optimizer", "adamw", "optimizer.optimizer")
    yield from recomputation(_inside(view, "model"))
    yield from _sequence_parallel(_inside(view, "model"))
    if "model.cross_entropy_loss_fusion" in view.by_key:
        yield from _loss(view, "model.")
    yield from _routing(view, "model.")
    for key in ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"):
        if key in view.by_key:
            yield view.claim("zero_stage", int(view.is_on(key)), key)


def _nemo(view: View) -> Iterator[Claim]:
    inner = _inside(view, "model")
    yield view.claim("engine", "megatron", *view.by_key)
    if view.is_on("model.fsdp"):
        key = "model.fsdp_sharding_strategy"
        yield view.claim("zero_stage", NEMO_STRATEGIES.get(view.text(key)), key, "model.fsdp")
    yield from recomputation(inner, prefix="activations_checkpoint")
    yield from _sequence_parallel(inner)
    if "factory" in view.by_key:
        yield view.claim(UNREAD_RECIPE, True, "factory")
        yield view.claim("optimizer", "adamw", "model.optim.name")  # of every recipe of NeMo 2
    devices, nodes = view.number("trainer.devices"), view.number("trainer.num_nodes")
    if devices and nodes:
        yield view.claim("world_size", devices * nodes, "trainer.num_nodes")
    # model.fp8 decides; trainer.precision and fp8_hybrid do not.
    if view.is_on("model.fp8"):
        yield view.claim("precision", "fp8-mixed", "model.fp8")
    else:
        yield view.claim("precision", NEMO_FORMATS.get(view.text("trainer.precision")), "trainer.precision")
    optimizer = view.text("model.optim.name")
    if optimizer:
        if not view.is_on("model.fsdp"):
            yield view.claim("zero_stage", int(optimizer in SHARDED_OPTIMIZERS), "model.optim.name")
        is_adam = "adam" in optimizer or optimizer in SHARDED_OPTIMIZERS
        yield view.claim("optimizer", "adamw" if is_adam else None, "model.optim.name")


READERS: Readers = {"megatron": _work_out, "nemo": _nemo, "megatron-bridge": _bridge}
