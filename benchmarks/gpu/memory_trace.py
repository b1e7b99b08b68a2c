"""Replays the allocator's history and lists what was alive at the highest point, by size and by the line that asked."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

Frames = list[dict[str, object]]
SKIPPED = ("torch/nn/modules/module.py", "torch/_ops.py", "torch/utils/_contextlib.py", "torch/autograd/function.py")


def _label(frames: Frames) -> str:
    """The three innermost Python lines that are not plumbing; empty for the autograd thread."""
    named = []
    for frame in frames:
        filename = str(frame["filename"])
        if not filename.endswith(".py") or any(filename.endswith(skipped) for skipped in SKIPPED):
            continue
        named.append(f"{Path(filename).name}:{frame['name']}:{frame['line']}")
        if len(named) == 3:
            break
    return " < ".join(named)


Alive = dict[int, tuple[int, int, Frames]]
"""Address to bytes, stream and Python frames."""


def _apply(entry: dict[str, object], alive: Alive) -> tuple[int, int]:
    """Carry out one event; the change in live bytes and the stream whose pool it changes."""
    if entry["action"] == "alloc":
        alive[entry["addr"]] = (entry["size"], entry["stream"], entry.get("frames", []))
        return int(entry["size"]), int(entry["stream"])
    if entry["action"] == "free_requested" and entry["addr"] in alive:
        size, stream, _ = alive.pop(entry["addr"])
        return -size, stream
    return 0, 0


def _replay(trace: list[dict[str, object]]) -> tuple[int, Counter[int], Alive]:
    """Largest number of live bytes, the same per stream (at its own moment), and the live blocks at the first."""
    alive: Alive = {}
    now_by_stream: Counter[int] = Counter()
    peak_by_stream: Counter[int] = Counter()
    now = peak = peak_index = 0
    for index, entry in enumerate(trace):
        change, stream = _apply(entry, alive)
        now += change
        now_by_stream[stream] += change
        peak_by_stream[stream] = max(peak_by_stream[stream], now_by_stream[stream])
        if now > peak:
            peak, peak_index = now, index
    alive.clear()
    for entry in trace[: peak_index + 1]:
        _apply(entry, alive)
    return peak, peak_by_stream, alive


def peak_composition(run: Callable[[], object], device: torch.device, *, num_groups: int = 45) -> dict[str, object]:
    """Run with the history on; the live bytes at the peak grouped by ``(bytes, code)``, largest group first."""
    torch.cuda.memory._record_memory_history(
        enabled="all", context="alloc", stacks="python", max_entries=2_000_000, clear_history=True
    )
    try:
        kept = run()
        torch.cuda.synchronize(device)
        snapshot = torch.cuda.memory._snapshot(device)
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    del kept
    trace = snapshot["device_traces"][device.index]
    peak, peak_by_stream, alive = _replay(trace)
    groups = Counter((size, _label(frames)) for size, _, frames in alive.values())
    reserved_by_stream: Counter[int] = Counter()
    for segment in snapshot["segments"]:
        if segment["device"] == device.index:
            reserved_by_stream[segment["stream"]] += segment["total_size"]
    streams = [
        {"peak_bytes": peak_by_stream[stream], "reserved_bytes": reserved}
        for stream, reserved in reserved_by_stream.most_common()
    ]
    largest = sorted(groups.items(), key=lambda item: -item[0][0] * item[1])[:num_groups]
    return {
        "peak_bytes": peak,
        "num_events": len(trace),
        "streams": streams,
        "groups": [{"bytes": size, "count": count, "code": label} for (size, label), count in largest],
    }
