"""Published bills of whole training runs beside what the cost model says of them: GPU-hours, days, dollars, energy.

GPU-hours are predicted from parameters, tokens and hardware alone, with the rate the source reports for its run, or
else with the default MFU and the band of published ones. The other figures follow from the hours that the source
prints, so they test one step each: hours over GPUs, hours times price, hours times power.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shardwise.catalog import load_gpu
from shardwise.cluster import Gpu
from shardwise.formulas import run_cost
from shardwise.formulas.flop_counts import six_n_flop_per_token
from shardwise.predict.cost import TYPICAL_MFU_FRACTION
from shardwise.predict.cost_sensitivity import HIGH_MFU_FRACTION, LOW_MFU_FRACTION
from shardwise.predict.goodput import predict_goodput
from shardwise.units import SECONDS_PER_DAY, SECONDS_PER_HOUR
from shardwise.validate.records import UnusedRow
from shardwise.validate.rows import MeasurementRow, read_rows

BillQuantity = Literal["GPU-hours", "days", "dollars", "MWh"]

GPU_IDS = {
    "A100-40GB": "a100-sxm-40",
    "A100-80GB": "a100-sxm-80",
    "H100": "h100-sxm",
    "H100-80GB": "h100-sxm",
    "H800": "h800-sxm",
    "TPU v4": "tpu-v4",
    "V100": "v100-sxm2-32",
}
"""The part of the catalogue by the accelerator's name in the table."""
HOURS_PER_DAY = SECONDS_PER_DAY / SECONDS_PER_HOUR
UNSTATED_GPUS = 2048
"""Assumed for goodput alone where the source does not say how many; a job of 512 differs by two points."""
PRINTED_DIGITS_FRACTION = 0.05
"""What the rounding of printed figures leaves open: bills print two to four digits, days at least one."""
FACILITY_OVERHEAD_RATIO = 1.1
"""Power usage effectiveness of the LLaMA runs (arXiv:2302.13971, table 15); bills print energy with or without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillComparison:
    """One figure of one published bill."""

    id: str
    model: str
    source: str
    quantity: BillQuantity
    """The unit of the four figures below."""
    published_amount: float
    predicted_amount: float
    low_amount: float
    high_amount: float
    basis: str
    """What the prediction rests on."""

    @property
    def signed_error_fraction(self) -> float:
        """Predicted over published minus one: negative is too cheap."""
        return self.predicted_amount / self.published_amount - 1

    @property
    def is_in_band(self) -> bool:
        """Whether the published figure lies between the predicted ends."""
        return self.low_amount <= self.published_amount <= self.high_amount


@dataclass(frozen=True, slots=True, kw_only=True)
class BillReport:
    """Every published bill that states enough, and why the others do not."""

    rows: tuple[BillComparison, ...]
    unused: tuple[UnusedRow, ...]

    @property
    def in_band_fraction(self) -> float:
        """Share of the figures inside their band."""
        return sum(row.is_in_band for row in self.rows) / len(self.rows)


def run_bills() -> BillReport:
    """Compare every shipped row of ``catalog/measurements/cost.csv``."""
    compared: list[BillComparison] = []
    unused: list[UnusedRow] = []
    for row in read_rows("cost"):
        figures = tuple(_comparisons(row))
        compared.extend(figures)
        if not figures:
            unused.append(UnusedRow(id=row.id, family=row.family, reason=_missing(row)))
    return BillReport(rows=tuple(compared), unused=tuple(unused))


def _comparisons(row: MeasurementRow) -> Iterator[BillComparison]:
    gpu_id = GPU_IDS.get(row.text("accelerator"))
    if gpu_id is None:
        return
    gpu = load_gpu(gpu_id)
    yield from _hours(row, gpu)
    yield from _follows_from_hours(row, gpu)


def _hours(row: MeasurementRow, gpu: Gpu) -> Iterator[BillComparison]:
    """Hours from parameters and tokens; days where the source prints only those."""
    params = row.number("n_active_params") or row.number("n_params")
    tokens, hours, days, num_gpus = (row.number("tokens"), row.number("accelerator_hours"), *_days_and_gpus(row))
    if params is None or tokens is None or (hours is None and (days is None or num_gpus is None)):
        return
    flop = six_n_flop_per_token(num_params=params) * tokens
    peak = gpu.peak_flop_per_s("bf16") or gpu.peak_flop_per_s("fp16") or 0.0
    low_mfu, mfu, high_mfu, basis = _mfu(row)
    goodput = predict_goodput(num_gpus=num_gpus or UNSTATED_GPUS)
    quantity: BillQuantity = "GPU-hours" if hours is not None else "days"
    divisor = 1.0 if hours is not None else (num_gpus or 1) * HOURS_PER_DAY

    def amount(mfu_fraction: float, goodput_fraction: float) -> float:
        total = run_cost.gpu_hours(
            total_flop=flop, peak_flop_per_s=peak, mfu_fraction=mfu_fraction, goodput_fraction=goodput_fraction
        )
        return total / divisor

    yield BillComparison(
        id=row.id,
        model=row.text("model"),
        source=row.text("source"),
        quantity=quantity,
        published_amount=hours if hours is not None else days or 0.0,
        predicted_amount=amount(mfu, goodput.fraction),
        low_amount=amount(high_mfu, goodput.high_fraction),
        high_amount=amount(low_mfu, goodput.low_fraction),
        basis=basis,
    )


def _mfu(row: MeasurementRow) -> tuple[float, float, float, str]:
    """Lowest, likely and highest MFU of the run, and who says so."""
    printed = [float(number) / 100 for number in re.findall(r"[\d.]+", row.text("mfu_pct"))]
    if printed:
        low, high = min(printed), max(printed)
        return low, (low + high) / 2, high, f"the source's MFU, {row.text('mfu_pct')} %"
    return LOW_MFU_FRACTION, TYPICAL_MFU_FRACTION, HIGH_MFU_FRACTION, "the default MFU"


def _follows_from_hours(row: MeasurementRow, gpu: Gpu) -> Iterator[BillComparison]:
    """Days, dollars and energy from the printed hours."""
    hours = row.number("accelerator_hours")
    if hours is None:
        return
    days, num_gpus = _days_and_gpus(row)
    usd, price = row.number("cost_usd"), row.number("usd_per_accel_hour")
    energy = row.number("energy_mwh")
    if days is not None and num_gpus is not None:
        yield _step(row, "days", days, run_cost.run_days(gpu_hours=hours, num_gpus=num_gpus), "printed hours over GPUs")
    if usd is not None and price is not None:
        yield _step(row, "dollars", usd, run_cost.run_usd(gpu_hours=hours, usd_per_gpu_hour=price), "hours times price")
    if energy is not None and gpu.tdp_w:
        mwh = run_cost.energy_mwh(gpu_hours=hours, gpu_power_w=gpu.tdp_w)
        yield _step(row, "MWh", energy, mwh, "hours times rated power", overhead_ratio=FACILITY_OVERHEAD_RATIO)


def _step(
    row: MeasurementRow,
    quantity: BillQuantity,
    published: float,
    predicted: float,
    basis: str,
    *,
    overhead_ratio: float = 1.0,
) -> BillComparison:
    return BillComparison(
        id=row.id,
        model=row.text("model"),
        source=row.text("source"),
        quantity=quantity,
        published_amount=published,
        predicted_amount=predicted,
        low_amount=predicted * (1 - PRINTED_DIGITS_FRACTION),
        high_amount=predicted * (1 + PRINTED_DIGITS_FRACTION) * overhead_ratio,
        basis=basis,
    )


def _days_and_gpus(row: MeasurementRow) -> tuple[float | None, int | None]:
    counted = re.search(r"\d+", row.text("n_accelerators"))
    return row.number("wall_time_days"), int(counted.group()) if counted else None


def _missing(row: MeasurementRow) -> str:
    """Why nothing of this row can be compared."""
    accelerator = row.text("accelerator")
    if accelerator not in GPU_IDS:
        return f"{accelerator or 'the accelerator'} is not a part whose rate the catalogue has"
    if row.number("tokens") is None:
        return "tokens not stated"
    return "neither hours nor days with the number of accelerators are printed"
