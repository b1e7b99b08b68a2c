"""Rules about single numbers: degrees and sizes that are not positive cannot be planned with at all."""

from collections.abc import Iterable
from math import isfinite

from shardwise.plan import Plan
from shardwise.recipe import MAX_ROUTING_IMBALANCE_RATIO
from shardwise.rules.refusal import Changes, Value
from shardwise.rules.rule import Rule

DEGREES = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "vpp", "ep", "expert_tp")
FALLBACK_SEQ_LEN = 4096


def _degrees(plan: Plan) -> tuple[int, ...]:
    la = plan.layout
    return (la.dp_replicate, la.dp_shard, la.tp, la.cp, la.pp, la.vpp, la.ep, la.expert_tp)


def _breaks_degrees(plan: Plan) -> bool:
    return min(_degrees(plan)) < 1 or plan.layout.prefetch_units < 0 or plan.layout.zero_stage not in (0, 1, 2, 3)


def _bad_layout_fields(plan: Plan) -> Changes:
    bad: list[tuple[str, Value]] = [
        (name, degree) for name, degree in zip(DEGREES, _degrees(plan), strict=True) if degree < 1
    ]
    if plan.layout.prefetch_units < 0:
        bad.append(("prefetch_units", plan.layout.prefetch_units))
    if plan.layout.zero_stage not in (0, 1, 2, 3):
        bad.append(("zero_stage", plan.layout.zero_stage))
    return tuple(bad)


def _layout_message(plan: Plan) -> str:
    bad = ", ".join(f"{name}={value}" for name, value in _bad_layout_fields(plan))
    return f"{bad} is out of range: degrees start at 1, prefetch_units at 0, and zero_stage is 0, 1, 2 or 3"


def _layout_candidates(plan: Plan) -> Iterable[Changes]:
    yield tuple((name, 3 if name == "zero_stage" else 1) for name, _ in _bad_layout_fields(plan))


def _bad_recipe_fields(plan: Plan) -> Changes:
    """The recipe's unusable numbers, each with the value that replaces it."""
    re = plan.recipe
    mended: list[tuple[str, Value]] = []
    if re.seq_len < 1:
        mended.append(("seq_len", FALLBACK_SEQ_LEN))
    mended.extend((name, 1) for name in ("micro_batch_size", "lora_rank", "loss_chunks") if _number(plan, name) < 1)
    if re.global_batch_size is not None and re.global_batch_size < 1:
        mended.append(("global_batch_size", None))
    if re.recompute_layers is not None and re.recompute_layers < 0:
        mended.append(("recompute_layers", None))
    if re.mean_document_len is not None and re.mean_document_len < 1:
        mended.append(("mean_document_len", None))
    if not 1 <= re.routing_imbalance_ratio <= MAX_ROUTING_IMBALANCE_RATIO:
        mended.append(("routing_imbalance_ratio", 1.0))
    if re.tokens is not None and not (isfinite(re.tokens) and re.tokens > 0):
        mended.append(("tokens", None))
    return tuple(mended)


def _number(plan: Plan, name: str) -> int:
    re = plan.recipe
    return {"micro_batch_size": re.micro_batch_size, "lora_rank": re.lora_rank, "loss_chunks": re.loss_chunks}[name]


def _breaks_recipe(plan: Plan) -> bool:
    re = plan.recipe
    return (
        re.seq_len < 1
        or re.micro_batch_size < 1
        or re.lora_rank < 1
        or re.loss_chunks < 1
        or (re.global_batch_size is not None and re.global_batch_size < 1)
        or (re.recompute_layers is not None and re.recompute_layers < 0)
        or (re.mean_document_len is not None and re.mean_document_len < 1)
        or not 1 <= re.routing_imbalance_ratio <= MAX_ROUTING_IMBALANCE_RATIO
        or (re.tokens is not None and not (isfinite(re.tokens) and re.tokens > 0))
    )


def _recipe_message(plan: Plan) -> str:
    re = plan.recipe
    values: dict[str, Value] = {
        "seq_len": re.seq_len,
        "micro_batch_size": re.micro_batch_size,
        "lora_rank": re.lora_rank,
        "loss_chunks": re.loss_chunks,
        "global_batch_size": re.global_batch_size,
        "recompute_layers": re.recompute_layers,
        "mean_document_len": re.mean_document_len,
        "routing_imbalance_ratio": re.routing_imbalance_ratio,
        "tokens": re.tokens,
    }
    bad = ", ".join(f"{name}={values[name]}" for name, _ in _bad_recipe_fields(plan))
    return f"{bad} is out of range: sizes start at 1 and tokens are a positive, finite number"


def _recipe_candidates(plan: Plan) -> Iterable[Changes]:
    yield _bad_recipe_fields(plan)


RULES = (
    Rule(
        name="layout-degree-range",
        why="A degree of parallelism counts ranks, so it is at least 1; ZeRO has the stages 0 to 3.",
        source="definition",
        breaks=_breaks_degrees,
        message=_layout_message,
        candidates=_layout_candidates,
    ),
    Rule(
        name="recipe-range",
        why="Sequence length, batch sizes, ranks and chunks count things, so they are at least 1.",
        source="definition",
        breaks=_breaks_recipe,
        message=_recipe_message,
        candidates=_recipe_candidates,
    ),
)
