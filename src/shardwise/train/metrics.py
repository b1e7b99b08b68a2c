"""What a run says about itself while it trains: one JSON line a step from rank 0, read one step late.

Reading a value from the GPU waits for it, so the values of a step are read when the next one is already under way.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import IO, Any, Protocol

import torch

from shardwise.train.checkpoint.lineage import Lineage
from shardwise.train.failure.full_disk import writing

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One optimizer step."""

    step: int
    """The number of the step, counted from 1."""
    loss: float
    gradient_norm: float
    learning_rate: float
    num_tokens: int
    step_s: float
    data_wait_s: float
    """Part of the step in which this rank waited for its data."""
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu_fraction: float | None
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    is_sampled: bool = False
    """Whether the profiler looked into the step, which makes it slower."""
    sample: Mapping[str, object] | None = None
    """Times and collectives of the profiled step, as the mean over all ranks."""
    loss_scale_ratio: float | None = None
    """Factor on the next step's loss; only fp16 scales."""
    num_skipped_steps: int = 0
    """Steps of the run so far whose gradients overflowed, so that nothing was updated."""
    num_skipped_in_a_row: int = 0
    """Skipped steps in a row up to this one; 0 after a step that was taken."""
    validation_loss: float | None = None
    """Loss per token of the validation data after the step, where it was looked at."""
    validation_perplexity: float | None = None
    router_aux_loss: float | None = None
    """The auxiliary loss of routers without its coefficient; ``loss`` is without it. With K experts a token it is
    K where routing is even."""
    expert_load_ratios: Mapping[str, float] | None = None
    """Ratio of the fullest expert's tokens to the mean, by the number of the layer."""
    expert_counts: Mapping[str, Sequence[int]] | None = None
    """Copies of tokens that each expert was sent in the step, by the number of the layer."""

    @property
    def fullest_expert_ratio(self) -> float | None:
        """Ratio of the fullest expert's tokens to the mean, in the layer where it is highest."""
        return max(self.expert_load_ratios.values(), default=None) if self.expert_load_ratios else None


CURVES = {
    "loss": "train/loss",
    "gradient_norm": "train/gradient_norm",
    "learning_rate": "train/learning_rate",
    "loss_scale_ratio": "train/loss_scale_ratio",
    "num_skipped_steps": "train/num_skipped_steps",
    "validation_loss": "validation/loss",
    "validation_perplexity": "validation/perplexity",
    "router_aux_loss": "experts/aux_loss",
    "fullest_expert_ratio": "experts/fullest_over_mean",
    "step_s": "speed/step_s",
    "data_wait_s": "speed/data_wait_s",
    "tokens_per_s": "speed/tokens_per_s",
    "tokens_per_s_per_gpu": "speed/tokens_per_s_per_gpu",
    "mfu_fraction": "speed/mfu_fraction",
    "peak_allocated_bytes": "memory/peak_allocated_bytes",
    "peak_reserved_bytes": "memory/peak_reserved_bytes",
}
"""Fields of a record, and the curve that each becomes in TensorBoard and W&B."""


def points_of(record: StepRecord) -> dict[str, float]:
    """The point that a step adds to each curve."""
    values = {curve: getattr(record, field) for field, curve in CURVES.items()}
    parts = record.sample.get("components_s") if record.sample else None
    sampled = {f"sampled/{name}_s": s for name, s in parts.items()} if isinstance(parts, Mapping) else {}
    layers = {f"experts/layer_{layer}": ratio for layer, ratio in (record.expert_load_ratios or {}).items()}
    return {curve: value for curve, value in (values | sampled | layers).items() if value is not None}


class Clock:
    """Seconds between steps as the device sees them."""

    def __init__(self, device: torch.device) -> None:
        self.is_cuda = device.type == "cuda"

    def now(self) -> "torch.cuda.Event | float":
        """A moment: on a GPU the point its work reaches, not the host."""
        if not self.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: "torch.cuda.Event | float", end: "torch.cuda.Event | float") -> float:
        """Seconds from one moment to another; waits for the later one."""
        if isinstance(start, float) or isinstance(end, float):
            return float(end) - float(start)
        end.synchronize()
        return start.elapsed_time(end) / 1000


class Recorder(Protocol):
    """Is told of every step on rank 0."""

    def add(self, record: StepRecord) -> None:
        """Take one more step."""

    def close(self) -> None:
        """Finish; no more steps come."""


class StepLog:
    """Hands each finished step to those who listen, and writes it into the run folder on rank 0."""

    def __init__(
        self,
        folder: Path,
        *,
        is_writer: bool,
        listeners: tuple[Callable[[StepRecord], None], ...],
        lineage: Lineage | None = None,
    ) -> None:
        self._life = _life(lineage or Lineage())
        self.records: list[StepRecord] = []
        self.listeners = listeners
        self.path = folder / METRICS_FILE
        self.file: IO[str] | None = _opened(self.path) if is_writer else None

    def add(self, record: StepRecord) -> None:
        """One more step."""
        self.records.append(record)
        if self.file is not None:
            with writing(self.path):
                self.file.write(json.dumps({**finite_only(asdict(record)), **self._life}) + "\n")
                self.file.flush()
        for listener in self.listeners:
            listener(record)

    def close(self) -> None:
        """No more steps come."""
        if self.file is not None:
            with writing(self.path):
                self.file.close()


def finite_only(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with nothing in the place of infinite numbers and of none, which JSON does not have."""
    return {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in record.items()}


def _life(lineage: Lineage) -> Mapping[str, object]:
    """Fields of a metrics line that name its life (a start or resumption), so that the file alone shows the lineage."""
    parent = lineage.parent
    if not lineage.life:
        return {}
    return {
        "life": lineage.life,
        "parent_life": parent.life if parent else None,
        "parent_step": parent.step if parent else 0,
    }


def _opened(path: Path) -> IO[str]:
    """The file, ready for the next line: one that a full disk or a crash cut short is taken away."""
    file = path.open("a+", encoding="utf-8")
    file.seek(0)
    whole = file.read().rpartition("\n")
    file.truncate(len("".join(whole[:2]).encode()))
    return file
