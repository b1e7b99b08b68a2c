"""What every row's stages hold between the halves of a split backward pass: the arrays of ``step/weight_half.py``."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from shardwise.schedules.table import SCHEDULES
from shardwise.search.backward_memory import Backward
from shardwise.search.candidates import FloatColumn, IntColumn, Key
from shardwise.search.probes import WatchedStage
from shardwise.search.tables import Combined
from shardwise.step.in_flight import times_made_again, waiting_sets, waits_for_weights

__all__ = ["WeightHalves", "held_by_weight_halves", "times_again"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightHalves:
    """Columns of rows, or ``(rows, shapes)``."""

    during: FloatColumn
    """Of micro-batches that wait, all through the backward of another."""
    head: FloatColumn
    """Of the running one from the backward of its head on."""
    of_blocks: FloatColumn
    """Of the running one when its blocks have gone backward, all of a shape together."""

    def join(self, backward: Backward) -> Backward:
        """What the stages hold with this."""
        return replace(backward, born=backward.born + self.head, of_blocks=backward.of_blocks + self.of_blocks)


def held_by_weight_halves(
    pipelines: Combined,
    stage: WatchedStage,
    *,
    num_microbatches: IntColumn,
    vpp: IntColumn,
    gradients: tuple[FloatColumn, FloatColumn],
    kept: FloatColumn,
) -> WeightHalves:
    """What is held by our trainer's stages.

    Args:
        pipelines: degrees and schedule of every row.
        stage: the one that is watched.
        num_microbatches: of every row.
        vpp: chunks a stage.
        gradients: of a micro-batch, by one block of each shape, and by the head.
        kept: activations of a micro-batch, by all blocks of each shape.
    """
    of_block, of_head = gradients
    asked = pipelines.beside([num_microbatches, stage.stage])
    is_held, sets = np.asarray([_held_and_sets(key) for key in asked.keys], dtype=np.float64)[asked.of_row].T
    blocks, head = stage.blocks * of_block, stage.has_head * of_head
    share = is_held / vpp
    return WeightHalves(
        during=sets * (blocks.sum(axis=1) + head),
        head=share * head,
        of_blocks=share[:, None] * (blocks + kept),
    )


@cache
def _held_and_sets(key: Key) -> tuple[bool, float]:
    pp, vpp, schedule, num_microbatches, stage = key
    name = SCHEDULES[schedule]
    sets = waiting_sets(pp=pp, vpp=vpp, schedule=name, stage=stage, num_microbatches=num_microbatches)
    return waits_for_weights(pp=pp, schedule=name, stage=stage), sets


def times_again(pipelines: Combined, stage: WatchedStage) -> FloatColumn:
    """How often our trainer makes a recomputed block of every row's stage again for one micro-batch."""
    asked = pipelines.beside([stage.stage])
    found: FloatColumn = np.asarray([_times_again(key) for key in asked.keys])[asked.of_row]
    return found


@cache
def _times_again(key: Key) -> float:
    pp, vpp, schedule, stage = key
    return times_made_again(pp=pp, vpp=vpp, schedule=SCHEDULES[schedule], stage=stage)
