"""Logs of other trainers as records: torchtitan, Megatron-LM, DeepSpeed, Hugging Face, Lightning; nvidia-smi, DCGM.

Each trainer prints other quantities under other names. What a line says is kept with what it means: torchtitan's memory
is the largest reserved, DeepSpeed's and Megatron's the largest allocated, nvidia-smi's the whole device.

Sources: pytorch/torchtitan ``components/metrics.py``; NVIDIA/Megatron-LM ``training/training.py`` and
``training/utils.py`` (``report_memory``, MB of 2^20); deepspeedai/DeepSpeed ``utils/timer.py`` (GB of 2^30);
huggingface/transformers ``trainer.py``; Lightning ``callbacks/throughput_monitor.py`` and its CSV logger.
"""

import ast
import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from shardwise.errors import TraceError
from shardwise.measure.own_lines import lineage_lines
from shardwise.units import GIB, MIB, TERA, Bytes, FlopPerSecond, Seconds

DCGM_METRIC = r"^DCGM_FI_DEV_FB_USED(?:\{[^}]*\})?\s+([\d.]+(?:[eE][+-]?\d+)?)"
DCGM_COLUMN = "FBUSD"
"""Short name of field 252, framebuffer used (DCGM ``dcgm_fields.cpp``)."""
TrainerName = Literal[
    "torchtitan", "megatron", "deepspeed", "transformers", "lightning", "shardwise", "nvidia-smi", "dcgm"
]
MOST_LOG_BYTES = 512 * MIB
GZIP_MAGIC = b"\x1f\x8b"
SNIFFED_BYTES = 65_536
LOG_FIX = "give the trainer's output, its trainer_state.json or metrics.csv, nvidia-smi's CSV or DCGM's text"
MOST = 1e18
"""A limit above every number of a log: bytes, rates and FLOP of one GPU."""
NOT_A_NUMBER = (TraceError, ValueError, OverflowError, TypeError, AttributeError, KeyError, RecursionError, csv.Error)
"""Exceptions that something else in the place of a number raises."""
NOTHING = (None, "", "N/A")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """What one line of a log says of one step; ``None`` where it says nothing."""

    step: int
    step_s: Seconds | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    """Samples per second of the whole job."""
    flop_per_s: FlopPerSecond | None = None
    """FLOP/s of one GPU, by the trainer's own convention."""
    mfu_fraction: float | None = None
    loss: float | None = None
    max_allocated_bytes: Bytes | None = None
    max_reserved_bytes: Bytes | None = None
    device_used_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLog:
    """One log."""

    trainer: TrainerName
    steps: tuple[LoggedStep, ...]
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    seq_len: int | None = None
    num_gpus: int | None = None


NUMBERS_OF_STEPS = tuple(field.name for field in fields(LoggedStep) if field.name != "loss")
"""Losses of runs that diverge are infinite, or no numbers at all."""
NUMBERS_OF_LOGS = ("global_batch_size", "micro_batch_size", "seq_len", "num_gpus")


def read_trainer_log(path: Path) -> TrainerLog:
    """The log in a file, whichever of the known trainers wrote it.

    Raises:
        TraceError: it cannot be read, or no line of it is one that a known trainer prints.
    """
    try:
        if path.stat().st_size > MOST_LOG_BYTES:
            raise TraceError(
                f"'{path}' has more than {MOST_LOG_BYTES // MIB} MiB",
                code="trace-unreadable",
                fix="give the log of one rank, or its last hundred thousand lines",
            )
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(
            f"cannot read '{path}': {error.strerror}", code="trace-unreadable", fix="give the path of a log file"
        ) from None
    _require_text(content, path)
    text = COLOUR.sub("", content.decode("utf-8", errors="replace"))
    for read in READERS:
        try:
            log = read(text)
        except NOT_A_NUMBER as error:
            raise _no_log(path, f"a number of it cannot be read ({error!s:.120})") from None
        if log is not None and log.steps:
            _require_measured(log, path)
            return log
    raise TraceError(
        f"none of the {len(text.splitlines()):,} lines of '{path}' is one that torchtitan, Megatron-LM, DeepSpeed, the "
        "Hugging Face Trainer, Lightning, nvidia-smi or DCGM prints",
        code="log-foreign",
        fix=LOG_FIX,
    )


