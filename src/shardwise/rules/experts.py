"""Rules about routed experts: how many there are to divide, and from whom their ranks are borrowed."""

from collections.abc import Iterable

from shardwise.engines.table import ENGINES, engines_that
from shardwise.plan import Plan
from shardwise.rules.degrees import divisors, nearest_first, valid_ep_degrees, valid_expert_tp_degrees
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule


def lending_ranks(plan: Plan) -> int:
    """Ranks of one pipeline stage that expert parallelism may borrow: tp * cp * dp_shard, on Megatron all replicas too.

    Source: torchtitan ``distributed/parallel_dims.py``; Megatron-LM ``core/parallel_state.py``.
    """
    la = plan.layout
    return la.stage_replica_size * (la.dp_replicate if ENGINES[plan.engine].lends_replicas else 1)


def _ep_candidates(plan: Plan) -> Iterable[Changes]:
    for ep in nearest_first(valid_ep_degrees(plan.model), plan.layout.ep):
        if ep != plan.layout.ep:
            yield (("ep", ep),)
    yield (("ep", 1), ("expert_tp", 1))


def _breaks_dense(plan: Plan) -> bool:
    return plan.layout.ep * plan.layout.expert_tp > 1 and not plan.model.is_moe


def _dense_message(plan: Plan) -> str:
    la = plan.layout
    asked = f"ep={la.ep}" if la.ep > 1 else f"expert_tp={la.expert_tp}"
    return f"{asked} divides routed experts, but {plan.model.name} has none"


def _dense_candidates(plan: Plan) -> Iterable[Changes]:
    if plan.layout.expert_tp == 1:
        yield (("ep", 1),)
    elif plan.layout.ep == 1:
        yield (("expert_tp", 1),)
    else:
        yield (("ep", 1), ("expert_tp", 1))


def _breaks_experts(plan: Plan) -> bool:
    ep = plan.layout.ep
    return ep > 1 and any(shape.num_experts % ep for shape in plan.model.moe_shapes)


def _experts_message(plan: Plan) -> str:
    ep = plan.layout.ep
    experts = next(shape.num_experts for shape in plan.model.moe_shapes if shape.num_experts % ep)
    return f"ep={ep} does not divide the {experts} experts of {plan.model.name} ({experts} % {ep} = {experts % ep})"


def _breaks_borrowing(plan: Plan) -> bool:
    la = plan.layout
    return la.ep * la.expert_tp > 1 and lending_ranks(plan) % (la.ep * la.expert_tp) != 0


def _borrowing_message(plan: Plan) -> str:
    la = plan.layout
    group = f"ep={la.ep}" if la.expert_tp == 1 else f"ep={la.ep} times expert_tp={la.expert_tp}"
    lenders = f"tp={la.tp} * cp={la.cp} * dp_shard={la.dp_shard}"
    if ENGINES[plan.engine].lends_replicas and la.dp_replicate > 1:
        lenders += f" * dp_replicate={la.dp_replicate}"
    return f"{group} borrows its ranks from {lenders} = {lending_ranks(plan)}, which it must divide"


