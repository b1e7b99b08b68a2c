"""The samples that a run is judged by, and never learns from; without torch."""

from dataclasses import asdict, replace

from shardwise.train.data.request import DataRequest, open_samples
from shardwise.train.data.samples import Samples
from shardwise.train.job import Job

__all__ = ["open_validation", "validation_request"]


def validation_request(job: Job) -> DataRequest:
    """The validation data of a job: a source of its own, read as the training data are, or what these hold out."""
    request = DataRequest(**asdict(job.data))
    if job.validation.source is None:
        return request
    return replace(request, source=job.validation.source, more_sources=(), held_out_fraction=0.0)


def open_validation(job: Job) -> Samples:
    """The validation samples of a job.

    Raises:
        DataError: they cannot be read, or there are none.
    """
    request = validation_request(job)
    return open_samples(request, seq_len=job.recipe.seq_len, vocab_size=job.vocab_size, part="held out")
