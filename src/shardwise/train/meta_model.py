"""Builds the model of a job as every rank will, without its values: ``python -m shardwise.train.meta_model``.

Reads a job on standard input and writes one JSON object: the shape of every parameter under ``shapes``; or under
``refused`` the error that says why there is no such model, why the job's layout cannot divide it, why its routers
cannot be evened out or why its adapters cannot stand in it. With ``--weights`` the only error is about what the job's
weights lack for it. A launcher asks it about models that transformers builds, whose configs and checkpoints only
transformers can judge.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.errors import ModelError, ShardwiseError
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
LONG = 400
"""Characters that a message quotes of what transformers says."""


def meta_model(job: Job) -> dict[str, Any]:
    """The shapes of the model's parameters by name, or the error that says why ranks cannot build it as asked."""
    try:
        model = _model(job)
        require_plain_head(model, job)
        require_routing([model], job)
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        if job.recipe.adapter != "none":
            add_adapters(model, job.recipe)
    except ShardwiseError as error:
        return _refused(error)
    return {"shapes": shapes}


def unfit_weights(job: Job) -> dict[str, Any]:
    """The error for weights that cannot fill the model; nothing where they can."""
    folder = Path(str(job.checkpoint.initial_weights))
    error = first_of(unfit_tensors(conversion_of(job.model_config), saved_tensors(folder), folder))
    return {} if error is None else _refused(error)


def _model(job: Job) -> TransformersDecoder:
    try:
        return TransformersDecoder(job.model_config, attention=job.recipe.attention)
    except Exception as error:  # whatever transformers answers to a config is the answer
        said = " ".join(str(error).split())
        named = _fields_with(error.args[0], job.model_config) if isinstance(error, KeyError) else []
        why = ": ".join([type(error).__name__, said, *named])
        raise ModelError(
            f"transformers builds no {job.model_config['model_type']} of this config: {why[:LONG]}",
            code="train-model",
            fix="write the field as transformers takes it in config.json",
        ) from error


def _refused(error: ShardwiseError) -> dict[str, Any]:
    return {"refused": {"kind": type(error).__name__, "message": error.message, "code": error.code, "fix": error.fix}}


def _fields_with(value: object, fields: Mapping[str, object], place: str = "") -> list[str]:
    """Where a word stands in a config that a table of transformers does not have."""
    found = [f"{place}{name} is {json.dumps(value)}" for name, given in fields.items() if given == value]
    for name, given in fields.items():
        found += _fields_with(value, given, f"{place}{name}.") if isinstance(given, Mapping) else []
    return found


if __name__ == "__main__":
    asked = unfit_weights if WEIGHTS in sys.argv else meta_model
    sys.stdout.write(json.dumps(asked(job_from_json(json.load(sys.stdin)))) + "\n")
