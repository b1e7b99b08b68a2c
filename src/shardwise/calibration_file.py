"""Calibrations as files: ``shardwise.calibration/2``, JSON whose keys are the fields of the records."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from hashlib import sha256
from pathlib import Path
from typing import TypeVar, get_args, get_type_hints

from shardwise.calibration import (
    CALIBRATION_SCHEMA,
    FIRST_SCHEMA,
    AttentionPoint,
    BlockPoint,
    Calibration,
    GroupTable,
    MachineFacts,
    ProductPoint,
    Residual,
    TablesPoint,
    TimedBytes,
)
from shardwise.errors import CalibrationError

Record = TypeVar("Record")
DIGEST_CHARACTERS = 16
MAX_BYTES = 20_000_000
PAIRS = ("versions", "clocks_mhz")
ZEROS = ("meeting_s", "power_limit_w", "num_runs", "disk_write_bytes_per_s", "disk_read_bytes_per_s")
"""Fields that may be 0 because there was nothing to measure; predictions divide by all others."""
LEAST, MOST = 1e-12, 1e18
"""Every duration, rate, size and ratio lies between these two."""
FIRST_UPDATE_RATIO = 32 / 40
"""Bytes an update moved over those that files of the first schema say: a pass that scales gradients was not timed."""
RATES = (
    "kernel_launch_s",
    "overlap_slowdown_ratio",
    "meeting_s",
    "host_to_device_bytes_per_s",
    "device_to_host_bytes_per_s",
    "disk_write_bytes_per_s",
    "disk_read_bytes_per_s",
)
"""Single numbers of a calibration; ``None`` where they were not measured."""


def read_calibration(path: Path) -> Calibration:
    """The calibration in a file.

    Raises:
        CalibrationError: the file cannot be read, or is no calibration of this version.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _broken(str(path), f"it has more than {MAX_BYTES:,} bytes")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise CalibrationError(
            f"cannot read the calibration '{path}': {error.strerror}",
            code="calibration-file",
            fix="write one with `shardwise calibrate --out FILE`",
        ) from None
    except (ValueError, RecursionError) as error:
        raise _broken(str(path), f"it is not JSON ({error!s:.120})") from None
    return calibration_of(document, name=str(path))


def calibration_of(document: object, *, name: str) -> Calibration:
    """The calibration in a parsed document.

    Raises:
        CalibrationError: it is none, or a number in it is none.
    """
    if not isinstance(document, dict):
        raise _broken(name, "it is not a JSON object")
    schema = document.get("schema")
    if schema not in (CALIBRATION_SCHEMA, FIRST_SCHEMA):
        raise CalibrationError(
            f"'{name}' has the schema {str(schema)[:60]!r}, not {CALIBRATION_SCHEMA}",
            code="calibration-schema",
            fix="measure again with `shardwise calibrate`",
        )
    reader = _Reader(name)
    optimizer = reader.records(TimedBytes, document, "optimizer")
    if schema == FIRST_SCHEMA:
        optimizer = tuple(replace(point, num_bytes=round(FIRST_UPDATE_RATIO * point.num_bytes)) for point in optimizer)
    single = {key: reader.number(document[key], key) for key in RATES if document.get(key) is not None}
    return Calibration(
        digest=digest_of(document),
        date=str(document.get("date", "")),
        machine=reader.record(MachineFacts, document.get("machine"), "machine"),
        products=reader.records(ProductPoint, document, "products"),
        attention=reader.records(AttentionPoint, document, "attention"),
        moves=reader.records(TimedBytes, document, "moves"),
        optimizer=optimizer,
        collectives=reader.records(GroupTable, document, "collectives"),
        blocks=reader.records(BlockPoint, document, "blocks"),
        tables=reader.records(TablesPoint, document, "tables"),
        residuals=reader.records(Residual, document, "residuals"),
        **single,
    )


def calibration_object(calibration: Calibration) -> dict[str, object]:
    """The document that :func:`calibration_of` turns into an equal calibration."""
    values = {name: value for name, value in asdict(calibration).items() if name != "digest"}
    machine = values["machine"]
    values["machine"] = {**machine, **{name: dict(machine[name]) for name in PAIRS}}
    return {"schema": CALIBRATION_SCHEMA, **values}


def digest_of(document: Mapping[str, object]) -> str:
    """Digest of a document's content, whatever the order of its keys."""
    text = json.dumps(document, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]


class _Reader:
    """Records out of a document, each field checked against its type."""

    def __init__(self, name: str) -> None:
        self._name = name

    def records(self, kind: type[Record], document: Mapping[str, object], key: str) -> tuple[Record, ...]:
        rows = document.get(key, [])
        if not isinstance(rows, list | tuple):
            raise _broken(self._name, f"{key} is not a list")
        return tuple(self.record(kind, row, f"{key}[{index}]") for index, row in enumerate(rows))

    def record(self, kind: type[Record], row: object, where: str) -> Record:
        if not isinstance(row, dict):
            raise _broken(self._name, f"{where} is not an object")
        hints = get_type_hints(kind)
        values: dict[str, object] = {}
        for field in fields(kind):  # type: ignore[arg-type]
            if field.name in row:
                values[field.name] = self._value(row[field.name], hints[field.name], f"{where}.{field.name}")
        try:
            return kind(**values)
        except TypeError:
            missing = sorted({field.name for field in fields(kind)} - set(values))  # type: ignore[arg-type]
            raise _broken(self._name, f"{where} lacks {', '.join(missing)}") from None

    def number(self, value: object, where: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_measured(value, where):
            raise _broken(self._name, f"{where} is {str(value)[:40]!r}, not a number that can be measured")
        return float(value)

    def _pair(self, value: object, where: str, *, is_clock: bool) -> object:
        if is_clock:
            return self.number(value, where)
        if isinstance(value, str):
            return value
        raise _broken(self._name, f"{where} is {str(value)[:40]!r}, not text")

    def _value(self, value: object, hint: object, where: str) -> object:
        if hint in (int, float):
            number = self.number(value, where)
            return round(number) if hint is int else number
        if hint is bool and isinstance(value, bool):
            return value
        if where.endswith(PAIRS) and isinstance(value, dict):
            is_clock = where.endswith("clocks_mhz")
            pairs = ((name, self._pair(found, f"{where}.{name}", is_clock=is_clock)) for name, found in value.items())
            return tuple(pairs)
        if where.endswith(".points") and isinstance(value, list | tuple):
            points = tuple(self.record(TimedBytes, point, where) for point in value)
            return tuple(sorted(points, key=lambda point: point.num_bytes))
        if isinstance(value, str) and (not get_args(hint) or value in get_args(hint)):
            return value
        raise _broken(self._name, f"{where} is {str(value)[:40]!r}")


def _is_measured(value: float, where: str) -> bool:
    return LEAST <= value < MOST or (value == 0 and where.rpartition(".")[2] in ZEROS)


def _broken(name: str, why: str) -> CalibrationError:
    return CalibrationError(
        f"'{name}' is no calibration: {why}",
        code="calibration-file",
        fix="measure again with `shardwise calibrate --out FILE`",
    )
