"""Whether ranks can build the model of a job: asked before anything is written or started."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from shardwise.errors import ShardwiseError
from shardwise.launch.command import environment
from shardwise.train.decoder.config import read_config
from shardwise.train.decoder.shapes import Shape, tensor_shapes
from shardwise.train.job import Job, job_to_json, uses_transformers
from shardwise.train.routable import own_loss_coef, require_routable

__all__ = ["model_shapes", "require_weights_of_transformers"]

BUILDER = "shardwise.train.meta_model"
BUILDER_S = 600
"""Ends a process that hangs: a cold disk and a busy host take minutes to import torch."""
KINDS = {kind.__name__: kind for kind in ShardwiseError.__subclasses__()}
"""The kinds of errors by name, as the process writes them."""


def model_shapes(job: Job) -> Mapping[str, Shape] | None:
    """Every parameter of the whole model; ``None`` where transformers builds it and is not installed here.

    A model of transformers is built by a process of its own, on torch's meta device and without values, in about three
    seconds: this one imports no torch.

    Raises:
        ModelError: a field of the config is not what the model's class takes, or its routers are not what the job asks.
        LayoutError: the layout divides a vocabulary whose logits are more than a product, or layers over which routers
            have one auxiliary loss.
        RecipeError: the job's adapters find no matrix to stand beside, or one that 4 bits cannot hold.
    """
    if not uses_transformers(job):
        config = read_config(job.model_config)
        if config.num_experts:
            require_routable(job, coef=own_loss_coef(job), has_biases=False)
        return dict(tensor_shapes(config))
    if find_spec("torch") is None or find_spec("transformers") is None:
        return None
    answer = _built(job)
    if answer is None:
        return None
    _require_accepted(answer)
    return {name: tuple(shape) for name, shape in answer["shapes"].items()}


def require_weights_of_transformers(job: Job) -> None:
    """Return when the job's weights can fill the model that transformers builds, as its own table of names says.

    Headers are read and no weight, by a process like that of :func:`model_shapes`.

    Raises:
        CheckpointError: a tensor is missing, has another shape there or a type that no weights are read from.
    """
    _require_accepted(_built(job, "--weights") or {})


def _require_accepted(answer: Mapping[str, Any]) -> None:
    """Return when the process raised no error, or raise the same here."""
    why = answer.get("refused")
    if why is not None:
        kind = KINDS[why["kind"]]
        raise kind(why["message"], code=why["code"], fix=why["fix"])


def _built(job: Job, *words: str) -> dict[str, Any] | None:
    """The answer of the process; ``None`` where it could not start, ended without a word or takes too long.

    Ranks say better then what it is.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", BUILDER, *words],
            input=json.dumps(job_to_json(job)),
            env={**os.environ, **environment(job.layout, inherited=os.environ)},
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILDER_S,
        )
    except subprocess.TimeoutExpired:
        return None
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return answer if isinstance(answer, dict) else None
