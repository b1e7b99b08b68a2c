"""What to write into the config of a run so that its model has the tensors that a checkpoint holds."""

import json
import re
from collections.abc import Iterator, Mapping

from shardwise.train.decoder.config import EXPERT_COUNTS, MOE_TYPES, completed
from shardwise.train.decoder.shapes import Shape

__all__ = ["SAME_MODEL_FIX", "SIZE_FIELDS", "fix_of_config", "fix_of_shapes", "is_whole", "written"]

SAME_MODEL_FIX = "resume with the model and optimizer that the checkpoint was made with"
SIZE_FIELDS = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "attention_bias",
    *EXPERT_COUNTS,
)
"""Fields that decide which tensors our decoder has."""
BLOCK = re.compile(r"model\.layers\.(\d+)\.")
ATTENTION, FEED_FORWARD = "model.layers.0.self_attn", "model.layers.0.mlp"


def is_whole(fields: Mapping[str, object]) -> bool:
    """Whether a config says every size; jobs of versions before 0.1 left some to our decoder's own defaults."""
    return all(name in fields for name in completed(fields) if name in SIZE_FIELDS)


def fix_of_config(made: Mapping[str, object], fields: Mapping[str, object]) -> str:
    """What to write into a run's config for the model of the config that a checkpoint was made with."""
    return _fix({name: made[name] for name in SIZE_FIELDS if name in made}, fields)


def fix_of_shapes(held: Mapping[str, Shape], fields: Mapping[str, object]) -> str:
    """What to write into a run's config when only a checkpoint's tensors are known.

    Args:
        held: their shapes, by their names in the whole model.
        fields: of the run's config.
    """
    whole = completed(fields)
    return _fix(dict(_sizes_of(held, whole)), whole)


def _fix(wanted: Mapping[str, object], fields: Mapping[str, object]) -> str:
    differing = {name: size for name, size in wanted.items() if fields.get(name) != size}
    return written(differing) if differing else SAME_MODEL_FIX


def written(fields: Mapping[str, object]) -> str:
    """The fix that names fields and the values they had."""
    pairs = ", ".join(f'"{name}": {json.dumps(value)}' for name, value in fields.items())
    return f"write {pairs} in the model's config.json, as the checkpoint was made"


def _sizes_of(held: Mapping[str, Shape], whole: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    table = held.get("model.embed_tokens.weight")
    blocks = {int(match[1]) for name in held if (match := BLOCK.match(name))}
    query = held.get(f"{ATTENTION}.q_proj.weight")
    if table is None or query is None:
        return
    yield from zip(("vocab_size", "hidden_size"), table, strict=True)
    yield "num_hidden_layers", max(blocks) + 1
    norm = held.get(f"{ATTENTION}.q_norm.weight")
    # Without a norm over a head nothing shows its size: as many heads as the run has are taken.
    head_dim = norm[0] if norm else query[0] // int(str(whole["num_attention_heads"]))
    yield "num_attention_heads", query[0] // head_dim
    yield "head_dim", head_dim
    yield "num_key_value_heads", held[f"{ATTENTION}.k_proj.weight"][0] // head_dim
    yield "tie_word_embeddings", "lm_head.weight" not in held
    if "attention_bias" in whole:
        yield "attention_bias", f"{ATTENTION}.q_proj.bias" in held
    yield from _widths(held, whole)


def _widths(held: Mapping[str, Shape], whole: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Config fields of the feed-forward part: rows of a dense gate, or experts and their rows."""
    gate, down = held.get(f"{FEED_FORWARD}.gate_proj.weight"), held.get(f"{FEED_FORWARD}.experts.down_proj")
    if gate is not None:
        yield "intermediate_size", gate[0]
    elif down is not None and whole["model_type"] in MOE_TYPES:
        yield next(name for name in EXPERT_COUNTS if name in whole), down[0]
        yield "moe_intermediate_size" if whole["model_type"] == "qwen3_moe" else "intermediate_size", down[2]
