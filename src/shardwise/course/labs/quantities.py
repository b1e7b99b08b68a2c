"""What labs compare, on both sides: from the prediction, and from ``measurement.json``."""

from collections.abc import Callable, Mapping, Sequence

from shardwise.course.labs.trial import Outcome, Quantity
from shardwise.ledger import MemoryComponent
from shardwise.predict.memory import most_bytes

STATES: tuple[MemoryComponent, ...] = ("parameters", "gradients", "optimizer")
SCATTERS = ("reduce_scatter", "all_to_all")
"""Collectives that divide FSDP's gradients: the reduction adds them up, or ranks that exchange 16-bit parts do."""


def part(record: Mapping[str, object] | None, *names: str) -> object:
    """A value inside nested objects; ``None`` where a name is missing."""
    found: object = record
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def number(record: Mapping[str, object] | None, *names: str) -> float | None:
    """The number at a path of names in nested objects; ``None`` without one."""
    found = part(record, *names)
    return float(found) if isinstance(found, int | float) else None


def measured_memory(outcome: Outcome, components: Sequence[MemoryComponent]) -> float | None:
    """Bytes of some components at the measured peak."""
    found = part(outcome.measurement, "memory", "components_bytes")
    if not isinstance(found, Mapping):
        return None
    return sum(number(found, name) or 0.0 for name in components)


def predicted_memory(outcome: Outcome, components: Sequence[MemoryComponent]) -> float:
    """Bytes of some components at the predicted peak."""
    return float(sum(outcome.prediction.memory.worst.component_bytes(name) for name in components))


def family(outcome: Outcome, kind: str, field: str) -> float | None:
    """A number of one kind of collective in the sampled step; 0 when there was none of it."""
    found = part(outcome.measurement, "time", "communication")
    if not isinstance(found, list):
        return None
    return next((number(entry, field) for entry in found if part(entry, "kind") == kind), 0.0)


def predicted_family(outcome: Outcome, kind: str, field: str) -> float:
    """The predicted figure of a kind of collective: ``total_s``, ``exposed_s`` or ``count`` of all calls of a kind."""
    calls = [entry for entry in outcome.prediction.time.communication if entry.kind == kind]
    return float(sum(getattr(entry, field) for entry in calls))


def sampled_step_s(outcome: Outcome) -> float | None:
    """Seconds of the step that the profiler recorded."""
    parts = part(outcome.measurement, "time", "components_s")
    if not isinstance(parts, Mapping):
        return None
    return sum(float(str(seconds)) for seconds in parts.values()) or None


def measured_share(outcome: Outcome, kinds: Sequence[str], field: str) -> float | None:
    """The share of the sampled step that collectives of these kinds take."""
    step_s, seconds = sampled_step_s(outcome), [family(outcome, kind, field) for kind in kinds]
    known = [second for second in seconds if second is not None]
    return sum(known) / step_s if step_s and len(known) == len(kinds) else None


def ratio(quantity: Quantity, over: Outcome | None, under: Outcome | None) -> float | None:
    """One measured amount over another; ``None`` when a run is missing."""
    if over is None or under is None:
        return None
    upper, lower = quantity.measured(over), quantity.measured(under)
    return upper / lower if upper is not None and lower else None


def memory_quantity(name: str, title: str, components: Sequence[MemoryComponent]) -> Quantity:
    """A quantity that adds up some components of memory at the peak."""
    return Quantity(
        name=name,
        title=title,
        unit="bytes",
        predicted=lambda outcome: predicted_memory(outcome, components),
        measured=lambda outcome: measured_memory(outcome, components),
    )


def share_quantity(name: str, title: str, kinds: Sequence[str]) -> Quantity:
    """Some kinds of collectives as a share of the step, hidden or not."""
    return Quantity(
        name=name,
        title=title,
        unit="fraction",
        predicted=lambda outcome: (
            sum(predicted_family(outcome, kind, "total_s") for kind in kinds) / outcome.prediction.time.step_s
        ),
        measured=lambda outcome: measured_share(outcome, kinds, "work_s"),
    )


def component_s(name: str) -> tuple[Callable[[Outcome], float | None], Callable[[Outcome], float | None]]:
    """Seconds of one component of time, predicted and sampled."""
    return (
        lambda outcome: next(
            (entry.duration_s for entry in outcome.prediction.time.components if entry.component == name), None
        ),
        lambda outcome: number(outcome.measurement, "time", "components_s", name),
    )


def _whole(rate: float | None) -> float | None:
    """The rate in whole tokens, as tables show it."""
    return None if rate is None else float(round(rate))


def _exposed_share(outcome: Outcome) -> float | None:
    step_s, exposed = sampled_step_s(outcome), EXPOSED_S[1](outcome)
    return exposed / step_s if step_s and exposed is not None else None


def _predicted_exposed_share(outcome: Outcome) -> float | None:
    exposed = EXPOSED_S[0](outcome)
    return None if exposed is None else exposed / outcome.prediction.time.step_s


def _host_bytes(outcome: Outcome) -> float | None:
    """Measured host memory; ``None`` for offloaded activations, and for offload on CPUs, which have no other memory."""
    recipe = outcome.plan.recipe
    is_on_gpu = number(outcome.measurement, "memory", "peak_reserved_bytes") is not None
    is_measured = recipe.offload == "none" or is_on_gpu
    return None if recipe.activation_offload or not is_measured else number(outcome.measurement, "memory", "host_bytes")


EXPOSED_S = component_s("exposed_communication")
PEAK = Quantity(
    name="peak",
    title="Memory that a rank has allocated at its peak",
    unit="bytes",
    predicted=lambda outcome: float(outcome.prediction.memory.worst.peak_allocated_bytes),
    measured=lambda outcome: number(outcome.measurement, "memory", "peak_allocated_bytes"),
)
OPTIMIZER = memory_quantity("optimizer", "Optimizer states of a rank", ("optimizer",))
WEIGHTS = memory_quantity(
    "weights", "Weights on a rank at its peak, with those gathered from others", ("parameters", "gathered_parameters")
)
ACTIVATIONS = Quantity(
    name="saved",
    title="Most activations that a rank keeps for backward",
    unit="bytes",
    predicted=lambda outcome: float(most_bytes(outcome.plan, "activations")),
    measured=lambda outcome: number(outcome.measurement, "memory", "most_bytes", "activations"),
)
STEP = Quantity(
    name="step",
    title="Time of a step",
    unit="s",
    predicted=lambda outcome: outcome.prediction.time.step_s,
    measured=lambda outcome: number(outcome.measurement, "time", "step_s"),
)
TOKENS = Quantity(
    name="tokens/s",
    title="Tokens per second of one rank",
    unit="count",
    predicted=lambda outcome: _whole(outcome.prediction.throughput.tokens_per_s_per_gpu),
    measured=lambda outcome: _whole(number(outcome.measurement, "throughput", "tokens_per_s_per_gpu")),
)
EXPOSED = Quantity(
    name="exposed",
    title="Share of the step in communication that no computation covers",
    unit="fraction",
    predicted=_predicted_exposed_share,
    measured=_exposed_share,
)
HOST = Quantity(
    name="on host",
    title="Host memory of a rank: predicted with gradients and activations, measured of other states alone",
    unit="bytes",
    predicted=lambda outcome: float(outcome.prediction.memory.worst.host_bytes),
    measured=_host_bytes,
)
