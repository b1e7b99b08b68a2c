"""Made-up stages for asking the inventory about one degree at a time, and what the stages of every row really hold.

A quantity of a stage is affine in how many blocks of each shape it holds. Asking the inventory once about a stage of
one block of each shape, and multiplying by the blocks a row's stages hold, gives the figure for every row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from shardwise.engines.table import engine_profile
from shardwise.layout import Layout
from shardwise.model import LayerSpec
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.schedules.table import SCHEDULES
from shardwise.search.candidates import RECOMPUTES, Candidates, FloatColumn, IntColumn, Key
from shardwise.search.tables import Combined, Table
from shardwise.step.held_stage import Pipeline
from shardwise.step.layer_placement import Chunk, Stage, pipeline_stages
from shardwise.step.recomputed_blocks import recomputed_positions
from shardwise.step.stage_context import StageContext

__all__ = [
    "FIRST",
    "LAST",
    "LONGEST",
    "PIPELINE_KEYS",
    "ProbedBatch",
    "Probes",
    "WatchedStage",
    "pipelines_of",
    "watched_index",
]

PIPELINE_KEYS = ("pp", "vpp", "schedule")
FIRST, LONGEST, LAST = range(3)
"""The first stage holds the embedding, the longest runs most blocks, of those that run as many the heaviest, and the
last one holds head and loss."""


@dataclass(frozen=True, slots=True)
class StageOrder:
    """The blocks of a stage in model order."""

    shapes: tuple[int, ...]
    """The shape of each."""
    chunk_layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStage:
    """The contents of one watched stage (first, longest or last) of every row: its blocks, embedding and head."""

    stage: IntColumn
    """Index of the stage in the pipeline of each row."""
    blocks: FloatColumn
    """``(rows, distinct block shapes)``"""
    has_embedding: IntColumn
    has_head: IntColumn
    largest_chunk_fraction: FloatColumn
    """Share of its blocks in the chunk that holds most of them."""
    order: IntColumn
    """Index into ``Probes.orders`` of the order of the stage's blocks, for each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedBatch:
    """The batch of a made-up stage."""

    micro_batch_size: int = 1
    num_microbatches: int = 1


