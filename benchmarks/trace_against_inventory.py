"""The trace of the real runtime beside the inventory of the native engine: peak allocated memory, and every collective.

    python benchmarks/trace_against_inventory.py [OUT.md]

Both start from the same plan and share no code that counts: the trace runs our trainer on fake tensors (torch needed,
no GPU), the inventory is arithmetic. Plans are not compiled, since that is what a trace can run.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

import torch

from shardwise.launch.request import TrainRequest, make_job
from shardwise.measure.traced_step import TracedStage
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict.memory import predict_memory
from shardwise.render.names import layout_text
from shardwise.step.collectives import stage_collectives
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.train.tracing.step_record import traced_step
from shardwise.units import GIB, MIB

Parts = Mapping[str, object]
SEQ_LEN = 4096
PLANS: tuple[tuple[str, str, Parts, Parts], ...] = (
    ("llama-3.2-1b", "1xh100-sxm", {}, {}),
    ("llama-3.2-1b", "1xh100-sxm", {"precision": "bf16"}, {}),
    ("llama-3.2-1b", "8xh100-sxm", {"precision": "bf16"}, {"dp_shard": 8, "zero_stage": 0}),
    ("llama-3.2-1b", "8xh100-sxm", {"micro_batch_size": 4}, {"dp_shard": 8}),
    ("llama-3.2-3b", "8xh100-sxm", {}, {"dp_shard": 8, "zero_stage": 0}),
    ("llama-3.2-3b", "8xh100-sxm", {"recompute": "full", "global_batch_size": 32}, {"dp_shard": 8}),
    ("llama-3.1-8b", "8xh100-sxm", {}, {"dp_shard": 8}),
    ("llama-3.1-8b", "8xh100-sxm", {"recompute": "selective"}, {"dp_shard": 8}),
    ("llama-3.1-8b", "8xh100-sxm", {"recompute": "full"}, {"dp_shard": 8}),
    ("llama-3.1-8b", "8xh100-sxm", {"global_batch_size": 64}, {"dp_shard": 8}),
    ("llama-3.1-8b", "8xh100-sxm", {"global_batch_size": 64}, {"dp_shard": 8, "zero_stage": 2}),
    ("llama-3.1-8b", "8xh100-sxm", {"global_batch_size": 64}, {"dp_shard": 8, "zero_stage": 1}),
    ("llama-3.1-8b", "8xh100-sxm", {"global_batch_size": 32}, {"dp_shard": 8, "defer_grad_reduce": True}),
    ("llama-3.1-8b", "8xh100-sxm", {"precision": "fp16-mixed"}, {"dp_shard": 8, "reshard_after_forward": False}),
    ("llama-3.1-8b", "8xh100-sxm", {"optimizer": "sgd-momentum"}, {"dp_shard": 8, "prefetch_units": 2}),
    ("llama-3.1-8b", "16xh100-sxm", {}, {"dp_shard": 8, "dp_replicate": 2}),
    ("llama-3.1-8b", "16xh100-sxm", {"global_batch_size": 64}, {"dp_shard": 8, "dp_replicate": 2}),
    ("llama-3.1-8b", "8xh100-sxm", {}, {"dp_shard": 2, "tp": 4, "sequence_parallel": False}),
    ("llama-3.1-8b", "8xh100-sxm", {}, {"dp_shard": 2, "tp": 4, "sequence_parallel": True}),
    ("llama-3.1-8b", "8xh100-sxm", {"recompute": "full"}, {"dp_shard": 2, "tp": 4}),
    ("llama-3.1-8b", "8xh100-sxm", {"recompute": "selective"}, {"dp_shard": 2, "tp": 4}),
    ("llama-3.1-8b", "2xh200-sxm", {"recompute": "full"}, {"dp_shard": 1, "tp": 2}),
    ("llama-3.2-3b", "2xh100-sxm", {"recompute": "selective"}, {"dp_shard": 1, "dp_replicate": 2}),
    ("llama-3.1-8b", "8xh100-sxm", {"recompute": "full"}, {"dp_shard": 8, "reshard_after_forward": False}),
    ("llama-3.1-8b", "8xh100-sxm", {"seq_len": 16384}, {"dp_shard": 2, "cp": 4}),
    ("llama-3.1-8b", "8xh100-sxm", {"seq_len": 16384, "recompute": "full"}, {"dp_shard": 2, "cp": 4}),
    ("llama-3.1-8b", "8xh100-sxm", {"global_batch_size": 16}, {"dp_shard": 2, "pp": 4}),
    ("llama-3.1-8b", "8xh100-sxm", {"global_batch_size": 8}, {"pp": 4, "tp": 2}),
    ("llama-2-7b", "8xh100-sxm", {"precision": "fp32", "recompute": "full"}, {"dp_shard": 8}),
    ("llama-3.1-70b", "64xh100-sxm", {"recompute": "full"}, {"dp_shard": 64}),
    ("llama-3.1-70b", "64xh100-sxm", {"recompute": "full"}, {"dp_shard": 8, "tp": 8}),
    ("qwen3-8b", "8xh100-sxm", {}, {"dp_shard": 8}),
    ("qwen3-8b", "8xh100-sxm", {}, {"dp_shard": 4, "tp": 2, "sequence_parallel": False}),
    ("qwen2.5-7b", "8xh100-sxm", {"recompute": "selective"}, {"dp_shard": 8}),
    ("qwen3-0.6b", "8xh100-sxm", {"micro_batch_size": 2}, {"dp_shard": 8}),
    ("mixtral-8x7b", "8xh100-sxm", {}, {"dp_shard": 8}),
    ("mixtral-8x7b", "8xh100-sxm", {}, {"dp_shard": 8, "ep": 8}),
    ("mixtral-8x7b", "8xh100-sxm", {"recompute": "full"}, {"dp_shard": 8, "ep": 8}),
    ("qwen3-30b-a3b", "16xh100-sxm", {"recompute": "full"}, {"dp_shard": 16, "ep": 8}),
)
"""Model, cluster, recipe and layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One stage of one plan on both roads."""

    plan: Plan
    stage: int
    traced_bytes: int
    predicted_bytes: int
    difference: Counter[tuple[str, int, str]]
    """Bytes of collectives by kind and ranks that one road has more of; empty when they are equal."""
    trace_s: float

    @property
    def error_fraction(self) -> float:
        """The inventory over the trace, minus one."""
        return self.predicted_bytes / self.traced_bytes - 1


def compare(model: str, cluster: str, recipe: Parts, layout: Parts) -> Iterator[Compared]:
    """Every stage of a plan that is traced."""
    asked = {"seq_len": SEQ_LEN, "compile": False, **recipe}
    plan = read_plan({"model": model, "cluster": cluster, "recipe": asked, "layout": layout})
    start = time.perf_counter()
    traced = traced_step(make_job(plan, TrainRequest(), prediction=None, run_folder=""))
    trace_s = time.perf_counter() - start
    stages = pipeline_stages(model=plan.model, layout=plan.layout)
    predicted = predict_memory(plan).stages
    for stage in traced.stages:
        context = StageContext(plan=plan, stage=stages[stage.stage])
        yield Compared(
            plan=plan,
            stage=stage.stage,
            traced_bytes=stage.peak.allocated_bytes,
            predicted_bytes=predicted[stage.stage].peak_allocated_bytes,
            difference=_difference(stage, context),
            trace_s=trace_s,
        )


def _difference(stage: TracedStage, context: StageContext) -> Counter[tuple[str, int, str]]:
    traced: Counter[tuple[str, int]] = Counter()
    for call in stage.collectives:
        traced[call.kind, call.group_size] += call.total_bytes
    predicted: Counter[tuple[str, int]] = Counter()
    for call in stage_collectives(context):
        predicted[call.kind, call.group_size] += call.num_bytes * call.count
    found: Counter[tuple[str, int, str]] = Counter()
    for key in set(traced) | set(predicted):
        more = traced[key] - predicted[key]
        if abs(more) > _rounding(key[0], context):
            found[(*key, "trace" if more > 0 else "inventory")] = abs(more)
    return found


def _rounding(kind: str, context: StageContext) -> int:
    """DDP's equal buckets are rounded up to whole bytes, one by one."""
    is_bucketed = kind == "all_reduce" and not context.gathers_parameters
    return 1024 if is_bucketed else 0


