"""An out-of-memory error set against the prediction: which component was larger, and the smallest change that fits."""

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.explain import explain_out_of_memory
from shardwise.explain.changes import NOTHING_FITS, first_remedy
from shardwise.explain.oom_text import OomMessage, parse_oom
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.train.failure.record import FailureRecord
from shardwise.units import Bytes, format_gib

__all__ = ["Excess", "excesses", "memory_sentences"]

ALLOCATED = "allocated"
REST = ("activations", "logits", "gathered_parameters", "temporaries")
"""Components a rank cannot tell apart while it runs: what is allocated beyond the states it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """A component that a rank held against what it was predicted to hold."""

    component: str
    held_bytes: Bytes
    predicted_bytes: Bytes

    @property
    def excess_bytes(self) -> Bytes:
        """How much more was held than predicted."""
        return self.held_bytes - self.predicted_bytes


def memory_sentences(record: FailureRecord, *, plan: Plan | None) -> tuple[str, str]:
    """Sentences about an out-of-memory error, and the change to type next."""
    message = _parsed(record.message)
    asked = f"{message.request.text} more were asked for" if message else record.message
    if plan is None:
        return asked, "give it less to hold: full recomputation, a smaller micro-batch, more GPUs to shard over"
    prediction = predict(plan)
    needed_bytes = _needed_bytes(record, message, prediction)
    said = [asked, *_tensor(record, plan), _against_prediction(record, message, prediction)]
    change = first_remedy(plan, prediction, needed_bytes=needed_bytes)
    fix = (
        f"set {change.edit}: {format_gib(change.needed_bytes)} instead of {format_gib(prediction.memory.needed_bytes)} "
        f"by the prediction ({change.cost})"
        if change is not None
        else NOTHING_FITS
    )
    return "; ".join(said), fix


def excesses(record: FailureRecord, prediction: Prediction) -> tuple[Excess, ...]:
    """Components as held at the failure against the prediction, the largest excess first."""
    worst = prediction.memory.worst
    named = {
        name: size for name, size in record.memory_bytes.items() if name in ("parameters", "gradients", "optimizer")
    }
    found = [
        Excess(component=name, held_bytes=size, predicted_bytes=predicted)
        for entry in worst.components
        for name, predicted in ((entry.component, entry.num_bytes),)
        if (size := named.get(name)) is not None
    ]
    allocated = record.memory_bytes.get(ALLOCATED)
    if allocated:
        predicted = sum(entry.num_bytes for entry in worst.components if entry.component in REST)
        rest = allocated - sum(named.values())
        found.append(Excess(component=" and ".join(REST[:2]), held_bytes=rest, predicted_bytes=predicted))
    return tuple(sorted(found, key=lambda excess: -excess.excess_bytes))


def _needed_bytes(record: FailureRecord, message: OomMessage | None, prediction: Prediction) -> Bytes:
    """Least bytes that the device would have needed: what it had and what was asked for, and more than there is."""
    held = record.memory_bytes.get(ALLOCATED, 0)
    if message is None:
        return max(held, prediction.memory.needed_bytes)
    outside = prediction.memory.worst.device_used_bytes - prediction.memory.worst.peak_reserved_bytes
    return max(held + message.request.num_bytes + outside, prediction.memory.capacity_bytes)


def _against_prediction(record: FailureRecord, message: OomMessage | None, prediction: Prediction) -> str:
    over = [excess for excess in excesses(record, prediction) if excess.excess_bytes > 0]
    if over:
        first = over[0]
        return (
            f"{first.component} held {format_gib(first.held_bytes)}, and {format_gib(first.predicted_bytes)} were "
            "predicted"
        )
    memory = prediction.memory
    if message is not None and message.capacity is not None and message.capacity.num_bytes < memory.capacity_bytes:
        return f"the device has {message.capacity.text}, and the plan is for {format_gib(memory.capacity_bytes)}"
    return f"the plan is predicted to need {format_gib(memory.needed_bytes)} of {format_gib(memory.capacity_bytes)}"


def _tensor(record: FailureRecord, plan: Plan) -> Iterator[str]:
    """Which tensor of the plan the failed request was."""
    if _parsed(record.message) is None:
        return
    findings = explain_out_of_memory(record.message, plan=plan)
    matched = next((finding for finding in findings if finding.topic == "allocation" and finding.suggestion), None)
    if matched is not None:
        yield matched.claim.rstrip(".")


def _parsed(text: str) -> OomMessage | None:
    try:
        return parse_oom(text)
    except ShardwiseError:
        return None
