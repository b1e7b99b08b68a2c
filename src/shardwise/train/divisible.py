"""Which layouts a model can be trained under: launchers ask before anything starts, and so do ranks; without torch."""

from shardwise.errors import LayoutError
from shardwise.layout import Layout
from shardwise.step.native_engine import axes_inside, undivided_axes
from shardwise.train.job import Job, uses_transformers


def require_divisible(job: Job) -> None:
    """Return when our runtime can divide the job's model as its layout says; rules look at heads and widths.

    Raises:
        LayoutError: it would divide what transformers builds along an axis that is not offered for the family, or the
            rows of the vocabulary unevenly (of which the rule ``layout-vocab-over-tp`` only warns: engines may pad).
    """
    if uses_transformers(job):
        model_type = str(job.model_config.get("model_type"))
        _require_whole(undivided_axes(job.layout, model_type=model_type), model_type=model_type)
    if job.vocab_size % job.layout.tp:
        raise LayoutError(
            f"tp={job.layout.tp} cannot divide vocab_size={job.vocab_size} into equal parts",
            code="train-tensor-parts",
            fix=f"set tp to a divisor of {job.vocab_size}, or pad the vocabulary",
        )


def require_data_parallel(layout: Layout, *, model_type: str) -> None:
    """Return when a layout divides only what any model can be divided by.

    Raises:
        LayoutError: it divides the inside of a model that is not our decoder.
    """
    _require_whole(axes_inside(layout), model_type=model_type)


def _require_whole(divided: tuple[str, ...], *, model_type: str) -> None:
    if divided:
        raise LayoutError(
            f"{' and '.join(divided)} divide the inside of a model, which our trainer does not do to {model_type}",
            code="train-transformers-layout",
            fix=f"set {' and '.join(divided)} to 1 and dp_shard as many times larger",
        )
