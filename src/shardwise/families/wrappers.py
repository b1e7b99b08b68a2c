"""Multimodal wrappers: a language model under ``text_config`` with a vision tower and a projector beside it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from shardwise.families.blocks import Weights, norm, projection, vector
from shardwise.families.config import ModelConfig
from shardwise.families.vision import TOWERS, Tower
from shardwise.model import ModelSpec, Weight

TEXT_FIELDS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Names of the objects in which wrappers keep the config of their language model."""

NO_LANGUAGE_MODEL = frozenset(
    (
        *("aimv2", "align", "altclip", "bridgetower", "chinese_clip", "clap", "clip", "clipseg", "clvp", "flava"),
        *("grounding-dino", "groupvit", "metaclip_2", "mm-grounding-dino", "omdet-turbo", "owlv2", "owlvit"),
        *("sam3", "sam3_lite_text", "siglip", "siglip2", "tipsv2", "videoprism", "vision-text-dual-encoder", "xclip"),
    )
)
"""Model types with a ``text_config`` that embeds or detects: transformers 5.24.0 gives them no language model head."""

NO_TOWER_SENTENCE = "only the language model is counted: the config has no vision_config"
DEFAULT_TOWER_SENTENCE = "the config has no vision_config, so the tower of the class's defaults is counted"
NO_AUDIO_SENTENCE = "the audio tower under audio_config is not counted"

TiedBy = Literal["wrapper", "either", "text", "nobody"]
"""The config whose ``tie_word_embeddings`` counts: the wrapper, its ``text_config``, either or neither."""

