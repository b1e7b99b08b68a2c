"""Reads torch's flight recorder: the last collectives of a rank, and which of them never came to an end."""

import json
from pathlib import Path
from typing import Any

__all__ = ["num_collectives", "waiting_collective"]

FINISHED = "completed"


def waiting_collective(path: Path) -> str:
    """The first collective a rank issued that did not complete, in words; nothing where all did.

    NCCL's operations complete in order on a group, so what comes behind the first one only waits for it.
    """
    for entry in _entries(path):
        if entry.get("state") != FINISHED:
            name = str(entry.get("profiling_name", "a collective")).removeprefix("nccl:")
            sizes = entry.get("input_sizes")
            first = sizes[0] if isinstance(sizes, list) and sizes else None
            shapes = "x".join(str(size) for size in first) if isinstance(first, list) else ""
            of = f" of {shapes} elements" if shapes else ""
            return f"{name}{of}, number {entry.get('collective_seq_id')} of its group"
    return ""


def num_collectives(path: Path) -> int | None:
    """How many collectives a rank had issued; ``None`` without a recording."""
    if not path.is_file():
        return None
    numbers = [entry.get("collective_seq_id") for entry in _entries(path)]
    return max((number for number in numbers if isinstance(number, int)), default=0)


def _entries(path: Path) -> list[dict[str, Any]]:
    """The entries of one flight-recorder file; none where its rank was ended while it wrote."""
    try:
        recorded = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return []
    entries = recorded.get("entries") if isinstance(recorded, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
