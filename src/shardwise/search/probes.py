"""Made-up stages for asking the inventory about one degree at a time, and what the stages of every row really hold.

A quantity of a stage is affine in how many blocks of each shape it holds. Asking the inventory once about a stage of
one block of each shape, and multiplying by the blocks a row's stages hold, gives the figure for every row.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np

from shardwise.engines.table import engine_profile
from shardwise.layout import Layout
from shardwise.model import LayerSpec
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.schedules.table import SCHEDULE_KINDS, SCHEDULES
from shardwise.search.candidates import RECOMPUTES, Candidates, FloatColumn, IntColumn, Key
from shardwise.search.partial_recompute import Recomputed, StageOrder, recomputed_counts
from shardwise.search.tables import Combined, Table
from shardwise.search.team import ALONE, Team
from shardwise.step.placement import Chunk, Stage, pipeline_stages
from shardwise.step.stage_context import StageContext

__all__ = [
    "FIRST",
    "LAST",
    "LONGEST",
    "ONE_TOKEN",
    "PIPELINE_KEYS",
    "SECOND",
    "ProbedBatch",
    "Probes",
    "WatchedStage",
    "other_stages",
    "pipelines_of",
    "watched_index",
]

PIPELINE_KEYS = ("pp", "vpp", "schedule")
FIRST, SECOND, LONGEST, LAST = range(4)
"""The first stage keeps most micro-batches, the second one almost as many with no embedding but more blocks, the
longest runs most blocks, of those that run as many the heaviest, and the last one holds head and loss."""
OTHERS = LAST + 1
"""From here on the others that may be the fullest: see :func:`other_stages`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStage:
    """What one of the watched stages of every row holds."""

    stage: IntColumn
    """Which stage of its pipeline it is."""
    blocks: FloatColumn
    """``(rows, distinct block shapes)``"""
    has_embedding: IntColumn
    has_head: IntColumn
    largest_chunk_fraction: FloatColumn
    """Share of its blocks in the chunk that holds most of them."""
    order: IntColumn
    """Which of ``Probes.orders`` its blocks have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedBatch:
    """The batch of a made-up stage."""

    micro_batch_size: int = 1
    num_microbatches: int = 1
    seq_len: int | None = None
    """``None`` for the question's own."""


ONE_SEQUENCE = ProbedBatch()
ONE_TOKEN = ProbedBatch(seq_len=1)
"""For what does not depend on the batch."""


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Everything about one question that both bounds and estimates ask the inventory for."""

    question: Plan
    team: Team = field(default=ALONE, compare=False)
    """Who evaluates what is asked."""

    def table(self, function: Callable[[Key], tuple[float, ...]], *, is_slow: bool = False) -> Table:
        """A function of the question, remembered; a slow one is worth dividing between processes."""
        return Table(function, team=self.team if is_slow else ALONE)

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
        """The same of rows whose pipelines are told apart already."""
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
        """What a watched stage of a pipeline holds: blocks per shape, its largest chunk, order, index and ends."""
        *pipeline, watched = key
        stages = self._pipeline(*pipeline)
        if watched < OTHERS:
            index = watched_index(self._sizes(tuple(pipeline)), watched)
        else:
            index = (*self._others(tuple(pipeline)), *[FIRST] * watched)[watched - OTHERS]
        stage = stages[index]
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

    def recomputed(self, rows: Candidates, stage: WatchedStage) -> Recomputed:
        """Which blocks of a stage every row recomputes."""
        recomputes = rows.recompute[:, None] > 0
        blocks, behind = np.where(recomputes, stage.blocks, 0.0), np.where(recomputes, 0.0, stage.blocks)
        last_shape = np.zeros(len(rows), dtype=np.int64)
        partly = np.flatnonzero((rows.recompute > 0) & (rows.recompute_layers > 0))
        if len(partly):
            num_shapes = len(self.shapes)
            counts = self._partial_table.look_up([stage.order[partly], rows.recompute_layers[partly]])
            blocks[partly], behind[partly] = counts[:, :num_shapes], counts[:, num_shapes:-1]
            last_shape[partly] = counts[:, -1].astype(np.int64)
        return Recomputed(blocks=blocks, behind=behind, last_shape=last_shape)

    @cached_property
    def _partial_table(self) -> Table:
        return self.table(self._partly_recomputed)

    def _partly_recomputed(self, key: Key) -> tuple[float, ...]:
        order, num_recomputed = key
        return recomputed_counts(
            tuple(self.orders)[order],
            num_recomputed=num_recomputed,
            num_shapes=len(self.shapes),
            engine_order=engine_profile(self.question.engine).partial_recompute,
        )

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

    def others(self, pipelines: Combined) -> range:
        """The numbers under which :meth:`watched_of` knows the other stages that may be the fullest in some rows.

        Where a row has fewer of them than another one the first stage is repeated.
        """
        most = max((len(self._others(key)) for key in pipelines.keys), default=0)
        return range(OTHERS, OTHERS + most)

    @cached_property
    def _others(self) -> Callable[[Key], tuple[int, ...]]:
        return cache(self._other_stages)

    def _other_stages(self, key: Key) -> tuple[int, ...]:
        """Where gradients of weights wait, later stages may need more than earlier ones, too."""
        counts = [self._counts(stage) for stage in self._pipeline(*key)]
        found, last = other_stages(counts), len(counts) - 1
        if not SCHEDULE_KINDS[SCHEDULES[key[2]]].puts_weights_off:
            return found
        mirrored = {last - stage for stage in (SECOND, *other_stages(counts[::-1]))}
        return tuple(sorted(mirrored.union(found) - {0, SECOND, last}))

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
            seq_len=batch.seq_len or asked.seq_len,
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
    """What the stages of rows hold depends on."""
    return Combined.of([rows.column(name) for name in PIPELINE_KEYS])


def watched_index(sizes: Sequence[tuple[int, int]], watched: int) -> int:
    """The stage that is meant in a pipeline whose stages hold so many blocks, and so many parameters in them.

    >>> [watched_index([(7, 7), (8, 8), (8, 8), (7, 7)], watched) for watched in (FIRST, SECOND, LONGEST, LAST)]
    [0, 1, 1, 3]

    One dense block, then two, then stages of experts:

    >>> watched_index([(1, 5), (2, 10), (2, 200), (1, 100)], LONGEST)
    2
    """
    last = len(sizes) - 1
    return (0, min(1, last), sizes.index(max(sizes)), last)[watched]


def other_stages(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Stages between the second and the last that may need more memory than any before them.

    A stage keeps no more micro-batches than the ones before it, so it needs no more than an earlier one between the
    ends that holds at least as many blocks of every shape. Which shape weighs most depends on the degrees.

    Args:
        counts: blocks of every shape, stage by stage.

    One dense block, then two, then stages of experts:

    >>> other_stages([(1, 0), (2, 0), (0, 2), (0, 2), (0, 1)])
    (2,)
    """
    found: list[int] = []
    for index in range(2, len(counts) - 1):
        needs_more = not any(
            all(earlier >= own for earlier, own in zip(counts[before], counts[index], strict=True))
            for before in (SECOND, *found)
        )
        if needs_more:
            found.append(index)
    return tuple(found)
