"""Runs the trials of a lab one after the other, the way ``shardwise train`` runs a plan."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from shardwise.course.labs.settings import LabSetting, plan_of
from shardwise.course.labs.trial import Lab, Outcome, Trial
from shardwise.errors import PlanError
from shardwise.launch.folder import held_folder, make_run_folder
from shardwise.launch.request import TrainRequest, make_job, require_native
from shardwise.launch.run import MEASUREMENT_FILE, run_job
from shardwise.launch.support import require_supported
from shardwise.plan import Plan
from shardwise.plan_file import plan_to_json
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.render.json_records import prediction_object
from shardwise.render.json_text import json_text
from shardwise.rules import require_valid
from shardwise.train.failure.diagnose import OutOfMemoryError
from shardwise.train.job import Job, WatchSpec
from shardwise.train.lease import Lease

TRIAL_FILE = "trial.json"
IDENTITY_DIGITS = 12
OnStep = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTrial:
    """A trial with its plan, before it runs."""

    trial: Trial
    plan: Plan
    prediction: Prediction
    folder: Path
    """The folder of the run; trials of several labs that are the same run share it."""


def planned_trials(lab: Lab, setting: LabSetting, *, folder: Path) -> tuple[PlannedTrial, ...]:
    """The trials of a lab with their predictions.

    Raises:
        ShardwiseError: a plan breaks a rule, or is nothing that our runtime does; before anything ran.
    """
    planned = []
    for trial in lab.trials(setting.num_processes, setting.is_default_size):
        plan = plan_of(trial, setting)
        require_native(plan)
        require_supported(plan)
        require_valid(plan)
        place = folder / f"run-{_identity(plan, setting)}"
        planned.append(PlannedTrial(trial=trial, plan=plan, prediction=predict(plan), folder=place))
    return tuple(planned)


def run_lab(planned: Sequence[PlannedTrial], setting: LabSetting, *, on_step: OnStep) -> Iterator[Outcome]:
    """Run one trial after the other and give its outcome; runs that ended before are not repeated.

    Raises:
        ShardwiseError: a run failed otherwise than for want of memory, or was stopped; outcomes until then were given.
    """
    for found in planned:
        yield finished(found, setting) or _run(found, setting, on_step=on_step)


def finished(found: PlannedTrial, setting: LabSetting) -> Outcome | None:
    """The outcome of a run that ended earlier, well or for want of memory; a run that was stopped is repeated."""
    measurement, trial = found.folder / MEASUREMENT_FILE, found.folder / TRIAL_FILE
    if measurement.exists():
        said = json.loads(measurement.read_text(encoding="utf-8"))
        if len(said.get("steps", ())) == setting.num_steps:
            return _outcome(found, setting, said)
        measurement.unlink()  # a run that is stopped measures the steps that it made
    if trial.exists():
        return _outcome(found, setting, None, json.loads(trial.read_text(encoding="utf-8"))["failure"])
    return None


def require_lab_folder(folder: Path, *, is_resumed: bool) -> None:
    """Return when a lab may write there.

    Raises:
        PlanError: it holds something, and the lab is not to go on with it.
    """
    if folder.exists() and any(folder.iterdir()) and not is_resumed:
        raise PlanError(
            f"the folder '{folder}' is not empty",
            code="lab-folder",
            fix="give another --out, or add --resume to keep the runs that ended",
        )


def _identity(plan: Plan, setting: LabSetting) -> str:
    """Equal for equal runs, whatever lab they belong to."""
    said = json.dumps(
        [plan_to_json(plan), setting.num_steps, setting.seed, setting.is_on_gpu], sort_keys=True, default=str
    )
    return sha256(said.encode()).hexdigest()[:IDENTITY_DIGITS]


def _run(found: PlannedTrial, setting: LabSetting, *, on_step: OnStep) -> Outcome:
    folder = found.folder
    text = json_text(prediction_object(plan=found.plan, prediction=found.prediction))
    request = TrainRequest(
        num_steps=setting.num_steps,
        seed=setting.seed,
        device="cuda" if setting.is_on_gpu else "cpu",
        watch=WatchSpec(every_steps=setting.profiled_every, is_memory_sampled=True),
    )
    job = make_job(found.plan, request, prediction=found.prediction, run_folder=str(folder.resolve()))
    with held_folder(job) as lease:
        make_run_folder(found.plan, asked=folder, is_resumed=True)
        (folder / "prediction.json").write_text(text + "\n", encoding="utf-8")
        return _followed(found, setting, job, on_step=on_step, lease=lease)


def _followed(found: PlannedTrial, setting: LabSetting, job: Job, *, on_step: OnStep, lease: Lease) -> Outcome:
    try:
        return _outcome(found, setting, run_job(job, on_step=on_step, plan=found.plan, lease=lease))
    except OutOfMemoryError as error:
        (found.folder / TRIAL_FILE).write_text(json.dumps({"failure": error.message}) + "\n", encoding="utf-8")
        return _outcome(found, setting, None, error.message)


def _outcome(
    found: PlannedTrial, setting: LabSetting, measurement: Mapping[str, object] | None, failure: str = ""
) -> Outcome:
    return Outcome(
        trial=found.trial,
        plan=found.plan,
        prediction=found.prediction,
        measurement=measurement,
        failure=failure,
        folder=found.folder,
        is_crowded=not setting.is_on_gpu and found.plan.layout.world_size > setting.num_cores,
    )
