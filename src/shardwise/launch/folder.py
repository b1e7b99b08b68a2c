"""The run folder: plan, prediction, job, logs, metrics and measurement of one run, never of two."""

import json
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.plan import Plan
from shardwise.plan_file import plan_to_json
from shardwise.train.checkpoint.folder import CheckpointFolder
from shardwise.train.checkpoint.lineage import Lineage
from shardwise.train.failure.full_disk import writing
from shardwise.train.job import Job
from shardwise.train.lease import LIVES, Lease, is_held, take

DEFAULT_PARENT = Path("runs")
METRICS_FILE = "metrics.jsonl"
"""A line for every step."""


class RunFolderError(ShardwiseError):
    """A folder a run cannot be written into."""


def choose_run_folder(plan: Plan, *, asked: Path | None, is_resumed: bool) -> Path:
    """The run folder: the one that was asked for, or one named after the model and the time. Makes nothing.

    Raises:
        RunFolderError: it holds something already and the run is not resumed, or it is no folder.
    """
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = asked or DEFAULT_PARENT / f"{plan.model.name.replace('/', '-')}-{stamp}"
    if folder.exists() and (not folder.is_dir() or (_holds_a_run(folder) and not is_resumed)):
        raise RunFolderError(
            f"the run folder '{folder}' is {'not empty' if folder.is_dir() else 'a file'}",
            code="train-run-folder",
            fix="give another --out",
        )
    return folder


def make_run_folder(plan: Plan, *, asked: Path | None, is_resumed: bool) -> Path:
    """The folder that :func:`choose_run_folder` names, made, with the plan in it.

    Raises:
        RunFolderError: it holds something already and the run is not resumed, or it cannot be made.
        DiskFullError: there is no room for it.
    """
    folder = choose_run_folder(plan, asked=asked, is_resumed=is_resumed)
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "plan.json").write_text(json.dumps(plan_to_json(plan), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(folder, error) from None
    return folder


def _holds_a_run(folder: Path) -> bool:
    """Whether anything is there besides the record of who held the folder."""
    return any(path.name != LIVES for path in folder.iterdir())


def _unwritable(folder: Path, error: OSError) -> RunFolderError:
    return RunFolderError(
        f"the run folder '{folder}' cannot be written: {error.strerror}",
        code="train-run-folder",
        fix="give an --out in a folder you can write to",
    )


@contextmanager
def held_folder(job: Job) -> Iterator[Lease]:
    """Within, this process holds the folders that the run writes into.

    Raises:
        LeaseError: another run that lives holds one.
        RunFolderError: one cannot be written.
        DiskFullError: there is no room for it.
    """
    try:
        with writing(job.folder):
            lease = take(job)
    except OSError as error:
        raise _unwritable(job.folder, error) from None
    try:
        yield lease
    finally:
        lease.release()


def branch_sentence(job: Job, lineage: Lineage) -> str:
    """A sentence on checkpoints that a run leaves behind as it goes on from an older one; empty without any."""
    if not job.checkpoint.folder:
        return ""
    states = CheckpointFolder(Path(job.checkpoint.folder), lineage)
    names = [path.name for path in states.abandoned()]
    if not names:
        return ""
    begun = f"going on from step {lineage.parent.step}" if lineage.parent else "beginning anew"
    return (
        f"{begun} leaves {', '.join(names)} behind: kept in {states.abandoned_path} once the run has begun, "
        "and deleted by nobody"
    )


@contextmanager
def gone_when_refused(folder: Path) -> Iterator[None]:
    """Within, the run folder is made and the run started; what ranks refuse leaves none that was not there before.

    A folder in the way would make the next attempt, with the fault mended, need another name. One with a step in it
    stays whatever happens.
    """
    was_there = folder.exists()
    is_own = not was_there or not any(folder.iterdir())
    try:
        yield
    except ShardwiseError as error:
        metrics = folder / METRICS_FILE
        has_steps = metrics.is_file() and metrics.stat().st_size > 0
        if is_own and error.exit_code == ShardwiseError.exit_code and not has_steps and not is_held(folder):
            shutil.rmtree(folder, ignore_errors=True)
            if was_there:
                folder.mkdir()
        raise


def calibration_path() -> Path:
    """Path of a calibration that nobody named: after the machine and the day."""
    host = platform.node().partition(".")[0] or "machine"
    return Path(f"calibration-{host}-{date.today().isoformat()}.json")
