"""Model FLOP of training: what utilisation and cost divide by. Independent of layout, engine and recomputation."""

from shardwise.model import AttentionSpec, LayerSpec, ModelSpec
from shardwise.step.attention_operations import attended_pairs
from shardwise.units import Flop

MFU_CONVENTION = "6(N - input embedding) + causal attention"


def matmul_params(model: ModelSpec) -> int:
    """N of the convention: active parameters a token is multiplied with.

    The input table is a look-up; when it is tied it is also the head and counts. Towers and other attachments are not
    part of the planned step.
    """
    looked_up = 0 if model.tie_word_embeddings and model.has_head else model.num_embedding_params
    return model.num_active_params - looked_up - model.num_side_params


def attention_forward_flop_per_sequence(model: ModelSpec, seq_len: int) -> Flop:
    """Forward FLOP of all attention cores for one sequence, causal pairs counted once."""
    return sum(count * _layer_attention_flop(layer, seq_len) for layer, count in model.layer_runs)


def _layer_attention_flop(layer: LayerSpec, seq_len: int) -> Flop:
    total = 0.0
    for spec in (layer.mixer, layer.cross_attention):
        if isinstance(spec, AttentionSpec):
            pairs = attended_pairs(seq_len=seq_len, is_causal=spec.is_causal, sliding_window=spec.sliding_window)
            total += 2 * pairs * spec.num_attention_heads * (spec.head_dim + spec.v_head_dim)
    return total


def model_flop_per_token(model: ModelSpec, *, seq_len: int, is_base_frozen: bool = False) -> Flop:
    """Training FLOP of one token: ``6 N`` (``4 N`` with frozen weights) and three forwards of causal attention."""
    per_param = 4 if is_base_frozen else 6
    attention = 3 * attention_forward_flop_per_sequence(model, seq_len) / seq_len
    return per_param * matmul_params(model) + attention
