"""How weights that are divided over ranks become vectors, and vectors weights again.

FSDP2 cuts every tensor by its first dim, so that a rank keeps whole rows; the others lay all tensors end to end and
cut the line. Either way a rank keeps one vector, and the optimizer, which treats every element alike, does not mind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from shardwise.course.numerics.arrays import Array, Arrays, WeightKey, Weights, even_pieces
from shardwise.step.collective_calls import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Flattening:
    """Weights in a fixed order, and the ranks over which they are divided."""

    name: str
    shapes: tuple[tuple[WeightKey, tuple[int, ...]], ...]
    group: Group
    """Ranks that divide them between themselves."""
    by_tensor: bool
    """Whether every tensor is cut by its first dim (FSDP2), or the line of all of them."""

    def take(self, weights: Mapping[WeightKey, Array]) -> Weights:
        """The weights of this flattening, out of all that are given."""
        return {key: weights[key] for key, _ in self.shapes}

    def whole(self, weights: Mapping[WeightKey, Array]) -> Array:
        """All weights of this flattening end to end, as one vector."""
        return np.concatenate([weights[key].reshape(-1) for key, _ in self.shapes])

    def cut(self, weights: Mapping[WeightKey, Array]) -> Arrays:
        """One vector for each rank of the group."""
        size = self.group.size
        if not self.by_tensor:
            line = self.whole(weights)
            return tuple(line[piece] for piece in even_pieces(line.size, size))
        rows = [(weights[key], even_pieces(shape[0], size)) for key, shape in self.shapes]
        return tuple(np.concatenate([array[cuts[i]].reshape(-1) for array, cuts in rows]) for i in range(size))

    def join(self, vectors: Sequence[Array]) -> Weights:
        """The weights, of one vector from each rank."""
        if not self.by_tensor:
            return self.split(np.concatenate(vectors))
        pieces: dict[WeightKey, list[Array]] = {key: [] for key, _ in self.shapes}
        for member, vector in enumerate(vectors):
            first = 0
            for key, shape in self.shapes:
                cut = even_pieces(shape[0], self.group.size)[member]
                local = (cut.stop - cut.start, *shape[1:])
                pieces[key].append(vector[first : first + prod(local)].reshape(local))
                first += prod(local)
        return {key: np.concatenate(parts) for key, parts in pieces.items()}

    def split(self, line: Array) -> Weights:
        """The weights again, out of the vector of all of them."""
        found: Weights = {}
        first = 0
        for key, shape in self.shapes:
            found[key] = line[first : first + prod(shape)].reshape(shape)
            first += prod(shape)
        return found
