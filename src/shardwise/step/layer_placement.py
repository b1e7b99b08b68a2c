"""Which blocks each pipeline stage holds, and how much of each weight one rank holds."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import ceil
from typing import Protocol, TypeAlias

from shardwise.layout import Layout
from shardwise.model import LayerSpec, ModelSpec, Weight
from shardwise.schedules.table import SCHEDULE_KINDS

Runs: TypeAlias = tuple[tuple[LayerSpec, int], ...]
"""Consecutive identical blocks as ``(layer, how many)``."""


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Consecutive blocks that one stage runs as a unit."""

    index: int
    """Position in the model: 0 holds the embedding, the last one the head. Under DualPipe chunks from pp on are the
    model once more."""
    layer_runs: Runs
    has_embedding: bool
    has_head: bool

    @cached_property
    def num_layers(self) -> int:
        """Blocks of the chunk."""
        return sum(count for _, count in self.layer_runs)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The blocks and ends of the model that one pipeline rank holds: one chunk, or several when interleaved."""

    index: int
    chunks: tuple[Chunk, ...]

    @cached_property
    def has_embedding(self) -> bool:
        """Whether the token table lives here."""
        return any(chunk.has_embedding for chunk in self.chunks)

    @cached_property
    def has_head(self) -> bool:
        """Whether the final norm, head and loss live here."""
        return any(chunk.has_head for chunk in self.chunks)

    @cached_property
    def layer_runs(self) -> Runs:
        """Runs of identical blocks over all chunks, in model order; equal neighbours of two chunks are one run."""
        return _merged(run for chunk in self.chunks for run in chunk.layer_runs)

    @cached_property
    def num_layers(self) -> int:
        """Blocks of all chunks."""
        return sum(chunk.num_layers for chunk in self.chunks)


def num_chunks(layout: Layout) -> int:
    """Chunks the model is cut into: ``pp * vpp``, ``2 * pp`` for V-shaped schedules, and ``pp`` for each of two copies.

    >>> num_chunks(Layout(pp=4, vpp=3, schedule="dualpipe"))
    4
    """
    if layout.model_copies > 1:
        return layout.pp
    return layout.pp * chunks_per_stage(layout)


def chunks_per_stage(layout: Layout) -> int:
    """Chunks of one model that every stage holds: ``vpp``, and two for V-shaped schedules.

    >>> chunks_per_stage(Layout(pp=4, schedule="zbv"))
    2
    """
    return 2 if SCHEDULE_KINDS[layout.schedule].doubles_chunks else layout.vpp


def chunk_in_model(*, chunk: int, layout: Layout) -> int:
    """Position of a chunk among those of its own copy of the model."""
    return chunk % num_chunks(layout)


def spread_layers(*, num_layers: int, num_chunks: int) -> tuple[int, ...]:
    """Blocks of each chunk, as even as possible, the chunks with embedding and head getting fewer first.

    126 blocks on 8 stages become 15, 16, ..., 16, 15: the embedding and the head count as one block each, as Llama 3
    405B was trained (arXiv:2407.21783, section 3.3.2).

    >>> spread_layers(num_layers=30, num_chunks=4)
    (7, 8, 8, 7)
    """
    base, extra = divmod(num_layers, num_chunks)
    first_to_grow = sorted(range(num_chunks), key=lambda i: (i == num_chunks - 1, i == 0, i))
    grown = set(first_to_grow[:extra])
    return tuple(base + (index in grown) for index in range(num_chunks))


def chunk_owner(*, chunk: int, layout: Layout) -> int:
    """The stage that runs a chunk: round-robin when interleaved, there and back again when V-shaped.

    DualPipe's second copy of the model lies the other way round.

    >>> [chunk_owner(chunk=chunk, layout=Layout(pp=4, schedule="dualpipe")) for chunk in range(8)]
    [0, 1, 2, 3, 3, 2, 1, 0]
    """
    if SCHEDULE_KINDS[layout.schedule].is_v_shaped and chunk >= layout.pp:
        return 2 * layout.pp - 1 - chunk
    return chunk % layout.pp


def pipeline_stages(*, model: ModelSpec, layout: Layout) -> tuple[Stage, ...]:
    """The stages of the pipeline in order, with the blocks each of them holds."""
    chunks = num_chunks(layout)
    counts = _chunk_layer_counts(num_layers=model.num_hidden_layers, layout=layout, chunks=chunks)
    owners = tuple(chunk_owner(chunk=chunk, layout=layout) for chunk in range(layout.model_copies * chunks))
    return _placed(model.layer_runs, counts, owners)


@lru_cache(maxsize=256)
def _placed(layer_runs: Runs, counts: tuple[int, ...], owners: tuple[int, ...], /) -> tuple[Stage, ...]:
    """Stages of so many blocks in each chunk of a model, and of these chunks in turn, as often as there are owners."""
    layers = [layer for layer, count in layer_runs for _ in range(count)]
    ends, chunks = tuple(accumulate(counts)), len(counts)
    runs = [_runs(layers[end - count : end]) for end, count in zip(ends, counts, strict=True)]
    per_stage: list[list[Chunk]] = [[] for _ in range(1 + max(owners))]
    for index, owner in enumerate(owners):
        position = index % chunks
        per_stage[owner].append(
            Chunk(
                index=index,
                layer_runs=runs[position],
                has_embedding=position == 0,
                has_head=position == chunks - 1,
            )
        )
    return tuple(Stage(index=index, chunks=tuple(held)) for index, held in enumerate(per_stage))


def _chunk_layer_counts(*, num_layers: int, layout: Layout, chunks: int) -> tuple[int, ...]:
    if layout.stage_layers is None:
        return spread_layers(num_layers=num_layers, num_chunks=chunks)
    counts = [0] * chunks
    for stage, layers in enumerate(layout.stage_layers):
        held = [chunk for chunk in range(chunks) if chunk_owner(chunk=chunk, layout=layout) == stage]
        for chunk, share in zip(held, spread_layers(num_layers=layers, num_chunks=len(held)), strict=True):
            counts[chunk] = share
    return tuple(counts)


def _runs(layers: Iterable[LayerSpec]) -> Runs:
    return _merged((layer, 1) for layer in layers)


def _merged(runs: Iterable[tuple[LayerSpec, int]]) -> Runs:
    merged: list[tuple[LayerSpec, int]] = []
    for layer, count in runs:
        if merged and (merged[-1][0] is layer or merged[-1][0] == layer):
            merged[-1] = (layer, merged[-1][1] + count)
        else:
            merged.append((layer, count))
    return tuple(merged)


class Degrees(Protocol):
    """Whatever says how many ranks divide one tensor."""

    @property
    def tp(self) -> int:
        """Degree of tensor parallelism."""
        ...

    @property
    def ep(self) -> int:
        """Degree of expert parallelism."""
        ...

    @property
    def expert_tp(self) -> int:
        """Degree of tensor parallelism inside each expert."""
        ...


def tensor_shards(weight: Weight, layout: Degrees) -> int:
    """Pieces tensor parallelism makes of a weight; 1 when it is replicated."""
    degree = layout.expert_tp if weight.is_expert else layout.tp
    if weight.split == "replicated":
        return 1
    return min(degree, weight.split_limit) if weight.split_limit else degree


def local_num_params(weight: Weight, layout: Degrees) -> int:
    """Elements of a weight on one rank after tensor and expert parallelism, before data-parallel sharding."""
    shards = tensor_shards(weight, layout) * (layout.ep if weight.is_expert else 1)
    return ceil(weight.num_params / shards)
