"""What a simulated rank holds, component by component, now and at its worst moment."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardwise.course.numerics.arrays import Array
from shardwise.ledger import MemoryComponent
from shardwise.units import Bytes


@dataclass(slots=True, kw_only=True)
class Held:
    """Bytes held by one rank. Integer arrays (token numbers, positions, routes) are not counted."""

    now: Counter[MemoryComponent] = field(default_factory=Counter)
    peak: Counter[MemoryComponent] = field(default_factory=Counter)

    def keep(self, component: MemoryComponent, arrays: Iterable[Array]) -> None:
        """Begin to hold arrays."""
        self.now[component] += total_bytes(arrays)
        self.peak[component] = max(self.peak[component], self.now[component])

    def free(self, component: MemoryComponent, arrays: Iterable[Array]) -> None:
        """Stop holding them."""
        self.now[component] -= total_bytes(arrays)


def total_bytes(arrays: Iterable[Array]) -> Bytes:
    """Bytes of some arrays together."""
    return sum(array.nbytes for array in arrays)
