"""Model states: parameters, gradients and optimizer states of one rank, in bytes, unit by unit."""

from dataclasses import dataclass

from shardwise.columns import either, least, rounded
from shardwise.engines.profile import StateBytes
from shardwise.optimizers import OPTIMIZERS, OptimizerKind
from shardwise.recipe import Recipe
from shardwise.step.held_weights import HeldWeights
from shardwise.units import Bytes

BLOCK_SCALE_BYTES = 4 / 256
"""8-bit moments keep one fp32 scale per block of 256 (bitsandbytes ``optim``; Dettmers et al., arXiv:2110.02861)."""

EIGHT_BIT_PIECE_ELEMENTS = 1 << 24
"""Elements that our trainer's 8-bit AdamW updates at a time; a multiple of a block."""
EIGHT_BIT_PIECE_BYTES = 33
"""Bytes alive at once for each of those elements (``train/optimizer_kinds.py``; traced): 4 each for both moments and
the denominator; while the second moment is encoded, 4 each for its copy, the copy over its scale, the codes, the flags
of numbers above zero, and the larger of codes and flags; 1 for the first moment's codes."""

QUANTISED_BYTES = 0.5 + (1 + 4 / 256) / 64
"""NF4 with double quantisation: half a byte, plus an 8-bit scale per 64 and an fp32 scale per 256 of those.
Source: Dettmers et al. 2023, arXiv:2305.14314, section 3 (0.127 bits per parameter for scales)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitStates:
    """Bytes of one unit's states on one rank."""

    parameters: Bytes
    gradients: Bytes
    """Bytes of the accumulated gradient, divided over data parallel where the ZeRO stage says so."""
    master: Bytes
    moments: Bytes
    step_gradients: Bytes
    trainable_shard: int
    """Elements the optimizer of this rank updates."""


def unit_states(
    held: HeldWeights, *, states: StateBytes, recipe: Recipe, zero_stage: int, is_hidden_block: bool, matrices: int
) -> UnitStates:
    """States of one trainable unit.

    Args:
        held: the unit's elements on this rank.
        states: bytes per parameter of the engine.
        recipe: names the optimizer.
        zero_stage: 1 divides optimizer states, 2 gradients too, 3 parameters too.
        is_hidden_block: Muon treats matrices of blocks and tables differently.
        matrices: elements of ``held.shard`` that are in matrices.
    """
    kept = either(zero_stage >= 3, held.shard, held.full)
    accumulated = either(zero_stage >= 2, held.shard, held.full)
    updated = either(zero_stage >= 1, held.shard, held.full)
    return UnitStates(
        parameters=kept * states.weight_bytes,
        gradients=accumulated * states.gradient_bytes,
        master=updated * states.master_bytes,
        moments=_moment_bytes(
            updated,
            states=states,
            optimizer=OPTIMIZERS[recipe.optimizer],
            matrices=matrices if is_hidden_block else 0,
            factored=held.factored,
        ),
        step_gradients=updated * states.step_gradient_bytes,
        trainable_shard=updated,
    )


def _moment_bytes(updated: int, *, states: StateBytes, optimizer: OptimizerKind, matrices: int, factored: int) -> Bytes:
    if optimizer.is_8bit:
        return rounded(updated * optimizer.moments * (1 + BLOCK_SCALE_BYTES))
    if optimizer.is_factored:
        return factored * 4
    if optimizer.orthogonalises_matrices:
        return (2 * updated - least(matrices, updated)) * states.moment_bytes
    return updated * optimizer.moments * states.moment_bytes


def frozen_bytes(held: HeldWeights, *, recipe: Recipe, zero_stage: int, is_quantised: bool) -> Bytes:
    """Parameters of a unit that is not trained: 2 bytes each (4 in fp32), or 4-bit with its scales."""
    elements = either(zero_stage >= 3, held.shard, held.full)
    if is_quantised:
        return rounded(elements * QUANTISED_BYTES)
    return elements * (4 if recipe.precision == "fp32" else 2)
