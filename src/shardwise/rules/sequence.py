"""Rules about dividing the sequence: context parallelism, sequence parallelism, positions."""

from collections.abc import Iterable

from shardwise.engines.table import ENGINES, engines_that
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.rules.degrees import divisors, nearest_first, valid_cp_degrees
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule
from shardwise.step.attention_kernel import writes_scores


def stripes_per_rank(plan: Plan) -> int:
    """Pieces of the sequence each context-parallel rank holds: two when zig-zag balanced, one under Ulysses."""
    return 1 if ENGINES[plan.engine].exchanges_heads else 2


def _breaks_cp(plan: Plan) -> bool:
    cp = plan.layout.cp
    return cp > 1 and plan.recipe.seq_len % (stripes_per_rank(plan) * cp) != 0


def _cp_message(plan: Plan) -> str:
    cp, seq_len, pieces = plan.layout.cp, plan.recipe.seq_len, stripes_per_rank(plan) * plan.layout.cp
    return f"cp={cp} cuts a sequence into {pieces} equal pieces, but {seq_len} % {pieces} = {seq_len % pieces}"


def _cp_candidates(plan: Plan) -> Iterable[Changes]:
    cp, seq_len = plan.layout.cp, plan.recipe.seq_len
    pieces = stripes_per_rank(plan) * cp * (plan.layout.tp if plan.layout.sequence_parallel else 1)
    yield (("seq_len", max(1, round(seq_len / pieces)) * pieces),)
    for degree in nearest_first(valid_cp_degrees(seq_len, is_zigzag=stripes_per_rank(plan) == 2), cp):
        yield (("cp", degree),)


def _breaks_sp(plan: Plan) -> bool:
    la = plan.layout
    if la.tp == 1 or not la.sequence_parallel:
        return False
    return plan.recipe.seq_len % (la.cp * la.tp) != 0


def _sp_message(plan: Plan) -> str:
    la, seq_len = plan.layout, plan.recipe.seq_len
    pieces = la.cp * la.tp
    return (
        f"sequence_parallel divides a sequence over cp={la.cp} times tp={la.tp} ranks, but {seq_len} % {pieces} = "
        f"{seq_len % pieces}"
    )


def _sp_candidates(plan: Plan) -> Iterable[Changes]:
    la, seq_len = plan.layout, plan.recipe.seq_len
    pieces = la.cp * la.tp * stripes_per_rank(plan)
    yield (("seq_len", max(1, round(seq_len / pieces)) * pieces),)
    yield (("sequence_parallel", False),)
    for tp in nearest_first([tp for tp in divisors(la.tp) if seq_len % (la.cp * tp) == 0], la.tp):
        yield (("tp", tp),)
    yield (("tp", 1),)


