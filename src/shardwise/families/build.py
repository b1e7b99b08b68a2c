"""Makes a :class:`ModelSpec` of a config's fields: which family reads it, what it assumes, what hangs beside it."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from shardwise.errors import ModelError
from shardwise.families.config import TRAINED_NUMBERS, ModelConfig, with_nested_fields, with_our_spelling
from shardwise.families.defaults import family_defaults
from shardwise.families.generic import OPTIONAL_FIELDS, REQUIRED_FIELDS
from shardwise.families.table import FAMILIES, NESTED_FIELDS, SAME_AS, Family
from shardwise.families.wrappers import (
    NO_AUDIO_SENTENCE,
    NO_LANGUAGE_MODEL,
    NO_TOWER_SENTENCE,
    TEXT_FIELDS,
    WRAPPERS,
    Wrapper,
    attach,
    uncounted_sentence,
    wrapped_text,
)
from shardwise.model import ModelSpec

SIZE_FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
EXPERT_FIELDS = ("num_experts", "moe_intermediate_size")
"""Fields that decide a model's size: when the family fills one in, the user is told."""
TYING_FIELD = "tie_word_embeddings"
"""The user is never told of this field: transformers writes it only where it differs from the family's default."""
DECIDING_FRACTION = 0.01
"""The user is told of any other field whose default decides more than this share of the parameters."""

Fields = Mapping[str, object]


def build_model(fields: Fields) -> ModelSpec:
    """The model a config describes."""
    model_type = model_type_of(fields)
    if model_type in NO_LANGUAGE_MODEL:
        raise unknown_family(model_type)
    text = wrapped_text(fields)
    wrapper_type = model_type
    if text is not None and model_type not in WRAPPERS:
        wrapper_type = _type_of_architecture(fields.get("architectures"))
    if wrapper_type in WRAPPERS:
        return replace(_wrapped(fields, wrapper_type, text), model_type=model_type)
    if text is not None and with_our_spelling(fields).get("hidden_size") is None:
        return _unknown_wrapper(fields, model_type, text)
    spec = _single(config_of(fields, model_type))
    other = contradicting_class(fields)
    return replace(spec, assumptions=(*spec.assumptions, two_names_sentence(other, model_type))) if other else spec


def contradicting_class(fields: Fields) -> str:
    """The class of another family that ``architectures`` names beside ``model_type``; empty where they agree.

    transformers builds by ``model_type`` alone (``AutoConfig``, then the class of that config); vLLM and others go by
    ``architectures``.
    """
    model_type, named = fields.get("model_type"), fields.get("architectures")
    other = _type_of_architecture(named)
    if not isinstance(model_type, str) or not isinstance(named, list | tuple) or not other:
        return ""
    if {model_type, other} & set(WRAPPERS) or SAME_AS.get(model_type, model_type) == SAME_AS.get(other, other):
        return ""
    return str(named[0])


def two_names_sentence(other: str, model_type: str) -> str:
    """What is said where a config names two families."""
    return (
        f"architectures of the config names {other:.60}, but model_type is {model_type:.60}: "
        f"it is taken as {model_type:.60}, by which transformers builds it"
    )


def config_of(fields: Fields, model_type: str, path: str = "") -> ModelConfig:
    """The config with the family's defaults under it."""
    family = SAME_AS.get(model_type, model_type)
    return ModelConfig(model_type, with_our_spelling(fields), family_defaults(family), path)


def model_type_of(fields: Fields) -> str:
    """The config's ``model_type``, or the one its architecture names, or ``generic`` when the sizes are all there."""
    given = fields.get("model_type")
    if isinstance(given, str) and given:
        return given
    if given is not None:
        raise ModelError(
            f"model_type is {given!r:.40}, but it must be a word",
            code="model-field-type",
            fix='write model_type as a word such as "llama"',
        )
    named = _type_of_architecture(fields.get("architectures"))
    if named:
        return named
    spelled = with_our_spelling(fields)
    missing = [name for name in REQUIRED_FIELDS if spelled.get(name) is None]
    if not missing or wrapped_text(fields) is not None:
        return "generic"
    raise ModelError(
        f"the config has no model_type, and a generic description lacks {', '.join(missing)}",
        code="model-field-missing",
        fix=f'add "model_type", or describe the model with {", ".join(REQUIRED_FIELDS)}',
    )


