"""Rates measured on torchtitan: its benchmark pages, its paper and the history of its performance page."""

from dataclasses import replace

from benchmarks.published.parts import unused
from benchmarks.published.rows import MeasurementRow
from benchmarks.published.timed_parts import TimedConversion, machines, timed
from benchmarks.published.torchtitan import ASSUMPTIONS, titan_plan

from shardwise.validate.records import UnusedRow

OVER_RDMA = "400 Gb/s RDMA per GPU is read as RoCE, the back-end network of Grand Teton"
A100_NETWORK = "the network of the 64 A100 is not stated; HDR InfiniBand is assumed"
NO_COMPILE = "run without torch.compile, which the tables name only where it is on"


def convert_timed_titan(row: MeasurementRow) -> TimedConversion:
    """A TTITAN, TTPAPER, TTASYNC or TTPERF row."""
    if "rowwise" in row.text("precision"):
        return unused(
            row, "row-wise float8 scaling is not a precision a recipe knows; the source calls its baseline low"
        )
    plan = titan_plan(row)
    if isinstance(plan, UnusedRow):
        return plan
    on_a100 = row.text("gpu").startswith("A100")
    network = "ib-hdr" if on_a100 else "roce-400"
    cluster = machines(gpu_label=row.text("gpu"), num_gpus=plan.layout.world_size, network=network)
    layout = replace(plan.layout, async_tensor_parallel=uses_async_tp(row))
    return timed(
        row,
        replace(plan, cluster=cluster, layout=layout),
        assumptions=(*ASSUMPTIONS, A100_NETWORK if on_a100 else OVER_RDMA, *(_compile_note(row))),
    )


def _compile_note(row: MeasurementRow) -> tuple[str, ...]:
    return () if row.text("compile") else (NO_COMPILE,)


def uses_async_tp(row: MeasurementRow) -> bool:
    """Whether the row says that tensor-parallel collectives ran under products."""
    if "vanilla" in row.text("notes"):
        return False
    said = f"{row.text('notes')} {row.text('precision')} {row.text('source_table')}".lower()
    return "asynctp" in said or "async tp" in said
