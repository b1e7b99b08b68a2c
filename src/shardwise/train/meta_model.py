"""Builds the model of a job as every rank will, without its values: ``python -m shardwise.train.meta_model``.

Reads a job on standard input and writes one JSON object: the shape of every parameter under ``shapes``, or why there is
no such model under ``refused``, or why the job's layout cannot divide it under ``not_divided``, or why its adapters
cannot stand in it under ``not_adapted``, or why its routers cannot be evened out under ``not_routed``. With
``--weights`` it says under ``unfit`` what the job's weights lack for it. A launcher asks it about models that
transformers builds, whose configs and checkpoints only transformers can judge.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.errors import LayoutError, ModelError, RecipeError, ShardwiseError
from shardwise.train.family_parallel import require_plain_head
from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.job import Job, job_from_json
from shardwise.train.lora import add_adapters
from shardwise.train.pretrained.conversion import conversion_of
from shardwise.train.pretrained.converted import unfit_tensors
from shardwise.train.pretrained.files import saved_tensors
from shardwise.train.pretrained.fitting import first_of
from shardwise.train.router_balance import require_routing

__all__ = ["meta_model", "unfit_weights"]

WEIGHTS = "--weights"


def meta_model(job: Job) -> dict[str, Any]:
    """The shapes of the model's parameters by name, or why it cannot be built or adapted."""
    try:
        model = TransformersDecoder(job.model_config, attention=job.recipe.attention)
    except Exception as error:  # noqa: BLE001 - whatever transformers answers to a config is the answer
        said = " ".join(str(error).split())
        named = _fields_with(error.args[0], job.model_config) if isinstance(error, KeyError) else []
        return {"refused": ": ".join([type(error).__name__, said, *named])}
    try:
        require_plain_head(model, job)
    except LayoutError as error:
        return {"not_divided": _parts(error)}
    try:
        require_routing([model], job)
    except (LayoutError, ModelError) as error:
        return {"not_routed": _parts(error)}
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if job.recipe.adapter != "none":
        try:
            add_adapters(model, job.recipe)
        except RecipeError as error:
            return {"not_adapted": _parts(error)}
    return {"shapes": shapes}


def unfit_weights(job: Job) -> dict[str, Any]:
    """The error for weights that cannot fill the model, in its parts; ``None`` where they can."""
    folder = Path(str(job.checkpoint.initial_weights))
    error = first_of(unfit_tensors(conversion_of(job.model_config), saved_tensors(folder), folder))
    return {"unfit": error and _parts(error)}


def _parts(error: ShardwiseError) -> dict[str, str]:
    return {"message": error.message, "code": error.code, "fix": error.fix}


def _fields_with(value: object, fields: Mapping[str, object], place: str = "") -> list[str]:
    """Where a word stands in a config that a table of transformers does not have."""
    found = [f"{place}{name} is {json.dumps(value)}" for name, given in fields.items() if given == value]
    for name, given in fields.items():
        found += _fields_with(value, given, f"{place}{name}.") if isinstance(given, Mapping) else []
    return found


if __name__ == "__main__":
    asked = unfit_weights if WEIGHTS in sys.argv else meta_model
    sys.stdout.write(json.dumps(asked(job_from_json(json.load(sys.stdin)))) + "\n")
