"""The fastest published run of every kind, as ``best_runs.csv`` ships them."""

import csv
import io
from collections.abc import Iterable

from shardwise.predict.model_flop import plan_flop_per_token
from shardwise.validate.records import TimedRun

COLUMNS = (
    "id", "model", "num_active_params", "is_moe", "seq_len", "num_gpus", "gpu", "peak_flop_per_s", "engine",
    "precision", "adapter", "tokens_per_s_per_gpu", "mfu_fraction", "source",
)  # fmt: skip


def best_runs_text(runs: Iterable[TimedRun]) -> str:
    """A table of the runs that no run of the same peak, model size, length, adapter and width of products exceeds.

    The MFU is by our convention, over the dense bf16 peak. Runs on parts without a published one are left out.
    """
    best: dict[tuple[object, ...], tuple[object, ...]] = {}
    for run in runs:
        plan = run.plan
        model, recipe, gpu = plan.model, plan.recipe, plan.cluster.gpu
        peak = gpu.peak_flop_per_s("bf16")
        if not peak:
            continue
        rate = plan.tokens_per_step / run.measured_s / plan.layout.world_size
        mfu = plan_flop_per_token(plan) * rate / peak
        kind = (peak, model.num_active_params, model.is_moe, recipe.seq_len, recipe.adapter, recipe.precision)
        if kind in best and float(str(best[kind][-2])) >= mfu:
            continue
        what = (run.id, model.name, model.num_active_params, int(model.is_moe), recipe.seq_len, plan.layout.world_size)
        where = (gpu.name, f"{peak:.6g}", plan.engine, recipe.precision, recipe.adapter)
        best[kind] = (*what, *where, f"{rate:.6g}", f"{mfu:.6f}", run.source)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(best.values())
    return table.getvalue()
