"""Data parallelism with whole weights on every rank: DDP, and ZeRO-1 and 2, which divide the optimizer's work.

Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 5; Li et al. 2020 (PyTorch DDP), arXiv:2006.15704.
"""

from shardwise.course.numerics.arrays import Array, Named, Weights
from shardwise.course.numerics.division import Division
from shardwise.course.numerics.shards import Flattening
from shardwise.course.numerics.slots import Slot, flattenings_of, make_slot, sum_over_tensor_ranks
from shardwise.course.numerics.world import Program, Rank
from shardwise.step.collective_calls import Group
from shardwise.step.inventory import Axis
from shardwise.step.reduction_policy import defers_reductions, is_torch, overlaps_reductions


class ReplicatedStates:
    """Whole weights; gradients are summed once per step, or in every micro-batch where the plan says so."""

    def __init__(self, rank: Rank, division: Division, weights: Weights) -> None:
        self.rank, self.division, self.weights = rank, division, weights
        layout = rank.layout
        self.divides_optimizer = layout.zero_stage >= 1 and layout.state_shard_size > 1
        self.scatters = self.divides_optimizer and not is_torch(rank.plan)
        self.keeps_shard = self.scatters and layout.zero_stage == 2
        self.reduces_each_micro_batch = not defers_reductions(rank.plan)
        self.gradients: Weights = {key: array * 0 for key, array in weights.items()}
        parts = flattenings_of(division, weights, name="gradients", by_tensor=False)
        self.slots = [make_slot(division, part, weights, is_shard=self.divides_optimizer) for part in parts]
        rank.held.keep("parameters", weights.values())
        kept = [slot.gradient for slot in self.slots] if self.keeps_shard else self.gradients.values()
        rank.held.keep("gradients", kept)
        for slot in self.slots:
            rank.held.keep("optimizer", (slot.moments.first, slot.moments.second))

    def open(self, number: int) -> Program[Named]:
        """The weights of a block, or of the tables."""
        yield from ()
        return {name: array for (block, name), array in self.weights.items() if block == number}

    def close(self, number: int) -> None:
        """Nothing to free: every rank keeps everything."""

    def add(self, number: int, gradients: Named) -> Program[None]:
        """Accumulate the gradients of a block, or of the tables."""
        yield from ()
        for name, gradient in gradients.items():
            self.gradients[number, name] += gradient

    def end_micro_batch(self, *, is_last: bool) -> Program[None]:
        """Sum over data-parallel ranks when it is time."""
        if not (is_last or self.reduces_each_micro_batch):
            return
        yield from sum_over_tensor_ranks(self.rank, self.division, self.gradients)
        for slot in self.slots:
            slot.gradient = slot.gradient + (yield from self._reduced(slot))
        for gradient in self.gradients.values():
            gradient[...] = 0

    def begin_step(self) -> None:
        """Forget the last step's gradients."""
        for slot in self.slots:
            slot.gradient = slot.gradient * 0

    def publish(self) -> Program[None]:
        """Make the updated weights everybody's."""
        for slot in self.slots:
            if self.divides_optimizer:
                vectors = yield from self._gathered(slot)
            else:
                vectors = (slot.weights,)
            part = slot.flattening
            updated = part.join(vectors) if self.divides_optimizer else part.split(slot.weights)
            for key, array in updated.items():
                self.weights[key][...] = array

    def _reduced(self, slot: Slot) -> Program[Array]:
        """The sum of all ranks' gradients, whole or this rank's shard of it."""
        part, rank = slot.flattening, self.rank
        name = part.name
        if not self.scatters:
            line = part.whole(self.gradients)
            whole = yield from rank.all_reduce(line, everybody(part, rank), name=f"all-reduce {name}")
            if not self.divides_optimizer:
                return whole
            return part.cut(part.split(whole))[rank.index_in(part.group)].copy()
        pieces = part.cut(self.gradients)
        shard = yield from rank.reduce_scatter(pieces, part.group, name=f"reduce-scatter {name}")
        return (yield from rank.all_reduce(shard, rank.groups.replicas, name=f"all-reduce {name} over replicas"))

    def _gathered(self, slot: Slot) -> Program[tuple[Array, ...]]:
        """Every rank's updated shard: gathered at once, or by torch broadcast one after the other."""
        part, rank = slot.flattening, self.rank
        if self.scatters:
            in_forward = rank.profile.sharding == "megatron" and overlaps_reductions(rank.plan)
            rank.phase = "forward" if in_forward else "optimizer"
            return (yield from rank.all_gather(slot.weights, part.group, name=f"all-gather weights after {part.name}"))
        vectors = []
        for owner in range(part.group.size):
            own = slot.weights if owner == rank.index_in(part.group) else None
            vectors.append((yield from rank.broadcast(own, part.group, name=f"broadcast weights after {part.name}")))
        return tuple(vectors)


def everybody(part: Flattening, rank: Rank) -> Group:
    """All ranks with the same weights: those that could divide them, and their replicas."""
    replicas = rank.layout.dp_replicate
    axis: Axis = "dp_replicate" if replicas > 1 else "dp_shard"
    return Group(axis=axis, size=part.group.size * replicas, stride=part.group.stride)
