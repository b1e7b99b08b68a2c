"""The best published run of the same kind as a plan, which a prediction and a report are held beside.

``catalog/measurements/best_runs.csv`` has the fastest of the published runs of every kind (``shardwise validate``);
``benchmarks/published`` counts their MFU by our convention and writes it.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from shardwise.plan import Plan
from shardwise.predict.model_flop import plan_flop_per_token
from shardwise.prediction import Prediction

SAME_PEAK_FRACTION = 0.02
NEAR_SIZE_RATIO = 1.5
"""A published run of a model that is up to so many times larger or smaller is of the same kind."""
NEAR_LENGTH_RATIO = 2.0
"""A run counts as alike if its sequences are at most so many times longer or shorter, as attention grows with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRun:
    """The published run with the highest MFU on the same peak, of the same kind, size and length of sequences."""

    id: str
    model: str
    seq_len: int
    num_gpus: int
    gpu: str
    engine: str
    precision: str
    tokens_per_s_per_gpu: float
    mfu_fraction: float
    source: str


def best_published(plan: Plan) -> BestRun | None:
    """The published run of a comparable model on the same peak with the highest MFU; ``None`` where there is none."""
    peak = plan.cluster.gpu.peak_flop_per_s("bf16")
    if not peak:
        return None
    text = files("shardwise.catalog").joinpath("measurements", "best_runs.csv").read_text(encoding="utf-8")
    columns, *rows = csv.reader(text.splitlines())
    place = columns.index("peak_flop_per_s")
    alike = {text for text in {cells[place] for cells in rows} if abs(float(text) / peak - 1) < SAME_PEAK_FRACTION}
    same_peak = (dict(zip(columns, cells, strict=True)) for cells in rows if cells[place] in alike)
    near = (row for row in same_peak if _is_comparable(row, plan))
    best = max(near, key=lambda row: float(row["mfu_fraction"]), default=None)
    if best is None:
        return None
    return BestRun(
        id=best["id"],
        model=best["model"],
        seq_len=int(best["seq_len"]),
        num_gpus=int(best["num_gpus"]),
        gpu=best["gpu"],
        engine=best["engine"],
        precision=best["precision"],
        tokens_per_s_per_gpu=float(best["tokens_per_s_per_gpu"]),
        mfu_fraction=float(best["mfu_fraction"]),
        source=best["source"],
    )


def published_below(plan: Plan, prediction: Prediction) -> BestRun | None:
    """The best published run if the whole band of a prediction lies above it; ``None`` otherwise.

    Both are shares of the same peak, whatever peak the precision of the plan has.
    """
    best, rate = best_published(plan), prediction.throughput
    if best is None:
        return None
    slowest_tokens_per_s = rate.tokens_per_s_per_gpu * prediction.time.step_s / prediction.time.step_high_s
    peak = plan.cluster.gpu.peak_flop_per_s("bf16")
    return best if peak and plan_flop_per_token(plan) * slowest_tokens_per_s / peak > best.mfu_fraction else None


def _is_comparable(row: Mapping[str, str], plan: Plan) -> bool:
    """Whether a run trains a model of this kind and size, as long sequences, in products of this width."""
    recipe, model = plan.recipe, plan.model
    return (
        row["adapter"] == recipe.adapter
        and (row["is_moe"] == "1") == model.is_moe
        and row["precision"].startswith("fp8") == recipe.precision.startswith("fp8")
        and _is_within(int(row["num_active_params"]) / model.num_active_params, NEAR_SIZE_RATIO)
        and _is_within(int(row["seq_len"]) / recipe.seq_len, NEAR_LENGTH_RATIO)
    )


def _is_within(ratio: float, most: float) -> bool:
    return 1 / most <= ratio <= most
