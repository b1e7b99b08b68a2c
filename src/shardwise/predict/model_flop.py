"""Model FLOP of training: what utilisation and cost divide by. Independent of layout, engine and recomputation."""

from shardwise.model import AttentionSpec, LayerSpec, ModelSpec
from shardwise.plan import Plan
from shardwise.step.attention_operations import attended_pairs
from shardwise.units import Flop

FULL_FLOP_PER_PARAM, FROZEN_FLOP_PER_PARAM = 6, 4
"""Two of the forward pass, two of gradients of the inputs, and two of gradients of the weights where they are trained.
"""


def mfu_convention(model: ModelSpec, *, is_base_frozen: bool = False) -> str:
    """The FLOP that :func:`model_flop_per_token` counts for this model, in words."""
    per_param = FROZEN_FLOP_PER_PARAM if is_base_frozen else FULL_FLOP_PER_PARAM
    active = "N active" if model.is_moe else "N"
    params = f"({active} - input embedding)" if _looked_up_params(model) else f" {active}"
    specs = [spec for layer, _ in model.layer_runs for spec in (layer.mixer, layer.cross_attention)]
    attention = [spec for spec in specs if isinstance(spec, AttentionSpec)]
    if not attention:
        return f"{per_param}{params}"
    causal = "causal attention" if all(spec.is_causal for spec in attention) else "attention"
    return f"{per_param}{params} + {causal}"


def matmul_params(model: ModelSpec) -> int:
    """N of the convention: active parameters a token is multiplied with.

    The input table is a look-up; when it is tied it is also the head and counts. Towers and other attachments are not
    part of the planned step.
    """
    return model.num_active_params - _looked_up_params(model) - model.num_side_params


def _looked_up_params(model: ModelSpec) -> int:
    return 0 if model.tie_word_embeddings and model.has_head else model.num_embedding_params


def attention_forward_flop_per_sequence(model: ModelSpec, seq_len: int, *, has_whole_square: bool = False) -> Flop:
    """Forward FLOP of all attention cores for one sequence, causal pairs counted once."""
    return sum(count * _layer_attention_flop(layer, seq_len, has_whole_square) for layer, count in model.layer_runs)


def _layer_attention_flop(layer: LayerSpec, seq_len: int, has_whole_square: bool) -> Flop:
    total = 0.0
    for spec in (layer.mixer, layer.cross_attention):
        if isinstance(spec, AttentionSpec):
            is_causal = spec.is_causal and not has_whole_square
            pairs = attended_pairs(seq_len=seq_len, is_causal=is_causal, sliding_window=spec.sliding_window)
            total += 2 * pairs * spec.num_attention_heads * (spec.head_dim + spec.v_head_dim)
    return total


def plan_flop_per_token(plan: Plan) -> Flop:
    """Training FLOP of one token: adapters leave the base frozen, and packed documents attend to themselves."""
    is_frozen = plan.recipe.adapter != "none"
    return model_flop_per_token(plan.model, seq_len=plan.recipe.document_len, is_base_frozen=is_frozen)


def model_flop_per_token(
    model: ModelSpec, *, seq_len: int, is_base_frozen: bool = False, has_whole_square: bool = False
) -> Flop:
    """Training FLOP of one token: ``6 N`` (``4 N`` with frozen weights) and three forwards of causal attention.

    Args:
        model: what is trained.
        seq_len: tokens of a sequence.
        is_base_frozen: whether only adapters are trained.
        has_whole_square: whether pairs that a causal mask hides are counted too, as many sources do.
    """
    per_param = FROZEN_FLOP_PER_PARAM if is_base_frozen else FULL_FLOP_PER_PARAM
    attention = attention_flop_per_token(model, seq_len=seq_len, has_whole_square=has_whole_square)
    return per_param * matmul_params(model) + attention


def attention_flop_per_token(model: ModelSpec, *, seq_len: int, has_whole_square: bool = False) -> Flop:
    """Training FLOP of one token in all attention cores: three forwards of them, which grow with the sequence."""
    return 3 * attention_forward_flop_per_sequence(model, seq_len, has_whole_square=has_whole_square) / seq_len
