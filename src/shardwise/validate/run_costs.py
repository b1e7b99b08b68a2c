"""Published costs of whole training runs beside what the cost model says of them: GPU-hours, days, dollars, energy.

GPU-hours are predicted from the model, tokens and hardware, with the rate the source reports for its run, the predicted
step of the set-up that it states, or else the default MFU and the band of published ones. The other figures follow from
the hours and days that the source prints, so they test one step each: hours over GPUs, hours times price, hours times
power, a total as the sum of its parts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shardwise.catalog import load_gpu
from shardwise.cluster import Gpu
from shardwise.formulas import run_cost
from shardwise.validate.cost_facts import CostFacts, Span, cost_facts
from shardwise.validate.cost_hours import (
    DEFAULT_MFU_BASIS,
    OWN_RATE_BASIS,
    SETUP_BASIS,
    StatedRun,
    predicted_hours,
    run_hours,
)
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
PRINTED_DIGITS_FRACTION = 0.05
"""What the rounding of printed figures leaves open: bills print two to four digits, days at least one."""
FACILITY_OVERHEAD_RATIO = 1.1
"""Power usage effectiveness of the LLaMA runs (arXiv:2302.13971, table 15), for bills that do not say what they count:
they print energy with or without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCostComparison:
    """One figure of one published bill."""

    id: str
    model: str
    source: str
    quantity: BillQuantity
    """The unit of the six figures below."""
    published_amount: float
    published_low_amount: float
    published_high_amount: float
    """The ends that a rounded figure, or one that is an upper limit, leaves open; else the figure."""
    predicted_amount: float
    low_amount: float
    high_amount: float
    basis: str
    """The basis of the prediction, in words."""
    implied_mfu_fraction: float | None = None
    """The MFU at which the run would have cost what was printed, for bills of hours and days."""
    gap: str = ""
    """Work of the run that no cost can say; such a bill is in no total."""
    fitted: str = ""
    """The constants of the prediction that were taken from this run; such a bill is in no total."""
    note: str = ""
    """What the source says of the bill that the prediction does not know."""

    @property
    def signed_error_fraction(self) -> float:
        """Predicted over published minus one: negative is too cheap."""
        return self.predicted_amount / self.published_amount - 1

    @property
    def is_in_band(self) -> bool:
        """Whether what was published can lie between the predicted ends."""
        return self.low_amount <= self.published_high_amount and self.published_low_amount <= self.high_amount

    @property
    def is_default(self) -> bool:
        """Whether the source states no rate, so that the band comes from most runs and not from this one."""
        return self.basis == DEFAULT_MFU_BASIS and not self.gap

    @property
    def is_of_setup(self) -> bool:
        """Whether the step of the set-up that the source states was predicted."""
        return self.basis == SETUP_BASIS

    @property
    def is_blind(self) -> bool:
        """Whether the source states no rate that the prediction could repeat, and no constant came from the run."""
        return (self.is_default or self.is_of_setup) and not self.fitted

    @property
    def is_of_rate(self) -> bool:
        """Whether the band is that of the source's own rate, and no constant came from the run."""
        return self.basis.startswith(OWN_RATE_BASIS) and not self.fitted

    @property
    def is_step(self) -> bool:
        """Whether it is a step of the source's own arithmetic."""
        return not (self.is_blind or self.is_of_rate or self.gap or self.fitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCostReport:
    """Every published bill that states enough, and why the others do not."""

    rows: tuple[RunCostComparison, ...]
    unused: tuple[UnusedRow, ...]

    @property
    def in_band_fraction(self) -> float:
        """Share of the figures inside their band."""
        return sum(row.is_in_band for row in self.rows) / len(self.rows)

    @property
    def outside(self) -> tuple[RunCostComparison, ...]:
        """The figures that their band misses."""
        return tuple(row for row in self.rows if not row.is_in_band)


def run_costs() -> RunCostReport:
    """Compare every shipped row of ``catalog/measurements/cost.csv``."""
    compared: list[RunCostComparison] = []
    unused: list[UnusedRow] = []
    for row in read_rows("cost"):
        figures = tuple(_comparisons(row, cost_facts().get(row.id, CostFacts())))
        compared.extend(figures)
        if not figures:
            unused.append(UnusedRow(id=row.id, family=row.family, reason=_missing(row)))
    return RunCostReport(rows=tuple(compared), unused=tuple(unused))


def _comparisons(row: MeasurementRow, facts: CostFacts) -> Iterator[RunCostComparison]:
    gpu_id = GPU_IDS.get(row.text("accelerator"))
    gpu = None if gpu_id is None else load_gpu(gpu_id)
    if facts.members:
        yield _step(row, "GPU-hours", _sum_of(facts.members), "sum of the printed parts")
    elif gpu is not None:
        yield from _hours(row, facts, gpu)
    yield from _follows_from_hours(row, facts, gpu)


def _sum_of(members: tuple[str, ...]) -> float:
    return sum(row.number("accelerator_hours") or 0.0 for row in read_rows("cost") if row.id in members)


def _hours(row: MeasurementRow, facts: CostFacts, gpu: Gpu) -> Iterator[RunCostComparison]:
    """Hours from model and tokens; days where the source prints only those."""
    num_gpus = _num_gpus(row)
    run = StatedRun(row=row, facts=facts, gpu=gpu, num_gpus=num_gpus)
    predicted, printed_hours = predicted_hours(run), run_hours(row, num_gpus=num_gpus)
    if predicted is None or printed_hours is None:
        return
    days = None if row.number("accelerator_hours") is not None else row.number("wall_time_days")
    divisor = 1.0 if days is None else printed_hours / days
    published = printed_hours / divisor
    ends = facts.printed or Span(low=published, high=published)
    yield RunCostComparison(
        id=row.id,
        model=row.text("model"),
        source=row.text("source"),
        quantity="GPU-hours" if days is None else "days",
        published_amount=published,
        published_low_amount=ends.low,
        published_high_amount=ends.high,
        predicted_amount=predicted.middle_gpu_hours / divisor,
        low_amount=predicted.low_gpu_hours / divisor,
        high_amount=predicted.high_gpu_hours / divisor,
        basis=predicted.basis,
        implied_mfu_fraction=run.implied_mfu_fraction(printed_hours),
        gap=facts.gap,
        fitted=facts.fitted,
        note=facts.note,
    )


def _follows_from_hours(row: MeasurementRow, facts: CostFacts, gpu: Gpu | None) -> Iterator[RunCostComparison]:
    """Days, dollars and energy from the printed hours, or hours from the printed days."""
    num_gpus = _num_gpus(row)
    hours, days = run_hours(row, num_gpus=num_gpus), row.number("wall_time_days")
    usd, price, energy = (row.number(name) for name in ("cost_usd", "usd_per_accel_hour", "energy_mwh"))
    if hours is None:
        return
    is_printed = row.number("accelerator_hours") is not None and not _are_hours_ours(row)
    if days is not None and num_gpus is not None and is_printed:
        yield _step(row, "days", run_cost.run_days(gpu_hours=hours, num_gpus=num_gpus), "printed hours over GPUs")
    if usd is not None and price is not None:
        yield _step(row, "dollars", run_cost.run_usd(gpu_hours=hours, usd_per_gpu_hour=price), "hours times price")
    power_w = facts.power_w or (gpu.tdp_w if gpu is not None else None)
    if energy is not None and power_w:
        mwh = run_cost.energy_mwh(
            gpu_hours=hours, gpu_power_w=power_w, power_usage_effectiveness=facts.facility_overhead_ratio
        )
        if facts.power_w:
            yield _step(row, "MWh", mwh, "hours times the source's power")
        else:
            yield _step(row, "MWh", mwh, "hours times rated power", overhead_ratio=FACILITY_OVERHEAD_RATIO)


def _are_hours_ours(row: MeasurementRow) -> bool:
    """Whether the table multiplied days and GPUs itself, so that dividing again would say nothing."""
    return "computed" in row.text("notes")


PRINTED_COLUMNS: dict[BillQuantity, str] = {
    "GPU-hours": "accelerator_hours",
    "days": "wall_time_days",
    "dollars": "cost_usd",
    "MWh": "energy_mwh",
}


def _step(
    row: MeasurementRow,
    quantity: BillQuantity,
    predicted: float,
    basis: str,
    *,
    overhead_ratio: float = 1.0,
) -> RunCostComparison:
    """One step of the source's own arithmetic; outside its band the source's figures contradict each other."""
    published = row.number(PRINTED_COLUMNS[quantity]) or 0.0
    return RunCostComparison(
        id=row.id,
        model=row.text("model"),
        source=row.text("source"),
        quantity=quantity,
        published_amount=published,
        published_low_amount=published,
        published_high_amount=published,
        predicted_amount=predicted,
        low_amount=predicted * (1 - PRINTED_DIGITS_FRACTION),
        high_amount=predicted * (1 + PRINTED_DIGITS_FRACTION) * overhead_ratio,
        basis=basis,
    )


def _num_gpus(row: MeasurementRow) -> int | None:
    counted = re.search(r"\d+", row.text("n_accelerators"))
    return int(counted.group()) if counted else None


def _missing(row: MeasurementRow) -> str:
    """Why nothing of this row can be compared."""
    accelerator = row.text("accelerator")
    if accelerator not in GPU_IDS:
        return f"{accelerator or 'the accelerator'} is not a part whose rate the catalogue has"
    if row.number("tokens") is None:
        return "tokens not stated"
    return "neither hours nor days with the number of accelerators are printed"
