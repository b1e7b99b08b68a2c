"""Which machine runs are of, and the calibration that learns from them."""

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from shardwise.calibration import Calibration
from shardwise.cluster import Cluster
from shardwise.errors import CalibrationError
from shardwise.reconcile.measured import MEASUREMENT_FILE, measurement_in
from shardwise.reconcile.records import machine_of


def base_calibration(runs: Sequence[Path], cluster: Cluster) -> Calibration:
    """The cluster's calibration, or one that knows nothing but the machine of the runs.

    Raises:
        CalibrationError: the runs are of different devices, or of another one than the calibration's.
    """
    environments = [environment_of(run) for run in runs]
    devices = sorted({str(found["device"]) for found in environments if found.get("device")})
    given = cluster.calibration
    known = devices if given is None or given.runs_on_cpu else sorted({*devices, given.machine.device})
    if len(known) > 1:
        raise CalibrationError(
            f"the runs and the calibration are of different devices: {', '.join(known)}",
            code="reconcile-machines",
            fix="give runs of one machine, and its own calibration",
        )
    if given is not None:
        return given
    machine = machine_of(environments[0], num_processes=min(cluster.num_gpus, cluster.node.gpus_per_node))
    return Calibration(digest="runs", date=date.today().isoformat(), machine=machine)


def environment_of(run: Path) -> Mapping[str, object]:
    """Facts of a run of ours about the machine it ran on; empty for logs."""
    file = run / MEASUREMENT_FILE if run.is_dir() else run
    if file.name != MEASUREMENT_FILE or not file.exists():
        return {}
    environment = measurement_in(file).get("environment")
    return environment if isinstance(environment, dict) else {}
