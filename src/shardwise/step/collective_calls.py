"""How one collective call becomes records: the group it runs over, and what can be hidden."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.step.inventory import Axis, Collective, CollectiveKind, ExpertChoice, OperationPhase
from shardwise.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks one collective runs over: ``size`` of them, ``stride`` apart."""

    axis: Axis
    size: int
    stride: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective call of one rank."""

    name: str
    kind: CollectiveKind
    group: Group
    num_bytes: Bytes
    phase: OperationPhase
    sent_once: ExpertChoice | None = None

    def hidden(self, *, units: int, rounds: int) -> Iterator[Collective]:
        """``units`` calls in each of ``rounds`` micro-batches, which computation can hide."""
        yield from self._records(units, rounds, is_overlappable=True)

    def exposed(self, *, units: int, rounds: int) -> Iterator[Collective]:
        """``units`` calls in each of ``rounds`` micro-batches, which nothing hides."""
        yield from self._records(units, rounds, is_overlappable=False)

    def hidden_but_one(self, *, units: int, rounds: int) -> Iterator[Collective]:
        """``units`` calls in each of ``rounds`` micro-batches, one of which has no computation beside it."""
        yield from self._records(1, rounds, is_overlappable=False)
        yield from self._records(units - 1, rounds, is_overlappable=True)

    def _records(self, units: int, rounds: int, *, is_overlappable: bool) -> Iterator[Collective]:
        if self.group.size <= 1 or self.num_bytes <= 0 or units <= 0 or rounds <= 0:
            return
        yield Collective(
            name=self.name,
            kind=self.kind,
            axis=self.group.axis,
            group_size=self.group.size,
            num_bytes=self.num_bytes,
            count=units * rounds,
            phase=self.phase,
            is_overlappable=is_overlappable,
            stride=self.group.stride,
            rounds=rounds,
            sent_once=self.sent_once,
        )


def as_issued(records: Iterator[Collective], plan: Plan) -> Iterator[Collective]:
    """The records of calls that can be hidden as the host issues them: one that waits for every kernel hides none."""
    if not plan.recipe.blocking_launches:
        return records
    return (replace(record, is_overlappable=False) for record in records)


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of a layout.

    Ranks are numbered with tp fastest, then cp, dp_shard, dp_replicate, and pp slowest: torchtitan's mesh
    ``(pp, dp_replicate, dp_shard, cp, tp)`` (``distributed/parallel_dims.py``) and Megatron's default order
    ``tp-cp-ep-dp-pp`` (``core/parallel_state.py``). Experts borrow ranks starting from the fastest.
    """

    layout: Layout

    @property
    def tensor(self) -> Group:
        """Ranks that divide every matrix."""
        return Group(axis="tp", size=self.layout.tp, stride=1)

    @property
    def context(self) -> Group:
        """Ranks that divide every sequence."""
        return Group(axis="cp", size=self.layout.cp, stride=self.layout.tp)

    @property
    def shards(self) -> Group:
        """Ranks that divide dense model states: dp_shard and cp together."""
        return Group(axis="dp_shard", size=self.layout.state_shard_size, stride=self.layout.tp)

    @property
    def expert_shards(self) -> Group:
        """Ranks that divide the states of the same routed experts."""
        layout = self.layout
        return Group(axis="dp_shard", size=layout.expert_state_shard_size, stride=layout.ep * layout.expert_tp)

    @property
    def copies(self) -> Group:
        """Both ranks of a pipeline that hold a stage under DualPipe; the first and the last stand for all of them."""
        layout = self.layout
        return Group(axis="dp_shard", size=layout.model_copies, stride=self.pipeline.stride * (layout.pp - 1))

    @property
    def replicas(self) -> Group:
        """Ranks that hold the same shard."""
        layout = self.layout
        return Group(axis="dp_replicate", size=layout.dp_replicate, stride=layout.tp * layout.cp * layout.dp_shard)

    @property
    def experts(self) -> Group:
        """Ranks that exchange tokens for their experts."""
        return Group(axis="ep", size=self.layout.ep, stride=self.layout.expert_tp)

    @property
    def pipeline(self) -> Group:
        """Ranks of consecutive stages; a message runs between two neighbours."""
        layout = self.layout
        stride = layout.tp * layout.cp * layout.data_parallel_size
        return Group(axis="pp", size=min(2, layout.pp), stride=stride)
