"""What a run will read and write, looked at before anything is written or started: it is there, and it can be used."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from shardwise.errors import CheckpointError, ShardwiseError
from shardwise.launch.buildable import require_weights_of_transformers
from shardwise.launch.support import require_base
from shardwise.step.held_weights import is_target
from shardwise.train.checkpoint.folder import find_checkpoint
from shardwise.train.checkpoint.origin import origin_of, require_continuable
from shardwise.train.data import SampleOrder, open_samples, require_readable
from shardwise.train.data.prompts import read_prompts
from shardwise.train.data.request import tokenizer_of
from shardwise.train.data.state import require_same_data, state_at
from shardwise.train.data.validation import validation_data
from shardwise.train.decoder.shapes import Shape
from shardwise.train.job import CheckpointSpec, Job, uses_transformers
from shardwise.train.pretrained.files import base_name, files_by_tensor, require_whole
from shardwise.train.pretrained.fitting import require_fitting, require_same_model
from shardwise.train.writable import why_not_writable

__all__ = ["input_errors", "require_inputs", "require_resumed_data"]


def require_inputs(job: Job, shapes: Mapping[str, Shape] | None, *, sees_paths: bool = True) -> None:
    """Return when the job's data, tokenizer, weights and checkpoint can be read and its results can be written.

    It costs little: headers, indices and first documents are read, nothing is tokenised and no weight is loaded, so
    that only ranks see whether weights are finite.

    Args:
        job: what will run.
        shapes: of the model's parameters; ``None`` where nobody knows them here.
        sees_paths: whether the run is one of this machine; others may see other files.

    Raises:
        PlanError: adapters have no weights to adapt.
        CheckpointError: the checkpoint has all the steps already or is of another model or optimizer, weights are not
            whole, or a folder cannot be made.
        DataError: data or tokenizer are missing, are something else, or are not those of the checkpoint.
    """
    for check in _checks(sees_paths):
        check(job, shapes)


def input_errors(job: Job, shapes: Mapping[str, Shape] | None, *, sees_paths: bool = True) -> Iterator[ShardwiseError]:
    """What :func:`require_inputs` would refuse, all of it and not the first alone."""
    for check in _checks(sees_paths):
        try:
            check(job, shapes)
        except ShardwiseError as error:
            yield error


def _checks(sees_paths: bool) -> "tuple[Check, ...]":
    return CHECKS if sees_paths else (_require_base,)


def require_resumed_data(job: Job) -> None:
    """Return when the data are those that the checkpoint to resume from was made with; tokenises what was not yet.

    Raises:
        DataError: a run would go on with other samples, or in another order.
    """
    origin = origin_of(find_checkpoint(Path(job.checkpoint.resume_from))) if job.checkpoint.resume_from else None
    if origin is None or origin.data is None:
        return
    samples = open_samples(job.data, seq_len=job.recipe.seq_len, vocab_size=job.vocab_size)
    order = SampleOrder(num_samples=samples.num_samples, seed=job.data.seed, is_shuffled=job.data.is_shuffled)
    require_same_data(state_at(0, samples=samples, order=order), origin.data)


def _require_base(job: Job, _: Mapping[str, Shape] | None) -> None:
    require_base(job)


def _require_checkpoint(job: Job, _: Mapping[str, Shape] | None) -> None:
    """Return when there is nothing to go on from, or it has steps left and is of the same model."""
    if not job.checkpoint.resume_from:
        return
    checkpoint = find_checkpoint(Path(job.checkpoint.resume_from))
    if checkpoint.step >= job.num_steps:
        raise CheckpointError(
            f"{checkpoint.path} is at step {checkpoint.step}, and --steps {job.num_steps} is the total, "
            "so no step is left",
            code="checkpoint-steps",
            fix=f"set --steps above {checkpoint.step}",
        )
    require_continuable(job)


def _require_same_base(job: Job, _: Mapping[str, Shape] | None) -> None:
    """Return when adapters go on beside the weights that they were trained beside.

    A checkpoint of adapters holds no weights, so other ones of the same shapes would be taken without a word.
    """
    if not job.checkpoint.resume_from or job.recipe.adapter == "none":
        return
    checkpoint = find_checkpoint(Path(job.checkpoint.resume_from))
    origin = origin_of(checkpoint)
    if origin is None or _is_same_base(origin.job.checkpoint, job.checkpoint):
        return
    before, now = origin.job.checkpoint.initial_weights, job.checkpoint.initial_weights
    others = "others that lie there now" if before == now else now or "random weights"
    raise CheckpointError(
        f"{checkpoint.path} holds adapters of {before or 'random weights'}, and this run has {others} beneath them",
        code="checkpoint-mismatch",
        fix="resume with --weights and the weights that the run began with"
        if before
        else "resume with --random-weights and without --weights",
    )


def _require_mergeable(job: Job, shapes: Mapping[str, Shape] | None) -> None:
    """Return when every matrix that gets an adapter is in the weights under a name that a merge finds."""
    if not job.checkpoint.is_merged or shapes is None:
        return
    held = files_by_tensor(Path(str(job.checkpoint.initial_weights)))
    for name, shape in shapes.items():
        module = name.removesuffix(".weight")
        if len(shape) == 2 and module != name and ".layers." in name and is_target(module, job.recipe.lora_targets):
            base_name(name, held)


def _is_same_base(before: CheckpointSpec, now: CheckpointSpec) -> bool:
    """Whether weights are the same as far as is known: random ones follow from the seed, which data compare."""
    if before.initial_weights is None or now.initial_weights is None:
        return before.initial_weights == now.initial_weights
    return None in (before.weights_digest, now.weights_digest) or before.weights_digest == now.weights_digest


def _require_weights(job: Job, shapes: Mapping[str, Shape] | None) -> None:
    """Return when the weights are whole and fit: by every tensor, or by the config where no model can be built here."""
    if not job.checkpoint.initial_weights:
        return
    folder = Path(job.checkpoint.initial_weights)
    require_whole(folder)
    if uses_transformers(job):
        require_same_model(folder, job.model_config)
        if shapes is not None:
            require_weights_of_transformers(job)
    elif shapes is not None:
        require_fitting(folder, shapes.items())


def _require_export(job: Job, _: Mapping[str, Shape] | None) -> None:
    if job.checkpoint.export_folder:
        _require_free_name(Path(job.checkpoint.export_folder), option="--export")


def _require_places(job: Job, _: Mapping[str, Shape] | None) -> None:
    """Return when folders that need not be new are there or could be made."""
    places = {
        "--out": job.run_folder,
        "--checkpoints": job.checkpoint.folder,
        "--tensorboard": job.watch.tensorboard,
    }
    for option, folder in places.items():
        if folder:
            _require_place(Path(folder), option=option)


def _require_data(job: Job, _: Mapping[str, Shape] | None) -> None:
    require_readable(job.data, seq_len=job.recipe.seq_len, vocab_size=job.vocab_size)


def _require_validation(job: Job, _: Mapping[str, Shape] | None) -> None:
    """Return when the data that a run is judged by begin as they should, and there are prompts where some are named."""
    data = validation_data(job)
    if job.validation.source is not None:
        require_readable(data, seq_len=job.recipe.seq_len, vocab_size=job.vocab_size)
    if job.validation.prompts is not None:
        tokenizer = tokenizer_of(data)
        read_prompts(Path(job.validation.prompts), tokenizer=tokenizer, seq_len=job.recipe.seq_len)


def _require_free_name(folder: Path, *, option: str) -> None:
    if folder.exists():
        raise CheckpointError(
            f"{option}: {folder} exists already", code="output-exists", fix=f"choose another {option} folder"
        )
    _require_place(folder, option=option)


def _require_place(folder: Path, *, option: str) -> None:
    """Return when the folder is there or could be made."""
    reason = why_not_writable(folder)
    if reason:
        raise CheckpointError(
            f"{option}: {folder} cannot be made, because {reason}",
            code="output-path",
            fix=f"choose a folder for {option} that can be written to",
        )


Check = Callable[[Job, Mapping[str, Shape] | None], None]
CHECKS: tuple[Check, ...] = (
    _require_checkpoint,
    _require_base,
    _require_weights,
    _require_same_base,
    _require_mergeable,
    _require_export,
    _require_places,
    _require_data,
    _require_validation,
)
