"""Calibrate this machine: start torchrun, follow what it measures, and put the result together."""

import json
import os
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from shardwise.calibration import Calibration, MachineFacts, MeasuredDevice
from shardwise.calibration_file import calibration_object, calibration_of
from shardwise.catalog.hardware.names import driver_gpu_id
from shardwise.errors import CalibrationError
from shardwise.launch.command import PATIENT_TORCHRUN, environment, forked_words, local_words
from shardwise.launch.session import killed_torchrun, session
from shardwise.launch.surroundings import may_fork, read_surroundings
from shardwise.layout import Layout
from shardwise.train.failure.keepers import FORK_SERVER

WORKER = "shardwise.train.calibrate.worker"
RESULT_FILE, PROGRESS_FILE = "result.json", "progress.jsonl"
CLOSING_S = 3.0
"""Part of the given time that is kept for the processes to end."""
POLL_S = 0.2
OVERTIME_S = 60.0
"""How much longer than asked the processes may take before they are ended."""
TAIL_LINES = 6
FORK_SERVER_GONE = re.compile(r"exitcode\s*:\s*255\b")
"""When the fork server is gone, ``multiprocessing`` gives its processes exit code 255, which torchrun then reports.

Source: CPython, ``Lib/multiprocessing/popen_forkserver.py``, ``Popen.poll``."""
REASON = re.compile(r"^\s*(\[rank\d+\]: )?(?!.*ChildFailedError)[\w.]*(Error|Exception): |No module named")
"""The last line of a failed Python process, among much that torchrun writes about the process."""
LOST = re.compile(r"(.* \(process \d+\)) is gone: ")
"""A measuring process writes this line when it ends because another process is gone."""
MAX_PROCESSES_ON_CPU = 2
CLOCK_QUERY = "driver_version,clocks.sm,clocks.mem,power.limit"

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRequest:
    """What to measure with."""

    device: MeasuredDevice
    num_processes: int
    limit_s: float
    command: str = ""
    is_tiny: bool = False


def usual_device() -> MeasuredDevice:
    """GPUs where there are."""
    return "cuda" if read_surroundings().num_gpus else "cpu"


def usual_processes(device: MeasuredDevice) -> int:
    """Processes: one for every GPU; on CPUs two, or one where there is one core."""
    here = read_surroundings()
    return max(1, here.num_gpus if device == "cuda" else min(here.num_cores, MAX_PROCESSES_ON_CPU))


def calibrate(request: CalibrationRequest, *, on_progress: OnProgress) -> Calibration:
    """Measure this machine. An interruption ends the processes and leaves nothing behind.

    Raises:
        CalibrationError: the processes failed; their last words are in the message.
    """
    until_s = time.time() + request.limit_s - CLOSING_S
    with tempfile.TemporaryDirectory(prefix="shardwise-calibrate-") as name:
        folder = Path(name)
        facts = _follow(request, folder, until_s, on_progress)
        document = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    return _calibration(document, request, facts)


def _follow(request: CalibrationRequest, folder: Path, until_s: float, on_progress: OnProgress) -> Mapping[str, str]:
    """Wait for the processes; returns what the driver said while they worked."""
    given = [str(folder), request.device, str(until_s), *(["tiny"] if request.is_tiny else [])]
    if may_fork(request.device):
        words = forked_words(WORKER, given, num_processes=request.num_processes)
    else:
        words = local_words(WORKER, given, num_processes=request.num_processes, torchrun=PATIENT_TORCHRUN)
    added = {**environment(Layout(), inherited=os.environ), "PYTHONWARNINGS": "ignore"}
    facts: Mapping[str, str] = {}
    with (folder / "output.log").open("wb") as log, session(words, added=added, log=log) as process:
        while process.poll() is None and time.time() < until_s + OVERTIME_S:
            section, done_fraction = _progress(folder)
            on_progress(section, done_fraction)
            if section == "attention" and request.device == "cuda" and not facts:
                facts = _driver_facts()
            time.sleep(POLL_S)
    if not (folder / RESULT_FILE).exists():
        raise _failure(folder, process)
    return facts


def _progress(folder: Path) -> tuple[str, float]:
    path = folder / PROGRESS_FILE
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n") if path.exists() else ("", "", "")
    if not whole:
        return "starting", 0.0
    last = json.loads(whole.rpartition("\n")[2])
    return str(last["section"]), float(last["done_fraction"])


def _driver_facts() -> Mapping[str, str]:
    """Driver, clocks and power limit of the first device; nothing where the driver's tool is missing."""
    words = ["nvidia-smi", f"--query-gpu={CLOCK_QUERY}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(CLOCK_QUERY.split(","), (part.strip() for part in found.split(",")), strict=False))


def _calibration(document: Mapping[str, object], request: CalibrationRequest, facts: Mapping[str, str]) -> Calibration:
    measured = dict(document)
    said = measured.pop("environment")
    assert isinstance(said, dict)
    versions = {**said["versions"], **({"driver": facts["driver_version"]} if facts else {})}
    clocks = {
        name: float(facts[f"clocks.{name}"]) for name in ("sm", "mem") if facts.get(f"clocks.{name}", "").isdigit()
    }
    processor = _processor()
    machine = MachineFacts(
        device_kind=request.device,
        device=said["device"] or processor,
        gpu_id=driver_gpu_id(said["device"]),
        num_processes=request.num_processes,
        host=platform.node(),
        processor=processor,
        versions=tuple(versions.items()),
        clocks_mhz=tuple(clocks.items()),
        power_limit_w=_number(facts.get("power.limit", "")),
        command=request.command,
    )
    blank = Calibration(digest="", date=date.today().isoformat(), machine=machine)
    return calibration_of({**calibration_object(blank), **measured}, name="the calibration")


def _number(text: str) -> float:
    """A number that a driver prints; 0 where the driver says that it does not know."""
    return float(text) if text.replace(".", "", 1).isdigit() else 0.0


def _processor() -> str:
    """The name of the CPU."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _failure(folder: Path, process: "subprocess.Popen[bytes]") -> CalibrationError:
    lines = (folder / "output.log").read_text(encoding="utf-8", errors="replace").splitlines()
    lost = killed_torchrun(process) or next((found[1] for line in lines if (found := LOST.match(line))), "")
    if not lost and any(FORK_SERVER_GONE.search(line) for line in lines):
        lost = FORK_SERVER
    if lost:
        return CalibrationError(
            f"{lost} died without a word, and the measuring processes ended: it was killed from outside",
            code="calibration-failed",
            fix="see whether the host had memory left (dmesg), then calibrate again",
        )
    reasons = [line.strip() for line in lines if REASON.search(line)]
    tail = "\n".join((reasons or lines)[-TAIL_LINES:])
    return CalibrationError(
        f"the measuring processes ended with exit code {process.returncode}; their last words were:\n{tail}",
        code="calibration-failed",
        fix="fewer --processes need less memory; --device cpu measures the CPUs",
    )
