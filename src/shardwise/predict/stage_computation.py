"""What a stage computes for one micro-batch, and what it waits for meanwhile: its blocks, its embedding, its head."""

from dataclasses import dataclass, replace

from shardwise.predict.block_runs import BlockRuns
from shardwise.predict.passes import PassCall
from shardwise.step.inventory import OperationPhase
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """One block of a run for one micro-batch, with its part of what the stage does in all its blocks."""

    name: str
    count: int
    forward_s: Seconds
    """On the device, as all of these."""
    backward_s: Seconds
    recompute_s: Seconds
    forward_issue_s: Seconds = 0.0
    """To launch it."""
    backward_issue_s: Seconds = 0.0
    """With what is recomputed."""
    forward_waits: tuple[PassCall, ...] = ()
    """What of the collectives inside it nothing hides."""
    backward_waits: tuple[PassCall, ...] = ()
    """With those of what is recomputed."""
    runs: BlockRuns | None = None
    """Its steps, when it communicates."""
    recomputed_fraction: float = 0.0
    """Of the blocks of the run."""

    def waits(self, phase: OperationPhase) -> tuple[PassCall, ...]:
        """Of a pass."""
        return self.forward_waits if phase == "forward" else self.backward_waits

    def issue_s(self, phase: OperationPhase) -> Seconds:
        """Of a pass."""
        return self.forward_issue_s if phase == "forward" else self.backward_issue_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """The embedding or the head for one micro-batch."""

    forward_s: Seconds = 0.0
    backward_s: Seconds = 0.0
    forward_issue_s: Seconds = 0.0
    backward_issue_s: Seconds = 0.0
    forward_waits: tuple[PassCall, ...] = ()
    backward_waits: tuple[PassCall, ...] = ()

    def duration_s(self, phase: OperationPhase) -> Seconds:
        """Of a pass."""
        return self.forward_s if phase == "forward" else self.backward_s

    def waits(self, phase: OperationPhase) -> tuple[PassCall, ...]:
        """Of a pass."""
        return self.forward_waits if phase == "forward" else self.backward_waits

    def issue_s(self, phase: OperationPhase) -> Seconds:
        """Of a pass."""
        return self.forward_issue_s if phase == "forward" else self.backward_issue_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """Computation of one stage for one micro-batch, in model order."""

    blocks: tuple[BlockWork, ...]
    embedding: TableWork = TableWork()
    head: TableWork = TableWork()

    def faster(self, *, forward: float, backward: float) -> "StageWork":
        """The same with computation at a ratio of its time, as launches that run ahead make it."""
        if forward == backward == 1.0:
            return self
        blocks = (
            replace(
                block,
                forward_s=forward * block.forward_s,
                backward_s=backward * block.backward_s,
                recompute_s=backward * block.recompute_s,
            )
            for block in self.blocks
        )
        embedding, head = (
            replace(table, forward_s=forward * table.forward_s, backward_s=backward * table.backward_s)
            for table in (self.embedding, self.head)
        )
        return replace(self, blocks=tuple(blocks), embedding=embedding, head=head)

    @property
    def num_blocks(self) -> int:
        """Of all runs."""
        return sum(block.count for block in self.blocks)

    def all_waits(self, phase: OperationPhase) -> tuple[PassCall, ...]:
        """What a whole pass waits for inside its blocks and tables, equal names together."""
        found: dict[tuple[str, str], PassCall] = {}
        blocks = [(block.count, call) for block in self.blocks for call in block.waits(phase)]
        tables = [(1, call) for table in (self.embedding, self.head) for call in table.waits(phase)]
        for count, call in blocks + tables:
            before = found.get((call.name, call.axis))
            duration_s = count * call.duration_s + (before.duration_s if before else 0.0)
            found[call.name, call.axis] = replace(call, duration_s=duration_s)
        return tuple(found.values())

    def issue_s(self, phase: OperationPhase) -> Seconds:
        """To launch the whole pass."""
        blocks_s = sum(block.count * block.issue_s(phase) for block in self.blocks)
        return blocks_s + self.embedding.issue_s(phase) + self.head.issue_s(phase)