ONE_SEQUENCE = ProbedBatch()


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Everything about one question that both bounds and estimates ask the inventory for."""

    question: Plan

    @cached_property
    def shapes(self) -> tuple[LayerSpec, ...]:
        """The distinct blocks of the model, in order of appearance."""
        return tuple(dict.fromkeys(layer for layer, _ in self.question.model.layer_runs))

    @cached_property
    def one_more_of_each(self) -> tuple[tuple[int, ...], ...]:
        """Block counts of a stage with one block of each shape, then with one more of each shape in turn."""
        numbers = range(len(self.shapes))
        more = (tuple(1 + (number == extra) for number in numbers) for extra in numbers)
        return ((1,) * len(self.shapes), *more)

    def watched(self, rows: Candidates, watched: int) -> WatchedStage:
        """One of the watched stages of every row."""
        return self.watched_of(pipelines_of(rows), watched)

    def watched_of(self, pipelines: Combined, watched: int) -> WatchedStage:
        """One of the watched stages of every row, for rows whose pipelines are grouped already."""
        table = np.asarray([self._contents((*key, watched)) for key in pipelines.keys], dtype=np.float64)
        order, index, has_embedding, has_head = table[:, -4:].astype(np.int64).T
        of_row = pipelines.of_row
        return WatchedStage(
            stage=index[of_row],
            blocks=table[:, :-5][of_row],
            has_embedding=has_embedding[of_row],
            has_head=has_head[of_row],
            largest_chunk_fraction=table[:, -5][of_row],
            order=order[of_row],
        )

    @cached_property
    def _contents(self) -> Callable[[Key], tuple[float, ...]]:
        return cache(self._stage_contents)

    def _stage_contents(self, key: Key) -> tuple[float, ...]:
        """Contents of a watched stage: blocks per shape, largest chunk's share, order, index, embedding and head."""
        *pipeline, watched = key
        stages = self._pipeline(*pipeline)
        stage = stages[watched_index(self._sizes(tuple(pipeline)), watched)]
        largest = max(chunk.num_layers for chunk in stage.chunks) / max(1, stage.num_layers)
        order = self.orders.setdefault(self._order(stage), len(self.orders))
        return (*self._counts(stage), largest, order, stage.index, stage.has_embedding, stage.has_head)

    @cached_property
    def orders(self) -> dict[StageOrder, int]:
        """The orders of blocks that stages have, numbered as they are met."""
        return {}

    def _order(self, stage: Stage) -> StageOrder:
        runs = (run for chunk in stage.chunks for run in chunk.layer_runs)
        shapes = (self.shapes.index(layer) for layer, count in runs for _ in range(count))
        return StageOrder(shapes=tuple(shapes), chunk_layers=tuple(chunk.num_layers for chunk in stage.chunks))

    def recomputed_blocks(self, rows: Candidates, stage: WatchedStage) -> FloatColumn:
        """``(rows, distinct block shapes)``: the blocks of a stage that every row recomputes."""
        blocks: FloatColumn = np.where(rows.recompute[:, None] > 0, stage.blocks, 0.0)
        partly = np.flatnonzero((rows.recompute > 0) & (rows.recompute_layers > 0))
        if len(partly):
            blocks[partly] = self._partial_table.look_up([stage.order[partly], rows.recompute_layers[partly]])
        return blocks

    @cached_property
    def _partial_table(self) -> Table:
        return Table(self._partly_recomputed)

    def _partly_recomputed(self, key: Key) -> tuple[float, ...]:
        number, num_recomputed = key
        order = tuple(self.orders)[number]
        again = recomputed_positions(
            chunk_layers=order.chunk_layers,
            num_recomputed=num_recomputed,
            order=engine_profile(self.question.engine).partial_recompute,
        )
        chosen = [shape for shape, is_again in zip(order.shapes, again, strict=True) if is_again]
        return tuple(float(chosen.count(shape)) for shape in range(len(self.shapes)))

    def longest_stage(self, pipeline: Pipeline) -> int:
        """The stage of a pipeline that runs most blocks."""
        key = (pipeline.pp, pipeline.vpp, SCHEDULES.index(pipeline.schedule))
        return watched_index(self._sizes(key), LONGEST)

    @cached_property
    def _sizes(self) -> Callable[[Key], list[tuple[int, int]]]:
        """Blocks of every stage of a pipeline and the parameters in them."""
        return cache(lambda key: [self._size(stage) for stage in self._pipeline(*key)])

    def _size(self, stage: Stage) -> tuple[int, int]:
        counts = self._counts(stage)
        return sum(counts), sum(count * shape.num_params for count, shape in zip(counts, self.shapes, strict=True))

    def _counts(self, stage: Stage) -> tuple[int, ...]:
        """Blocks of every shape."""
        counts = [0] * len(self.shapes)
        for chunk in stage.chunks:
            for layer, count in chunk.layer_runs:
                counts[self.shapes.index(layer)] += count
        return tuple(counts)

    def _pipeline(self, pp: int, vpp: int, schedule: int) -> tuple[Stage, ...]:
        key = (pp, vpp, schedule)
        if key not in self._pipelines:
            stages = self.question.layout.stage_layers
            layout = Layout(pp=pp, vpp=vpp, schedule=SCHEDULES[schedule], stage_layers=stages)
            self._pipelines[key] = pipeline_stages(model=self.question.model, layout=layout)
        return self._pipelines[key]

    @cached_property
    def _pipelines(self) -> dict[Key, tuple[Stage, ...]]:
        return {}

    def context(
        self,
        layout: Layout,
        *,
        batch: ProbedBatch = ONE_SEQUENCE,
        recompute: tuple[int, int] | None = None,
        tables: tuple[int, int] = (1, 1),
        blocks: tuple[int, ...] | None = None,
    ) -> StageContext:
        """A made-up stage of so many ``blocks`` of every shape (one of each), with or without embedding and head.

        ``recompute`` is a position in ``RECOMPUTES`` and how many blocks, 0 for all.
        """
        counts = blocks if blocks is not None else (1,) * len(self.shapes)
        chunk = Chunk(
            index=0,
            layer_runs=tuple((shape, count) for shape, count in zip(self.shapes, counts, strict=True) if count),
            has_embedding=bool(tables[0]),
            has_head=bool(tables[1]),
        )
        recipe = self._recipe(batch, recompute, layout.data_parallel_size)
        plan = replace(self._small_question, layout=layout, recipe=recipe)
        return StageContext(plan=plan, stage=Stage(index=0, chunks=(chunk,)))

    @cached_property
    def _recipe(self) -> Callable[[ProbedBatch, tuple[int, int] | None, int], Recipe]:
        return cache(self._probed_recipe)

    def _probed_recipe(self, batch: ProbedBatch, recompute: tuple[int, int] | None, data_parallel_size: int) -> Recipe:
        asked = self.question.recipe
        return replace(
            asked,
            micro_batch_size=batch.micro_batch_size,
            global_batch_size=batch.micro_batch_size * batch.num_microbatches * data_parallel_size,
            recompute=asked.recompute if recompute is None else RECOMPUTES[recompute[0]],
            recompute_layers=recompute[1] or None if recompute is not None else None,
            offload="none",
            activation_offload=False,
        )

    @cached_property
    def _small_question(self) -> Plan:
        """The question about one block of each shape: outside a stage the inventory does not count blocks."""
        return replace(self.question, model=replace(self.question.model, layers=self.shapes))


def pipelines_of(rows: Candidates) -> Combined:
    """The rows grouped by the columns that decide what their stages hold."""
    return Combined.of([rows.column(name) for name in PIPELINE_KEYS])


def watched_index(sizes: Sequence[tuple[int, int]], watched: int) -> int:
    """The stage that is meant in a pipeline whose stages hold so many blocks, and so many parameters in them.

    >>> [watched_index([(7, 7), (8, 8), (8, 8), (7, 7)], watched) for watched in (FIRST, LONGEST, LAST)]
    [0, 1, 3]

    One dense block, then two, then stages of experts:

    >>> watched_index([(1, 5), (2, 10), (2, 200), (1, 100)], LONGEST)
    2
    """
    return (0, sizes.index(max(sizes)), len(sizes) - 1)[watched]
