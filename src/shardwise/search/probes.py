"""Made-up stages for asking the inventory about one degree at a time, and what the stages of every row really hold.

A quantity of a stage is affine in how many blocks of each shape it holds. Asking the inventory once about a stage of
one block of each shape, and multiplying by the blocks a row's stages hold, gives the figure for every row.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwise.layout import Layout
from shardwise.model import LayerSpec, ModelSpec
from shardwise.plan import Plan
from shardwise.search.candidates import RECOMPUTES, SCHEDULES, Candidates, FloatColumn, IntColumn, Key
from shardwise.step.placement import Chunk, Stage, pipeline_stages
from shardwise.step.stage_context import StageContext

__all__ = ["PIPELINE_KEYS", "WATCHED_STAGES", "ProbedBatch", "Probes", "WatchedStage", "watched_index"]

PIPELINE_KEYS = ("pp", "vpp", "schedule")
WATCHED_STAGES = 3
"""The first stage keeps most micro-batches, the last one holds head and loss, the middle one most blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStage:
    """What one of the watched stages of every row holds."""

    index: int
    """0 the first, 1 the middle, 2 the last."""
    blocks: FloatColumn
    """``(rows, distinct block shapes)``"""
    has_embedding: IntColumn
    has_head: IntColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedBatch:
    """The batch of a made-up stage."""

    micro_batch_size: int = 1
    num_microbatches: int = 1
    seq_len: int | None = None
    """``None`` for the question's own."""


ONE_SEQUENCE = ProbedBatch()


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Everything about one question that both bounds and estimates ask the inventory for."""

    question: Plan

    @cached_property
    def shapes(self) -> tuple[LayerSpec, ...]:
        """The distinct blocks of the model, in order of appearance."""
        return tuple(dict.fromkeys(layer for layer, _ in self.question.model.layer_runs))

    def watched_stages(self, rows: Candidates) -> tuple[WatchedStage, ...]:
        """The first, the middle and the last stage of every row."""
        return tuple(self._watched(rows, index) for index in range(WATCHED_STAGES))

    @cached_property
    def one_more_of_each(self) -> tuple[tuple[int, ...], ...]:
        """Block counts of a stage with one block of each shape, then with one more of each shape in turn."""
        numbers = range(len(self.shapes))
        more = (tuple(1 + (number == extra) for number in numbers) for extra in numbers)
        return ((1,) * len(self.shapes), *more)

    def _watched(self, rows: Candidates, index: int) -> WatchedStage:
        def contents(key: Key) -> tuple[float, ...]:
            pp, vpp, schedule = key
            stage = self._pipeline(pp, vpp, schedule)[watched_index(pp, index)]
            counts = dict.fromkeys(self.shapes, 0)
            for chunk in stage.chunks:
                for layer, count in chunk.layer_runs:
                    counts[layer] += count
            return (*counts.values(), stage.has_embedding, stage.has_head)

        table = rows.lookup(PIPELINE_KEYS, contents)
        flags = table[:, -2:].astype(np.int64)
        return WatchedStage(index=index, blocks=table[:, :-2], has_embedding=flags[:, 0], has_head=flags[:, 1])

    def _pipeline(self, pp: int, vpp: int, schedule: int) -> tuple[Stage, ...]:
        key = (pp, vpp, schedule)
        if key not in self._pipelines:
            layout = Layout(pp=pp, vpp=vpp, schedule=SCHEDULES[schedule])
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
        recompute: int | None = None,
        tables: tuple[int, int] = (1, 1),
        blocks: tuple[int, ...] | None = None,
    ) -> StageContext:
        """A made-up stage of so many ``blocks`` of every shape (one of each), with or without embedding and head."""
        asked = self.question.recipe
        recipe = replace(
            asked,
            micro_batch_size=batch.micro_batch_size,
            seq_len=batch.seq_len or asked.seq_len,
            global_batch_size=batch.micro_batch_size * batch.num_microbatches * layout.data_parallel_size,
            recompute=asked.recompute if recompute is None else RECOMPUTES[recompute],
        )
        counts = blocks if blocks is not None else (1,) * len(self.shapes)
        chunk = Chunk(
            index=0,
            layer_runs=tuple((shape, count) for shape, count in zip(self.shapes, counts, strict=True) if count),
            has_embedding=bool(tables[0]),
            has_head=bool(tables[1]),
        )
        plan = replace(self.question, model=self._small_model, layout=layout, recipe=recipe)
        return StageContext(plan=plan, stage=Stage(index=0, chunks=(chunk,)))

    @cached_property
    def _small_model(self) -> ModelSpec:
        """The model with one block of each shape: what the inventory reads outside a stage does not count blocks."""
        return replace(self.question.model, layers=self.shapes)


def watched_index(pp: int, watched: int) -> int:
    """The stage that ``watched`` (first, middle, last) means in a pipeline of ``pp``."""
    return (0, pp // 2, pp - 1)[watched]
