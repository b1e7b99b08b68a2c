"""Pipeline schedules in numbers: a model trained through each of them, with the same gradients as one device."""

from dataclasses import dataclass, replace

from shardwise.claims import Cell
from shardwise.course.lesson import Check, LessonTable
from shardwise.course.lessons.tiny_run import EXACT, batch_of, tiny_plan
from shardwise.course.numerics.reenact import Reenactment, gradient_error, one_device, reenact
from shardwise.course.numerics.tiny_model import initial_weights, tiny_model
from shardwise.engines.table import ENGINES, EngineName
from shardwise.errors import ShardwiseError
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.schedules.shape import ScheduleShape
from shardwise.schedules.table import SCHEDULE_KINDS, SCHEDULES, Schedule

TRAINERS: tuple[EngineName, ...] = ("megatron", "torchtitan")
"""Engines that a schedule is trained with, the first one that has it or a fork that does."""
MOST_PASSES = 600
"""The most passes of a schedule that is also run in numbers; 16 stages of 16 micro-batches take too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericPart:
    """The tables and checks of training through the schedules."""

    tables: tuple[LessonTable, ...]
    """One, or none when nothing was small enough to be trained."""
    checks: tuple[Check, ...]
    notes: tuple[str, ...]


def train_through(shapes: tuple[ScheduleShape, ...], *, seed: int = 0) -> NumericPart:
    """Train a tiny model through every schedule that an engine offers for these numbers."""
    rows: list[tuple[Cell, ...]] = []
    checks, notes = [], []
    layers = max(shape.pp * shape.vpp for shape in shapes)
    for shape in shapes:
        schedule = next((name for name in SCHEDULES if name == shape.name and _trainers(name)), None)
        if schedule is None or shape.pp < 2 or 2 * shape.pp * shape.vpp * shape.num_microbatches > MOST_PASSES:
            continue
        try:
            plan = _plan_of(shape, schedule, layers)
            found, expected = _both(plan, seed)
        except ShardwiseError as error:
            notes.append(f"{schedule} is not trained: {error.message}.")
            continue
        error_ratio = gradient_error(found, expected)
        what = f"{schedule}: gradients against one device, fp64"
        checks.append(Check(what=what, difference=error_ratio, limit=EXACT))
        rows.append(_row(schedule, found, error_ratio))
    table = LessonTable(
        title="A tiny model trained through each schedule: bytes of rank 0",
        head=("schedule | messages: count | sent: bytes | activations at worst: bytes | error of the gradient: number"),
        rows=tuple(rows),
        note=f"{layers} layers; the backward is split into input and weight gradients where the schedule moves them",
    )
    return NumericPart(tables=(table,) if rows else (), checks=tuple(checks), notes=tuple(notes))


def _trainers(schedule: Schedule) -> tuple[EngineName, ...]:
    return tuple(name for name in TRAINERS if schedule in ENGINES[name].schedules | ENGINES[name].forked_schedules)


def _plan_of(shape: ScheduleShape, schedule: Schedule, layers: int) -> Plan:
    is_v = SCHEDULE_KINDS[schedule].doubles_chunks
    layout = Layout(pp=shape.pp, vpp=1 if is_v else shape.vpp, schedule=schedule, zero_stage=0)
    plan = tiny_plan(
        tiny_model(num_hidden_layers=layers),
        layout,
        engine=_trainers(schedule)[0],
        seq_len=8,
        num_microbatches=shape.num_microbatches,
    )
    return replace(plan, recipe=replace(plan.recipe, compile=False))


def _both(plan: Plan, seed: int) -> tuple[Reenactment, Reenactment]:
    weights, batches = initial_weights(plan.model, seed=seed), [batch_of(plan, seed=seed)]
    return reenact(plan, weights, batches), one_device(plan, weights, batches)


def _row(schedule: Schedule, found: Reenactment, error_ratio: float) -> tuple[Cell, ...]:
    rank = found.ranks[0]
    messages = [message for message in rank.messages if message.kind == "send_recv"]
    sent = sum(message.sent_bytes for message in messages)
    return (schedule, len(messages), sent, rank.held.peak["activations"], error_ratio)
