"""The program of one rank: the passes of its pipeline schedule, each through the blocks of one chunk, then the update.

Without a pipeline the schedule is forward and backward of one micro-batch after the other.
"""

from dataclasses import dataclass, field
from typing import Protocol

from shardwise.course.numerics.adamw import AdamW
from shardwise.course.numerics.arrays import TABLES, Array, Integers, Named
from shardwise.course.numerics.batch import Batch
from shardwise.course.numerics.block import Block, BlockGradient, BlockKept, block_backward, block_forward
from shardwise.course.numerics.context_parallel import Balance, positions_of
from shardwise.course.numerics.division import Division, block_numbers, layer_of
from shardwise.course.numerics.layers import Product, rms_norm, rms_norm_backward
from shardwise.course.numerics.slots import Slot, global_norm, update_slots
from shardwise.course.numerics.vocabulary import (
    LossKept,
    cross_entropy,
    embed,
    embed_backward,
    head_input_gradient,
    logit_gradient,
)
from shardwise.course.numerics.world import Program, Rank
from shardwise.errors import SimulationError
from shardwise.schedules.actions import Action, Order
from shardwise.step.layer_placement import Chunk, chunk_owner

TOKEN_TABLE, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class States(Protocol):
    """Weights, gradients and optimizer states of one rank, however they are divided."""

    @property
    def slots(self) -> list[Slot]:
        """What the optimizer updates."""

    def open(self, number: int) -> Program[Named]:
        """The whole weights of a unit, for computing."""

    def close(self, number: int) -> None:
        """Say that the whole weights of a unit are not needed for now."""

    def add(self, number: int, gradients: Named) -> Program[None]:
        """Add the gradients of one micro-batch."""

    def begin_step(self) -> None:
        """Prepare for the first micro-batch of a step."""

    def end_micro_batch(self, *, is_last: bool) -> Program[None]:
        """Finish the gradients of a micro-batch once all of them have been added."""

    def publish(self) -> Program[None]:
        """Give every rank the updated weights, where no forward gathers them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """What one rank is given for one step."""

    micro_batches: tuple[Batch, ...]
    num_learned_tokens: int
    """Tokens to learn from in the whole batch, over all ranks and micro-batches; the loss is the mean over them."""
    order: Order
    settings: AdamW
    balance: Balance = "zigzag"
    capacity_ratio: float | None = None


@dataclass(slots=True, kw_only=True)
class ChunkKept:
    """What one micro-batch has left in one chunk for its backward."""

    batch: Batch
    blocks: list[tuple[int, Block, BlockKept]] = field(default_factory=list)
    last_BsD: Array | None = None
    scale_Bs1: Array | None = None
    loss: LossKept | None = None
    gradients: list[tuple[int, Block, BlockKept, BlockGradient]] = field(default_factory=list)
    """Blocks whose input gradients are done and whose weight gradients are not."""
    tables: list[Product] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class StageProgram:
    """One rank running its chunks."""

    rank: Rank
    division: Division
    states: States
    given: StepInput
    kept: dict[tuple[int, int], ChunkKept] = field(default_factory=dict)
    handed: dict[tuple[str, int, int], Array] = field(default_factory=dict)
    """Activations and gradients for a neighbouring chunk of the same rank."""
    loss_sum: float = 0.0

    def step(self) -> Program[float]:
        """One training step; the sum of the losses that this rank has seen, over the number of tokens of all."""
        self.states.begin_step()
        remaining = [len(self.given.micro_batches)] * len(self.division.stage.chunks)
        chunks = {chunk.index: position for position, chunk in enumerate(self.division.stage.chunks)}
        for action in self.given.order:
            yield from self._run(action)
            if action.kind in ("backward", "weight_backward"):
                remaining[chunks[action.chunk]] -= 1
                if len(chunks) == 1 or not any(remaining):
                    yield from self.states.end_micro_batch(is_last=not any(remaining))
        self.rank.phase = "optimizer"
        norm = yield from global_norm(self.rank, self.states.slots)
        update_slots(self.states.slots, norm, self.given.settings)
        self.rank.note("AdamW on what this rank updates")
        yield from self.states.publish()
        return self.loss_sum / self.given.num_learned_tokens

    def _run(self, action: Action) -> Program[None]:
        chunk = next(one for one in self.division.stage.chunks if one.index == action.chunk)
        self.rank.phase = "forward" if action.kind == "forward" else "backward"
        if action.kind == "forward":
            yield from self._forward(chunk, action.micro_batch)
        if action.kind in ("backward", "input_backward"):
            yield from self._input_backward(chunk, action.micro_batch, is_whole=action.kind == "backward")
        if action.kind in ("backward", "weight_backward"):
            yield from self._weight_backward(chunk.index, action.micro_batch)

    def _forward(self, chunk: Chunk, number: int) -> Program[None]:
        rank, batch = self.rank, self._local_batch(number)
        kept = self.kept[chunk.index, number] = ChunkKept(batch=batch)
        if chunk.has_embedding:
            tables = yield from self.states.open(TABLES)
            x_BsD = yield from embed(rank, tables[TOKEN_TABLE], batch.tokens_BS)
        else:
            x_BsD = yield from self._take("forward", chunk.index - 1, number)
        for position in block_numbers(self.division.plan, chunk):
            block = Block(
                layer=layer_of(self.division.plan, position),
                places=self._places(),
                capacity_ratio=self.given.capacity_ratio,
            )
            weights = yield from self.states.open(position)
            x_BsD, block_kept = yield from block_forward(rank, block, weights, x_BsD)
            rank.held.keep("activations", block_kept.arrays)
            kept.blocks.append((position, block, block_kept))
            rank.note(f"forward of block {position}")
            self.states.close(position)
        if not chunk.has_head:
            yield from self._give("forward", chunk.index, chunk.index + 1, number, x_BsD)
            return
        tables = yield from self.states.open(TABLES)
        normed_BsD, kept.scale_Bs1 = rms_norm(x_BsD, tables[FINAL_NORM])
        kept.last_BsD = x_BsD
        loss, kept.loss = yield from cross_entropy(rank, tables[HEAD], normed_BsD, batch.labels_BS)
        self.loss_sum += loss
        rank.note("loss")

    def _input_backward(self, chunk: Chunk, number: int, *, is_whole: bool) -> Program[None]:
        """Backward through a chunk, from the loss or the next chunk's gradient to the chunk's input."""
        rank, kept = self.rank, self.kept[chunk.index, number]
        if chunk.has_head:
            dx_BsD = yield from self._head_backward(kept)
        else:
            dx_BsD = yield from self._take("backward", chunk.index + 1, number)
        while kept.blocks:
            position, block, block_kept = kept.blocks.pop()
            weights = yield from self.states.open(position)
            gradient = yield from block_backward(rank, block, weights, block_kept, dx_BsD)
            dx_BsD = gradient.dx_BsD
            rank.note(f"backward of block {position}")
            self.states.close(position)
            kept.gradients.append((position, block, block_kept, gradient))
            if is_whole:
                yield from self._finish_block(kept)
        if chunk.has_embedding:
            tables = yield from self.states.open(TABLES)
            gradient_VD = yield from embed_backward(rank, tables[TOKEN_TABLE], kept.batch.tokens_BS, dx_BsD)
            yield from self.states.add(TABLES, {TOKEN_TABLE: gradient_VD})
        else:
            yield from self._give("backward", chunk.index, chunk.index - 1, number, dx_BsD)

    def _head_backward(self, kept: ChunkKept) -> Program[Array]:
        tables = yield from self.states.open(TABLES)
        if kept.loss is None or kept.last_BsD is None or kept.scale_Bs1 is None:
            raise _backward_before_forward()
        dlogits_BSV = logit_gradient(kept.loss, 1.0 / self.given.num_learned_tokens)
        kept.tables.append(Product(name=HEAD, inputs=kept.loss.inputs_BSD, output_gradient=dlogits_BSV))
        dnormed_BsD = yield from head_input_gradient(self.rank, dlogits_BSV, tables[HEAD])
        dx_BsD, dnorm_D = rms_norm_backward(dnormed_BsD, kept.last_BsD, tables[FINAL_NORM], kept.scale_Bs1)
        yield from self.states.add(TABLES, {FINAL_NORM: dnorm_D})
        return dx_BsD

    def _weight_backward(self, chunk: int, number: int) -> Program[None]:
        """The gradients of the weights, for which no other rank waits."""
        kept = self.kept.pop((chunk, number))
        while kept.gradients:
            yield from self._finish_block(kept)
        for product in kept.tables:
            yield from self.states.add(TABLES, {product.name: product.weight_gradient()})

    def _finish_block(self, kept: ChunkKept) -> Program[None]:
        position, block, block_kept, gradient = kept.gradients.pop(0)
        ep = self.rank.layout.ep
        yield from self.states.add(position, gradient.weight_gradients(block.layer, ep))
        self.rank.held.free("activations", block_kept.arrays)

    def _give(self, phase: str, chunk: int, to_chunk: int, number: int, array: Array) -> Program[None]:
        """Hand an array to a neighbouring chunk, wherever it lives."""
        owner = self._owner(to_chunk)
        if owner == self.rank.number:
            self.handed[phase, chunk, number] = array
            return
        name = f"pipeline {phase} of micro-batch {number} from chunk {chunk}"
        yield from self.rank.send(array, owner, self.rank.groups.pipeline, name=name)

    def _take(self, phase: str, from_chunk: int, number: int) -> Program[Array]:
        owner = self._owner(from_chunk)
        if owner == self.rank.number:
            return self.handed.pop((phase, from_chunk, number))
        name = f"pipeline {phase} of micro-batch {number} from chunk {from_chunk}"
        return (yield from self.rank.receive(owner, self.rank.groups.pipeline, name=name))

    def _owner(self, chunk: int) -> int:
        """The rank of another stage with the same coordinates otherwise."""
        stages = chunk_owner(chunk=chunk, layout=self.rank.layout) - self.rank.stage
        return self.rank.number + stages * self.rank.groups.pipeline.stride

    def _places(self) -> tuple[Integers, ...]:
        cp, seq_len = self.rank.layout.cp, self.given.micro_batches[0].tokens_BS.shape[1]
        return tuple(
            positions_of(member=member, cp=cp, seq_len=seq_len, balance=self.given.balance) for member in range(cp)
        )

    def _local_batch(self, number: int) -> Batch:
        """A micro-batch, its tokens those of this context-parallel rank."""
        batch = self.given.micro_batches[number]
        positions_S = self._places()[self.rank.index_in(self.rank.groups.context)]
        return Batch(tokens_BS=batch.tokens_BS[:, positions_S], labels_BS=batch.labels_BS[:, positions_S])


def _backward_before_forward() -> SimulationError:
    return SimulationError(
        "the order runs a backward before its forward",
        code="simulate-deadlock",
        fix="take an order of make_schedule",
    )
