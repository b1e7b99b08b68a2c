"""The sets of modules that are worth recomputing in every block, in the order of what they cost.

All subsets would be many and nearly all of them bad. A ladder is climbed instead: from nothing, always by the module
whose bytes cost least time to make again. Both follow from the inventory, of a model whose experts are divided over a
server.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.rules.degrees import divisors
from shardwise.search.block_times import BLOCK_FIELDS, MODULE_FIELDS, BlockTimes
from shardwise.search.candidates import MODULES, FloatColumn, modules_of
from shardwise.search.machine import Machine
from shardwise.search.probes import Probes
from shardwise.step.block_memory import block_memory
from shardwise.step.saved_activations import BlockContext
from shardwise.units import Bytes, Seconds

__all__ = ["module_ladder"]

FULL = [BLOCK_FIELDS.index(name) for name in ("recompute_full", "forward_exposed")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rung:
    """A set of modules, the bytes that recomputing it in all blocks frees, and its time, both of one sequence."""

    bits: int
    freed: Bytes
    seconds: Seconds


@lru_cache(maxsize=8)
def module_ladder(question: Plan, *, beside_blocks: bool) -> tuple[int, ...]:
    """Sets of modules as bits (:class:`.Candidates`); each frees more than the one before, and costs more.

    Args:
        question: a plan whose layout is ignored.
        beside_blocks: whether some blocks may be recomputed whole instead. A set that takes as long for its bytes as
            whole blocks do is then left out, with all that come after it.
    """
    climb = _Climb.of(question)
    most = climb.whole_rate if beside_blocks else np.inf
    rungs: list[int] = []
    for rung in climb.rungs():
        if rung.seconds >= most * rung.freed:
            break
        rungs.append(rung.bits)
    return tuple(rungs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Climb:
    """Blocks of one question whose modules are counted and timed."""

    times: BlockTimes
    context: BlockContext
    counts: FloatColumn
    """Blocks of every shape."""
    ep: int

    @classmethod
    def of(cls, question: Plan) -> "_Climb":
        probes = Probes(question=question)
        model, node = question.model, question.cluster.node
        experts = model.moe.num_experts if model.moe is not None else 1
        ep = max(degree for degree in divisors(experts) if degree <= min(node.gpus_per_node, question.cluster.num_gpus))
        counts = [sum(count for layer, count in model.layer_runs if layer == shape) for shape in probes.shapes]
        return cls(
            times=BlockTimes(probes=probes, machine=Machine(question=question)),
            context=probes.context(Layout(ep=ep, dp_shard=ep)).block_context,
            counts=np.asarray(counts, dtype=np.float64),
            ep=ep,
        )

    @property
    def whole_rate(self) -> float:
        """Seconds of recomputing whole blocks for every byte that it frees."""
        table = np.asarray(self.times.of_blocks(self._key)).reshape(len(self.counts), -1)
        blocks = [block_memory(shape, self.context) for shape in self.times.probes.shapes]
        freed = np.asarray([block.whole - block.input for block in blocks], dtype=np.float64)
        return float(table[:, FULL].sum(axis=1) @ self.counts / (freed @ self.counts))

    def rungs(self) -> Iterator[_Rung]:
        """Every next rung adds the module whose bytes cost least, and leaves out those that it contains."""
        now = _Rung(bits=0, freed=0, seconds=0.0)
        while True:
            added = (1 << number for number in range(len(MODULES)))
            wider = [self._without_idle(now.bits | bit) for bit in added if not now.bits & bit]
            helping = [rung for rung in wider if rung.freed > now.freed]
            if not helping:
                return
            now = min(helping, key=lambda rung: (rung.seconds - now.seconds) / (rung.freed - now.freed))
            yield now

    def _without_idle(self, bits: int) -> _Rung:
        """A set without modules that free nothing beside the others in it."""
        freed = self._freed(bits)
        for bit in (1 << number for number in range(len(MODULES))):
            if bits & bit and self._freed(bits & ~bit) == freed:
                bits &= ~bit
        table = np.asarray(self.times.of_modules((*self._key, bits))).reshape(len(self.counts), len(MODULE_FIELDS))
        return _Rung(bits=bits, freed=freed, seconds=float(table.sum(axis=1) @ self.counts))

    def _freed(self, bits: int) -> Bytes:
        context = replace(self.context, selective=replace(self.context.selective, modules=modules_of(bits)))
        blocks = [block_memory(shape, context) for shape in self.times.probes.shapes]
        return int(np.asarray([block.whole - block.kept_selectively for block in blocks]) @ self.counts)

    @property
    def _key(self) -> tuple[int, ...]:
        return (1, 1, self.ep, 1, 0, 1, 0, 0)
