"""The samples that a run is judged by, and never learns from; without torch."""

from dataclasses import replace

from shardwise.train.data.request import open_samples
from shardwise.train.data.samples import Samples
from shardwise.train.job import DataSpec, Job

__all__ = ["open_validation", "validation_data"]


def validation_data(job: Job) -> DataSpec:
    """The validation data of a job: a source of its own, read as the training data are, or what these hold out."""
    if job.validation.source is None:
        return job.data
    return replace(job.data, source=job.validation.source, more_sources=(), held_out_fraction=0.0)


def open_validation(job: Job) -> Samples:
    """The validation samples of a job.

    Raises:
        DataError: they cannot be read, or there are none.
    """
    data, seq_len = validation_data(job), job.recipe.seq_len
    return open_samples(data, seq_len=seq_len, vocab_size=job.vocab_size, part="held out")