def table(rows: list[Compared]) -> Iterator[str]:
    """The record as Markdown."""
    errors = [abs(row.error_fraction) for row in rows]
    num_equal = sum(not row.difference for row in rows)
    yield f"# Trace against inventory, {date.today().isoformat()}"
    yield ""
    yield f"`python benchmarks/trace_against_inventory.py`, torch {torch.__version__}, sequences of {SEQ_LEN} tokens"
    yield "unless said, bf16-mixed, AdamW, not compiled. The error is the inventory over the trace, minus one."
    yield ""
    yield f"Peak allocated: median error {median(errors):.2%}, largest {max(errors):.2%}, over {len(rows)} stages of "
    yield f"{len(PLANS)} plans. Collectives equal, kind by kind and byte by byte: {num_equal} of {len(rows)}."
    yield ""
    yield "| model | layout | recipe | stage | trace GiB | inventory GiB | error | collectives | s |"
    yield "| --- | --- | --- | --: | --: | --: | --: | --- | --: |"
    for row in rows:
        said = ", ".join(
            f"{kind} over {size}: {mib / MIB:,.2f} MiB more in the {road}"
            for (kind, size, road), mib in row.difference.items()
        )
        yield (
            f"| {row.plan.model.name} | {layout_text(row.plan.layout)} | {_recipe(row.plan)} | {row.stage} "
            f"| {row.traced_bytes / GIB:.2f} | {row.predicted_bytes / GIB:.2f} | {row.error_fraction:+.2%} "
            f"| {said or 'equal'} | {row.trace_s:.0f} |"
        )


def _recipe(plan: Plan) -> str:
    recipe = plan.recipe
    parts = [recipe.precision, f"recompute {recipe.recompute}", f"{plan.num_microbatches} micro-batches"]
    if recipe.seq_len != SEQ_LEN:
        parts.append(f"{recipe.seq_len} tokens")
    if recipe.micro_batch_size > 1:
        parts.append(f"of {recipe.micro_batch_size}")
    if recipe.optimizer != "adamw":
        parts.append(recipe.optimizer)
    return ", ".join(parts)


def main(words: list[str]) -> None:
    """Compare all plans; write the table to a file when one is named."""
    rows: list[Compared] = []
    for plan in PLANS:
        for row in compare(*plan):
            rows.append(row)
            print(f"{plan[0]} {dict(plan[3])} {dict(plan[2])} stage {row.stage}: {row.error_fraction:+.2%}", flush=True)
            for key, num_bytes in row.difference.items():
                print("   ", key, num_bytes)
    text = "\n".join(table(rows)) + "\n"
    if words:
        Path(words[0]).write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
