"""Parameters, gradients and optimizer states of every candidate, in array operations.

What a rank holds of a block undivided comes from the inventory; the ZeRO stage says which parts are divided by how
many ranks. FSDP2 divides tensor by tensor and rounds each up, which the division here leaves out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardwise.engines.profile import EngineProfile
from shardwise.engines.table import engine_profile
from shardwise.layout import Layout
from shardwise.model import LayerSpec
from shardwise.schedules.table import SCHEDULE_KINDS, SCHEDULES
from shardwise.search.candidates import OFFLOADS, Candidates, FloatColumn, IntColumn, Key, Mask
from shardwise.search.probes import FIRST, LAST, ONE_TOKEN, SECOND, Probes, WatchedStage, pipelines_of
from shardwise.search.tables import Combined, Table
from shardwise.step.own_runtime import is_own_runtime
from shardwise.step.placement import Chunk, Stage
from shardwise.step.stage_context import StageContext
from shardwise.step.state_tensors import held_states
from shardwise.step.step_operations import trained_elements

__all__ = ["ON_HOST", "BlockStates", "HeldStates", "StageStates", "model_copies"]

PARTS = 8
"""On the device: parameters, gradients, optimizer, and what only the optimizer step holds; in the host's memory: the
first three; on its drives: the optimizer."""
ON_DEVICE, ON_HOST = slice(0, 4), slice(4, 8)
SIDES = 2
"""Not routed, and routed: they are divided over different groups."""
DIVIDED_FROM = np.asarray([3, 2, 1, 1, 3, 2, 1, 1])
"""The ZeRO stage from which each part is divided."""
COMPONENTS = ("parameters", "gradients", "optimizer", "temporaries")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStates:
    """Bytes of one rank of a stage; columns of rows."""

    parameters: FloatColumn
    gradients: FloatColumn
    block_gradients: FloatColumn
    """``(rows, shapes)``: the part of the gradients that belongs to blocks."""
    head_gradients: FloatColumn
    """The part that the head adds where the stage holds it."""
    optimizer: FloatColumn
    during_step: FloatColumn
    """Copies while the optimizer runs."""

    @property
    def total(self) -> FloatColumn:
        """What stays for the whole step."""
        total: FloatColumn = self.parameters + self.gradients + self.optimizer
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStates:
    """Bytes of one rank of every row, before it is known how many blocks a stage holds."""

    per_block: FloatColumn
    """``(rows, shapes, parts)``"""
    dense: FloatColumn
    """``(rows, parts)``: the share that a rank holds of what is not routed."""
    tables: Combined
    """What embedding and head depend on."""

    def take(self, chosen: IntColumn) -> "BlockStates":
        """Of some of the rows."""
        return BlockStates(per_block=self.per_block[chosen], dense=self.dense[chosen], tables=self.tables.take(chosen))


@dataclass(frozen=True, kw_only=True)
class HeldStates:
    """The states for one question. Columns of results are in bytes."""

    probes: Probes

    def worst_bytes(self, rows: Candidates) -> FloatColumn:
        """Parameters, gradients and optimizer states of the worst watched stage."""
        states, pipelines = self.of_blocks(rows), pipelines_of(rows)
        watched = (FIRST, SECOND, LAST, *self.probes.others(pipelines))
        stages = [self.probes.watched_of(pipelines, which) for which in watched]
        worst: FloatColumn = np.max(np.stack([self.of_stage(states, stage).total for stage in stages]), axis=0)
        return worst

    def of_blocks(self, rows: Candidates, parts: slice = ON_DEVICE) -> BlockStates:
        """What every block of a row adds to a stage, on the device or on its host."""
        # DeepSpeed's pipelines accumulate in fp32 below stage 2; nothing else tells undivided states apart.
        accumulates = (rows.pp > 1) & (rows.zero_stage <= 1) & (self.profile.sharding == "deepspeed")
        tables = Combined.of([rows.tp, accumulates.astype(np.int64), rows.offload])
        blocks = self._block_table.of(tables.beside([rows.ep, rows.expert_tp]))
        blocks = blocks.reshape(len(rows), len(self.probes.shapes), SIDES, PARTS)[..., parts]
        divided_from = (np.minimum(DIVIDED_FROM, 1) if self.is_own_runtime else DIVIDED_FROM)[parts]
        divided = self._stages_held(rows)[:, None] >= divided_from
        copies = model_copies(rows)
        dense = np.where(divided, 1 / (copies * rows.state_shard_size)[:, None], 1.0)
        routed = np.where(divided, 1 / (copies * rows.expert_state_shard_size)[:, None], 1.0)
        per_block = blocks[:, :, 0] * dense[:, None] + blocks[:, :, 1] * routed[:, None]
        return BlockStates(per_block=per_block, dense=dense, tables=tables)

    def _stages_held(self, rows: Candidates) -> IntColumn:
        """ZeRO stage of what is held: our trainer divides nothing, experts neither, where dense weights are whole."""
        held: IntColumn = np.where(self.is_own_runtime & (rows.state_shard_size == 1), 0, rows.zero_stage)
        return held

    def of_stage(self, states: BlockStates, stage: WatchedStage) -> StageStates:
        """What one watched stage of every row holds on the device."""
        per_shape, sums = self._added_up(states, stage, ON_DEVICE)
        parameters, gradients, optimizer, during = sums
        headless = self._tables_table.of(states.tables.beside([stage.has_embedding, np.zeros_like(stage.has_head)]))
        return StageStates(
            parameters=parameters,
            gradients=gradients,
            block_gradients=per_shape[:, :, 1],
            head_gradients=gradients - per_shape[:, :, 1].sum(axis=1) - headless[:, 1] * states.dense[:, 1],
            optimizer=optimizer,
            during_step=during,
        )

    def moved_of_stage(self, states: BlockStates, stage: WatchedStage) -> tuple[FloatColumn, FloatColumn]:
        """What one watched stage of every row keeps in its host's memory, and on its drives.

        Args:
            states: of :meth:`of_blocks`, ``ON_HOST``.
            stage: of every row.
        """
        *memory, drives = self._added_up(states, stage, ON_HOST)[1]
        return np.sum(memory, axis=0), drives

    def _added_up(
        self, states: BlockStates, stage: WatchedStage, parts: slice
    ) -> tuple[FloatColumn, Sequence[FloatColumn]]:
        """``(rows, shapes, parts)`` of a stage's blocks, and the sum of every part with its tables."""
        tables = self._tables_table.of(states.tables.beside([stage.has_embedding, stage.has_head]))[:, parts]
        per_shape: FloatColumn = states.per_block * stage.blocks[:, :, None]
        return per_shape, tuple((per_shape.sum(axis=1) + tables * states.dense).T)

    def trained_shard(self, rows: Candidates, stage: WatchedStage) -> FloatColumn:
        """Elements that one rank of a stage updates."""
        blocks = self._elements_table.look_up([rows.tp, rows.ep, rows.expert_tp]).reshape(len(rows), -1, SIDES)
        tables = self._table_elements_table.look_up([rows.tp, stage.has_embedding, stage.has_head])[:, 0]
        dense, routed = np.einsum("rsk,rs->kr", blocks, stage.blocks)
        is_divided, copies = self._stages_held(rows) >= 1, model_copies(rows)
        whole = np.where(is_divided, 1 / (copies * rows.state_shard_size), 1.0) * (dense + tables)
        shard: FloatColumn = whole + np.where(is_divided, 1 / (copies * rows.expert_state_shard_size), 1.0) * routed
        return shard

    @cached_property
    def _elements_table(self) -> Table:
        return self.probes.table(self._elements)

    @cached_property
    def _table_elements_table(self) -> Table:
        return self.probes.table(self._table_elements)

    def _elements(self, key: Key) -> tuple[float, ...]:
        """Trained elements of one block of every shape: not routed, and routed."""
        layout = Layout(tp=key[0], ep=key[1], expert_tp=key[2], zero_stage=0)
        found: list[float] = []
        for shape, dense in zip(self.probes.shapes, self._dense_shapes, strict=True):
            whole, own = (
                trained_elements(self._context(layout, offload=0, shapes=(one,), tables=(0, 0))).whole
                for one in (shape, dense)
            )
            found += [own, whole - own]
        return tuple(found)

    def _table_elements(self, key: Key) -> tuple[float]:
        tp, has_embedding, has_head = key
        tables = (has_embedding, has_head)
        context = self._context(Layout(tp=tp, zero_stage=0), offload=0, shapes=(), tables=tables)
        return (float(trained_elements(context).whole),)

    def has_persistent_gradients(self, rows: Candidates) -> Mask:
        """Rows whose gradients are buffers that live for the whole step."""
        profile = self.profile
        is_torch = profile.is_torch
        buckets = self.own_buckets(rows) if self.is_own_runtime else rows.zero_stage < 3
        views = is_torch & buckets & (rows.data_parallel_size > 1) & (not profile.ddp_copies_gradients)
        persistent: Mask = views | profile.has_persistent_gradients
        return persistent

    @cached_property
    def is_own_runtime(self) -> bool:
        """Whether our own trainer runs the question's plans: it divides all states in every stage above 0."""
        return is_own_runtime(self.probes.question)

    def own_buckets(self, rows: Candidates) -> Mask:
        """Rows that our trainer hands to torch's DDP, as ``uses_ddp`` says."""
        recipe = self.probes.question.recipe
        is_cast = recipe.precision not in ("fp32", "bf16") and recipe.adapter == "none"
        is_replicated = (rows.zero_stage == 0) | (rows.state_shard_size == 1)
        buckets: Mask = is_replicated & (rows.tp == 1) & (rows.ep == 1) & (rows.offload == 0) & (not is_cast)
        return buckets

    def accumulates_whole(self, rows: Candidates, num_microbatches: IntColumn) -> Mask:
        """Rows of our trainer whose whole gradients wait for the last micro-batch before they are reduced."""
        keeps = (rows.zero_stage <= 1) | (rows.state_shard_size == 1) | (rows.pp > 1)
        waits: Mask = keeps & (num_microbatches > 1) & ~self.own_buckets(rows) & self.is_own_runtime
        return waits

    @cached_property
    def profile(self) -> EngineProfile:
        """How the engine implements the step."""
        return engine_profile(self.probes.question.engine)

    @cached_property
    def _block_table(self) -> Table:
        return self.probes.table(self._of_blocks)

    @cached_property
    def _tables_table(self) -> Table:
        return self.probes.table(self._of_tables)

    def _of_blocks(self, key: Key) -> tuple[float, ...]:
        """Of one block of every shape, undivided: what is not routed, and what is."""
        tp, accumulates, offload, ep, expert_tp = key
        layout = Layout(tp=tp, ep=ep, expert_tp=expert_tp, zero_stage=0, pp=1 + accumulates)
        whole = self._sums(layout, offload=offload, shapes=self.probes.shapes)
        if not self.probes.question.model.is_moe:
            return tuple(value for sums in whole for value in (*sums, *(0.0,) * PARTS))
        dense = self._sums(layout, offload=offload, shapes=self._dense_shapes)
        return tuple(
            value
            for every, own in zip(whole, dense, strict=True)
            for value in (*own, *(total - part for total, part in zip(every, own, strict=True)))
        )

    @cached_property
    def _dense_shapes(self) -> tuple[LayerSpec, ...]:
        """The shapes without their routed experts."""
        return tuple(
            replace(shape, weights=tuple(weight for weight in shape.weights if not weight.is_expert))
            for shape in self.probes.shapes
        )

    def _of_tables(self, key: Key) -> tuple[float, ...]:
        """Of embedding and head where the stage holds them."""
        tp, accumulates, offload, has_embedding, has_head = key
        layout = Layout(tp=tp, zero_stage=0, pp=1 + accumulates)
        sums = self._sums(layout, offload=offload, shapes=(), tables=(has_embedding, has_head))
        return tuple(map(sum, zip(*sums, strict=True))) if sums else (0.0,) * PARTS

    def _sums(
        self, layout: Layout, *, offload: int, shapes: tuple[LayerSpec, ...], tables: tuple[int, int] = (0, 0)
    ) -> list[tuple[float, ...]]:
        """Bytes by component of one block of each shape, or of the tables."""
        found = [self._context(layout, offload=offload, shapes=(shape,), tables=(0, 0)) for shape in shapes]
        if any(tables):
            found.append(self._context(layout, offload=offload, shapes=(), tables=tables))
        return [_components(context) for context in found]

    def _context(
        self, layout: Layout, *, offload: int, shapes: tuple[LayerSpec, ...], tables: tuple[int, int]
    ) -> StageContext:
        probe = self.probes.context(layout, batch=ONE_TOKEN)
        recipe = replace(probe.plan.recipe, offload=OFFLOADS[offload])
        chunk = Chunk(
            index=0,
            layer_runs=tuple((shape, 1) for shape in shapes),
            has_embedding=bool(tables[0]),
            has_head=bool(tables[1]),
        )
        return StageContext(plan=replace(probe.plan, recipe=recipe), stage=Stage(index=0, chunks=(chunk,)))


MODEL_COPIES = np.asarray([SCHEDULE_KINDS[name].model_copies for name in SCHEDULES])
"""By position in ``SCHEDULES``."""


def model_copies(rows: Candidates) -> IntColumn:
    """Copies of the model in each row's pipeline: the two of DualPipe divide optimizer states between them."""
    copies: IntColumn = np.where(rows.pp > 1, MODEL_COPIES[rows.schedule], 1)
    return copies


def _components(context: StageContext) -> tuple[float, ...]:
    """Bytes of all states of a stage, as ``PARTS`` says."""
    held = held_states(context)
    device = (sum(t.num_bytes for t in held.tensors if t.component == name) for name in COMPONENTS)
    host = (held.host.parameters_bytes, held.host.gradients_bytes, held.host.optimizer_bytes)
    return tuple(map(float, (*device, *host, held.nvme_bytes)))