def _breaks_ulysses(plan: Plan) -> bool:
    la = plan.layout
    if la.cp == 1:
        return False
    return any(
        (shape.num_attention_heads // la.tp) % la.cp
        or (shape.num_key_value_heads % la.cp and la.cp % shape.num_key_value_heads)
        for shape in plan.model.attention_shapes
    )


def _ulysses_message(plan: Plan) -> str:
    la = plan.layout
    shape = plan.model.attention_shapes[0]
    return (
        f"cp={la.cp} exchanges whole heads on {plan.engine} (Ulysses), but each of tp={la.tp} ranks holds "
        f"{shape.num_attention_heads // la.tp} attention heads and the model has {shape.num_key_value_heads} "
        f"key-value heads"
    )


def _ulysses_candidates(plan: Plan) -> Iterable[Changes]:
    la = plan.layout
    for cp in nearest_first(divisors(max(sh.num_attention_heads for sh in plan.model.attention_shapes)), la.cp):
        if cp != la.cp:
            yield (("cp", cp),)
    yield (("cp", 1),)


def _breaks_eager_cp(plan: Plan) -> bool:
    return plan.layout.cp > 1 and writes_scores(plan) and not ENGINES[plan.engine].exchanges_heads


def _eager_cp_message(plan: Plan) -> str:
    recipe = plan.recipe
    if recipe.attention == "eager":
        written = "attention is eager"
    elif recipe.attention_kernel == "math":
        written = "attention_kernel is math"
    else:
        written = f"{plan.engine} has no fused kernel for {recipe.precision} on {plan.cluster.gpu.id}"
    return f"cp={plan.layout.cp} exchanges key-value blocks inside a fused kernel, but {written}"


def has_position_table(model: ModelSpec) -> bool:
    """Whether positions are learned rows of a table; not rotary, relative or absent."""
    return any(
        weight.role == "embedding" and weight.split != "vocab" and ("wpe" in weight.name or "position" in weight.name)
        for weight in model.embedding_weights
    )


def _breaks_position_table(plan: Plan) -> bool:
    positions = plan.model.max_position_embeddings
    return 0 < positions < plan.recipe.seq_len and has_position_table(plan.model)


def _position_table_message(plan: Plan) -> str:
    return (
        f"seq_len={plan.recipe.seq_len} exceeds the {plan.model.max_position_embeddings} learned positions of "
        f"{plan.model.name}"
    )


def _breaks_rotary_range(plan: Plan) -> bool:
    positions = plan.model.max_position_embeddings
    return 0 < positions < plan.recipe.seq_len and not has_position_table(plan.model)


def _rotary_range_message(plan: Plan) -> str:
    return (
        f"seq_len={plan.recipe.seq_len} is beyond the {plan.model.max_position_embeddings} positions the config of "
        f"{plan.model.name} states"
    )


def _shorter_sequence(plan: Plan) -> Iterable[Changes]:
    longest = plan.model.max_position_embeddings
    pieces = plan.layout.cp * 2 * plan.layout.tp
    yield (("seq_len", longest),)
    if longest >= pieces:
        yield (("seq_len", longest // pieces * pieces),)


RULES = (
    Rule(
        name="layout-sequence-over-cp",
        why="A context-parallel rank takes one stripe from the head and one from the tail of a causal sequence, so "
        "that all ranks attend equally much; DeepSpeed's Ulysses takes one stripe.",
        source="Megatron-LM training/arguments.py; torchtitan trainer.py; DeepSpeed sequence_parallel/ulysses_sp.py",
        reads=("seq_len", "cp"),
        breaks=_breaks_cp,
        message=_cp_message,
        candidates=_cp_candidates,
    ),
    Rule(
        name="layout-sequence-over-tp",
        why="Sequence parallelism divides norms and residuals evenly along the sequence.",
        source="Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2; torchtitan trainer.py",
        reads=("seq_len", "tp", "cp", "sequence_parallel"),
        breaks=_breaks_sp,
        message=_sp_message,
        candidates=_sp_candidates,
    ),
    Rule(
        name="layout-heads-over-cp",
        engines=engines_that(lambda engine: engine.exchanges_heads),
        why="Ulysses exchanges sequence stripes for heads: every rank needs whole attention heads, and key-value "
        "heads are divided or replicated evenly.",
        source="DeepSpeed runtime/sequence_parallel/ulysses_sp.py",
        reads=("tp", "cp"),
        breaks=_breaks_ulysses,
        message=_ulysses_message,
        candidates=_ulysses_candidates,
    ),
    Rule(
        name="recipe-eager-attention-with-cp",
        why="Ring and all-gather context parallelism live inside the fused attention kernels.",
        source="torch distributed/tensor/experimental (scaled_dot_product_attention only); Transformer Engine",
        reads=("attention", "cp", "attention_kernel", "precision"),
        breaks=_breaks_eager_cp,
        message=_eager_cp_message,
        candidates=(change(attention="flash"), change(attention="flash", attention_kernel=None), change(cp=1)),
    ),
    Rule(
        name="recipe-position-table",
        why="A learned position table has one row per position; a longer sequence has no embedding.",
        source="Hugging Face config: max_position_embeddings, n_positions",
        reads=("seq_len",),
        breaks=_breaks_position_table,
        message=_position_table_message,
        candidates=_shorter_sequence,
    ),
    Rule(
        name="recipe-beyond-trained-positions",
        severity="warning",
        why="Rotary and relative positions extend, but the model was configured for fewer and needs scaled rotary "
        "frequencies or longer training to use more.",
        source="Hugging Face config: max_position_embeddings",
        breaks=_breaks_rotary_range,
        message=_rotary_range_message,
        candidates=_shorter_sequence,
    ),
)
