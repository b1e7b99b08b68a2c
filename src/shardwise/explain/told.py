"""Numbers of findings as fields of a prediction, under the names that ``predict --json`` writes."""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from math import prod
from operator import attrgetter
from typing import cast

from shardwise.explain.records import Quantity, QuantityUnit, Source
from shardwise.plan import Plan
from shardwise.prediction import ExposedCommunication, MemoryPrediction, Prediction

__all__ = ["Predicted", "compared", "each_call", "field_amount", "payload_field", "told"]

PLACES: Mapping[str, Mapping[str, str]] = {
    "MemoryPrediction": {
        "components_bytes": "worst.components",
        "device_used_bytes": "worst.device_used_bytes",
        "peak_allocated_bytes": "worst.peak_allocated_bytes",
        "peak_reserved_bytes": "worst.peak_reserved_bytes",
        "host_bytes": "host_bytes_per_node",
        "nvme_bytes": "nvme_bytes_per_node",
    },
    "StageMemory": {"components_bytes": "components"},
    "TimePrediction": {"components_s": "components"},
    "CommunicationEntry": {"bytes": "num_bytes"},
    "ExposedCommunication": {"axes_s": "axes"},
}
"""Keys of the JSON answer that stand elsewhere in the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A plan whose prediction is told by names of its fields."""

    plan: Plan
    prediction: Prediction

    def told(self, name: str, field: str, unit: QuantityUnit) -> Quantity:
        """A number of the prediction that remembers the plan."""
        return told(name, self.prediction, field, unit, plan=self.plan)


def field_amount(predicted: Prediction | MemoryPrediction | ExposedCommunication, field: str) -> float:
    """The number under a dotted path such as ``memory.stages.0.needed_bytes``.

    Paths joined by `` x `` are multiplied, and products joined by `` + `` are added.

    Args:
        predicted: a whole prediction; or only its memory or what it exposes, when every path begins with ``memory`` or
            ``exposed``.
        field: the paths.
    """
    return sum(prod(_amount(predicted, path) for path in term.split(" x ")) for term in field.split(" + "))


def _amount(predicted: object, path: str) -> float:
    names = path.split(".")
    found = predicted
    for name in names if isinstance(predicted, Prediction) else names[1:]:
        found = _member(found, name)
    return cast(float, found)


def _member(found: object, name: str) -> object:
    if not isinstance(found, tuple):
        return attrgetter(PLACES.get(type(found).__name__, {}).get(name, name))(found)
    if name.isdigit():
        return found[int(name)]
    if isinstance(found[0], str):  # a pair of a name and its bytes
        return found[1]
    return dict(map(astuple, found))[name]


def told(
    name: str,
    predicted: Prediction | MemoryPrediction | ExposedCommunication,
    field: str,
    unit: QuantityUnit,
    *,
    plan: Plan | None = None,
) -> Quantity:
    """The number under ``field``, which remembers where it comes from.

    Args:
        name: what it is, in the finding's words.
        predicted: what it is read from.
        field: as :func:`field_amount` reads it.
        unit: of the number.
        plan: what was predicted; ``None`` for the plan that the whole explanation is about.
    """
    return Quantity(name=name, value=field_amount(predicted, field), unit=unit, source=Source(plan=plan, field=field))


def each_call(prediction: Prediction, name: str) -> str:
    """The field that adds up one figure of all collectives."""
    return " + ".join(f"time.communication.{number}.{name}" for number in range(len(prediction.time.communication)))


def payload_field(prediction: Prediction) -> str:
    """The field that adds up the bytes of every call of a step."""
    entries = [f"time.communication.{number}" for number in range(len(prediction.time.communication))]
    return " + ".join(f"{entry}.bytes x {entry}.count" for entry in entries)


def compared(name: str, first: Quantity, second: Quantity, unit: QuantityUnit) -> Quantity:
    """The first number over the second where the unit is a ratio or a fraction, else the first less the second."""
    is_share = unit in ("ratio", "fraction")
    value = first.value / second.value if is_share else first.value - second.value
    return Quantity(name=name, value=value, unit=unit, source=first.source, against=second.source)
