"""Every shipped row, either as a run that a plan repeats or with the reason why none does."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from benchmarks.published import (
    bigscience,
    bridge_modules,
    finetuning,
    fms,
    megatron,
    pretraining,
    torchtitan,
)
from benchmarks.published.attention_dates import at_its_date
from benchmarks.published.parts import Conversion, figure_interval_bytes, unused
from benchmarks.published.rows import MeasurementRow, read_rows

from shardwise.validate.records import MeasuredRun, Scope, UnusedRow
from shardwise.validate.shipped_runs import MeasuredRuns

Converter = Callable[[MeasurementRow], Conversion]

CONVERTERS: dict[str, Converter] = {
    "SIMUB200": megatron.convert_simumax,
    "RUNSIMU": megatron.convert_simumax_run,
    "ZBPP": megatron.convert_zero_bubble,
    "TTITAN": torchtitan.convert_row,
    "TTPAPER": torchtitan.convert_row,
    "TTH200": torchtitan.convert_row,
    "TORCHAO": torchtitan.convert_row,
    "RUNTITAN": torchtitan.convert_run,
    "RUNFMS": fms.convert_run,
    "RUNQLORA": finetuning.convert_fsdp_qlora,
    "RUNLITGPT": finetuning.convert_litgpt,
    "BLOOMT": bigscience.convert_bloom_row,
    "TR8": bigscience.convert_tr8_row,
    "TUNE": finetuning.convert_torchtune,
    "RUNTUNE": finetuning.convert_torchtune_run,
    "QWEN1": finetuning.convert_qwen,
    "COLOSSAL": pretraining.convert_colossal,
    "RUNMPT": pretraining.convert_mpt_run,
    "MBSKILL": bridge_modules.convert_modules,
}
"""How a family's rows become plans."""

NOT_CONVERTED: dict[str, str] = {
    "UNSLOTHTAB": "batch and sequence length are those of a linked notebook, and samples vary in length",
    "UNSLOTHCTX": "context limits computed by the source, not measured",
    "HFBLOG": "sequence length not printed; the figure is a budget, not a reading",
    "PEFT": "batch and sequence length not printed",
    "LLAMAFAC": "samples of variable length, GPU variant not stated",
    "MBMOE": "figures rounded with a tilde; batch and layout not stated",
    "EVOMEM": "InternEvo's optimizer is none of the engines a plan names; the tool behind the figure is not stated",
    "RUNBRIDGE": "recomputation not printed, and no memory figure",
}
"""Families none of whose rows can be repeated, with the reason."""

MEMORY_TABLES = ("memory", "runs")

READING_SCOPES: dict[str, Scope] = {"allocated": "allocated", "reserved": "reserved", "device": "device"}


@lru_cache
def converted_memory() -> MeasuredRuns:
    """All rows of ``memory.csv`` and ``runs.csv``: repeatable ones with their plans, the others with a reason."""
    runs: list[MeasuredRun] = []
    left_out: list[UnusedRow] = []
    for table in MEMORY_TABLES:
        for row in read_rows(table):
            conversion = _convert(row)
            if isinstance(conversion, UnusedRow):
                left_out.append(conversion)
            else:
                runs.extend(conversion)
    runs = [replace(run, plan=at_its_date(run.plan, run.date)) for run in runs]
    runs, duplicates = _without_duplicates(runs)
    runs.extend(_further_readings(runs))
    return MeasuredRuns(runs=_with_repeats(runs), unused=tuple(left_out + duplicates))


def _convert(row: MeasurementRow) -> Conversion:
    if row.family in NOT_CONVERTED:
        return unused(row, NOT_CONVERTED[row.family])
    if row.family not in CONVERTERS:
        return unused(row, "no conversion for this family")
    return CONVERTERS[row.family](row)


def _further_readings(runs: list[MeasuredRun]) -> list[MeasuredRun]:
    """Other figures the same source publishes for a run, such as peak reserved beside peak allocated."""
    by_id = {run.id: run for run in runs}
    return [_further_reading(by_id[row.id], row) for row in read_rows("readings") if row.id in by_id]


def _further_reading(run: MeasuredRun, row: MeasurementRow) -> MeasuredRun:
    low, high = figure_interval_bytes(figure=row.text("value"), unit=row.text("unit"))
    stage = row.integer("stage")
    return replace(
        run,
        id=f"{run.id}/{row.text('scope')}" + ("" if stage is None else f"-stage-{stage}"),
        stage=stage,
        measured_low_bytes=low,
        measured_high_bytes=high,
        scope=READING_SCOPES[row.text("scope")],
        decides_outcome=False,
        source=row.text("source"),
        date=row.text("date"),
    )


def _without_duplicates(runs: list[MeasuredRun]) -> tuple[list[MeasuredRun], list[UnusedRow]]:
    """Runs that two sources publish, kept once: the first table that has them."""
    first: dict[object, MeasuredRun] = {}
    kept: list[MeasuredRun] = []
    duplicates: list[UnusedRow] = []
    for run in runs:
        earlier = first.setdefault((_plan_key(run), _reading_key(run)), run)
        if earlier.family == run.family:
            kept.append(run)
        else:
            reason = f"the same run as {earlier.id}, published by another source"
            duplicates.append(UnusedRow(id=run.id, family=run.family, reason=reason))
    return kept, duplicates


def _with_repeats(runs: list[MeasuredRun]) -> tuple[MeasuredRun, ...]:
    counts = Counter((_batchless_key(run), _reading_key(run)) for run in runs)
    return tuple(replace(run, num_repeats=counts[_batchless_key(run), _reading_key(run)]) for run in runs)


def _plan_key(run: MeasuredRun) -> object:
    plan = run.plan
    return plan.model.spec_json, plan.cluster.spec_json, plan.recipe, plan.layout, plan.engine


def _batchless_key(run: MeasuredRun) -> object:
    plan = run.plan
    recipe = replace(plan.recipe, global_batch_size=None)
    return run.family, plan.model.spec_json, plan.cluster.spec_json, recipe, plan.layout, plan.engine


def _reading_key(run: MeasuredRun) -> object:
    return run.measured_low_bytes, run.measured_high_bytes, run.scope, run.stage, run.outcome