def _type_of_architecture(architectures: object) -> str:
    """``LlamaForCausalLM`` names ``llama``; empty when no family matches."""
    if not isinstance(architectures, list | tuple) or not architectures or not isinstance(architectures[0], str):
        return ""
    stem = architectures[0].split("For")[0].removesuffix("LMHeadModel").removesuffix("Model").casefold()
    known = {_plain(name): name for name in (*NO_LANGUAGE_MODEL, *SAME_AS, *WRAPPERS, *FAMILIES)}
    return known.get(stem, "")


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def _single(config: ModelConfig) -> ModelSpec:
    """A language model on its own."""
    name = SAME_AS.get(config.model_type, config.model_type)
    family = FAMILIES.get(name)
    if family is None:
        raise unknown_family(config.model_type)
    if name in NESTED_FIELDS:
        config = with_nested_fields(config, NESTED_FIELDS[name])
    spec = family(config)
    for field, limits in TRAINED_NUMBERS.items():
        if field in config.defaults:
            config.required_number(field, limits)
    return replace(spec, assumptions=(*spec.assumptions, *_filled_in(config, family, spec)))


def unknown_family(model_type: str) -> ModelError:
    """The error for a family nobody here knows, with the nearest ones and the way to describe it anyway."""
    known = sorted({*FAMILIES, *SAME_AS, *WRAPPERS} - {"generic"})
    near = get_close_matches(model_type, known, n=3, cutoff=0.5)
    hint = f"; the closest known families are {', '.join(near)}" if near else f"; {len(known)} families are known"
    return ModelError(
        f'the model family "{" ".join(model_type.split()):.60}" is not known{hint}',
        code="model-unknown-family",
        fix=(
            f'to plan it, set "model_type": "generic" and give {", ".join(REQUIRED_FIELDS)} '
            f"(optionally {', '.join(OPTIONAL_FIELDS)}); it cannot be trained here"
        ),
    )


def _filled_in(config: ModelConfig, family: Family, spec: ModelSpec) -> tuple[str, ...]:
    """One sentence when the family's defaults decide a size."""
    sizes = SIZE_FIELDS + (EXPERT_FIELDS if spec.is_moe else ())
    missing = [name for name in sizes if name not in config.given and config.defaults.get(name) is not None]
    others = sorted(set(config.defaults) - set(config.given) - set(sizes) - {TYING_FIELD})
    missing += [name for name in others if _decides(config, name, family, spec.num_params)]
    if not missing:
        return ()
    values = ", ".join(f"{name} {config.defaults[name]}" for name in missing)
    return (f"the config does not say it, so the defaults of {config.model_type} were taken: {values}",)


def _decides(config: ModelConfig, name: str, family: Family, num_params: int) -> bool:
    """Whether the opposite of a default, or twice its value, would change the count by more than 1 %."""
    value = config.defaults[name]
    if not isinstance(value, int):
        return False
    try:
        other = family(config.with_values(**{name: not value if isinstance(value, bool) else 2 * value}))
    except ModelError:
        return False
    return abs(other.num_params - num_params) > DECIDING_FRACTION * num_params


def _wrapped(fields: Fields, model_type: str, nested: Fields | None) -> ModelSpec:
    wrapper, outer = WRAPPERS[model_type], config_of(fields, model_type)
    text = _text_config(fields, model_type, wrapper, nested)
    is_tied = outer.flag("tie_word_embeddings")
    if wrapper.text_decides_tying:
        is_tied = is_tied or text.flag("tie_word_embeddings")
    spec = _single(text.with_values(tie_word_embeddings=is_tied))
    if outer.nested("audio_config") is not None:
        spec = replace(spec, assumptions=(*spec.assumptions, NO_AUDIO_SENTENCE))
    vision = outer.nested("vision_config")
    if vision is None:
        return replace(spec, assumptions=(*spec.assumptions, NO_TOWER_SENTENCE))
    vision_type = vision.get("model_type")
    if not isinstance(vision_type, str) or vision_type in ("", model_type):
        vision_type = wrapper.vision_type
    return attach(spec, outer, wrapper, config_of(vision, vision_type, "vision_config."))


def _text_config(fields: Fields, model_type: str, wrapper: Wrapper, nested: Fields | None) -> ModelConfig:
    """The language model's config: nested, or spread over the top level as in the first Qwen2-VL files."""
    if nested is None:
        flat = {name: value for name, value in fields.items() if name not in ("architectures", "vision_config")}
        return config_of(flat, wrapper.text_type)
    text_type = nested.get("model_type")
    if not isinstance(text_type, str) or text_type in ("", model_type):
        text_type = wrapper.text_type
    return config_of(nested, text_type, "text_config.")


def _unknown_wrapper(fields: Fields, model_type: str, nested: Fields) -> ModelSpec:
    """A wrapper nobody here knows around a language model that is known: only the latter is counted."""
    path = next(f"{name}." for name in TEXT_FIELDS if isinstance(fields.get(name), Mapping))
    inner = build_model(nested) if wrapped_text(nested) else _single(config_of(nested, model_type_of(nested), path))
    sentence = uncounted_sentence(f"vision or audio part of {model_type}")
    return replace(inner, model_type=model_type, assumptions=(*inner.assumptions, sentence))
