"""Rules about what tensor parallelism divides: heads, key-value heads, widths, vocabulary."""

from collections.abc import Iterable

from shardwise.engines.table import ENGINES
from shardwise.plan import Plan
from shardwise.rules.degrees import divisors, nearest_first, tensor_widths, valid_tp_degrees
from shardwise.rules.refusal import Changes
from shardwise.rules.rule import Rule

MEGATRON_VOCAB_MULTIPLE = 128
"""``--make-vocab-size-divisible-by`` default, times tp (Megatron-LM ``training/arguments.py``)."""


def _tp_candidates(plan: Plan) -> Iterable[Changes]:
    degrees = valid_tp_degrees(plan.model, replicates_kv_heads=ENGINES[plan.engine].replicates_kv_heads)
    for tp in nearest_first(degrees, plan.layout.tp):
        if tp != plan.layout.tp:
            yield (("tp", tp),)
    yield (("tp", 1),)


def _breaks_heads(plan: Plan) -> bool:
    tp = plan.layout.tp
    return tp > 1 and any(shape.num_attention_heads % tp for shape in plan.model.attention_shapes)


def _heads_message(plan: Plan) -> str:
    tp = plan.layout.tp
    heads = next(sh.num_attention_heads for sh in plan.model.attention_shapes if sh.num_attention_heads % tp)
    return f"tp={tp} does not divide the {heads} attention heads of {plan.model.name} ({heads} % {tp} = {heads % tp})"


def _kv_head_count(plan: Plan) -> int | None:
    """The first number of key-value heads that ``tp`` neither divides nor, where allowed, is a multiple of."""
    tp, replicates = plan.layout.tp, ENGINES[plan.engine].replicates_kv_heads
    for shape in plan.model.attention_shapes:
        heads = shape.num_key_value_heads
        if heads % tp and not (replicates and tp % heads == 0):
            return heads
    return None


def _breaks_kv_heads(plan: Plan) -> bool:
    return plan.layout.tp > 1 and _kv_head_count(plan) is not None


def _kv_heads_message(plan: Plan) -> str:
    tp, heads = plan.layout.tp, _kv_head_count(plan)
    if ENGINES[plan.engine].replicates_kv_heads:
        return f"tp={tp} neither divides the {heads} key-value heads of {plan.model.name} nor is a multiple of them"
    return (
        f"tp={tp} does not divide the {heads} key-value heads of {plan.model.name}, and {plan.engine} does not "
        f"replicate them"
    )


def _breaks_replicated_kv(plan: Plan) -> bool:
    tp = plan.layout.tp
    return (
        tp > 1
        and ENGINES[plan.engine].replicates_kv_heads
        and any(tp > sh.num_key_value_heads and tp % sh.num_key_value_heads == 0 for sh in plan.model.attention_shapes)
    )


def _replicated_kv_message(plan: Plan) -> str:
    tp = plan.layout.tp
    heads = min(shape.num_key_value_heads for shape in plan.model.attention_shapes)
    return (
        f"tp={tp} exceeds the {heads} key-value heads of {plan.model.name}: each is held {tp // heads} times, with its "
        f"weights, gradients and optimizer states"
    )


def _breaks_ffn(plan: Plan) -> bool:
    tp, model = plan.layout.tp, plan.model
    if tp == 1:
        return False
    return (
        any(shape.intermediate_size % tp for shape in model.dense_shapes)
        or any(shape.shared_intermediate_size % tp for shape in model.moe_shapes)
        or any(shape.intermediate_size % tp or shape.num_heads % tp for shape in model.mamba_shapes)
    )


def _ffn_message(plan: Plan) -> str:
    tp = plan.layout.tp
    width = next(width for width in tensor_widths(plan.model) if width % tp)
    return f"tp={tp} does not divide the feed-forward or mixer width {width} of {plan.model.name}"


def _breaks_hidden(plan: Plan) -> bool:
    return plan.model.hidden_size % plan.layout.tp != 0


def _hidden_message(plan: Plan) -> str:
    return f"tp={plan.layout.tp} does not divide the hidden size {plan.model.hidden_size} of {plan.model.name}"


def _breaks_vocab(plan: Plan) -> bool:
    return plan.model.vocab_size % plan.layout.tp != 0


def _vocab_message(plan: Plan) -> str:
    tp, vocab = plan.layout.tp, plan.model.vocab_size
    multiple = MEGATRON_VOCAB_MULTIPLE * tp
    padded = -(-vocab // multiple) * multiple
    return (
        f"tp={tp} does not divide the vocabulary of {vocab}: the table is cut unevenly by DTensor and padded to "
        f"{padded} rows by Megatron"
    )


def _vocab_candidates(plan: Plan) -> Iterable[Changes]:
    for tp in nearest_first(divisors(plan.model.vocab_size), plan.layout.tp):
        if tp < plan.layout.tp:
            yield (("tp", tp),)
    yield (("tp", 1),)


def _fewer_kv_copies(plan: Plan) -> Iterable[Changes]:
    for tp in nearest_first(valid_tp_degrees(plan.model), plan.layout.tp):
        yield (("tp", tp),)
    yield (("tp", 1),)


RULES = (
    Rule(
        name="layout-heads-over-tp",
        why="Every tensor-parallel rank computes whole attention heads.",
        source="Megatron-LM core/transformer/transformer_config.py; torchtitan models/common/decoder.py",
        reads=("tp",),
        breaks=_breaks_heads,
        message=_heads_message,
        candidates=_tp_candidates,
    ),
    Rule(
        name="layout-kv-heads-over-tp",
        why="Key-value heads are divided like attention heads. Beyond their number Megatron and DeepSpeed keep copies "
        "(tp must be a multiple of them), and so does our trainer; other engines built on DTensor refuse.",
        source="Megatron-LM core/transformer/transformer_config.py; torchtitan models/common/decoder.py",
        reads=("tp",),
        breaks=_breaks_kv_heads,
        message=_kv_heads_message,
        candidates=_tp_candidates,
    ),
    Rule(
        name="layout-kv-heads-replicated",
        severity="warning",
        why="Copies of key-value heads cost memory and save nothing.",
        source="Megatron-LM core/transformer/transformer_config.py",
        breaks=_breaks_replicated_kv,
        message=_replicated_kv_message,
        candidates=_fewer_kv_copies,
    ),
    Rule(
        name="layout-ffn-over-tp",
        why="The width of a feed-forward block, a shared expert or a state space mixer is divided over tp.",
        source="Megatron-LM core/tensor_parallel/layers.py (divide)",
        reads=("tp",),
        breaks=_breaks_ffn,
        message=_ffn_message,
        candidates=_tp_candidates,
    ),
    Rule(
        name="layout-hidden-over-tp",
        why="Projections into and out of the heads are divided along head elements that make up the hidden size.",
        source="Shoeybi et al. 2019, arXiv:1909.08053, section 3",
        reads=("tp",),
        breaks=_breaks_hidden,
        message=_hidden_message,
        candidates=_tp_candidates,
    ),
    Rule(
        name="layout-vocab-over-tp",
        severity="warning",
        why="The token table and the head are divided by vocabulary rows; an indivisible number is padded or uneven. "
        "`shardwise train` does neither and refuses it (train-tensor-parts).",
        source="Megatron-LM training/arguments.py (--make-vocab-size-divisible-by)",
        breaks=_breaks_vocab,
        message=_vocab_message,
        candidates=_vocab_candidates,
    ),
)