def _require_measured(log: TrainerLog, path: Path) -> None:
    """Return when every number of a log is one that somebody can have measured."""
    for step in log.steps:
        for name in NUMBERS_OF_STEPS:
            value = getattr(step, name)
            if value is not None and not 0 <= value < MOST:
                raise _no_log(path, f"{name} of step {str(step.step)[:20]} is {str(value)[:40]}")
    for name in NUMBERS_OF_LOGS:
        value = getattr(log, name)
        if value is not None and not 0 < value < MOST:
            raise _no_log(path, f"its {name} is {str(value)[:40]}")


def _no_log(path: Path, reason: str) -> TraceError:
    return _wrong(f"'{path}' is no log that can be reconciled: {reason}")


def _wrong(reason: str) -> TraceError:
    return TraceError(reason, code="log-number", fix="correct or delete the line; a number is at least 0 and finite")


def _require_text(content: bytes, path: Path) -> None:
    """Return when bytes may be a log; what else they are is said."""
    what, fix = "", LOG_FIX
    if not content.strip():
        what = "is empty"
    elif content.startswith(GZIP_MAGIC):
        what, fix = "is compressed, and logs are read as text", f"unpack it: gunzip {path.name}; a trace: profile"
    elif b"\0" in content[:SNIFFED_BYTES]:
        what = "is binary, no text"
    elif content.lstrip().startswith(b"{") and b'"traceEvents"' in content[:SNIFFED_BYTES]:
        what, fix = "is a profiler's trace", f"read it with `shardwise profile {path.name}`"
    if what:
        raise TraceError(f"'{path}' {what}", code="log-foreign", fix=fix)


TITAN_STEP = re.compile(
    r"step:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>[-\d.]+).*?memory:\s*(?P<memory>[\d.]+)GiB\([\d.]+%\)\s+"
    r"tps:\s*(?P<tps>[\d,]+)(?:\s+tflops:\s*(?P<tflops>[\d,.]+))?(?:\s+mfu:\s*(?P<mfu>[\d.]+)%)?"
)
TITAN_BATCH = re.compile(r"local batch size (\d+), global batch size (\d+).*?sequence length (\d+)")
TITAN_MESH = re.compile(r"pp=(\d+), dp_replicate=(\d+), dp_shard=(\d+), cp=(\d+), tp=(\d+)")


def _torchtitan(text: str) -> TrainerLog | None:
    """Every rank may print; the last line of a step stays."""
    steps = {
        int(line["step"]): LoggedStep(
            step=int(line["step"]),
            loss=float(line["loss"]),
            tokens_per_s_per_gpu=_plain(line["tps"]),
            flop_per_s=None if line["tflops"] is None else _plain(line["tflops"]) * TERA,
            mfu_fraction=None if line["mfu"] is None else float(line["mfu"]) / 100,
            max_reserved_bytes=round(float(line["memory"]) * GIB),
        )
        for line in TITAN_STEP.finditer(text)
    }
    batch, mesh = TITAN_BATCH.search(text), TITAN_MESH.search(text)
    num_gpus = None
    if mesh:
        num_gpus = 1
        for degree in mesh.groups():
            num_gpus *= int(degree)
    return TrainerLog(
        trainer="torchtitan",
        steps=tuple(steps.values()),
        micro_batch_size=int(batch[1]) if batch else None,
        global_batch_size=int(batch[2]) if batch else None,
        seq_len=int(batch[3]) if batch else None,
        num_gpus=num_gpus,
    )


MEGATRON_STEP = re.compile(r"iteration\s+(?P<step>\d+)/\s*\d+ \|(?P<facts>.*elapsed time per iteration \(ms\):.*)")
MEGATRON_MEMORY = re.compile(r"max allocated: (?P<allocated>[\d.]+) \|.*?max reserved: (?P<reserved>[\d.]+)")
MEGATRON_ARGUMENT = r"\b{name} \.+ (\d+)"


def _megatron(text: str) -> TrainerLog | None:
    steps = [_megatron_step(int(line["step"]), line["facts"]) for line in MEGATRON_STEP.finditer(text)]
    memory = list(MEGATRON_MEMORY.finditer(text))
    if steps and memory:
        allocated = max(float(found["allocated"]) for found in memory)
        reserved = max(float(found["reserved"]) for found in memory)
        last = steps[-1]
        steps[-1] = LoggedStep(
            step=last.step,
            step_s=last.step_s,
            flop_per_s=last.flop_per_s,
            loss=last.loss,
            max_allocated_bytes=round(allocated * MIB),
            max_reserved_bytes=round(reserved * MIB),
        )
    batches = re.findall(r"global batch size:\s*(\d+)", text)
    world = re.search(r"world size: (\d+)", text)
    return TrainerLog(
        trainer="megatron",
        steps=tuple(steps),
        global_batch_size=int(batches[-1]) if batches else None,
        micro_batch_size=_argument(text, "micro_batch_size"),
        seq_len=_argument(text, "seq_length"),
        num_gpus=int(world[1]) if world else None,
    )