Projector = Callable[[ModelConfig, Tower, int], Weights]
"""Weights between the tower and the language model, from the wrapper's config, the tower and the language width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapper:
    """How one family joins a vision tower to a language model."""

    text_type: str
    """Family of the language model when its config does not name one."""
    vision_type: str
    vision_prefix: str
    projector: Projector
    tied_by: TiedBy = "wrapper"
    has_default_tower: bool = True
    """Whether its class has a tower where a config gives none."""


def ties(wrapper: Wrapper | None, outer: ModelConfig, text: ModelConfig) -> bool:
    """Whether head and token table are one; a wrapper nobody here knows ties where either config does."""
    tied_by = "either" if wrapper is None else wrapper.tied_by
    says = {"wrapper": (outer,), "either": (outer, text), "text": (text,), "nobody": ()}[tied_by]
    return any(config.flag("tie_word_embeddings") for config in says)


def wrapped_text(config: Mapping[str, object]) -> Mapping[str, object] | None:
    """The nested language model config, or ``None`` when there is none."""
    for name in TEXT_FIELDS:
        nested = config.get(name)
        if isinstance(nested, Mapping):
            return {str(key): value for key, value in nested.items()}
    return None


def attach(text: ModelSpec, config: ModelConfig, wrapper: Wrapper, vision: ModelConfig) -> ModelSpec:
    """The language model with its tower and projector among the side weights."""
    build = TOWERS.get(vision.model_type)
    if build is None:
        return replace(text, assumptions=(*text.assumptions, uncounted_sentence(vision.model_type)))
    tower = build(vision, wrapper.vision_prefix)
    side = tower.weights + wrapper.projector(config, tower, text.hidden_size)
    return replace(text, side_weights=side)


def uncounted_sentence(tower_type: str) -> str:
    """The sentence that tells the user of a tower nobody here knows."""
    return f"only the language model is counted: the attached {tower_type} is not known"


def _num_features(config: ModelConfig) -> int:
    """Tower layers whose outputs are concatenated: one, or as many as ``vision_feature_layer`` lists."""
    layers = config.value("vision_feature_layer")
    return max(1, len(layers)) if isinstance(layers, list | tuple) else 1


def _two_linear(config: ModelConfig, in_size: int, hidden_size: int, *, prefix: str) -> Weights:
    bias = config.flag("multimodal_projector_bias")
    first = projection(f"{prefix}.linear_1", (hidden_size, in_size), "column", bias=bias)
    return first + projection(f"{prefix}.linear_2", (hidden_size, hidden_size), "row", bias=bias)


def _llava(config: ModelConfig, tower: Tower, hidden_size: int) -> Weights:
    in_size = tower.output_size * _num_features(config)
    return _two_linear(config, in_size, hidden_size, prefix="model.multi_modal_projector")


def _llava_newline(config: ModelConfig, tower: Tower, hidden_size: int) -> Weights:
    return vector("model.image_newline", hidden_size) + _llava(config, tower, hidden_size)


def _vipllava(config: ModelConfig, tower: Tower, hidden_size: int) -> Weights:
    in_size, prefix = tower.output_size * _num_features(config), "model.multi_modal_projector"
    return (
        norm(f"{prefix}.projector_layernorm", in_size, bias=True)
        + projection(f"{prefix}.linear_1", (hidden_size, in_size), "column", bias=True)
        + projection(f"{prefix}.linear_2", (hidden_size, hidden_size), "row", bias=True)
    )


def _paligemma(config: ModelConfig, tower: Tower, _: int) -> Weights:
    shape = (config.count("projection_dim"), tower.output_size)
    return projection("model.multi_modal_projector.linear", shape, "replicated", bias=True)


def _gemma3(_: ModelConfig, tower: Tower, hidden_size: int) -> Weights:
    prefix = "model.multi_modal_projector"
    matrix = Weight(
        name=f"{prefix}.mm_input_projection_weight", shape=(tower.output_size, hidden_size), split="replicated"
    )
    return (matrix, *norm(f"{prefix}.mm_soft_emb_norm", tower.output_size))


def _mistral3(config: ModelConfig, tower: Tower, hidden_size: int) -> Weights:
    prefix, size = "model.multi_modal_projector", tower.output_size
    merged = size * config.count("spatial_merge_size") ** 2
    return (
        norm(f"{prefix}.norm", size)
        + projection(f"{prefix}.patch_merger.merging_layer", (size, merged), "replicated")
        + _two_linear(config, size * _num_features(config), hidden_size, prefix=prefix)
    )


def _idefics3(config: ModelConfig, tower: Tower, hidden_size: int) -> Weights:
    shape = (hidden_size, tower.output_size * config.count("scale_factor") ** 2)
    return projection("model.connector.modality_projection.proj", shape, "replicated")


def _internvl(config: ModelConfig, tower: Tower, hidden_size: int) -> Weights:
    ratio = config.number("downsample_ratio", otherwise=0.5)
    if not 0.01 <= ratio <= 1:
        config.refuse_range("downsample_ratio", ratio, "from 0.01 to 1")
    shuffled, prefix = int(tower.output_size / ratio**2), "model.multi_modal_projector"
    return (
        norm(f"{prefix}.layer_norm", shuffled, bias=True)
        + projection(f"{prefix}.linear_1", (hidden_size, shuffled), "column", bias=True)
        + projection(f"{prefix}.linear_2", (hidden_size, hidden_size), "row", bias=True)
    )


def _kimi(config: ModelConfig, tower: Tower, hidden_size: int) -> Weights:
    """Merges 2 x 2 patches into the language width."""
    merged = 4 * tower.output_size
    vision = config.nested("vision_config") or {}
    width = config.with_values(**vision).count_or("projection_hidden_size", tower.output_size)
    return (
        norm("model.mm_projector.pre_norm", width, bias=True)
        + projection("model.mm_projector.in_proj", (merged, merged), "column", bias=True)
        + projection("model.mm_projector.out_proj", (hidden_size, merged), "row", bias=True)
    )


def _single(name: str, *, bias: bool) -> Projector:
    """A projector that is one matrix."""

    def build(_: ModelConfig, tower: Tower, hidden_size: int) -> Weights:
        return projection(name, (hidden_size, tower.output_size), "replicated", bias=bias)

    return build


def _nothing(*_: object) -> Weights:
    """No projector: Qwen's towers end in their own merger."""
    return ()


