"""The process groups a block works with, and how it enters and leaves the part that tensor parallelism divides."""

from dataclasses import dataclass

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from shardwise.train.exchange import all_reduce_backward, all_reduce_forward, gather_dim, reduce_scatter_dim

SEQUENCE_DIM = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroups:
    """Groups of one rank; ``None`` where the degree is 1."""

    tp: ProcessGroup | None = None
    cp: ProcessGroup | None = None
    ep: ProcessGroup | None = None
    is_sequence_parallel: bool = False

    @property
    def tp_size(self) -> int:
        """Ranks that divide every matrix."""
        return 1 if self.tp is None else self.tp.size()

    def enter(self, x_BSD: Tensor) -> Tensor:
        """The whole sequence, before column-parallel products; backward sums the ranks' gradients."""
        if self.tp is None:
            return x_BSD
        if self.is_sequence_parallel:
            return gather_dim(x_BSD, SEQUENCE_DIM, self.tp)
        return all_reduce_backward(x_BSD, self.tp)

    def leave(self, x_BSD: Tensor) -> Tensor:
        """The sum over ranks after row-parallel products, divided along the sequence under sequence parallelism."""
        if self.tp is None:
            return x_BSD
        if self.is_sequence_parallel:
            return reduce_scatter_dim(x_BSD, SEQUENCE_DIM, self.tp)
        return all_reduce_forward(x_BSD, self.tp)


ALONE = BlockGroups()


def local(weight: Tensor) -> Tensor:
    """This rank's part of a weight; its gradient comes back with the same placement."""
    return weight.to_local() if isinstance(weight, DTensor) else weight


def part_of_bias(bias: Tensor | None, fraction: float) -> Tensor | None:
    """The bias that this rank adds to its outputs, of a bias that ranks add up with their outputs a fraction."""
    if bias is None or fraction == 1:
        return None if bias is None else local(bias)
    return local(bias) * fraction
