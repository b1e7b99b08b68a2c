"""Which layouts a model can be trained under: launchers ask before anything starts, and so do ranks; without torch."""

from shardwise.errors import LayoutError
from shardwise.layout import Layout
from shardwise.step.native_engine import axes_inside
from shardwise.train.job import Job, uses_transformers


def require_divisible(job: Job) -> None:
    """Return when our runtime can divide the job's model as its layout says.

    Raises:
        LayoutError: it divides the inside of a model that transformers builds.
    """
    if uses_transformers(job):
        require_data_parallel(job.layout, model_type=str(job.model_config.get("model_type")))


def require_data_parallel(layout: Layout, *, model_type: str) -> None:
    """Return when a layout divides only what any model can be divided by.

    Raises:
        LayoutError: it divides the inside of a model that is not our decoder.
    """
    divided = axes_inside(layout)
    if divided:
        raise LayoutError(
            f"{' and '.join(divided)} divide the inside of a model, but {model_type} is no model of ours,"
            " and others are divided over data-parallel ranks alone",
            code="train-transformers-layout",
            fix="set tp, cp, pp and ep to 1 and dp_shard to the number of GPUs",
        )