_LLAVA = Wrapper(
    text_type="llama",
    vision_type="clip_vision_model",
    vision_prefix="model.vision_tower",
    projector=_llava,
    tied_by="either",
)
_QWEN2_VL = Wrapper(
    text_type="qwen2_vl_text",
    vision_type="qwen2_vl_vision",
    vision_prefix="model.visual",
    projector=_nothing,
    tied_by="either",
)
_QWEN3_VL = replace(_QWEN2_VL, text_type="qwen3_vl_text", vision_type="qwen3_vl_vision", tied_by="wrapper")
_IDEFICS3 = Wrapper(
    text_type="llama",
    vision_type="idefics3_vision",
    vision_prefix="model.vision_model",
    projector=_idefics3,
)

WRAPPERS: Mapping[str, Wrapper] = {
    "llava": _LLAVA,
    "llava_next": replace(_LLAVA, projector=_llava_newline, tied_by="wrapper"),
    "llava_onevision": replace(_LLAVA, text_type="qwen2", vision_type="siglip_vision_model", projector=_llava_newline),
    "vipllava": replace(_LLAVA, projector=_vipllava, tied_by="wrapper"),
    "paligemma": replace(
        _LLAVA,
        text_type="gemma",
        vision_type="siglip_vision_model",
        projector=_paligemma,
        tied_by="wrapper",
    ),
    "gemma3": replace(
        _LLAVA,
        text_type="gemma3_text",
        vision_type="siglip_vision_model",
        projector=_gemma3,
        tied_by="wrapper",
    ),
    "mistral3": replace(_LLAVA, text_type="mistral", vision_type="pixtral", projector=_mistral3, tied_by="wrapper"),
    "qwen2_vl": _QWEN2_VL,
    "qwen2_5_vl": replace(_QWEN2_VL, text_type="qwen2_5_vl_text", vision_type="qwen2_5_vl_vision"),
    "qwen3_vl": _QWEN3_VL,
    "qwen3_vl_moe": replace(_QWEN3_VL, text_type="qwen3_vl_moe_text", vision_type="qwen3_vl_moe_vision"),
    "qwen3_5": replace(_QWEN3_VL, text_type="qwen3_5_text", vision_type="qwen3_5_vision"),
    "qwen3_5_moe": replace(_QWEN3_VL, text_type="qwen3_5_moe_text", vision_type="qwen3_5_moe_vision"),
    "glm4v_moe": replace(_QWEN2_VL, text_type="glm4v_moe_text", vision_type="glm4v_moe_vision"),
    "idefics3": _IDEFICS3,
    "smolvlm": replace(_IDEFICS3, vision_type="smolvlm_vision"),
    "internvl": replace(
        _LLAVA,
        text_type="qwen2",
        vision_type="internvl_vision",
        projector=_internvl,
        tied_by="wrapper",
    ),
    "gemma4": Wrapper(
        text_type="gemma4_text",
        vision_type="gemma4_vision",
        vision_prefix="model.vision_tower",
        projector=_single("model.embed_vision.embedding_projection", bias=False),
        has_default_tower=False,
    ),
    "kimi_k25": Wrapper(
        text_type="deepseek_v3",
        vision_type="kimi_k25_vision",
        vision_prefix="model.vision_tower",
        projector=_kimi,
    ),
    "llama4": Wrapper(
        text_type="llama4_text",
        vision_type="llama4_vision_model",
        vision_prefix="vision_model",
        projector=_single("multi_modal_projector.linear_1", bias=False),
        tied_by="text",
    ),
    "mllama": Wrapper(
        text_type="mllama_text_model",
        vision_type="mllama_vision_model",
        vision_prefix="model.vision_model",
        projector=_single("model.multi_modal_projector", bias=True),
        tied_by="nobody",
    ),
}
"""Wrappers by their ``model_type``."""
