"""Every shipped throughput row, either as a run that a plan repeats or with the reason why none does."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

from benchmarks.published import (
    timed_fms,
    timed_megatron,
    timed_nemo,
    timed_nemo_framework,
    timed_others,
    timed_torchtitan,
)
from benchmarks.published.attention_dates import at_its_date
from benchmarks.published.memory_rows import converted_memory
from benchmarks.published.parts import unused
from benchmarks.published.rows import MeasurementRow, read_rows
from benchmarks.published.timed_parts import TimedConversion

from shardwise.plan import Plan
from shardwise.validate.records import TimedRun, UnusedRow
from shardwise.validate.shipped_runs import TimedRuns

TimedConverter = Callable[[MeasurementRow], TimedConversion]
PlannedConverter = Callable[[MeasurementRow, Plan], TimedConversion]

TIMED_CONVERTERS: dict[str, TimedConverter] = {
    "KORTH": timed_megatron.convert_korthikanti,
    "MLM21": timed_megatron.convert_sc21_table,
    "MLM21T2": timed_megatron.convert_sc21_zero,
    "MTNLG": timed_megatron.convert_mt_nlg,
    "TTITAN": timed_torchtitan.convert_timed_titan,
    "TTPAPER": timed_torchtitan.convert_timed_titan,
    "TTASYNC": timed_torchtitan.convert_timed_titan,
    "TTPERF": timed_torchtitan.convert_timed_titan,
    "LLMF": timed_others.convert_foundry,
    "VTRAINS": timed_megatron.convert_vtrain,
    "VTRAINM": timed_megatron.convert_vtrain_nodes,
    "MBRIDGE": timed_nemo.convert_bridge,
    "AUTOMODEL": timed_nemo.convert_automodel,
    "BLOOMT": timed_others.convert_timed_bloom,
    "EVO": timed_megatron.convert_intern,
    "MEGASC": timed_megatron.convert_megascale,
    "NEM15": timed_megatron.convert_nemotron_4,
    "FATRAIN": timed_others.convert_flash_training,
    "NEMO": timed_nemo_framework.convert_framework,
    "FMSFSDP": timed_fms.convert_fms,
    "TTH200": timed_torchtitan.convert_timed_titan,
    "TORCHAO": timed_torchtitan.convert_timed_titan,
}
"""How a family's rows become plans."""

PLANNED_CONVERTERS: dict[str, PlannedConverter] = {
    "SIMUB200": timed_megatron.convert_timed_simumax,
    "ZBPP": timed_megatron.convert_timed_zero_bubble,
    "TR8": timed_others.convert_timed_tr8,
    "QWEN1": timed_others.convert_timed_qwen,
    "TUNE": timed_others.convert_with_memory_plan,
    "COLOSSAL": timed_others.convert_with_memory_plan,
}
"""Families whose rows print memory too: the plan that repeats the memory repeats the rate."""

NOT_TIMED: dict[str, str] = {
    "KORTHLAYER": "one layer, not a training step",
    "MLM20": "micro-batch and recomputation not stated; V100 of a DGX-2 are not in the catalogue",
    "MLMH100": "micro-batch and virtual stages not stated",
    "MLMJAN21": "micro-batch not stated; an earlier reading of the runs in MLM21",
    "LLAMA3": "micro-batch and virtual stages not stated",
    "MEGASC530": "micro-batch and recomputation not stated; bar labels assigned by order",
    "MEGASCABL": "an ablation of features a plan cannot say",
    "FA2": "batch not stated",
    "TINY": "micro-batch not stated",
    "MISC": "layout or micro-batch not stated",
    "PALMT3": "only a utilisation is printed, for runs of other sources",
    "LLAMAFAC": "samples of variable length, GPU variant not stated",
    "DSBLOG": "model, batch or layout not stated",
    "HFBLOG": "sequence length not printed",
    "MBMOE": "figures rounded with a tilde; batch and layout not stated",
    "MBSKILL": "shared experts beside exchanges, CUDA graphs, which a plan cannot say; or batch not printed",
}
"""Families none of whose rows can be repeated, with the reason."""

