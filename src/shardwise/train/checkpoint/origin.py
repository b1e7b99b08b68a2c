"""What a checkpoint was made with, and whether a job can go on from it: launchers ask and ranks do; without torch."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import CheckpointError
from shardwise.optimizers import have_same_states
from shardwise.train.checkpoint.folder import Checkpoint, find_checkpoint
from shardwise.train.checkpoint.lineage import FACTS
from shardwise.train.checkpoint.sizes import fix_of_config, is_whole, written
from shardwise.train.data.state import require_same_data
from shardwise.train.decoder.config import read_config
from shardwise.train.decoder.shapes import tensor_shapes
from shardwise.train.job import JOB_FILE, JOB_SCHEMA, Job, job_from_json, job_to_json, uses_transformers

__all__ = ["Origin", "origin_facts", "origin_of", "require_continuable"]

MALFORMED = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError)
"""What reading a job raises whose fields are missing or of other kinds than a run of ours writes."""
HELD = {
    "none": "all weights",
    "lora": "adapters and no weights beneath them",
    "qlora": "adapters of weights in 4 bits and no weights beneath them",
}
"""The contents of a checkpoint, by the adapter of the run that made it."""
SIZES = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
"""Fields of any config that say which model it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The run that made a checkpoint."""

    job: Job
    data: Mapping[str, object] | None
    """Which data it read in which order (a ``DataState`` without a position); ``None`` where only its job is known."""


def origin_facts(job: Job, data: Mapping[str, object]) -> dict[str, object]:
    """The facts a checkpoint keeps about the run that makes it, as a JSON document: its job and its data."""
    return {"job": job_to_json(job), "data": {name: value for name, value in data.items() if name != "position"}}


def origin_of(checkpoint: Checkpoint) -> Origin | None:
    """The run that made a checkpoint: as it says itself, or from its run folder; ``None`` where neither is known."""
    facts = _json_object(checkpoint.path / FACTS)
    job, data = _job(facts.get("job")), facts.get("data")
    if job is not None:
        return Origin(job=job, data=data if isinstance(data, dict) else None)
    folder = checkpoint.path.parent
    beside = _job(_json_object(folder.parent / JOB_FILE))
    if beside is None or beside.checkpoint.folder is None:
        return None
    is_its_own = Path(beside.checkpoint.folder).resolve() == folder.resolve()
    return Origin(job=beside, data=None) if is_its_own else None


def require_continuable(job: Job) -> None:
    """Return when nothing that is known of the checkpoint to resume from speaks against the job.

    Files of JSON are read and no tensor; ranks compare tensors and data again when they load.

    Raises:
        CheckpointError: it holds another model, other trained weights or the states of another optimizer.
        DataError: it was made with another seed or order of the data.
    """
    if job.checkpoint.resume_from is None:
        return
    checkpoint = find_checkpoint(Path(job.checkpoint.resume_from))
    origin = origin_of(checkpoint)
    if origin is None:
        return
    try:
        difference = next(_differences(origin.job, job), None)
    except MALFORMED as error:
        raise CheckpointError(
            f"{checkpoint.path / FACTS} describes no run: {error!s:.120}",
            code="checkpoint-damaged",
            fix="copy the checkpoint again, or begin with its exported weights (--weights)",
        ) from None
    if difference is not None:
        said, fix = difference
        raise CheckpointError(f"{checkpoint.path} {said}", code="checkpoint-mismatch", fix=fix)
    require_same_data(_order(job), _order(origin.job))


def _order(job: Job) -> dict[str, object]:
    return {"seed": job.data.seed, "is_shuffled": job.data.is_shuffled}


def _differences(made: Job, job: Job) -> Iterator[tuple[str, str]]:
    """What a checkpoint holds that the job has otherwise, and what to do about it."""
    yield from _other_trained(made, job)
    yield from _other_model(made, job)
    before, now = made.recipe.optimizer, job.recipe.optimizer
    if not have_same_states(before, now):
        yield (
            f"holds the states of {before}, and this run's optimizer is {now}",
            f"resume with --optimizer {before}, the one it was made with",
        )


def _other_trained(made: Job, job: Job) -> Iterator[tuple[str, str]]:
    before, now = made.recipe, job.recipe
    if before.adapter != now.adapter:
        held = HELD[before.adapter]
        yield (
            f"holds {held} (adapter {before.adapter}), and this run trains with adapter {now.adapter}",
            f"resume with --adapter {before.adapter}, or start from exported weights with --weights",
        )
    elif now.adapter != "none" and before.adapter_scale_ratio != now.adapter_scale_ratio:
        rooted = " --use-rslora" if before.use_rslora else ""
        yield (
            f"holds adapters that are multiplied with {before.adapter_scale_ratio:g}, and this run's with "
            f"{now.adapter_scale_ratio:g}",
            f"resume with --lora-alpha {before.lora_alpha or 2 * before.lora_rank:g}{rooted}",
        )
    elif now.adapter != "none":
        for name in ("lora_rank", "lora_targets"):
            if getattr(before, name) != getattr(now, name):
                yield (
                    f"holds adapters with {name} {getattr(before, name)}, and this run has {getattr(now, name)}",
                    f"resume with --{name.replace('_', '-')} {getattr(before, name)}",
                )


def _other_model(made: Job, job: Job) -> Iterator[tuple[str, str]]:
    before, now = made.model_config, job.model_config
    if uses_transformers(made) or uses_transformers(job):
        for name in SIZES:
            if before.get(name) != now.get(name):
                yield f"has {name} {before.get(name)}, and this run {now.get(name)}", written({name: before.get(name)})
        return
    if not is_whole(before):
        return  # what it left out meant other sizes to the version that made it: ranks compare the tensors
    fix = fix_of_config(before, now)
    held = dict(tensor_shapes(read_config(made.model_config)))
    for name, shape in tensor_shapes(read_config(job.model_config)):
        if name not in held:
            yield f"has no tensor {name}, which this run needs", fix
        elif held[name] != shape:
            yield f"has {name} as {held[name]}, and this run as {shape}", fix


def _job(document: object) -> Job | None:
    """The job that a document describes; none of a document that another version, or somebody else, wrote."""
    if not isinstance(document, dict) or document.get("schema") != JOB_SCHEMA:
        return None
    try:
        return job_from_json(document)
    except MALFORMED:
        return None


def _json_object(path: Path) -> Mapping[str, object]:
    """The object in a file; nothing where there is none."""
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
