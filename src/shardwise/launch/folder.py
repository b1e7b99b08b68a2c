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
from shardwise.train.failure.full_disk import writing

DEFAULT_PARENT = Path("runs")
METRICS_FILE = "metrics.jsonl"
"""A line for every step."""


class RunFolderError(ShardwiseError):
    """A folder a run cannot be written into."""


def choose_run_folder(plan: Plan, *, asked: Path | None, is_resumed: bool) -> Path:
    """Where the run goes: the folder that was asked for, or one named after the model and the time. Makes nothing.

    Raises:
        RunFolderError: it holds something already and the run is not resumed, or it is no folder.
    """
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    folder = asked or DEFAULT_PARENT / f"{plan.model.name.replace('/', '-')}-{stamp}"
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not is_resumed)):
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
        raise RunFolderError(
            f"the run folder '{folder}' cannot be written: {error.strerror}",
            code="train-run-folder",
            fix="give an --out in a folder you can write to",
        ) from None
    return folder


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
        if is_own and error.exit_code == ShardwiseError.exit_code and not has_steps:
            shutil.rmtree(folder, ignore_errors=True)
            if was_there:
                folder.mkdir()
        raise


def calibration_path() -> Path:
    """Where a calibration goes that nobody named: after the machine and the day."""
    host = platform.node().partition(".")[0] or "machine"
    return Path(f"calibration-{host}-{date.today().isoformat()}.json")