SAME_READING = 0.02
"""Rates of one plan that differ by less are one reading published twice: rates are printed to three or four digits."""


@lru_cache
def converted_rates() -> TimedRuns:
    """All rows of ``throughput.csv``: repeatable ones with their plans, the others with a reason."""
    conversions = [convert_timed_row(row) for row in read_rows("throughput")]
    runs = [conversion for conversion in conversions if isinstance(conversion, TimedRun)]
    left_out = [conversion for conversion in conversions if isinstance(conversion, UnusedRow)]
    runs = [replace(run, plan=balanced_by_force(at_its_date(run.plan, run.date))) for run in runs]
    kept, duplicates = without_repeats(runs)
    return TimedRuns(runs=_in_order(kept), unused=(*left_out, *duplicates))


def balanced_by_force(plan: Plan) -> Plan:
    """The plan with even routing where it has experts: a fake gate or a switch of the router, in all of these sources.

    NVIDIA-NeMo/Automodel docs/performance-summary.md; Megatron-Bridge docs/performance-summary.md (moe-training-note).
    """
    if not plan.model.is_moe:
        return plan
    return replace(plan, recipe=replace(plan.recipe, routing_imbalance_ratio=1.0))


def convert_timed_row(row: MeasurementRow) -> TimedConversion:
    """A throughput row as a run with its plan, or the reason why it is none."""
    if row.family in NOT_TIMED:
        return unused(row, NOT_TIMED[row.family])
    if row.text("status") not in ("ok", ""):
        return unused(row, "the run did not finish a step")
    if row.family in TIMED_CONVERTERS:
        return TIMED_CONVERTERS[row.family](row)
    if row.family not in PLANNED_CONVERTERS:
        return unused(row, "no conversion for this family")
    plan = _memory_plans().get(row.id)
    if plan is None:
        return unused(row, _memory_reasons().get(row.id, "no plan repeats the row's memory"))
    return PLANNED_CONVERTERS[row.family](row, plan)


@lru_cache
def _memory_plans() -> dict[str, Plan]:
    return {run.id: run.plan for run in converted_memory().runs}


@lru_cache
def _memory_reasons() -> dict[str, str]:
    return {row.id: row.reason for row in converted_memory().unused}


def without_repeats(runs: Iterable[TimedRun]) -> tuple[list[TimedRun], list[UnusedRow]]:
    """Every plan once per family, its latest reading; and once over all families when the readings agree.

    Two sources that print different rates for one plan keep both: the disagreement is part of the truth.
    """
    latest: dict[object, TimedRun] = {}
    for run in runs:
        key = (run.family, run.variant, _plan_key(run))
        earlier = latest.get(key)
        if earlier is None or run.date >= earlier.date:
            latest[key] = run
    kept: list[TimedRun] = []
    repeats: list[UnusedRow] = []
    published: dict[object, list[TimedRun]] = {}
    for run in runs:
        winner = latest[(run.family, run.variant, _plan_key(run))]
        others = published.setdefault(_plan_key(run), [])
        twin = next((other for other in others if other.family != run.family and _agree(run, other)), None)
        if winner is not run:
            repeats.append(UnusedRow(id=run.id, family=run.family, reason=f"the plan of {winner.id}, a later reading"))
        elif twin is not None:
            reason = f"the same run as {twin.id}, published by another source"
            repeats.append(UnusedRow(id=run.id, family=run.family, reason=reason))
        else:
            others.append(run)
            kept.append(run)
    return kept, repeats


def _agree(one: TimedRun, other: TimedRun) -> bool:
    return abs(one.measured_s / other.measured_s - 1) < SAME_READING


def _plan_key(run: TimedRun) -> object:
    plan = run.plan
    recipe = plan.recipe
    return plan.model.spec_json, plan.cluster.spec_json, recipe, plan.layout, plan.engine, run.gaps


def _in_order(runs: list[TimedRun]) -> tuple[TimedRun, ...]:
    """Runs family by family, as the tables above list them."""
    order = [*TIMED_CONVERTERS, *PLANNED_CONVERTERS]
    return tuple(sorted(runs, key=lambda run: (order.index(run.id.split("-")[0]), run.family)))
