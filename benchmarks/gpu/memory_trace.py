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


def _replay(trace: list[dict[str, object]]) -> tuple[int, dict[int, tuple[int, str]]]:
    """Largest number of live bytes, and the live blocks at that moment as ``address -> (bytes, label)``."""
    alive: dict[int, tuple[int, Frames]] = {}
    now = peak = 0
    peak_index = 0
    for index, entry in enumerate(trace):
        now += _apply(entry, alive)
        if now > peak:
            peak, peak_index = now, index
    alive.clear()
    for entry in trace[: peak_index + 1]:
        _apply(entry, alive)
    return peak, {address: (size, _label(frames)) for address, (size, frames) in alive.items()}


def _apply(entry: dict[str, object], alive: dict[int, tuple[int, Frames]]) -> int:
    if entry["action"] == "alloc":
        alive[entry["addr"]] = (entry["size"], entry.get("frames", []))
        return int(entry["size"])
    if entry["action"] == "free_requested" and entry["addr"] in alive:
        return -alive.pop(entry["addr"])[0]
    return 0


def peak_composition(run: Callable[[], object], device: torch.device, *, num_groups: int = 45) -> dict[str, object]:
    """Run with the history on; the live bytes at the peak grouped by ``(bytes, code)``, largest group first."""
    torch.cuda.memory._record_memory_history(
        enabled="all", context="alloc", stacks="python", max_entries=2_000_000, clear_history=True
    )
    try:
        kept = run()
        torch.cuda.synchronize(device)
        trace = torch.cuda.memory._snapshot(device)["device_traces"][device.index]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    del kept
    peak, alive = _replay(trace)
    groups = Counter(alive.values())
    largest = sorted(groups.items(), key=lambda item: -item[0][0] * item[1])[:num_groups]
    return {
        "peak_bytes": peak,
        "num_events": len(trace),
        "groups": [{"bytes": size, "count": count, "code": label} for (size, label), count in largest],
    }