def _borrowing_candidates(plan: Plan) -> Iterable[Changes]:
    la = plan.layout
    ranks = lending_ranks(plan)
    if ranks % la.expert_tp == 0:
        for ep in nearest_first(divisors(ranks // la.expert_tp), la.ep):
            yield (("ep", ep),)
    for ep in nearest_first(divisors(ranks), la.ep):
        yield (("ep", ep), ("expert_tp", 1))


def _breaks_expert_width(plan: Plan) -> bool:
    expert_tp = plan.layout.expert_tp
    return expert_tp > 1 and any(shape.moe_intermediate_size % expert_tp for shape in plan.model.moe_shapes)


def _expert_width_message(plan: Plan) -> str:
    expert_tp = plan.layout.expert_tp
    width = next(sh.moe_intermediate_size for sh in plan.model.moe_shapes if sh.moe_intermediate_size % expert_tp)
    return f"expert_tp={expert_tp} does not divide the expert width {width} of {plan.model.name}"


def _expert_width_candidates(plan: Plan) -> Iterable[Changes]:
    for expert_tp in nearest_first(valid_expert_tp_degrees(plan.model), plan.layout.expert_tp):
        yield (("expert_tp", expert_tp),)


def _breaks_expert_tp(plan: Plan) -> bool:
    la = plan.layout
    divides = la.ep == 1 and la.expert_tp == la.tp and not ENGINES[plan.engine].keeps_experts_whole
    return la.expert_tp > 1 and plan.model.is_moe and not divides


def _expert_tp_message(plan: Plan) -> str:
    la = plan.layout
    asked = f"expert_tp={la.expert_tp} with tp={la.tp} and ep={la.ep}"
    if ENGINES[plan.engine].keeps_experts_whole:
        return f"{asked}: {plan.engine} divides experts over ep alone, each of them whole"
    return f"{asked}: on {plan.engine} experts are divided over tp when ep=1, and whole otherwise"


def _expert_tp_candidates(plan: Plan) -> Iterable[Changes]:
    if plan.layout.ep == 1 and not ENGINES[plan.engine].keeps_experts_whole:
        yield (("expert_tp", plan.layout.tp),)
    yield (("expert_tp", 1),)


def _breaks_megatron_sp(plan: Plan) -> bool:
    la = plan.layout
    return la.tp > 1 and not la.sequence_parallel and plan.model.is_moe


def _megatron_sp_message(plan: Plan) -> str:
    return (
        f"tp={plan.layout.tp} on a mixture-of-experts model without sequence_parallel, which Megatron refuses to train"
    )


def _breaks_deepspeed_experts(plan: Plan) -> bool:
    la = plan.layout
    return la.ep > 1 and la.zero_stage == 3 and la.tp * la.cp > 1


def _deepspeed_experts_message(plan: Plan) -> str:
    la = plan.layout
    return (
        f"ep={la.ep} with zero_stage=3, tp={la.tp} and cp={la.cp}: under ZeRO-3 DeepSpeed divides experts only where "
        f"tp and cp are 1"
    )


def _breaks_exchange(plan: Plan) -> bool:
    return plan.layout.expert_exchange == "deepep" and plan.layout.ep > 1


def _exchange_message(plan: Plan) -> str:
    return f"expert_exchange=deepep is not offered by {plan.engine}, only by megatron and torchtitan"


RULES = (
    Rule(
        name="layout-experts-without-moe",
        why="Expert parallelism, and tensor parallelism inside experts, divide routed experts; a dense model has none.",
        source="Megatron-LM core/transformer/transformer_config.py",
        reads=("ep", "expert_tp"),
        breaks=_breaks_dense,
        message=_dense_message,
        candidates=_dense_candidates,
    ),
    Rule(
        name="layout-experts-over-ep",
        why="Every expert-parallel rank holds the same number of whole experts.",
        source="torchtitan models/common/decoder.py; Megatron-LM core/transformer/moe/moe_layer.py",
        reads=("ep",),
        breaks=_breaks_experts,
        message=_experts_message,
        candidates=_ep_candidates,
    ),
    Rule(
        name="layout-ep-borrows-data-ranks",
        why="ep does not multiply the world size: inside a pipeline stage its ranks are those of tp, cp and dp_shard, "
        "so ep * expert_tp divides their product.",
        source="torchtitan distributed/parallel_dims.py; Megatron-LM core/parallel_state.py",
        reads=("ep", "expert_tp", "stage_replica_size", "dp_replicate"),
        breaks=_breaks_borrowing,
        message=_borrowing_message,
        candidates=_borrowing_candidates,
    ),
    Rule(
        name="layout-expert-width-over-expert-tp",
        why="Tensor parallelism inside an expert divides its width.",
        source="Megatron-LM core/tensor_parallel/layers.py (divide)",
        reads=("expert_tp",),
        breaks=_breaks_expert_width,
        message=_expert_width_message,
        candidates=_expert_width_candidates,
    ),
    Rule(
        name="engine-expert-exchange",
        engines=engines_that(lambda engine: not engine.has_deepep),
        why="DeepEP's kernels replace the exchange and the order of rows in the code of the engine.",
        source="Megatron-LM core/transformer/moe/token_dispatcher.py (flex); torchtitan distributed/deepep",
        reads=("expert_exchange", "ep"),
        breaks=_breaks_exchange,
        message=_exchange_message,
        candidates=(change(expert_exchange="alltoall"),),
    ),
    Rule(
        name="engine-expert-tp",
        engines=engines_that(lambda engine: not engine.has_expert_tp),
        why="Only Megatron has a tensor-parallel degree of its own inside experts. Our trainer keeps experts whole.",
        source="torchtitan distributed/parallel_dims.py (sparse mesh is efsdp * ep)",
        reads=("ep", "expert_tp", "tp"),
        breaks=_breaks_expert_tp,
        message=_expert_tp_message,
        candidates=_expert_tp_candidates,
    ),
    Rule(
        name="engine-megatron-experts-need-sequence-parallel",
        engines=("megatron",),
        why="Megatron's mixture-of-experts layer refuses to train with tensor parallelism but no sequence parallelism.",
        source="Megatron-LM core/transformer/moe/moe_layer.py",
        reads=("tp", "sequence_parallel"),
        breaks=_breaks_megatron_sp,
        message=_megatron_sp_message,
        candidates=(change(sequence_parallel=True), change(tp=1)),
    ),
    Rule(
        name="engine-deepspeed-experts-under-zero3",
        engines=("deepspeed",),
        why="DeepSpeed's own expert layers run under ZeRO-1 and 2 only; its AutoEP runs under ZeRO-3, without tp "
        "and cp.",
        source="DeepSpeed runtime/engine.py",
        reads=("ep", "tp", "cp", "zero_stage"),
        breaks=_breaks_deepspeed_experts,
        message=_deepspeed_experts_message,
        candidates=(
            change(zero_stage=2),
            change(zero_stage=1),
            change(zero_stage=2, offload="optimizer"),
            change(zero_stage=1, offload="optimizer"),
            change(ep=1),
        ),
    ),
)
