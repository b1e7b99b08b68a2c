"""Looks into single steps of a run: where one step's time went, and what memory held at its peak.

Both come from torch.profiler. Steps that are looked into are slower and are left out of the run's medians.
"""

import gzip
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.hooks import RemovableHandle

from shardwise.ledger import MemoryComponent
from shardwise.measure.memory_events import MemorySample, memory_sample
from shardwise.measure.phase_marks import FORWARD, LOSS, STEP
from shardwise.measure.step_sample import SampledRun, StepSample, mean_sample, sample_of_trace
from shardwise.measure.trace_files import TRACE_FOLDER
from shardwise.train.failure.full_disk import disk_full_error, writing
from shardwise.train.job import Job

Result = TypeVar("Result")
MEMORY_STEP = 3
"""The optimizer's states are there from the first step on, and DDP makes its buckets anew in the second; medians begin
later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """The members of a trainer that a sampler reads."""

    job: Job
    device: torch.device
    decoders: tuple[nn.Module, ...]
    held_bytes: Callable[[], dict[MemoryComponent, int]]
    """Gives the bytes that live from step to step, by component."""


class Sampler:
    """Runs steps, and looks into those that are due."""

    def __init__(self, looking: Looking, *, first_step: int) -> None:
        job = looking.job
        self.looking, self.every = looking, job.watch.every_steps
        self.memory_step = min(first_step + MEMORY_STEP, job.num_steps) if job.watch.is_memory_sampled else 0
        self.memory: MemorySample | None = None
        self.sampled_steps: set[int] = set()
        self.samples: list[StepSample] = []

    def run(self, step: int, take_step: Callable[[], Result]) -> tuple[Result, float | None]:
        """Take step number ``step``; a step that is profiled comes with the seconds it took without the profiler."""
        if step == self.memory_step:
            return self._sample_memory(step, take_step)
        if self.every and step % self.every == 0:
            return self._sample_time(step, take_step)
        return take_step(), None

    def sample_of(self, step: int) -> StepSample | None:
        """The split of a step's time; ``None`` for a step that was not profiled."""
        return next((sample for sample in self.samples if sample.step == step), None)

    def _sample_time(self, step: int, take_step: Callable[[], Result]) -> tuple[Result, float]:
        is_cuda, rank = self.looking.device.type == "cuda", dist.get_rank()
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
        result, seconds, profiled = self._profiled(step, take_step, activities=kinds)
        folder = self.looking.job.folder / TRACE_FOLDER
        with writing(folder):
            folder.mkdir(exist_ok=True)
        path = folder / f"step-{step:08d}-rank-{rank:04d}.json.gz"
        _export(profiled, path)
        layout, recipe = self.looking.job.layout, self.looking.job.recipe
        run = SampledRun(has_pipeline=layout.pp > 1, has_offload=recipe.offload != "none" or recipe.activation_offload)
        found: list[StepSample] = _of_all_ranks(sample_of_trace(path, run, step=step, rank=rank))
        self.samples.append(mean_sample(found))
        return result, seconds

    def _sample_memory(self, step: int, take_step: Callable[[], Result]) -> tuple[Result, float]:
        held, kind = self.looking.held_bytes(), self.looking.device.type
        options: dict[str, Any] = {"activities": [ProfilerActivity.CPU], "profile_memory": True}
        result, seconds, profiled = self._profiled(step, take_step, **options)
        path = Path(self.looking.job.folder) / f".memory-{dist.get_rank():04d}.json"
        _export(profiled, path)
        found: list[MemorySample | None] = _of_all_ranks(memory_sample(path, device=kind, held_bytes=held))
        path.unlink()
        worst = [sample for sample in found if sample is not None]
        self.memory = max(worst, key=lambda sample: sample.peak_bytes, default=None)
        return result, seconds

    def _profiled(self, step: int, take_step: Callable[[], Result], **options: Any) -> tuple[Result, float, profile]:
        self.sampled_steps.add(step)
        with ExitStack() as stack:
            stack.enter_context(_phases_marked(self.looking.decoders))
            profiled = stack.enter_context(profile(**options))
            stack.enter_context(record_function(f"{STEP}{step}"))
            start_s = time.perf_counter()
            result = take_step()
            if self.looking.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - start_s
        return result, seconds, profiled


def sample_object(sample: StepSample) -> dict[str, object]:
    """A sample as metrics and measurement hold it."""
    return {
        **{name: value for name, value in asdict(sample).items() if name not in ("components_s", "families")},
        "exposed_communication_fraction": sample.exposed_fraction,
        "components_s": dict(sample.components_s),
        "communication": [asdict(family) for family in sample.families],
    }


def _export(profiled: profile, path: Path) -> None:
    """Write a trace. On a full disk torch says so on stderr alone, and leaves the part that it could write.

    Raises:
        DiskFullError: the trace is not there in the end; compressed ones go through the temporary folder first.
    """
    with writing(path):
        profiled.export_chrome_trace(str(path))
    if not path.is_file():
        error = disk_full_error(path)
        path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)
        raise error
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        is_empty = not file.read(1)
    if is_empty:
        raise disk_full_error(Path(tempfile.gettempdir()))


def _of_all_ranks(own: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


@contextmanager
def _phases_marked(decoders: tuple[nn.Module, ...]) -> Iterator[None]:
    """Marks for the profiler around the forward of each chunk and around the loss."""
    handles: list[RemovableHandle] = []
    for decoder in decoders:
        handles += _marking_hooks(decoder, FORWARD)
        head = getattr(decoder, "lm_head", None)
        if isinstance(head, nn.Module):
            handles += _marking_hooks(head, LOSS)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _marking_hooks(module: nn.Module, name: str) -> list[RemovableHandle]:
    """Hooks that open a range before the module's forward and close it behind."""
    opened: list[record_function] = []

    def begin(*_given: Any) -> None:
        mark = record_function(name)
        mark.__enter__()
        opened.append(mark)

    def end(*_given: Any) -> None:
        opened.pop().__exit__(None, None, None)

    return [module.register_forward_pre_hook(begin), module.register_forward_hook(end, always_call=True)]
