"""Which part of every weight one rank computes with: what tensor, expert and pipeline parallelism divide."""

from dataclasses import dataclass
from functools import cached_property

from shardwise.course.numerics.arrays import TABLES, WeightKey, Weights, even_pieces
from shardwise.course.numerics.world import Rank
from shardwise.model import LayerSpec, Weight
from shardwise.plan import Plan
from shardwise.step.collective_calls import Group, Groups
from shardwise.step.layer_placement import Chunk, Stage, pipeline_stages, tensor_shards


@dataclass(frozen=True, kw_only=True)
class Division:
    """The part of the model that one rank computes with."""

    plan: Plan
    number: int

    @cached_property
    def rank(self) -> Rank:
        """The rank with its coordinates."""
        return Rank(number=self.number, plan=self.plan)

    @cached_property
    def stage(self) -> Stage:
        """Chunks of its pipeline stage."""
        return pipeline_stages(model=self.plan.model, layout=self.plan.layout)[self.rank.stage]

    @cached_property
    def weights(self) -> dict[WeightKey, Weight]:
        """Every weight of the stage."""
        model = self.plan.model
        tables: tuple[Weight, ...] = ()
        if self.stage.has_embedding:
            tables += model.embedding_weights
        if self.stage.has_head:
            tables += model.final_weights + model.head_weights
        found: dict[WeightKey, Weight] = {(TABLES, weight.name): weight for weight in tables}
        for chunk in self.stage.chunks:
            for number in block_numbers(self.plan, chunk):
                found |= {(number, weight.name): weight for weight in model.layers[number].weights}
        return found

    def part(self, weight: Weight) -> tuple[slice, ...]:
        """Where this rank's part lies in the whole weight."""
        layout, groups = self.plan.layout, Groups(layout=self.plan.layout)
        whole = [slice(0, length) for length in weight.shape]
        if weight.is_expert:
            whole[0] = even_pieces(weight.shape[0], layout.ep)[self.rank.index_in(groups.experts)]
            return tuple(whole)
        shards = tensor_shards(weight, layout)
        if shards > 1:
            dim = 1 if weight.split == "row" else 0
            position = self.rank.index_in(groups.tensor) * shards // layout.tp
            whole[dim] = even_pieces(weight.shape[dim], shards)[position]
        return tuple(whole)

    def take(self, weights: Weights) -> Weights:
        """This rank's parts of the weights of a whole model."""
        return {key: weights[key][self.part(weight)].copy() for key, weight in self.weights.items()}

    def num_copies(self, weight: Weight) -> int:
        """Ranks of one stage and one data-parallel rank that hold this same part."""
        layout = self.plan.layout
        return 1 if weight.is_expert else layout.tp // tensor_shards(weight, layout)


def copies_of_heads(division: Division, weight: Weight) -> Group:
    """The ranks that hold copies of the same key-value heads, each with part of the query heads that read them."""
    copies = 1 if weight.split == "replicated" else division.num_copies(weight)
    return Group(axis="tp", size=copies, stride=1)


def block_numbers(plan: Plan, chunk: Chunk) -> range:
    """Positions of a chunk's blocks in the model."""
    counts = {
        other.index: other.num_layers
        for stage in pipeline_stages(model=plan.model, layout=plan.layout)
        for other in stage.chunks
    }
    first = sum(counts[index] for index in range(chunk.index))
    return range(first, first + chunk.num_layers)


def layer_of(plan: Plan, number: int) -> LayerSpec:
    """The shape of a block."""
    return plan.model.layers[number]
