"""Fully sharded data parallelism (FSDP, ZeRO-3, HSDP): a rank keeps its shard, and gathers a unit when it needs it.

Gather, compute, free; in backward gather again, compute, reduce-scatter the gradients, free. Blocks are units of their
own; tables, final norm and head are one unit that stays gathered from its first use to the end of the backward. With
replicas (HSDP) the shards are gathered among few ranks and only the reduced gradients cross between the replicas.

Source: Zhao et al. 2023 (PyTorch FSDP), arXiv:2304.11277, section 3; Rajbhandari et al. 2020, arXiv:1910.02054.
"""

from shardwise.course.numerics.arrays import TABLES, Named, Weights
from shardwise.course.numerics.division import Division
from shardwise.course.numerics.slots import Slot, flattenings_of, make_slot, sum_over_tensor_ranks
from shardwise.course.numerics.world import Program, Rank
from shardwise.ledger import MemoryComponent
from shardwise.step.reduction_policy import defers_reductions


class ShardedStates:
    """A shard of every unit, and the units that are gathered just now."""

    def __init__(self, rank: Rank, division: Division, weights: Weights) -> None:
        self.rank, self.division = rank, division
        layout = rank.layout
        self.keeps_gathered = layout.zero_stage < 3 or not layout.reshard_after_forward or layout.pp > 1
        self.gathers_once = layout.pp > 1
        self.reduces_once = defers_reductions(rank.plan)
        by_tensor = rank.profile.sharding == "fsdp2"
        self.units: dict[int, list[Slot]] = {}
        for number in sorted({block for block, _ in weights}):
            own = {key: array for key, array in weights.items() if key[0] == number}
            name = "embedding and head" if number == TABLES else "block"
            parts = flattenings_of(division, own, name=name, by_tensor=by_tensor)
            self.units[number] = [make_slot(division, part, own, is_shard=True) for part in parts]
        self.gathered: dict[int, Weights] = {}
        self.gradients: dict[int, Weights] = {}
        for slot in self.slots:
            rank.held.keep("parameters", (slot.weights,))
            rank.held.keep("gradients", (slot.gradient,))
            rank.held.keep("optimizer", (slot.moments.first, slot.moments.second))

    @property
    def slots(self) -> list[Slot]:
        """Everything that this rank's optimizer updates."""
        return [slot for unit in self.units.values() for slot in unit]

    def open(self, number: int) -> Program[Named]:
        """The whole weights of a unit, gathered unless they are here."""
        if number not in self.gathered:
            whole: Weights = {}
            for slot in self.units[number]:
                part = slot.flattening
                vectors = yield from self.rank.all_gather(slot.weights, part.group, name=f"all-gather {part.name}")
                whole |= part.join(vectors)
            self.gathered[number] = whole
            self.rank.held.keep("gathered_parameters", whole.values())
        return {name: array for (_, name), array in self.gathered[number].items()}

    def close(self, number: int) -> None:
        """Free a block's gathered weights, unless they stay for the backward or for more micro-batches."""
        is_last_use = self.rank.phase == "backward" and not self.gathers_once
        if number != TABLES and (is_last_use or not self.keeps_gathered):
            self._free(number)

    def add(self, number: int, gradients: Named) -> Program[None]:
        """Accumulate; a block's gradients are reduced at once, the tables' when their last ones have come."""
        kept = self.gradients.setdefault(number, {})
        for name, gradient in gradients.items():
            key = (number, name)
            if key in kept:
                kept[key] = kept[key] + gradient
            else:
                kept[key] = gradient
                self.rank.held.keep(self._whole_component, (gradient,))
        if number != TABLES and not self.reduces_once:
            yield from self._reduce(number)

    def end_micro_batch(self, *, is_last: bool) -> Program[None]:
        """Reduce what still waits; free what is still gathered."""
        if is_last or not self.reduces_once:
            for number in sorted(self.gradients):
                yield from self._reduce(number)
        if is_last or not self.gathers_once:
            for number in list(self.gathered):
                self._free(number)

    def begin_step(self) -> None:
        """Forget the last step's gradients."""
        for slot in self.slots:
            slot.gradient = slot.gradient * 0

    def publish(self) -> Program[None]:
        """Nothing to do: the next forward gathers the updated shards."""
        yield from ()

    def _reduce(self, number: int) -> Program[None]:
        """A unit's gradients become the shards of their sum over all data-parallel ranks."""
        whole = self.gradients.pop(number)
        rank = self.rank
        yield from sum_over_tensor_ranks(rank, self.division, whole)
        for slot in self.units[number]:
            part = slot.flattening
            shard = yield from rank.reduce_scatter(part.cut(whole), part.group, name=f"reduce-scatter {part.name}")
            replicas = rank.groups.replicas
            shard = yield from rank.all_reduce(shard, replicas, name=f"all-reduce {part.name} over replicas")
            slot.gradient = slot.gradient + shard
        rank.held.free(self._whole_component, whole.values())

    @property
    def _whole_component(self) -> MemoryComponent:
        """Whole gradients pass through; deferred, they accumulate until the last micro-batch."""
        return "gradients" if self.reduces_once else "communication_buffers"

    def _free(self, number: int) -> None:
        if number in self.gathered:
            self.rank.held.free("gathered_parameters", self.gathered.pop(number).values())
            self.rank.note("free tables and head" if number == TABLES else f"free block {number}")
