"""A cluster with its calibration, and what a person should know of that: its origin, and what it does not cover."""

from collections.abc import Iterator
from dataclasses import replace

from shardwise.calibration import Calibration
from shardwise.cluster import Cluster

MOST_NAMED_PARTS = 2
"""A calibration that timed no more parts than this is named by them; `shardwise calibrate` times everything."""


def calibrated_cluster(cluster: Cluster, calibration: Calibration) -> Cluster:
    """The cluster as it was measured; its assumptions begin with where that was, and what it does not cover."""
    measured = replace(cluster, calibration=calibration)
    notes = (_origin(calibration), *calibration_doubts(measured))
    return replace(measured, assumptions=(*notes, *cluster.assumptions))


def _origin(calibration: Calibration) -> str:
    machine = calibration.machine
    timed = calibration.timed_parts
    parts = [f"{' and '.join(timed)} alone as measured"] if timed else []
    if len(timed) > MOST_NAMED_PARTS:
        parts = ["kernels, links and host as measured"]
    if calibration.residuals:
        parts.append(f"factors from {max(residual.num_runs for residual in calibration.residuals)} run(s)")
    where = f"{machine.num_processes} x {machine.device}" + (f" ({machine.host})" if machine.host else "")
    return f"calibrated on {calibration.date}, {where}: {' and '.join(parts) or 'nothing measured'}"


def calibration_doubts(cluster: Cluster) -> Iterator[str]:
    """Where the calibration was taken on something else than the cluster."""
    calibration, gpu = cluster.calibration, cluster.gpu
    if calibration is None:
        return
    machine = calibration.machine
    is_own = gpu.confidence == "user"
    if machine.gpu_id != gpu.id and not (is_own and not machine.gpu_id):
        yield f"the calibration is from another device: {machine.device}, while the plan's cluster has {gpu.name}"
    if cluster.num_nodes > 1:
        yield "the calibration saw one host: links between hosts stay the catalogue's"
    if machine.num_processes < min(cluster.num_gpus, cluster.node.gpus_per_node) and calibration.is_measured:
        yield (f"the calibration timed groups of up to {machine.num_processes} ranks: larger ones are scaled from them")
