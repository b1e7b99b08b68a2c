"""Describes the model that transformers builds of a config: ``python -m shardwise.train.described_class``.

Reads the fields of a ``config.json`` on standard input, builds the class on torch's meta device, where tensors have
shapes and no values, and writes one JSON object: every parameter with its shape and the kind of its module, which lists
of modules are the blocks of the language model, and the fields of its config with the class's defaults; or, under
``refused``, why there is no such model, or under ``unknown`` that no class makes text of it. Code beside weights is
never run.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

__all__ = ["described", "model_class"]

MAPPINGS = (
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING",
    "MODEL_FOR_CAUSAL_LM_MAPPING",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
    "MODEL_FOR_MASKED_LM_MAPPING",
)
"""Tables of transformers from configs to classes that make text, in the order in which they are asked."""
SMALLEST_SHARE = 0.01
"""Lists of modules with less than this share of a model's parameters are no stack of blocks."""


def described(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, stacks of blocks and fields of the model, or why it cannot be built."""
    try:
        config = transformers.CONFIG_MAPPING[fields["model_type"]].from_dict(dict(fields))
        built_by = model_class(config, fields.get("architectures"))
        if built_by is None:
            return {"unknown": f"no class of transformers makes text with {type(config).__name__}"}
        with torch.device("meta"):
            model = built_by(config)
            model.tie_weights()
    except Exception as error:  # noqa: BLE001 - whatever transformers answers to a config is the answer
        return {"refused": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    text = config.get_text_config(decoder=True)
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        "class": type(model).__name__,
        "version": transformers.__version__,
        "weights": [
            [name, list(parameter.shape), type(model.get_submodule(name.rpartition(".")[0])).__name__]
            for name, parameter in model.named_parameters()
        ],
        "stacks": list(_stacks(model, text)),
        "table": names.get(id(getattr(table, "weight", None)), ""),
        "head": names.get(id(getattr(head, "weight", None)), ""),
        "fields": json.loads(json.dumps(text.to_dict(), default=str)),
    }


def model_class(config: PretrainedConfig, architectures: list[str] | None) -> type[PreTrainedModel] | None:
    """The class that a config names and that takes it, or the one that transformers keeps for making text, if any."""
    named: Any = getattr(transformers, (architectures or [""])[0], None)
    is_model = isinstance(named, type) and issubclass(named, PreTrainedModel)
    if is_model and isinstance(config, getattr(named, "config_class", None) or ()):
        return named
    hears = type(config) in transformers.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING
    for table in () if hears else MAPPINGS:
        found = getattr(transformers, table).get(type(config), None)
        if found is not None:
            return found[0] if isinstance(found, tuple) else found
    return None


def _stacks(model: PreTrainedModel, text: PretrainedConfig) -> Iterator[str]:
    """Names of the lists of modules that are blocks of the language model, outermost ones, in order."""
    enough = SMALLEST_SHARE * sum(parameter.numel() for parameter in model.parameters())
    owner = {"": model.config}
    found: list[str] = []
    for name, module in model.named_modules():
        parent = name.rpartition(".")[0]
        owner[name] = module.config if isinstance(module, PreTrainedModel) else owner[parent]
        if not isinstance(module, nn.ModuleList) or any(name.startswith(f"{outer}.") for outer in found):
            continue
        is_text = owner[name] is text or owner[name] is model.config
        is_block = all(any(True for _ in child.children()) for child in module)
        if is_text and is_block and sum(weight.numel() for weight in module.parameters()) > enough:
            found.append(name)
            yield name


def main() -> None:
    """Answer the config on standard input."""
    transformers.utils.logging.set_verbosity_error()
    sys.stdout.write(f"{json.dumps(described(json.load(sys.stdin)))}\n")


if __name__ == "__main__":
    main()
