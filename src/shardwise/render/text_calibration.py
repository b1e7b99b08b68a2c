"""What a calibration found, in a few lines."""

from collections.abc import Iterator

from shardwise.calibration import Calibration
from shardwise.units import format_bytes_per_s, format_flop_per_s, format_seconds


def calibration_text(calibration: Calibration) -> str:
    """Machine, kernels, links, host and disk."""
    return "\n".join(_lines(calibration))


def _lines(calibration: Calibration) -> Iterator[str]:
    machine = calibration.machine
    versions = ", ".join(f"{name} {value}" for name, value in machine.versions)
    yield f"machine       {machine.num_processes} x {machine.device} on {machine.host or 'an unnamed host'}"
    yield f"measured      {calibration.date}, {versions}"
    if calibration.products:
        best = format_flop_per_s(calibration.best_flop_per_s)
        yield f"products      {len(calibration.products)} timed, the best at {best}"
    if calibration.attention:
        yield f"attention     {len(calibration.attention)} shapes, forward and backward"
    if calibration.moves:
        yield f"memory        {format_bytes_per_s(calibration.best_move_bytes_per_s)} by elementwise kernels"
    yield from _tables(calibration)
    if calibration.blocks:
        yield f"blocks        {len(calibration.blocks)} of our decoder, {len(calibration.tables)} of tables and loss"
    if calibration.kernel_launch_s is not None:
        yield f"launch        {format_seconds(calibration.kernel_launch_s)} a kernel"
    yield from _at_once(calibration)
    copies = (
        ("to device", calibration.host_to_device_bytes_per_s),
        ("to host", calibration.device_to_host_bytes_per_s),
    )
    disk = (("write", calibration.disk_write_bytes_per_s), ("read", calibration.disk_read_bytes_per_s))
    for label, rates in (("copies", copies), ("disk", disk)):
        said = [f"{name} {format_bytes_per_s(rate)}" for name, rate in rates if rate is not None]
        if said:
            yield f"{label:13} {', '.join(said)}"
    for residual in calibration.residuals:
        yield f"from runs     {residual.name}: times {residual.ratio:.3f} by {residual.num_runs} run(s)"


def _at_once(calibration: Calibration) -> Iterator[str]:
    """Collectives among computation."""
    if calibration.overlap_slowdown_ratio is not None:
        ratio = calibration.overlap_slowdown_ratio
        yield f"overlap       computation and a collective at once take {ratio:.2f} times as long"
    if calibration.meeting_s is not None:
        yield f"arrival skew  a call between computations takes {format_seconds(calibration.meeting_s)} longer"


def _tables(calibration: Calibration) -> Iterator[str]:
    for table in calibration.collectives:
        yield (
            f"{table.kind:13} {table.group_size} ranks: {format_bytes_per_s(table.best_bytes_per_s)} of payload, "
            f"from {format_seconds(table.shortest_s)} on"
        )
