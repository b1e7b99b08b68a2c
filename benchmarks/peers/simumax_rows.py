"""Step times of GPT runs as SimuMax predicts them. Run inside a checkout of MooreThreads/SimuMax; rows on stdin.

No shipped configuration is an NVLink A100. The shipped A100-PCIe accelerator block (measured products, 0.75 for shapes
it does not list) is joined with the shipped network block, at 300 GB/s inside a node and 200 GB/s a node outside.
Nothing is fitted.
"""

import contextlib
import copy
import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("SIMUMAX_TMP_PATH", tempfile.mkdtemp())

from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
from simumax.core.perf_llm import PerfLLM

ACCELERATOR = "configs/system/a100_pcie.json"
NETWORK = "configs/system/b200_bf16_ceperm.json"


def system() -> dict[str, object]:
    """The derived A100 system."""
    joined: dict[str, object] = json.loads(Path(ACCELERATOR).read_text(encoding="utf-8"))
    joined["networks"] = json.loads(Path(NETWORK).read_text(encoding="utf-8"))["networks"]
    for level in ("low_intra_node", "high_intra_node"):
        joined["networks"][level]["bandwidth"]["gbps"] = 300
    joined["networks"]["inter_node"]["bandwidth"]["gbps"] = 200
    joined["sys_name"] = "a100_sxm_derived"
    return joined


def model(run: dict[str, object]) -> ModelConfig:
    """SimuMax's model of one run."""
    heads = int(run["num_heads"])
    return ModelConfig.init_from_dict(
        {
            "model_name": run["id"],
            "hidden_size": run["hidden_size"],
            "head_num": heads,
            "kv_head_num": heads,
            "head_size": int(run["hidden_size"]) // heads,
            "intermediate_size": run["intermediate_size"],
            "layer_num": run["num_layers"],
            "vocab_size": run["vocab_size"],
            "use_swiglu": False,
        }
    )


def strategy(run: dict[str, object]) -> StrategyConfig:
    """SimuMax's strategy of one run: unfused attention with dropout, fp32 gradients, no sharded optimizer."""
    granularity = {"full": "full_block", "selective": "sdp_only", "none": None}[str(run["recompute"])]
    return StrategyConfig.init_from_dict(
        {
            "seq_len": run["seq_len"],
            "micro_batch_size": run["micro_batch_size"],
            "micro_batch_num": run["num_microbatches"],
            "dtype": "bf16",
            "world_size": run["num_gpus"],
            "tp_size": run["tp"],
            "pp_size": run["pp"],
            "interleaving_size": run["vpp"],
            "pp_comm_async": run["vpp"] == 1,
            "zero_state": 0,
            "enable_sequence_parallel": run["sequence_parallel"],
            "use_flash_sdp": False,
            "use_math_sdp": True,
            "use_fp32_accum_grad": True,
            "enable_dropout": True,
            "enable_recompute": granularity is not None,
            "recompute_granularity": granularity,
            "recompute_layer_num": int(run["num_layers"]) // int(run["pp"]) if granularity else 0,
        }
    )


def seconds(text: object) -> float:
    """A duration as SimuMax prints it."""
    number, unit = str(text).split()
    return float(number) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]


def main() -> None:
    """Predict every run that SimuMax accepts."""
    answers: dict[str, float] = {}
    with contextlib.redirect_stdout(sys.stderr):
        machine = system()
        for run in json.load(sys.stdin):
            planner = PerfLLM()
            planner.configure(
                strategy_config=strategy(run),
                model_config=model(run),
                system_config=SystemConfig.init_from_dict(copy.deepcopy(machine)),
            )
            try:
                planner.run_estimate()
                cost = planner.analysis_cost()
                answers[str(run["id"])] = iteration_s(cost)
            except (AssertionError, ValueError, KeyError, RuntimeError) as error:
                print(f"{run['id']}: {error!r}", file=sys.stderr)
    json.dump(answers, sys.__stdout__)


def iteration_s(cost: object) -> float:
    """The time of one iteration inside SimuMax's cost report."""
    report = cost.data
    return seconds(
        report["metrics"]["duration_time_per_iter"] if "metrics" in report else report["duration_time_per_iter"]
    )


if __name__ == "__main__":
    main()
