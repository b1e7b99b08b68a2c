"""Our runs of torchtitan, predicted as torchtitan's: step time, allocated and reserved memory.

Usage: python -m benchmarks.torchtitan_accuracy

Reads ``benchmarks/results/*against*.jsonl``, which ``benchmarks/gpu/titan_run.py`` wrote on H100 and H200 with torch
2.11 and expandable segments (``against_peers.sh``). Nothing of the prediction is fitted to them. Three rows have no
peaks of memory, and are left out.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict.memory import predict_memory
from shardwise.predict.time import predict_time

RESULTS = Path(__file__).parent / "results"
SIZES: Mapping[str, Mapping[str, int]] = {
    "ours_1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "ours_3b": {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24},
    "ours_8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
}
"""The flavours of ``benchmarks/gpu/titan_run.py``."""
NUM_GPUS = {"2026-11-28-h100": 4, "2026-11-28-h200": 2, "2026-11-29-h200": 1}
"""By the beginning of the file; each has a page beside it that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TitanRun:
    """One run: its plan and what was measured."""

    name: str
    plan: Plan
    step_s: float
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Predicted over measured, minus one, of one run."""

    name: str
    step: float
    is_step_in_band: bool
    allocated: float
    reserved: float


def titan_runs() -> Iterator[TitanRun]:
    """The runs with peaks of memory, in the order of files and lines."""
    for path in sorted(RESULTS.glob("*against*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if str(row.get("engine")).startswith("torchtitan") and row["peak_allocated_bytes"]:
                yield TitanRun(
                    name=f"{path.stem} {row['name']}",
                    plan=_plan(row, num_gpus=NUM_GPUS[path.name[:15]]),
                    step_s=row["step_s"],
                    allocated_bytes=row["peak_allocated_bytes"],
                    reserved_bytes=row["peak_reserved_bytes"],
                )


def _plan(row: Mapping[str, object], *, num_gpus: int) -> Plan:
    words = [str(word) for word in row["words"]]  # type: ignore[attr-defined]
    said = dict(pairwise(words))
    batch = int(said["--training.local_batch_size"])
    return read_plan(
        {
            "model": {
                "model_type": "llama",
                "vocab_size": 128256,
                "num_key_value_heads": 8,
                "max_position_embeddings": 131072,
                "tie_word_embeddings": False,
                **SIZES[said["--model.flavor"]],
            },
            "cluster": f"{num_gpus}x{'h200' if 'H200' in str(row['device']) else 'h100'}-sxm",
            "engine": "torchtitan",
            "recipe": {
                "seq_len": int(said["--training.seq_len"]),
                "micro_batch_size": batch,
                "global_batch_size": batch * num_gpus,
                "precision": "bf16-mixed",
                "recompute": said["--activation_checkpoint.mode"],
                "compile": "--compile.enable" in words,
                "expandable_segments": True,
            },
            "layout": {"dp_shard": num_gpus},
        }
    )


def errors_of(run: TitanRun) -> Errors:
    """How far the prediction of one run is off."""
    time, _ = predict_time(run.plan)
    worst = predict_memory(run.plan).worst
    return Errors(
        name=run.name,
        step=time.step_s / run.step_s - 1,
        is_step_in_band=time.step_low_s <= run.step_s <= time.step_high_s,
        allocated=worst.peak_allocated_bytes / run.allocated_bytes - 1,
        reserved=worst.peak_reserved_bytes / run.reserved_bytes - 1,
    )


def main() -> None:
    """Print every run and the medians."""
    found = [errors_of(run) for run in titan_runs()]
    for one in found:
        print(f"{one.name:55} step {one.step:+6.1%}  allocated {one.allocated:+6.1%}  reserved {one.reserved:+6.1%}")
    steps, allocated, reserved = zip(*((one.step, one.allocated, one.reserved) for one in found), strict=True)
    for name, errors in (("step", steps), ("allocated", allocated), ("reserved", reserved)):
        print(f"{name}: median error {median(map(abs, errors)):.1%}, bias {median(errors):+.1%}")
    print(f"{sum(one.is_step_in_band for one in found)} of {len(found)} steps inside the band")


if __name__ == "__main__":
    main()
