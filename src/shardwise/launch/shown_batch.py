"""The first micro-batch of a run as text, with what of it is learned."""

from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from shardwise.train.data.order import SampleOrder
from shardwise.train.data.request import holds_tokens, open_samples, sources_of, tokenizer_of
from shardwise.train.data.samples import IGNORED_LABEL, Sample
from shardwise.train.data.tokenizer import Tokenizer
from shardwise.train.job import Job

__all__ = ["ShownPart", "ShownSample", "shown_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """Consecutive tokens of one document that are either all learned or all only read."""

    num_documents_before: int
    """Documents of the sequence that end before these tokens."""
    is_learned: bool
    num_tokens: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSample:
    """One sequence of a batch."""

    num_tokens: int
    """Tokens without padding."""
    num_learned: int
    num_padding: int
    parts: tuple[ShownPart, ...]


def shown_batch(job: Job) -> tuple[ShownSample, ...]:
    """The sequences that the first data-parallel rank reads first."""
    data = job.data
    samples = open_samples(data, seq_len=job.recipe.seq_len, vocab_size=job.vocab_size)
    order = SampleOrder(num_samples=samples.num_samples, seed=data.seed, is_shuffled=data.is_shuffled)
    numbers = order.samples_at(np.arange(job.recipe.micro_batch_size))
    is_readable = data.tokenizer is not None or data.is_synthetic or not holds_tokens(sources_of(data)[0])
    tokenizer = tokenizer_of(data) if is_readable else None
    return tuple(_shown(samples.sample(int(number)), tokenizer) for number in numbers)


def _shown(sample: Sample, tokenizer: Tokenizer | None) -> ShownSample:
    starts = [*np.flatnonzero(sample.positions == 0).tolist(), len(sample.inputs)]
    parts: list[ShownPart] = []
    num_padding = 0
    for document, (start, stop) in enumerate(pairwise(starts)):
        inputs, labels = sample.inputs[start:stop], sample.labels[start:stop]
        if stop == len(sample.inputs) and document > 0 and not inputs.any() and (labels == IGNORED_LABEL).all():
            num_padding = stop - start
            break
        parts += _parts(document, inputs, labels, tokenizer)
    return ShownSample(
        num_tokens=sum(part.num_tokens for part in parts),
        num_learned=sum(part.num_tokens for part in parts if part.is_learned),
        num_padding=num_padding,
        parts=tuple(parts),
    )


def _parts(
    document: int, inputs: npt.NDArray[np.int64], labels: npt.NDArray[np.int64], tokenizer: Tokenizer | None
) -> list[ShownPart]:
    """The parts of a document: its inputs and, where it is learned, the label after the last of them."""
    learned = [False, *(labels != IGNORED_LABEL).tolist()]
    tokens = [*inputs.tolist(), int(labels[-1])]
    if not learned[-1]:
        tokens, learned = tokens[:-1], learned[:-1]
    found = []
    for is_learned, group in groupby(zip(tokens, learned, strict=True), key=lambda pair: pair[1]):
        part = [token for token, _ in group]
        text = " ".join(map(str, part)) if tokenizer is None else tokenizer.decode(part)
        found.append(ShownPart(num_documents_before=document, is_learned=is_learned, num_tokens=len(part), text=text))
    return found
