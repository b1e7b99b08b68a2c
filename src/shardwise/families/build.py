"""Makes a :class:`ModelSpec` of a config's fields: which family reads it, what it assumes, what hangs beside it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from shardwise.errors import ModelError
from shardwise.families.config import TRAINED_NUMBERS, ModelConfig, with_nested_fields, with_our_spelling
from shardwise.families.defaults import family_defaults, null_means_default
from shardwise.families.generic import OPTIONAL_FIELDS, REQUIRED_FIELDS
from shardwise.families.installed_class import can_ask, class_model
from shardwise.families.params_json import config_of_params, is_params_json
from shardwise.families.table import FAMILIES, NESTED_FIELDS, SAME_AS, Family
from shardwise.families.wrappers import (
    DEFAULT_TOWER_SENTENCE,
    NO_AUDIO_SENTENCE,
    NO_LANGUAGE_MODEL,
    NO_TOWER_SENTENCE,
    TEXT_FIELDS,
    WRAPPERS,
    Wrapper,
    attach,
    ties,
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
EXPERT_FIELDS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
"""Fields that decide a model's size: when the family fills one in, the user is told."""
TYING_FIELD = "tie_word_embeddings"
"""The user is never told of this field: transformers writes it only where it differs from the family's default."""
DECIDING_FRACTION = 0.01
"""The user is told of any other field whose default decides more than this share of the parameters."""

NEAR_NAME_RATIO = 0.85
"""``lama`` has 0.89 of its letters in common with ``llama``."""
NEAR_KEY_RATIO = 0.92
"""``hiden_size`` has 0.95 in common with ``hidden_size``, and ``moe_intermediate_size``, a field of its own, 0.89 with
``intermediate_size``."""
DIGITS = re.compile(r"\d+")

Fields = Mapping[str, object]


def build_model(fields: Fields) -> ModelSpec:
    """The model a config describes."""
    if is_params_json(fields):
        fields = config_of_params(fields)
    model_type = model_type_of(fields)
    if model_type in NO_LANGUAGE_MODEL:
        raise unknown_family(model_type)
    text = wrapped_text(fields)
    wrapper_type = model_type
    if text is not None and model_type not in WRAPPERS:
        wrapper_type = _type_of_architecture(fields.get("architectures"))
    if wrapper_type in WRAPPERS:
        return replace(_wrapped(fields, wrapper_type, text), model_type=model_type)
    if SAME_AS.get(model_type, model_type) not in FAMILIES:
        found = class_model(fields, model_type)
        if found is not None:
            return found
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
    """The config with the family's defaults under it, also where it has a null that the family takes for no value."""
    family = SAME_AS.get(model_type, model_type)
    empty = null_means_default(family)
    given = {name: value for name, value in with_our_spelling(fields).items() if value is not None or name not in empty}
    return ModelConfig(model_type, given, family_defaults(family), path)


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
    stem = _named_class({"architectures": architectures}).split("For")[0].removesuffix("LMHeadModel")
    known = {_plain(name): name for name in (*NO_LANGUAGE_MODEL, *SAME_AS, *WRAPPERS, *FAMILIES)}
    return known.get(_plain(stem.removesuffix("Model")), "")


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
    describe = (
        f'set "model_type": "generic" and give {", ".join(REQUIRED_FIELDS)} '
        f"(optionally {', '.join(OPTIONAL_FIELDS)}); it cannot be trained here"
    )
    misspelt = get_close_matches(model_type, known, n=1, cutoff=NEAR_NAME_RATIO)
    same_digits = [name for name in misspelt if DIGITS.findall(name) == DIGITS.findall(model_type)]
    meant = "".join(f'write "model_type": "{name}" if that is meant; ' for name in same_digits)
    install = "" if can_ask() else "pip install transformers torch, with which the class itself is counted; or "
    return ModelError(
        f'the model family "{" ".join(model_type.split()):.60}" is not known{hint}',
        code="model-unknown-family",
        fix=f"{meant}to plan it, {install}{describe}",
    )


