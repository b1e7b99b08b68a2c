"""Records of a step that was traced without a device: exact tensor memory, every collective, FLOP per operator."""

from dataclasses import dataclass

from shardwise.ledger import MemoryComponent, Phase
from shardwise.units import Bytes, Flop


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedMemory:
    """What one rank holds at the fullest moment of a phase."""

    phase: Phase
    place: str
    """The place of that moment in the step, in words."""
    components: tuple[tuple[MemoryComponent, Bytes], ...]
    """Bytes of the components that hold anything."""

    @property
    def allocated_bytes(self) -> Bytes:
        """All components together."""
        return sum(num_bytes for _, num_bytes in self.components)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCollective:
    """One kind of collective call of one rank."""

    kind: str
    axis: str
    """Axis of the layout over which ranks communicate; ``world`` for all ranks."""
    group_size: int
    num_bytes: Bytes
    """Bytes of one call: the output of an all-gather, the input of a reduce-scatter."""
    count: int
    """Calls in one optimizer step."""
    phase: str
    unit: str
    """The FSDP2 unit that asks for it, ``*`` for every block; empty for others."""

    @property
    def total_bytes(self) -> Bytes:
        """Bytes of all calls of one step."""
        return self.num_bytes * self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedOperator:
    """One operator that multiplies matrices, in one phase of the step."""

    operator: str
    phase: str
    flop: Flop
    """FLOP in one optimizer step of one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStage:
    """One rank of a pipeline stage."""

    stage: int
    num_blocks: int
    num_traced_blocks: int
    """Blocks of the deepest model that was run; the others are extended from it."""
    num_microbatches: int
    num_traced_microbatches: int
    phases: tuple[TracedMemory, ...]
    """The fullest moment of each, in the order of the step."""
    collectives: tuple[TracedCollective, ...]
    operators: tuple[TracedOperator, ...]

    @property
    def peak(self) -> TracedMemory:
        """The fullest moment of the step."""
        return max(self.phases, key=lambda memory: memory.allocated_bytes)

    @property
    def flop(self) -> Flop:
        """FLOP of all matrix products of one step."""
        return sum(operator.flop for operator in self.operators)

    def flop_share_fraction(self, operator: TracedOperator) -> float:
        """How much of all FLOP an operator does; 0 where nothing is multiplied."""
        return operator.flop / self.flop if self.flop else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """The ranks of a job that differ, each traced."""

    stages: tuple[TracedStage, ...]
    torch_version: str
    notes: tuple[str, ...]
    """Sentences on what was traced differently from how it runs."""

    @property
    def worst(self) -> TracedStage:
        """The stage with the highest peak."""
        return max(self.stages, key=lambda stage: stage.peak.allocated_bytes)
