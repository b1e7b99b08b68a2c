"""The model that files name, found in the catalogue or worked out of Meta's own sizes."""

from collections.abc import Iterator, Mapping

from shardwise.exchange.names import View
from shardwise.exchange.reading import Reading
from shardwise.families.names import known_name
from shardwise.families.params_json import config_of_params
from shardwise.model import ModelSpec

FLAVORS = {
    **{f"llama-3.1-{size.lower()}": ("llama3", size) for size in ("8B", "70B", "405B")},
    **{
        f"qwen3-{size.lower()}": ("qwen3", size)
        for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")
    },
    **{f"gpt-oss-{size}": ("gpt_oss", size) for size in ("20b", "120b")},
    "llama-4-scout-17b-16e": ("llama4", "17bx16e"),
    "llama-4-maverick-17b-128e": ("llama4", "17bx128e"),
    "deepseek-v3-671b": ("deepseek_v3", "671B"),
}
"""Models of torchtitan 0.2.2 by their name in the catalogue: name and flavor. Its llama3 has the sizes and rotary base
of Llama 3.1."""
KERNEL_FLAVORS: Mapping[tuple[tuple[str, str], str | None], str] = {
    (("llama3", "8B"), "flex"): "_flex",
    (("llama3", "8B"), "fa2"): "_varlen",
}
"""Endings of the flavors that differ from a model's in the kernel of attention alone (models/llama3/__init__.py)."""


def model_source(reading: Reading) -> str | Mapping[str, object] | None:
    """Return what ``read_model`` takes for the named model; ``None`` where the files name none that is known."""
    meta = next((view for view in reading.views if view.tool.name == "meta"), None)
    if meta is not None:
        return _config_of(meta)
    named = reading.value("model")
    if named is None:
        configs = (SIZED[view.tool.name](view) for view in reading.views if view.tool.name in SIZED)
        return next((config for config in configs if config is not None), None)
    return next((text for text in _spellings(str(named)) if known_name(text) is not None), None)


def flavor_of(model: ModelSpec) -> tuple[str, str]:
    """Torchtitan's name and flavor of a model; ``MODEL`` and ours where it has none."""
    known = known_name(model.name)
    return FLAVORS.get(known[1] if known else "", ("MODEL", model.name))


def _config_of(meta: View) -> Mapping[str, object] | None:
    """The config that a params.json describes; ``None`` where its vocabulary is left to a tokenizer."""
    fields: dict[str, object] = {key: fact.value for key, fact in meta.by_key.items() if "." not in key}
    experts = {key.removeprefix("moe."): fact.value for key, fact in meta.by_key.items() if key.startswith("moe.")}
    if experts:
        fields["moe"] = experts
    sizes = [meta.number(key) or 0 for key in ("dim", "n_layers", "n_heads", "vocab_size")]
    return config_of_params(fields) if min(sizes) > 0 else None


def _config_of_sizes(view: View) -> Mapping[str, object] | None:
    """The config of a Llama, or else of a GPT-2, with the sizes that Megatron's arguments say; its name says so.

    ``None`` where a size is missing, or the blocks are of neither.
    """
    keys = ("num_layers", "hidden_size", "num_attention_heads")
    layers, hidden, heads = (view.number(key) or 0 for key in keys)
    vocabulary = view.number("vocab_size") or view.number("padded_vocab_size") or 0
    width, groups = view.number("ffn_hidden_size"), view.number("num_query_groups")
    groups = groups if view.is_on("group_query_attention") else None
    is_rotary = view.text("position_embedding_type") == "rope" or view.is_on("use_rotary_position_embeddings")
    parts = (view.is_on("swiglu"), view.text("normalization") == "rmsnorm", is_rotary)
    others = ("num_experts", "multi_latent_attention", "squared_relu", "qk_layernorm")
    if min(layers, hidden, heads, vocabulary) <= 0 or any(view.value(key) for key in others):
        return None
    is_tied = not view.is_on("untie_embeddings_and_output_weights")
    same: dict[str, object] = {"vocab_size": vocabulary, "tie_word_embeddings": is_tied}
    if all(parts) and width:
        llama: dict[str, object] = {
            "model_type": "llama",
            "name": f"llama-like model of {view.document.file}",
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "intermediate_size": width,
            "num_attention_heads": heads,
            "num_key_value_heads": groups or heads,
            "head_dim": view.number("kv_channels") or hidden // heads,
        }
        return llama | same
    if any(parts) or groups or view.value("kv_channels") or "max_position_embeddings" not in view.by_key:
        return None
    gpt: dict[str, object] = {
        "model_type": "gpt2",
        "name": f"gpt2-like model of {view.document.file}",
        "n_layer": layers,
        "n_embd": hidden,
        "n_inner": width or 4 * hidden,
        "n_head": heads,
        "n_positions": view.number("max_position_embeddings"),
    }
    return gpt | same


SIZED = {"megatron": _config_of_sizes}
"""Tools whose arguments say a model by its sizes, and what reads them."""


def _spellings(text: str) -> Iterator[str]:
    """The name, and that of torchtitan's flavor."""
    yield text
    family, _, flavor = text.partition(" ")
    if flavor:
        # Flavors such as 8B_flex have the sizes of the one that they are named after.
        plain = (family, flavor.partition("_")[0].lower())
        yield next(
            (ours for ours, theirs in FLAVORS.items() if (theirs[0], theirs[1].lower()) == plain), "-".join(plain)
        )
