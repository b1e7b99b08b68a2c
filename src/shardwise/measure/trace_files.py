"""Which files a person means who names traces, memory snapshots, or folders of them."""

from collections.abc import Sequence
from pathlib import Path

from shardwise.errors import TraceError

PLAN_FILE = "plan.json"
TRACE_FOLDER, SNAPSHOT_FOLDER = "traces", "snapshots"
"""Where a run of ours keeps the traces of the steps that it looked into, and the history of its allocator."""
SNAPSHOT_SUFFIXES = (".pickle", ".pkl")
SUFFIXES = (*SNAPSHOT_SUFFIXES, ".json", ".json.gz", ".trace", ".pt.trace.json", ".pt.trace.json.gz")


def trace_files(places: Sequence[Path]) -> tuple[Path, ...]:
    """The files themselves, and all traces of the folders, in order of their names; a run folder's own.

    Raises:
        TraceError: a place does not exist or must not be read, or a folder holds no trace.
    """
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            found.extend(_files_of_run(place) if is_run_folder(place) else _files_inside(place))
        elif place.exists():
            found.append(place)
        else:
            raise TraceError(
                f"there is no file or folder '{place}'",
                code="trace-unreadable",
                fix="give the path of a trace that torch.profiler exported (.json or .json.gz)",
            )
    return tuple(dict.fromkeys(found))


def is_run_folder(place: Path) -> bool:
    """Whether a run of ours, which says what was planned, wrote into a folder."""
    return (place / PLAN_FILE).is_file()


def plan_file_of(places: Sequence[Path]) -> Path | None:
    """The plan of the one run that the places belong to: run folders, or folders and files inside them."""
    homes = {home for place in places for home in (place, place.parent, place.parent.parent) if is_run_folder(home)}
    return homes.pop() / PLAN_FILE if len(homes) == 1 else None


def _files_of_run(run: Path) -> list[Path]:
    folders = [run / name for name in (TRACE_FOLDER, SNAPSHOT_FOLDER) if (run / name).is_dir()]
    if not folders:
        raise TraceError(
            f"the run '{run}' kept no trace and no memory snapshot",
            code="trace-unreadable",
            fix="train with --profile-every N, or with --memory-snapshot on GPUs",
        )
    return [path for folder in folders for path in _files_inside(folder)]


def _files_inside(folder: Path) -> list[Path]:
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_file() and path.name.endswith(SUFFIXES))
    except OSError as error:
        raise TraceError(
            f"cannot read the folder '{folder}': {error.strerror}",
            code="trace-unreadable",
            fix=f"chmod u+rX '{folder}', or name a copy of it",
        ) from None
    if not inside:
        raise TraceError(
            f"the folder '{folder}' holds no trace (.json, .json.gz) and no memory snapshot (.pickle)",
            code="trace-unreadable",
            fix="name the folder that tensorboard_trace_handler wrote to",
        )
    return inside
