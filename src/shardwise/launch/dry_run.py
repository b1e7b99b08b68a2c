"""A dry run looks at this machine: can ranks import the packages they need, and are their devices here?

It also says what it did not look at, for people who rely on it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from shardwise.catalog.hardware.names import driver_gpu_id
from shardwise.launch.command import environment
from shardwise.launch.lint import (
    BROKEN,
    TRAIN_EXTRA,
    errors_of,
    is_of_packages,
    lint,
    require_no_errors,
    warnings_of,
)
from shardwise.launch.lint_case import LintFinding
from shardwise.launch.support import packages_of
from shardwise.launch.surroundings import Surroundings, read_surroundings
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.train.job import Job

__all__ = ["DryLook", "Imported", "imported", "look_around"]

IMPORTER = "shardwise.train.importing"
IMPORTER_S = 600
"""Ends a process that hangs: a cold disk and a busy host take minutes to import torch."""
LONG = 300
"""An error text of another package is cut to this many characters."""
OWN = "user"
"""The confidence of a part that the user described, which may be any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of the packages of ranks, and the GPUs that torch sees."""

    failures: tuple[tuple[str, str], ...] = ()
    gpu_names: tuple[str, ...] = ()
    gpu_failure: str = ""
    """Why torch cannot say which GPUs there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryLook:
    """What a dry run says beside what it wrote."""

    missing: tuple[str, ...] = ()
    """Packages and devices that a run on this machine would lack, and another machine that gets the script may have."""
    unseen: tuple[str, ...] = ()
    """Things that only the run itself will show."""
    warnings: tuple[LintFinding, ...] = ()


def look_around(plan: Plan, job: Job) -> DryLook:
    """What this machine lacks for the run.

    Raises:
        SurroundingsError: ranks could not import a package, on this machine or on another that shares its Python; or
            the device that was asked for is not here.
    """
    if plan.cluster.num_nodes > 1:
        return DryLook(unseen=tuple(_unseen_of_nodes()))
    packages, wants_gpus = packages_of(job), _wants_gpus(plan, job)
    found = imported(packages)
    here = replace(read_surroundings(run_folder=job.folder), num_gpus=len(found.gpu_names))
    saves_states = bool(job.checkpoint.every_steps)
    findings = (
        *_broken(found, here, packages),
        *lint(plan, here, is_on_gpu=wants_gpus, saves_states=saves_states, packages=packages),
    )
    errors = errors_of(findings)
    is_refused = job.device != "auto" or not wants_gpus
    require_no_errors(tuple(error for error in errors if is_refused or is_of_packages(error)))
    return DryLook(
        missing=(*(error.claim for error in errors), *(_missing_devices(plan, job, found) if wants_gpus else ())),
        unseen=tuple(_unseen(job, has_gpus=wants_gpus and bool(found.gpu_names))),
        warnings=warnings_of(findings),
    )


@cache
def imported(packages: tuple[str, ...]) -> Imported:
    """The packages that a process started as ranks are can import; takes about as long as importing torch."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", IMPORTER, *packages],
            env={**os.environ, **environment(Layout(), inherited=os.environ)},
            capture_output=True,
            text=True,
            check=False,
            timeout=IMPORTER_S,
        )
    except subprocess.TimeoutExpired:
        return _all_failed(packages, f"it takes longer than {IMPORTER_S} s")
    try:
        said = json.loads(done.stdout.splitlines()[-1])
        names, failure = tuple(said["gpu_names"]), said["gpu_failure"]
        return Imported(failures=tuple(said["failures"].items()), gpu_names=names, gpu_failure=failure)
    except (ValueError, IndexError):
        return _all_failed(packages, f"it ends the process with exit code {done.returncode}")


def _all_failed(packages: tuple[str, ...], why: str) -> Imported:
    return Imported(failures=((" and ".join(packages), why),))


def _broken(found: Imported, here: Surroundings, packages: tuple[str, ...]) -> Iterator[LintFinding]:
    """Packages that cannot be imported, except those that the lint already reports as not installed."""
    for name, why in found.failures:
        if name in here.versions or name not in packages:
            yield LintFinding(
                rule=f"{name}{BROKEN}",
                severity="error",
                claim=f"{name} cannot be used here: {why[:LONG]}",
                fix=f"install it again: {TRAIN_EXTRA}",
            )


def _wants_gpus(plan: Plan, job: Job) -> bool:
    """Whether the run that was planned is one on GPUs."""
    return job.device == "cuda" or (job.device == "auto" and not plan.cluster.runs_on_cpu)


def _missing_devices(plan: Plan, job: Job, found: Imported) -> Iterator[str]:
    """Devices of the plan that are others here, or none."""
    gpu = plan.cluster.gpu
    others = sorted({name for name in found.gpu_names if driver_gpu_id(name) not in ("", gpu.id)})
    if others and gpu.confidence != OWN:
        yield f"the plan is for {gpu.name}, and this machine has {', '.join(others)}"
    if found.gpu_failure:
        yield f"torch cannot say which GPUs there are: {found.gpu_failure[:LONG]}"
    if not found.gpu_names and job.device == "auto":
        yield "torch sees no GPU, so that a run on this machine would train on its CPUs"


def _unseen(job: Job, *, has_gpus: bool) -> Iterator[str]:
    if job.checkpoint.initial_weights:
        yield "whether the values of the weights are finite, which ranks see as they load them"
    if not job.data.is_synthetic and not job.checkpoint.resume_from:
        yield "all of the data: of text as much was tokenised as fills one sample"
    if has_gpus:
        yield "how much memory of the GPUs other processes hold"


def _unseen_of_nodes() -> Iterator[str]:
    yield "whether data, tokenizer, weights and checkpoints are there, which other machines may see alone"
    yield "whether the nodes have torch, what else ranks import, and the GPUs of the plan"