def _filled_in(config: ModelConfig, family: Family, spec: ModelSpec) -> tuple[str, ...]:
    """One sentence when the family's defaults decide a size."""
    sizes = SIZE_FIELDS + (EXPERT_FIELDS if spec.is_moe else ())
    missing = [name for name in sizes if name not in config.given and config.defaults.get(name) is not None]
    _refuse_misspelt(config, missing)
    others = sorted(set(config.defaults) - set(config.given) - set(sizes) - {TYING_FIELD})
    missing += [name for name in others if _decides(config, name, family, spec.num_params)]
    if not missing:
        return _usual_shapes(config)
    values = ", ".join(f"{name} {config.defaults[name]}" for name in missing)
    told = f"the config does not say it, so the defaults of {config.model_type} were taken: {values}"
    return (told, *_usual_shapes(config))


def _refuse_misspelt(config: ModelConfig, missing: Sequence[str]) -> None:
    """Return when no field of the file is almost spelled like a size that it lacks."""
    known = {*config.defaults, *SIZE_FIELDS, *EXPERT_FIELDS}
    for name in missing:
        for near in get_close_matches(name, sorted(set(config.given) - known), n=1, cutoff=NEAR_KEY_RATIO):
            raise ModelError(
                f'the {config.model_type} config has no "{config.path}{name}", but "{config.path}{near}"',
                code="model-field-missing",
                fix=f'write "{name}" instead of "{near}"',
            )


def _usual_shapes(config: ModelConfig) -> tuple[str, ...]:
    """One sentence when sizes of a generic description follow from others."""
    if config.model_type != "generic":
        return ()
    taken = []
    if config.value("intermediate_size") is None and config.value("moe_intermediate_size") is None:
        taken.append(f"intermediate_size {4 * config.count('hidden_size')} (four times hidden_size)")
    if config.value("num_key_value_heads") is None and config.value("kv_lora_rank") is None:
        taken.append(f"num_key_value_heads {config.count('num_attention_heads')} (one for each head)")
    return (f"the config does not say it, so it was taken: {', '.join(taken)}",) if taken else ()


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
    is_flat = with_our_spelling(fields).get("hidden_size") is not None
    text = _text_config(fields, model_type, wrapper, nested if is_flat else outer.nested("text_config") or nested)
    is_tied = ties(wrapper, outer, text)
    named = _named_class(fields)
    spec = _single(text.with_values(tie_word_embeddings=is_tied, architectures=[named] if named else None))
    if is_text_alone(named, model_type, wrapper):
        return spec
    if outer.nested("audio_config") is not None:
        spec = replace(spec, assumptions=(*spec.assumptions, NO_AUDIO_SENTENCE))
    vision, sentence = outer.nested("vision_config"), ""
    if not outer.is_given("vision_config"):
        has_tower = wrapper.has_default_tower and named and not named.endswith("ForCausalLM")
        sentence = DEFAULT_TOWER_SENTENCE if has_tower else NO_TOWER_SENTENCE
        spec = replace(spec, assumptions=(*spec.assumptions, sentence))
        vision = vision or {}
    if sentence == NO_TOWER_SENTENCE or vision is None:
        return spec
    vision_type = vision.get("model_type")
    if not isinstance(vision_type, str) or vision_type in ("", model_type):
        vision_type = wrapper.vision_type
    return attach(spec, outer, wrapper, config_of(vision, vision_type, "vision_config."))


def _named_class(fields: Fields) -> str:
    """The class that the config names first; empty where it names none."""
    named = fields.get("architectures")
    return named[0] if isinstance(named, list | tuple) and named and isinstance(named[0], str) else ""


def is_text_alone(name: str, model_type: str, wrapper: Wrapper) -> bool:
    """Whether a class is the language model of a wrapper without its image part.

    Classes for generation that bear the name of another family, such as ``LlavaLlamaForCausalLM``, hold both.
    """
    stem, is_causal = name.removesuffix("ForCausalLM"), name.endswith("ForCausalLM")
    own = {_plain(kind).removesuffix("text") for kind in (model_type, wrapper.text_type)}
    return name.endswith("TextModel") or (is_causal and _plain(stem) in own)


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
    text = config_of(nested, model_type_of(nested), path)
    text = text.with_values(tie_word_embeddings=ties(None, config_of(fields, model_type), text))
    inner = build_model(nested) if wrapped_text(nested) else _single(text)
    sentence = uncounted_sentence(f"vision or audio part of {model_type}")
    return replace(inner, model_type=model_type, assumptions=(*inner.assumptions, sentence))
