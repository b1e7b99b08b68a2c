"""Step times of GPT runs as llm-analysis predicts them. Run with cli99/llm-analysis on the path; rows on stdin.

Its FLOPs efficiency is a free constant; 0.5 is what its README uses for Megatron on A100.
"""

import contextlib
import json
import sys
import tempfile
from pathlib import Path

from llm_analysis.analysis import train

FLOPS_EFFICIENCY = 0.5
RECOMPUTATION = {"none": 0, "selective": 1, "full": 4}


def step_s(run: dict[str, object], folder: Path) -> float:
    """Seconds of one step."""
    model = folder / f"{run['id']}.json"
    model.write_text(
        json.dumps(
            {
                "name": run["id"],
                "max_seq_len": run["seq_len"],
                "num_layers": run["num_layers"],
                "n_head": run["num_heads"],
                "hidden_dim": run["hidden_size"],
                "vocab_size": run["vocab_size"],
                "ffn_embed_dim": run["intermediate_size"],
            }
        ),
        encoding="utf-8",
    )
    answer = train(
        model_name=str(model),
        gpu_name="a100-sxm-80gb",
        log_level="ERROR",
        batch_size_per_gpu=run["micro_batch_size"],
        global_batch_size=run["global_batch_size"],
        seq_len=run["seq_len"],
        total_num_tokens=300e9,
        activation_recomputation=RECOMPUTATION[str(run["recompute"])],
        dp_size=run["dp"],
        tp_size=run["tp"],
        pp_size=run["pp"],
        sp_size=run["tp"] if run["sequence_parallel"] else 1,
        total_num_gpus=run["num_gpus"],
        flash_attn=False,
        softmax_dropout=True,
        flops_efficiency=FLOPS_EFFICIENCY,
    )
    return float(answer["latency_per_iter"])


def main() -> None:
    """Predict every run."""
    answers: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        for run in json.load(sys.stdin):
            answers[str(run["id"])] = step_s(run, Path(folder))
    json.dump(answers, sys.__stdout__)


if __name__ == "__main__":
    main()
