"""What simulated ranks sent and held beside what the inventory predicts for the same plan.

Every rank is compared, not only the worst. Payloads have to be equal to the byte. Bytes sent follow from the payload on
a ring; where a payload is not divisible by the ranks, or experts are not equally popular, ranks differ around the
predicted mean. Held are parameters, gradients and optimizer states, and what blocks keep for their backward; gathered
units, buffers and logits are transient and are left to the engines' own accounts (``docs/memory.md``).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from shardwise.course.numerics.reenact import Reenactment
from shardwise.course.numerics.world import Rank
from shardwise.formulas.collective_volume import all_gather_factor, all_reduce_factor
from shardwise.ledger import MemoryComponent
from shardwise.plan import Plan
from shardwise.step.collectives import COUNTS, stage_collectives
from shardwise.step.inventory import Axis, CollectiveKind, OperationPhase
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_activations import kept_per_run
from shardwise.step.stage_context import StageContext
from shardwise.step.stage_inventory import stage_inventory
from shardwise.units import Bytes

Traffic: TypeAlias = tuple[Axis, CollectiveKind, int, OperationPhase]
"""Axis, kind, ranks of the group and phase."""
TRANSIENT = ("whole embedding gradient",)
"""DTensor makes the gradient of the divided token table whole for a moment; the simulator never does."""
STATES: tuple[MemoryComponent, ...] = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRow:
    """All exchanges of one rank and step over one axis, of one kind and phase."""

    rank: int
    axis: Axis
    kind: CollectiveKind
    group_size: int
    phase: OperationPhase
    payload_bytes: Bytes
    predicted_payload_bytes: Bytes
    sent_bytes: Bytes
    predicted_sent_bytes: float

    @property
    def is_equal(self) -> bool:
        """Whether the payload is the predicted one, to the byte."""
        return self.payload_bytes == self.predicted_payload_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow:
    """One component of one rank."""

    rank: int
    component: MemoryComponent
    held_bytes: Bytes
    predicted_bytes: Bytes

    @property
    def is_equal(self) -> bool:
        """Whether it is the predicted size, to the byte."""
        return self.held_bytes == self.predicted_bytes


def sent_factor(kind: CollectiveKind, group_size: int) -> float:
    """Bytes sent by one rank over the payload."""
    if kind == "all_reduce":
        return all_reduce_factor(group_size=group_size)
    return 1.0 if kind == "send_recv" else all_gather_factor(group_size=group_size)


def traffic_rows(run: Reenactment) -> tuple[TrafficRow, ...]:
    """Every rank's traffic of one step, kind by kind; rows that only one side knows of have zero on the other.

    Args:
        run: of one step or several equal ones, in fp32 as the plan says.
    """
    predicted = [_predicted_traffic(run.plan, stage) for stage in range(run.plan.layout.pp)]
    rows = []
    for rank in run.ranks:
        payloads, sent = _traffic_of(rank)
        expected = predicted[rank.stage]
        for key in sorted(payloads.keys() | expected.keys()):
            axis, kind, group_size, phase = key
            rows.append(
                TrafficRow(
                    rank=rank.number,
                    axis=axis,
                    kind=kind,
                    group_size=group_size,
                    phase=phase,
                    payload_bytes=payloads[key] // len(run.losses),
                    predicted_payload_bytes=expected[key],
                    sent_bytes=sent[key] // len(run.losses),
                    predicted_sent_bytes=expected[key] * sent_factor(kind, group_size),
                )
            )
    return tuple(rows)


def _predicted_traffic(plan: Plan, stage: int) -> Counter[Traffic]:
    """What the inventory holds, but for how many tokens an exchange brings, which ranks in one process know."""
    context = StageContext(plan=plan, stage=pipeline_stages(model=plan.model, layout=plan.layout)[stage])
    found: Counter[Traffic] = Counter()
    for one in stage_collectives(context):
        if one.name.startswith(COUNTS):
            continue
        found[one.axis, one.kind, one.group_size, one.phase] += one.num_bytes * one.count
    return found


def _traffic_of(rank: Rank) -> tuple[Counter[Traffic], Counter[Traffic]]:
    payloads: Counter[Traffic] = Counter()
    sent: Counter[Traffic] = Counter()
    for one in rank.messages:
        key = (one.axis, one.kind, one.group_size, one.phase)
        payloads[key] += one.payload_bytes
        sent[key] += one.sent_bytes
    return payloads, sent


def held_rows(run: Reenactment) -> tuple[HeldRow, ...]:
    """Every rank's model states, and the activations that blocks keep at its worst moment."""
    predicted = [_predicted_states(run.plan, stage) for stage in range(run.plan.layout.pp)]
    return tuple(
        HeldRow(
            rank=rank.number,
            component=component,
            held_bytes=rank.held.peak[component],
            predicted_bytes=predicted[rank.stage][component],
        )
        for rank in run.ranks
        for component in (*STATES, "activations")
    )


def _predicted_states(plan: Plan, stage: int) -> Mapping[MemoryComponent, Bytes]:
    held = pipeline_stages(model=plan.model, layout=plan.layout)[stage]
    found: Counter[MemoryComponent] = Counter()
    for tensor in stage_inventory(plan, held).tensors:
        if tensor.component in STATES and tensor.name not in TRANSIENT:
            found[tensor.component] += tensor.num_bytes
    context = StageContext(plan=plan, stage=held)
    found["activations"] = round(context.held.in_flight_micro_batches * sum(kept_per_run(context)))
    return found


def differences(run: Reenactment) -> tuple[Bytes, ...]:
    """Counted minus predicted bytes of each stage's worst rank, row by row of the inventory.

    Ranks that cannot divide something evenly hold or send a little less than the worst. How many tokens an expert gets
    is up to the router, so what travels to experts is compared in sum over the ranks, and what is kept there not.
    """
    stage = {rank.number: rank.stage for rank in run.ranks}
    counted: Counter[tuple[object, ...]] = Counter()
    predicted: Counter[tuple[object, ...]] = Counter()
    for row in traffic_rows(run):
        key = (stage[row.rank], row.axis, row.kind, row.group_size, row.phase)
        if row.axis == "ep":
            counted[key] += row.payload_bytes
            predicted[key] += row.predicted_payload_bytes
            continue
        counted[key] = max(counted[key], row.payload_bytes)
        predicted[key] = row.predicted_payload_bytes
    for held in held_rows(run):
        if held.component == "activations" and run.plan.model.is_moe:
            continue
        counted[stage[held.rank], held.component] = max(counted[stage[held.rank], held.component], held.held_bytes)
        predicted[stage[held.rank], held.component] = held.predicted_bytes
    return tuple(counted[key] - predicted[key] for key in predicted)


def unequal(rows: Iterable[TrafficRow | HeldRow]) -> tuple[TrafficRow | HeldRow, ...]:
    """The rows that differ from the prediction."""
    return tuple(row for row in rows if not row.is_equal)
