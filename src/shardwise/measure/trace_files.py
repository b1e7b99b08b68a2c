"""Which files a person means who names traces, memory snapshots, or folders of them."""

from collections.abc import Sequence
from pathlib import Path

from shardwise.errors import TraceError

SNAPSHOT_SUFFIXES = (".pickle", ".pkl")
SUFFIXES = (*SNAPSHOT_SUFFIXES, ".json", ".json.gz", ".trace", ".pt.trace.json", ".pt.trace.json.gz")


def trace_files(places: Sequence[Path]) -> tuple[Path, ...]:
    """The files themselves, and all traces of the folders, in order of their names.

    Raises:
        TraceError: a place does not exist, or a folder holds no trace.
    """
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            inside = sorted(path for path in place.iterdir() if path.is_file() and path.name.endswith(SUFFIXES))
            if not inside:
                raise TraceError(
                    f"the folder '{place}' holds no trace (.json, .json.gz) and no memory snapshot (.pickle)",
                    code="trace-unreadable",
                    fix="name the folder that tensorboard_trace_handler wrote to",
                )
            found.extend(inside)
        elif place.exists():
            found.append(place)
        else:
            raise TraceError(
                f"there is no file '{place}'",
                code="trace-unreadable",
                fix="give the path of a trace that torch.profiler exported (.json or .json.gz)",
            )
    return tuple(dict.fromkeys(found))
