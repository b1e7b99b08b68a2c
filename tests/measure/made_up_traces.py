"""Small traces with known answers: written as torch.profiler writes them, times in microseconds."""

import json
from pathlib import Path

MAIN, AUTOGRAD, DEVICE = 100, 101, 0


def mark(name: str, start: float, end: float, *, thread: int = MAIN) -> dict[str, object]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": end - start}


def kernel(
    name: str,
    start: float,
    end: float,
    *,
    launch: float,
    stream: int = 7,
    thread: int = MAIN,
    arguments: dict[str, object] | None = None,
) -> list[dict[str, object]]:
    """A kernel and the call that launched it."""
    correlation = round(start * 100) + stream
    call = {"correlation": correlation}
    return [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": thread,
            "ts": launch,
            "dur": 1.0,
        }
        | {"args": call},
        {"ph": "X", "cat": "kernel", "name": name, "pid": DEVICE, "tid": stream, "ts": start, "dur": end - start}
        | {"args": {"stream": stream, "device": 0, **call, **(arguments or {})}},
    ]


def collective(
    name: str, start: float, end: float, *, launch: float, thread: int = MAIN, **facts: object
) -> list[dict[str, object]]:
    """A kernel of NCCL, with torch's arguments where they are given."""
    words = {
        "word": "Collective name",
        "elements": "In msg nelems",
        "size": "Group size",
        "dtype": "dtype",
        "description": "Process Group Description",
        "ranks": "Process Group Ranks",
    }
    arguments = {words[key]: value for key, value in facts.items()}
    return kernel(name, start, end, launch=launch, stream=20, thread=thread, arguments=arguments)


def trace_text(events: list[dict[str, object]], *, rank: int = 0, world_size: int = 2) -> str:
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
    }
    return json.dumps({**header, "traceEvents": events, "traceName": "made up"}, indent=1)


def write_trace(folder: Path, events: list[dict[str, object]], *, rank: int = 0) -> Path:
    path = folder / f"rank{rank}.json"
    path.write_text(trace_text(events, rank=rank), encoding="utf-8")
    return path