def _megatron_step(step: int, facts: str) -> LoggedStep:
    named = {name.strip(): value.strip() for name, _, value in (fact.partition(":") for fact in facts.split("|"))}
    rate = _optional(named.get("throughput per GPU (TFLOP/s/GPU)"))
    return LoggedStep(
        step=step,
        step_s=float(named["elapsed time per iteration (ms)"]) / 1000,
        flop_per_s=None if rate is None else rate * TERA,
        loss=_loss(named.get("lm loss")),
    )


DEEPSPEED_STEP = re.compile(
    r"(?:global_step=|\d+/)(?P<step>\d+), (?:RunningAvgSamplesPerSec=[\d.]+, )?(?:Curr)?SamplesPerSec=(?P<rate>[\d.]+)"
    r", MemAllocated=[\d.]+GB, MaxMemAllocated=(?P<memory>[\d.]+)GB"
)


def _deepspeed(text: str) -> TrainerLog | None:
    steps = tuple(
        LoggedStep(
            step=int(line["step"]),
            samples_per_s=float(line["rate"]),
            max_allocated_bytes=round(float(line["memory"]) * GIB),
        )
        for line in DEEPSPEED_STEP.finditer(text)
    )
    return TrainerLog(
        trainer="deepspeed",
        steps=steps,
        global_batch_size=_argument(text, "train_batch_size"),
        micro_batch_size=_argument(text, "train_micro_batch_size_per_gpu"),
        num_gpus=_argument(text, "world_size"),
    )


HF_LINE = re.compile(r"^\{['\"](?:loss|train_runtime)['\"].*\}$", re.MULTILINE)
HF_BATCH = re.compile(r"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]+)")
HF_MICRO_BATCH = re.compile(r"Instantaneous batch size per device = ([\d,]+)")


def _transformers(text: str) -> TrainerLog | None:
    """Standard output, or ``trainer_state.json`` with its log history."""
    entries = list(_hf_entries(text))
    steps = []
    for index, entry in enumerate(entries, start=1):
        per_s = _optional(entry.get("train_steps_per_second"))
        steps.append(
            LoggedStep(
                step=int(_optional(entry.get("step")) or index),
                loss=_loss(entry.get("loss", entry.get("train_loss"))),
                step_s=1 / per_s if per_s else None,
                samples_per_s=_optional(entry.get("train_samples_per_second")),
            )
        )
    batch, micro = HF_BATCH.search(text), HF_MICRO_BATCH.search(text)
    return TrainerLog(
        trainer="transformers",
        steps=tuple(steps),
        global_batch_size=round(_plain(batch[1])) if batch else None,
        micro_batch_size=round(_plain(micro[1])) if micro else None,
    )


def _hf_entries(text: str) -> Iterator[Mapping[str, object]]:
    if text.lstrip().startswith("{") and '"log_history"' in text:
        try:
            history = json.loads(text).get("log_history", [])
        except json.JSONDecodeError:
            return
        yield from (
            entry for entry in history if isinstance(entry, dict) and ("loss" in entry or "train_runtime" in entry)
        )
        return
    for line in HF_LINE.finditer(text):
        try:
            entry = ast.literal_eval(line.group())
        except (SyntaxError, ValueError):
            continue
        if isinstance(entry, dict):
            yield entry


LIGHTNING_RATES = ("device/0/samples_per_sec", "device/samples_per_sec", "samples_per_sec")
LIGHTNING_BATCHES = ("device/0/batches_per_sec", "device/batches_per_sec", "batches_per_sec")


def _lightning(text: str) -> TrainerLog | None:
    """``metrics.csv`` of the CSV logger with the throughput monitor."""
    lines = text.splitlines()
    names = set(lines[0].split(",")) if lines else set()
    if "step" not in names or not names & {*LIGHTNING_RATES, *LIGHTNING_BATCHES}:
        return None
    return TrainerLog(trainer="lightning", steps=tuple(_lightning_steps(csv.DictReader(lines))))


