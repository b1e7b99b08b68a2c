"""Vision towers that hang beside a language model: counted weight by weight, not planned layer by layer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from shardwise.families.blocks import (
    MlpNames,
    Weights,
    convolution,
    mlp_weights,
    norm,
    norms,
    position_table,
    projection,
    vector,
)
from shardwise.families.config import ModelConfig
from shardwise.families.llama_styles import SANDWICH_NORMS
from shardwise.model import Weight

_FC1_FC2 = MlpNames(gate="", up="fc1", down="fc2")
_LINEAR_FC = MlpNames(gate="", up="linear_fc1", down="linear_fc2")


@dataclass(frozen=True, slots=True)
class Tower:
    """A vision tower and what it hands to the projector."""

    weights: Weights
    output_size: int


DEEPEST_TOWER = 1_000
"""Published towers have up to 48 blocks."""

TowerBuilder = Callable[[ModelConfig, str], Tower]


def image_patches(config: ModelConfig) -> int:
    """Patches of one image of the trained size."""
    image, patch = _side(config, "image_size"), _side(config, "patch_size")
    if patch > image:
        config.refuse_range("patch_size", patch, f"at most image_size, {image}")
    return (image // patch) ** 2


def _side(config: ModelConfig, name: str) -> int:
    """The side of a square given as one number or as two equal ones."""
    if isinstance(config.value(name), list | tuple):
        sides = config.counts(name) or (1,)
        return max(1, sides[0])
    return config.count(name)


def _depth(config: ModelConfig, name: str = "num_hidden_layers") -> int:
    """Blocks of the tower; every one of them is listed, so there is a limit to them."""
    depth = config.count(name)
    if depth > DEEPEST_TOWER:
        config.refuse_range(name, depth, f"at most {DEEPEST_TOWER}")
    return depth


def _separate_attention(prefix: str, size: int, output: str, *, bias: bool, output_bias: bool) -> Weights:
    weights: Weights = ()
    for name in ("q_proj", "k_proj", "v_proj"):
        weights += projection(f"{prefix}.{name}", (size, size), "column", bias=bias)
    return weights + projection(f"{prefix}.{output}", (size, size), "row", bias=output_bias)


def _fused_attention(prefix: str, size: int) -> Weights:
    qkv = projection(f"{prefix}.qkv", (3 * size, size), "column", bias=True)
    return qkv + projection(f"{prefix}.proj", (size, size), "row", bias=True)


def _repeat(prefix: str, count: int, layer: Weights) -> Weights:
    return tuple(
        Weight(name=f"{prefix}.{index}.{weight.name}", shape=weight.shape, split=weight.split, role=weight.role)
        for index in range(count)
        for weight in layer
    )


def _vit_layer(size: int, width: int) -> Weights:
    """A pre-norm block with biases everywhere, as in CLIP and SigLIP."""
    return (
        _separate_attention("self_attn", size, "out_proj", bias=True, output_bias=True)
        + mlp_weights("mlp", size, width, names=_FC1_FC2, bias=True)
        + norms(("layer_norm1", "layer_norm2"), size, bias=True)
    )


def clip(config: ModelConfig, prefix: str) -> Tower:
    """CLIP: class token, patches without bias, norms before and after the blocks."""
    size, patch = config.count("hidden_size"), _side(config, "patch_size")
    weights = (
        vector(f"{prefix}.embeddings.class_embedding", size)
        + convolution(f"{prefix}.embeddings.patch_embedding", (size, config.count("num_channels"), patch, patch))
        + position_table(f"{prefix}.embeddings.position_embedding", image_patches(config) + 1, size)
        + norms((f"{prefix}.pre_layrnorm", f"{prefix}.post_layernorm"), size, bias=True)
        + _repeat(
            f"{prefix}.encoder.layers",
            _depth(config),
            _vit_layer(size, config.count("intermediate_size")),
        )
    )
    return Tower(weights, size)


def siglip(config: ModelConfig, prefix: str) -> Tower:
    """SigLIP and the Idefics towers made from it: patches with bias, and a pooling head where the config keeps it."""
    size, width, patch = config.count("hidden_size"), config.count("intermediate_size"), _side(config, "patch_size")
    kernel = (size, config.count("num_channels"), patch, patch)
    weights = (
        convolution(f"{prefix}.embeddings.patch_embedding", kernel, bias=True)
        + position_table(f"{prefix}.embeddings.position_embedding", image_patches(config), size)
        + norm(f"{prefix}.post_layernorm", size, bias=True)
        + _repeat(f"{prefix}.encoder.layers", _depth(config), _vit_layer(size, width))
    )
    if config.flag("vision_use_head"):
        weights += (
            vector(f"{prefix}.head.probe", size)
            + projection(f"{prefix}.head.attention.in_proj", (3 * size, size), "column", bias=True)
            + projection(f"{prefix}.head.attention.out_proj", (size, size), "row", bias=True)
            + norm(f"{prefix}.head.layernorm", size, bias=True)
            + mlp_weights(f"{prefix}.head.mlp", size, width, names=_FC1_FC2, bias=True)
        )
    return Tower(weights, size)


def pixtral(config: ModelConfig, prefix: str) -> Tower:
    """Pixtral: RMSNorm, gated feed-forward parts, rotary positions, no biases."""
    size, patch = config.count("hidden_size"), _side(config, "patch_size")
    layer = (
        _separate_attention("attention", size, "o_proj", bias=False, output_bias=False)
        + mlp_weights("feed_forward", size, config.count("intermediate_size"))
        + norms(("attention_norm", "ffn_norm"), size)
    )
    weights = convolution(f"{prefix}.patch_conv", (size, config.count("num_channels"), patch, patch))
    weights += norm(f"{prefix}.ln_pre", size)
    return Tower(weights + _repeat(f"{prefix}.transformer.layers", _depth(config), layer), size)


def qwen2_vl(config: ModelConfig, prefix: str) -> Tower:
    """Qwen2-VL: patches over two frames, fused QKV, a merger of 2 x 2 patches into the language width."""
    size, out_size = config.count("embed_dim"), config.count("hidden_size")
    layer = (
        norms(("norm1", "norm2"), size, bias=True)
        + _fused_attention("attn", size)
        + mlp_weights("mlp", size, config.count("mlp_ratio") * size, names=_FC1_FC2, bias=True)
    )
    weights = _video_patches(config, prefix, size, bias=False)
    weights += _repeat(f"{prefix}.blocks", _depth(config, "depth"), layer)
    weights += norm(f"{prefix}.merger.ln_q", size, bias=True)
    return Tower(weights + _qwen_merger(config, prefix, size, out_size), out_size)


def qwen2_5_vl(config: ModelConfig, prefix: str) -> Tower:
    """Qwen2.5-VL: as Qwen2-VL with RMSNorm and gated feed-forward parts."""
    size, out_size = config.count("hidden_size"), config.count("out_hidden_size")
    layer = (
        norms(("norm1", "norm2"), size)
        + _fused_attention("attn", size)
        + mlp_weights("mlp", size, config.count("intermediate_size"), bias=True)
    )
    weights = _video_patches(config, prefix, size, bias=False)
    weights += _repeat(f"{prefix}.blocks", _depth(config, "depth"), layer)
    weights += norm(f"{prefix}.merger.ln_q", size)
    return Tower(weights + _qwen_merger(config, prefix, size, out_size), out_size)


def qwen3_vl(config: ModelConfig, prefix: str) -> Tower:
    """Qwen3-VL and Qwen3.5: learned positions and a further merger for every deep-stack layer."""
    size, out_size = config.count("hidden_size"), config.count("out_hidden_size")
    merged = size * config.count("spatial_merge_size") ** 2
    layer = (
        norms(("norm1", "norm2"), size, bias=True)
        + _fused_attention("attn", size)
        + mlp_weights("mlp", size, config.count("intermediate_size"), names=_LINEAR_FC, bias=True)
    )
    weights = _video_patches(config, prefix, size, bias=True)
    weights += position_table(f"{prefix}.pos_embed", config.count("num_position_embeddings"), size)
    weights += _repeat(f"{prefix}.blocks", _depth(config, "depth"), layer)
    mergers = [(f"{prefix}.merger", size)]
    deep = config.counts("deepstack_visual_indexes") or ()
    mergers += [(f"{prefix}.deepstack_merger_list.{index}", merged) for index in range(len(deep))]
    for name, norm_size in mergers:
        weights += norm(f"{name}.norm", norm_size, bias=True)
        weights += projection(f"{name}.linear_fc1", (merged, merged), "column", bias=True)
        weights += projection(f"{name}.linear_fc2", (out_size, merged), "row", bias=True)
    return Tower(weights, out_size)


def _video_patches(config: ModelConfig, prefix: str, size: int, *, bias: bool) -> Weights:
    frames, patch = _side(config, "temporal_patch_size"), _side(config, "patch_size")
    kernel = (size, config.count("in_channels"), frames, patch, patch)
    return convolution(f"{prefix}.patch_embed.proj", kernel, bias=bias)


def _qwen_merger(config: ModelConfig, prefix: str, size: int, out_size: int) -> Weights:
    merged = size * config.count("spatial_merge_size") ** 2
    return projection(f"{prefix}.merger.mlp.0", (merged, merged), "column", bias=True) + projection(
        f"{prefix}.merger.mlp.2", (out_size, merged), "row", bias=True
    )


def glm4v(config: ModelConfig, prefix: str) -> Tower:
    """GLM-4.5V: RMSNorm, gated parts as wide as the output, a convolution that merges patches, a gated merger.

    Source: transformers 5.24.0, ``Glm4vMoeVisionModel``.
    """
    size, out, merge = config.count("hidden_size"), config.count("out_hidden_size"), config.count("spatial_merge_size")
    layer = (
        norms(("norm1", "norm2"), size)
        + projection("attn.qkv", (3 * size, size), "column", bias=config.flag("attention_bias"))
        + projection("attn.proj", (size, size), "row")
        + mlp_weights("mlp", size, out)
    )
    weights = position_table(f"{prefix}.embeddings.position_embedding", image_patches(config), size)
    weights += _video_patches(config, prefix, size, bias=True) + _repeat(
        f"{prefix}.blocks", _depth(config, "depth"), layer
    )
    weights += norms((f"{prefix}.post_conv_layernorm", f"{prefix}.post_layernorm"), size)
    weights += convolution(f"{prefix}.downsample", (out, size, merge, merge), bias=True)
    weights += projection(f"{prefix}.merger.proj", (out, out), "column")
    weights += norm(f"{prefix}.merger.post_projection_norm", out, bias=True)
    return Tower(weights + mlp_weights(f"{prefix}.merger", out, config.count("intermediate_size")), out)


def llama4_vision(config: ModelConfig, prefix: str) -> Tower:
    """Llama 4: patches through a matrix, a class token, and an adapter after pixel shuffling."""
    size, width, patch = config.count("hidden_size"), config.count("intermediate_size"), _side(config, "patch_size")
    patch_size = config.count("num_channels") * patch**2
    layer = (
        _separate_attention("self_attn", size, "o_proj", bias=True, output_bias=True)
        + mlp_weights("mlp", size, width, names=_FC1_FC2, bias=True)
        + norms(("input_layernorm", "post_attention_layernorm"), size, bias=True)
    )
    adapter_size, output_size = config.count("projector_input_dim"), config.count("projector_output_dim")
    weights = (
        vector(f"{prefix}.class_embedding", size)
        + position_table(f"{prefix}.positional_embedding_vlm", image_patches(config) + 1, size)
        + projection(f"{prefix}.patch_embedding.linear", (size, patch_size), "column")
        + norms((f"{prefix}.layernorm_pre", f"{prefix}.layernorm_post"), size, bias=True)
        + projection(f"{prefix}.vision_adapter.mlp.fc1", (adapter_size, width), "column")
        + projection(f"{prefix}.vision_adapter.mlp.fc2", (output_size, adapter_size), "row")
        + _repeat(f"{prefix}.model.layers", _depth(config), layer)
    )
    return Tower(weights, config.count("vision_output_dim"))


def mllama_vision(config: ModelConfig, prefix: str) -> Tower:
    """Llama 3.2 Vision: tiles with gated position tables, local blocks and then gated global ones."""
    size, width, patch = config.count("hidden_size"), config.count("intermediate_size"), _side(config, "patch_size")
    positions, tiles = image_patches(config) + 1, config.count("max_num_tiles")
    ratios = config.value("supported_aspect_ratios")
    num_ratios = (len(ratios) if isinstance(ratios, list | tuple) else _num_aspect_ratios(tiles)) + 1
    layer = (
        _separate_attention("self_attn", size, "o_proj", bias=False, output_bias=False)
        + mlp_weights("mlp", size, width, names=_FC1_FC2, bias=True)
        + norms(("input_layernorm", "post_attention_layernorm"), size, bias=True)
    )
    gates = vector("gate_attn", 1) + vector("gate_ffn", 1)
    table = f"{prefix}.gated_positional_embedding"
    weights = (
        vector(f"{prefix}.class_embedding", size)
        + convolution(f"{prefix}.patch_embedding", (size, config.count("num_channels"), patch, patch))
        + vector(f"{table}.gate", 1)
        + position_table(f"{table}.embedding", positions, size)
        + position_table(f"{table}.tile_embedding", num_ratios, tiles * positions * size)
        + norms((f"{prefix}.layernorm_pre", f"{prefix}.layernorm_post"), size, bias=True)
    )
    for name in ("pre_tile_positional_embedding", "post_tile_positional_embedding"):
        weights += vector(f"{prefix}.{name}.gate", 1)
        weights += position_table(f"{prefix}.{name}.embedding", num_ratios, tiles * size)
    weights += _repeat(f"{prefix}.transformer.layers", _depth(config), layer)
    weights += _repeat(f"{prefix}.global_transformer.layers", _depth(config, "num_global_layers"), layer + gates)
    return Tower(weights, config.count("vision_output_dim"))


def _num_aspect_ratios(tiles: int) -> int:
    """Shapes of up to ``tiles`` tiles: width times height at most ``tiles``; 8 for 4 tiles."""
    return sum(tiles // width for width in range(1, tiles + 1))


def internvl(config: ModelConfig, prefix: str) -> Tower:
    """InternViT in its Hugging Face form: class token, layer scale, optional query and key norms."""
    size, width, patch = config.count("hidden_size"), config.count("intermediate_size"), _side(config, "patch_size")
    kernel = (size, config.count("num_channels"), patch, patch)
    has_shift = config.text_or("norm_type", "layer_norm") == "layer_norm"
    attention = _separate_attention(
        "attention", size, "projection_layer", bias=config.flag("attention_bias"), output_bias=True
    )
    if config.flag("use_qk_norm"):
        attention += norms(("attention.q_norm", "attention.k_norm"), size)
    layer = (
        attention
        + mlp_weights("mlp", size, width, names=_FC1_FC2, bias=True)
        + norms(("layernorm_before", "layernorm_after"), size, bias=has_shift)
        + vector("lambda_1", size)
        + vector("lambda_2", size)
    )
    weights = vector(f"{prefix}.embeddings.cls_token", size)
    if config.flag("use_absolute_position_embeddings"):
        weights += position_table(f"{prefix}.embeddings.position_embeddings", image_patches(config) + 1, size)
    weights += convolution(f"{prefix}.embeddings.patch_embeddings.projection", kernel, bias=True)
    weights += _repeat(f"{prefix}.encoder.layer", _depth(config), layer)
    if not config.flag("use_mean_pooling"):
        weights += norm(f"{prefix}.layernorm", size, bias=True)
    return Tower(weights, size)


def gemma4_vision(config: ModelConfig, prefix: str) -> Tower:
    """Gemma 4: patches through a matrix, one position table for each direction, sandwich norms."""
    size, patch, head_dim = config.count("hidden_size"), _side(config, "patch_size"), config.count("head_dim")
    projections = _separate_attention("self_attn", size, "o_proj", bias=False, output_bias=False)
    projections += mlp_weights("mlp", size, config.count("intermediate_size"))
    layer = (
        tuple(replace(weight, name=weight.name.replace("_proj.", "_proj.linear.")) for weight in projections)
        + norms(("self_attn.q_norm", "self_attn.k_norm"), head_dim)
        + norms(SANDWICH_NORMS, size)
    )
    table = (2, config.count("position_embedding_size"), size)
    weights = (
        Weight(name=f"{prefix}.patch_embedder.position_embedding_table", shape=table, split="replicated", role="other"),
        *projection(f"{prefix}.patch_embedder.input_proj", (size, 3 * patch**2), "replicated"),
        *_repeat(f"{prefix}.encoder.layers", _depth(config), layer),
    )
    return Tower(weights, size)


def kimi_vision(config: ModelConfig, prefix: str) -> Tower:
    """Kimi K2.5: MoonViT, an image tower with a learned grid of positions."""
    size, patch = config.count("hidden_size"), _side(config, "patch_size")
    grid = (config.count("pos_emb_height"), config.count("pos_emb_width"), size)
    layer = (
        norms(("norm1", "norm2"), size, bias=True)
        + _separate_attention("attn", size, "proj", bias=True, output_bias=True)
        + mlp_weights("mlp", size, config.count("intermediate_size"), names=_FC1_FC2, bias=True)
    )
    weights = (
        *convolution(f"{prefix}.patch_embed.proj", (size, 3, patch, patch), bias=True),
        Weight(name=f"{prefix}.patch_embed.pos_emb.position_embeddings", shape=grid, split="replicated", role="other"),
        *norm(f"{prefix}.final_layernorm", size, bias=True),
        *_repeat(f"{prefix}.layers", _depth(config), layer),
    )
    return Tower(weights, size)


TOWERS: Mapping[str, TowerBuilder] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "idefics2_vision": siglip,
    "idefics3_vision": siglip,
    "smolvlm_vision": siglip,
    "pixtral": pixtral,
    "qwen2_vl_vision": qwen2_vl,
    "qwen2_5_vl_vision": qwen2_5_vl,
    "glm4v_moe_vision": glm4v,
    "qwen3_vl_vision": qwen3_vl,
    "qwen3_vl_moe_vision": qwen3_vl,
    "qwen3_5_vision": qwen3_vl,
    "qwen3_5_moe_vision": qwen3_vl,
    "llama4_vision_model": llama4_vision,
    "mllama_vision_model": mllama_vision,
    "internvl_vision": internvl,
    "gemma4_vision": gemma4_vision,
    "kimi_k25_vision": kimi_vision,
}
"""Towers by the ``model_type`` of their config."""
