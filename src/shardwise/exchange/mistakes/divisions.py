"""Layers, heads, experts and tokens that do not divide, and recomputation that Megatron refuses."""

from collections.abc import Iterator

from shardwise.exchange.mistakes.rule import Case, Conditions, Found

MEGATRONS = ("megatron", "nemo", "megatron-bridge", "llamafactory")
STRICT = ("megatron", "megatron-bridge")
"""Tools that fill in no method of recomputation."""
UNEVEN = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
BRIDGE_UNEVEN = ("model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage")
LAYOUT_KEYS = (
    "pp_partition_method",
    "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)


def _layers_by_stages(case: Case) -> Iterator[Found]:
    layers, pp = case.number("num_layers"), case.number("pp")
    is_uneven = any(key in view.by_key for view in case.views() for key in (*UNEVEN, *BRIDGE_UNEVEN, *LAYOUT_KEYS))
    # The Llama 405B of NeMo's recipes: 126 layers and both ends as layers of their own make 128, or stages of 9 pieces.
    pieces = pp * max(1, case.number("vpp"))
    if layers and pp > 1 and layers % pp and not is_uneven and any(case.views(*MEGATRONS)):
        each = -(-layers // pp)
        first = layers - each * (pp - 1)
        is_bridge = any(case.views("megatron-bridge"))
        key = "model.num_layers_in_first_pipeline_stage" if is_bridge else "--decoder-first-pipeline-num-layers"
        # A divisor of pp as well, so that the same GPUs divide into such stages.
        fewer = max(stages for stages in range(1, pp) if layers % stages == pp % stages == 0)
        uneven = f"a stage of {first} layers at one end ({each} in the others): {key} {first}"
        yield Found(
            case.place("pp"),
            f"{layers} layers on {pp} stages",
            uneven if first > 0 else f"a number of stages that divides {layers}, such as {fewer}",
        )
    elif (
        layers
        and pp > 1
        and pieces > pp
        and layers % pieces
        and not is_uneven
        and any(case.views("megatron", "nemo", "megatron-bridge"))
    ):
        yield Found(
            case.place("vpp"),
            f"{layers // pp} layers a stage in {case.number('vpp')} pieces",
            f"a number of pieces that divides {layers // pp}",
        )


def _layers_dropped(case: Case) -> Iterator[Found]:
    fact = case.fact("num_layers_per_virtual_pipeline_stage", "megatron")
    layers, pp = case.number("num_layers"), case.number("pp")
    if (
        fact
        and isinstance(fact.value, int)
        and fact.value > 0
        and layers
        and pp
        and layers % pp == 0
        and layers // pp % fact.value
    ):
        kept = layers // pp // fact.value * fact.value * pp
        yield Found(
            fact.place,
            f"{layers // pp} layers a stage in pieces of {fact.value}: older versions trained {kept} of {layers}",
            f"pieces of a number of layers that divides {layers // pp}",
        )


def _uneven_alone(case: Case) -> Iterator[Found]:
    for key in UNEVEN:
        fact = case.fact(key, "megatron")
        if fact and fact.value is not None and case.number("pp") == 1:
            yield Found(
                fact.place,
                f"one stage is the whole model: {fact.value} of {case.number('num_layers') or 'all'} layers train",
                f"drop --{key.replace('_', '-')} at pipeline size 1",
            )


def _experts_by_ranks(case: Case) -> Iterator[Found]:
    ep, pp, world = case.number("ep"), case.number("pp"), case.number("world_size")
    inner = case.number("expert_tp") or case.number("tp")
    if ep > 1 and pp and inner and world and world % (ep * pp * inner) and any(case.views(*MEGATRONS)):
        yield Found(
            case.place("world_size"),
            f"ep {ep} x pp {pp} x expert tp {inner} = {ep * pp * inner} GPUs at least, {world} are started",
            f"a multiple of {ep * pp * inner} GPUs, or --expert-model-parallel-size {max(1, world // (pp * inner))}",
        )


def _experts_divide(case: Case) -> Iterator[Found]:
    experts, ep = case.number("num_experts"), case.number("ep")
    if experts and ep > 1 and experts % ep:
        yield Found(case.place("ep"), f"{experts} experts over ep {ep}", f"an ep that divides {experts}")


def _experts_below_tp(case: Case) -> Iterator[Found]:
    fact = case.fact("parallelism.expert_parallel_degree", "torchtitan-recipe")
    if fact and fact.value != 0 and case.number("ep") < case.number("tp"):
        yield Found(
            fact.place,
            f"experts are not cut by tp alone since 2026-09: ep {fact.value} is below tp {case.number('tp')}",
            f"--parallelism.expert_parallel_degree {case.number('tp')}",
        )


def _experts_need_sequence_parallel(case: Case) -> Iterator[Found]:
    is_off = case.reading.value("sequence_parallel") is False
    if (
        case.number("tp") > 1
        and case.number("ep") > 1
        and is_off
        and any(case.views("megatron", "nemo", "megatron-bridge"))
    ):
        yield Found(
            case.place("ep"), "experts with tensor parallelism need sequence parallelism", "--sequence-parallel"
        )


def _recompute(case: Case) -> Iterator[Found]:
    for view in case.views(*MEGATRONS):
        for prefix in ("recompute", "model.recompute", "model.activations_checkpoint"):
            kind, method = view.text(f"{prefix}_granularity"), view.text(f"{prefix}_method")
            # Llama-Factory and NeMo fill in the method themselves.
            is_strict = view.tool.name in STRICT or not {"cutoff_len", "stage"} & set(view.by_key)
            if kind == "full" and method in ("", "none") and is_strict and view.tool.name != "nemo":
                yield Found(
                    view.by_key[f"{prefix}_granularity"].place,
                    "full recomputation needs a method and a number of layers",
                    f"{prefix}_method: uniform (or block) and {prefix}_num_layers: 1",
                )
            elif kind == "selective" and method not in ("", "none") and view.tool.name != "nemo":
                yield Found(
                    view.by_key[f"{prefix}_method"].place,
                    "selective recomputation has no method",
                    f"drop {prefix}_method, or {prefix}_granularity: full",
                )


def _heads(case: Case) -> Iterator[Found]:
    tp, heads, groups = case.number("tp"), case.number("num_heads"), case.number("num_key_value_heads")
    if heads and tp > 1 and heads % tp:
        yield Found(case.place("tp"), f"{heads} attention heads over tp {tp}", f"a tp that divides {heads}")
    elif groups and tp > 1 and groups % tp and tp % groups:
        yield Found(
            case.place("tp"),
            f"{groups} key-value heads are neither a multiple nor a divisor of tp {tp}",
            f"a tp that divides {groups}",
        )


def _sequence(case: Case) -> Iterator[Found]:
    seq_len, cp, tp = case.number("seq_len"), case.number("cp"), case.number("tp")
    parts = tp * 2 * cp if any(case.views("torchtitan")) else 2 * cp
    if seq_len and parts and (cp > 1 or any(case.views("torchtitan"))) and seq_len % parts:
        yield Found(
            case.place("seq_len"),
            f"{seq_len} tokens do not divide into {parts} equal parts (tp {tp}, cp {cp})",
            f"{-(-seq_len // parts) * parts} tokens",
        )


CONDITIONS: Conditions = (
    ("layers-by-virtual-stages", _layers_dropped),
    ("uneven-without-pipeline", _uneven_alone),
    ("layers-by-stages", _layers_by_stages),
    ("experts-by-data-ranks", _experts_by_ranks),
    ("experts-by-ep", _experts_divide),
    ("experts-below-tp", _experts_below_tp),
    ("experts-without-sequence-parallel", _experts_need_sequence_parallel),
    ("recompute-combination", _recompute),
    ("heads-by-tp", _heads),
    ("tokens-by-cp", _sequence),
)