def _lightning_steps(rows: Iterable[Mapping[str, str]]) -> Iterator[LoggedStep]:
    for row in rows:
        batches = next((value for name in LIGHTNING_BATCHES if (value := _optional(row.get(name)))), None)
        loss = next((row[name] for name in row if "loss" in name and row[name]), None)
        if row.get("step"):
            yield LoggedStep(
                step=int(float(row["step"])),
                loss=_loss(loss),
                step_s=1 / batches if batches else None,
                samples_per_s=next((value for name in LIGHTNING_RATES if (value := _optional(row.get(name)))), None),
                mfu_fraction=_optional(row.get("device/mfu") or row.get("device/0/mfu")),
            )


def _shardwise(text: str) -> TrainerLog | None:
    """``metrics.jsonl`` of our own runs: the steps that led to its end."""
    if any(not line.startswith('{"step"') for line in text.splitlines()):
        return None
    steps = []
    for entry in lineage_lines(text):
        steps.append(
            LoggedStep(
                step=_step(entry),
                loss=_loss(entry.get("loss")),
                step_s=_optional(entry.get("step_s")),
                tokens_per_s_per_gpu=_optional(entry.get("tokens_per_s_per_gpu")),
                mfu_fraction=_optional(entry.get("mfu_fraction")),
                max_allocated_bytes=_bytes(entry.get("peak_allocated_bytes")),
                max_reserved_bytes=_bytes(entry.get("peak_reserved_bytes")),
            )
        )
    return TrainerLog(trainer="shardwise", steps=tuple(steps))


def _nvidia_smi(text: str) -> TrainerLog | None:
    """``nvidia-smi --query-gpu=timestamp,memory.used,... --format=csv``: the fullest device."""
    lines = [line for line in text.splitlines() if line.strip()]
    names = [name.strip() for name in lines[0].split(",")] if lines else []
    memory = next((index for index, name in enumerate(names) if name.startswith("memory.used")), None)
    if memory is None:
        return None
    used = [
        float(found.group())
        for line in lines[1:]
        if (found := re.search(r"[\d.]+", (line.split(",") + [""] * 9)[memory]))
    ]
    peak = LoggedStep(step=0, device_used_bytes=round(max(used) * MIB)) if used else None
    return TrainerLog(trainer="nvidia-smi", steps=(peak,) if peak else ())


def _dcgm(text: str) -> TrainerLog | None:
    """Framebuffer in use, MiB: ``dcgmi dmon -e 252`` in columns, or ``DCGM_FI_DEV_FB_USED`` of dcgm-exporter."""
    used = [float(found[1]) for found in re.finditer(DCGM_METRIC, text, re.MULTILINE)]
    column: int | None = None
    is_dcgm = bool(used)
    for line in text.splitlines():
        if line.lstrip("# ").startswith("Entity"):
            names = line.lstrip("# ").split()
            column = names.index(DCGM_COLUMN) if DCGM_COLUMN in names else None
            is_dcgm |= column is not None
        elif column is not None and line.startswith("GPU "):
            # "GPU 0" stands under one name and is two words.
            words = line.split()[1:]
            value = _optional(words[column]) if column < len(words) else None
            used += [value] if value is not None else []
    if not is_dcgm:
        return None
    peak = LoggedStep(step=0, device_used_bytes=round(max(used) * MIB)) if used else None
    return TrainerLog(trainer="dcgm", steps=(peak,) if peak else ())


READERS: tuple[Callable[[str], TrainerLog | None], ...] = (
    _shardwise,
    _torchtitan,
    _megatron,
    _deepspeed,
    _transformers,
    _lightning,
    _nvidia_smi,
    _dcgm,
)
"""Readers of logs, first the ones that recognise their log most surely."""


def _argument(text: str, name: str) -> int | None:
    found = re.search(MEGATRON_ARGUMENT.format(name=name), text)
    return int(found[1]) if found else None


def _plain(number: str) -> float:
    return float(number.replace(",", ""))


def _step(entry: Mapping[str, object]) -> int:
    step = entry["step"]
    if isinstance(step, bool) or not isinstance(step, int):
        raise _wrong(f"step {step!r:.40} is no whole number")
    return step


def _bytes(value: object) -> Bytes | None:
    """Bytes of a number in a log; 0 stands for nothing measured."""
    return round(_optional(value) or 0) or None


def _optional(value: object) -> float | None:
    """A measured number, or text that is one; ``None`` where nothing stands."""
    number = _loss(value)
    if number is not None and not 0 <= number < MOST:
        raise _wrong(f"{value!s:.40} is nothing that can be measured")
    return number


def _loss(value: object) -> float | None:
    """A loss, which may be infinite or no number at all; ``None`` where nothing stands."""
    if value in NOTHING:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _wrong(f"{value!r:.40} is no number")
    return float(value)
