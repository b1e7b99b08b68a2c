"""Where a model comes from: a catalogue name, a size, a ``config.json``, a folder with one, or the fields."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import TypeGuard

from shardwise.errors import ModelError
from shardwise.families.build import build_model
from shardwise.families.catalogue import catalogue_config, catalogue_name
from shardwise.families.expert_sizes import expert_assumption, expert_shape
from shardwise.families.hub import cached_config, hub_config, is_repository
from shardwise.families.names import close_names, known_name
from shardwise.families.sizes import assumption_for, shape_for, size_of_text, sizes_of_text
from shardwise.model import ModelSpec
from shardwise.units import MIB, format_count

LARGEST_CONFIG_BYTES = 8 * MIB
"""Real configs are a few kilobytes; the largest published ones, with label tables, stay below a megabyte."""

Source = str | Path | Mapping[str, object]


def read_model(source: Source) -> ModelSpec:
    """The model a name, size, path or config describes.

    Args:
        source: a catalogue name or alias, a size such as ``70B``, the path of a ``config.json`` or of a folder holding
            one, or the fields of a config; ``{"num_parameters": 70e9}`` asks for a typical shape.

    Raises:
        ModelError: the source cannot be found, read or understood.

    >>> read_model("llama-3.1-8b").num_params
    8030261248
    """
    if isinstance(source, Mapping):
        return _model(canonical_json(source))
    if isinstance(source, Path):
        return _model_in(source)
    if isinstance(source, str):
        return _named_model(source)
    raise ModelError(
        f"a model cannot be read from a {type(source).__name__}",
        code="model-source-type",
        fix='give a name such as "llama-3.1-8b", a size such as "70B", a path or a config',
    )


def written_config(model: ModelSpec) -> Mapping[str, object]:
    """The fields of the config that a model was read from, as they were written, the catalogue's for a name of it.

    Empty for a model that was built by hand or of which only the size is known.
    """
    spec: object = json.loads(model.spec_json) if model.spec_json else None
    if isinstance(spec, str):
        return _named_config(spec)
    return spec if isinstance(spec, Mapping) and "num_parameters" not in spec else {}


def _named_config(name: str) -> Mapping[str, object]:
    """The config of the entry of the catalogue that a name means."""
    known = known_name(name)
    if known is None:
        raise _unknown_name(name, "")
    return catalogue_config(known[1])


def _named_model(text: str) -> ModelSpec:
    """The model that a text names."""
    known = known_name(text)
    if known is not None and catalogue_name(text) is not None:
        return _known_model(text.strip(), *known)
    size = sizes_of_text(text)
    if size is not None:
        return _model(canonical_json(size))
    path = _existing_path(text)
    if path is not None:
        return _model_in(path)
    return _meant_model(text.strip())


def _meant_model(text: str) -> ModelSpec:
    """The model of a repository of the Hub, or that of the catalogue which a repository or tuned version is built as.

    A config that lies in the local cache comes first; the catalogue is preferred to asking the Hub.
    """
    is_hub = is_repository(text)
    file = cached_config(text) if is_hub else None
    known = known_name(text)
    if file is None and known is not None:
        return _known_model(text, *known)
    found = (file or hub_config(text)) if is_hub else ""
    if isinstance(found, str):
        raise _unknown_name(text, found)
    fields = {"name": text, **_parsed(found.text, Path(text, "config.json"))}
    return _with_sentence(_model(canonical_json(fields)), found.origin)


def _known_model(text: str, name: str, entry: str) -> ModelSpec:
    """A model that shares an entry of the catalogue, by its own name, and a sentence where the text has another."""
    model = _model(json.dumps(name))
    if name != entry:
        return _with_sentence(model, f"{_shown(text)} is built as {entry} of the catalogue, so that config is taken")
    if catalogue_name(text) is not None:
        return model
    told = f"{_shown(text)} is taken as {entry} of the catalogue, of which it is a mirror or a version"
    return _with_sentence(model, told)


def _with_sentence(model: ModelSpec, sentence: str) -> ModelSpec:
    return replace(model, assumptions=(sentence, *model.assumptions))


def _model_in(path: Path) -> ModelSpec:
    """The model of a file or folder, which the error names when a field cannot be used."""
    fields = _read_config(path)
    try:
        return _model(canonical_json(fields))
    except ModelError as error:
        file = path / "config.json" if path.is_dir() else path
        raise ModelError(f"{_shown(file)}: {error.message}", code=error.code, fix=error.fix) from error


@lru_cache(maxsize=512)
def _model(spec_json: str) -> ModelSpec:
    """The model of a canonical JSON text; the same text gives the same object."""
    spec = json.loads(spec_json)
    if isinstance(spec, str):
        model = build_model(_named_config(spec))
        return replace(model, name=spec, spec_json=spec_json)
    if "num_parameters" in spec and "hidden_size" not in spec and "model_type" not in spec:
        return _sized(spec, spec_json)
    model = build_model(spec)
    return replace(model, name=_name_of(spec, model), spec_json=spec_json)


def _sized(spec: Mapping[str, object], spec_json: str) -> ModelSpec:
    """A typical shape for a bare parameter count."""
    unknown = sorted(set(spec) - {"num_parameters", "num_active_parameters", "name"})
    if unknown:
        raise ModelError(
            f"num_parameters stands alone, but the description also has {', '.join(unknown):.80}",
            code="model-field-type",
            fix='give only "num_parameters", or describe the model with hidden_size and the other sizes',
        )
    num_params, active = _num_parameters(spec["num_parameters"]), spec.get("num_active_parameters")
    if active is None:
        shape = shape_for(num_params)
        model = build_model({**asdict(shape), "model_type": "llama", "max_position_embeddings": 131_072})
        kind, sentence = "llama-like", assumption_for(shape)
    else:
        experts = expert_shape(num_params, _num_parameters(active))
        model = build_model(experts.config())
        kind, sentence = "qwen3-moe-like", expert_assumption(experts)
    name = spec.get("name")
    return replace(
        model,
        name=name if isinstance(name, str) and name else f"{kind}-{format_count(model.num_params)}",
        spec_json=spec_json,
        assumptions=(sentence,),
    )


def _num_parameters(value: object) -> float:
    if isinstance(value, str):
        value = size_of_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(
            "num_parameters must be a number or a size such as 70B",
            code="model-field-type",
            fix='write "num_parameters": 70e9',
        )
    return float(value) if abs(value) < 1e300 else float("inf")


def _name_of(spec: Mapping[str, object], model: ModelSpec) -> str:
    """The name the config gives itself, or its family and size."""
    for field in ("name", "_name_or_path"):
        given = spec.get(field)
        if isinstance(given, str) and given.strip("/. "):
            return re.split(r"[/\\]", given.rstrip("/\\ "))[-1][:80]
    return f"{model.model_type}-{format_count(model.num_params)}"


def canonical_json(fields: Mapping[str, object]) -> str:
    """One text for one config: keys sorted, no spaces, non-finite numbers as words."""
    try:
        text = json.dumps(_finite(fields), sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelError(
            "the model description holds something JSON cannot hold",
            code="model-json-broken",
            fix="use only text keys, numbers, texts, lists and objects",
        ) from error
    if len(text) > LARGEST_CONFIG_BYTES:
        raise _too_large(len(text))
    return text


def _finite(value: object) -> object:
    """The value with infinities and NaN as words, which JSON has no numbers for."""
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    return [_finite(entry) for entry in value] if _is_list(value) else value


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)


def _existing_path(text: str) -> Path | None:
    """The file or folder a text names, ``None`` when there is none."""
    if not text.strip():
        return None
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _read_config(path: Path) -> Mapping[str, object]:
    """The fields of a ``config.json``, or of the one in a folder."""
    try:
        file = path / "config.json" if path.is_dir() else path
        if not file.is_file():
            raise _no_file(path, file)
        if file.stat().st_size > LARGEST_CONFIG_BYTES:
            raise _too_large(file.stat().st_size)
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError, ValueError) as error:
        raise ModelError(
            f"{_shown(path)} cannot be read as text: {error.__class__.__name__}",
            code="model-file-unreadable",
            fix="give the path of a readable config.json",
        ) from error
    return _parsed(text, file)


def _parsed(text: str, file: Path) -> Mapping[str, object]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{_shown(file)} is not valid JSON: {error!s:.80}",
            code="model-json-broken",
            fix="check the file with python -m json.tool",
        ) from error
    if not isinstance(fields, dict):
        raise ModelError(
            f"{_shown(file)} holds a JSON {type(fields).__name__}, but a config is an object",
            code="model-json-broken",
            fix='put the fields in an object: {"model_type": ...}',
        )
    return fields


def _no_file(path: Path, file: Path) -> ModelError:
    if file != path:
        return ModelError(
            f"the folder {_shown(path)} holds no config.json",
            code="model-file-missing",
            fix="give a folder with a config.json, or the file itself",
        )
    return ModelError(
        f"there is no file {_shown(path)}",
        code="model-file-missing",
        fix="give the path of a config.json, a catalogue name or a size such as 70B",
    )


def _shown(text: str | Path) -> str:
    """A name or path as it may stand in a sentence: on one line."""
    shown = str(text)[:160]
    return shown if shown.isprintable() else repr(shown)[1:-1]


def _too_large(num_bytes: int) -> ModelError:
    return ModelError(
        f"the config has {num_bytes:,} bytes, more than the {LARGEST_CONFIG_BYTES:,} a config can have",
        code="model-file-too-large",
        fix="give the model's config.json, not its weights",
    )


def _unknown_name(text: str, hub: str) -> ModelError:
    """No model of that name; ``hub`` says why the Hub's repository of that name gave none."""
    if text.endswith(".json"):
        return _no_file(Path(text), Path(text))
    close = close_names(text)
    hint = f"; close names are {', '.join(close)}" if close else ""
    reason = f"; {hub}" if hub else ""
    fix = f"try {close[0]}" if close else "list the names with: shardwise catalog models"
    return ModelError(
        f'no model, size or path is called "{_shown(text)}"{reason}{hint}',
        code="model-unknown-name",
        fix=f"{fix}, or give the path of its config.json",
    )
