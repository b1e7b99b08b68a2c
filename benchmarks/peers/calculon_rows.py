"""Step times of GPT runs as Calculon predicts them. Run inside a checkout of calculon-ai/calculon; rows on stdin.

Reads JSON runs (see ``step_time_against_peers.py``) and prints ``{id: seconds}``. Settings as in Calculon's own
validation of arXiv:2205.05198 table 5: the 80 GB A100 system file, nothing else changed.
"""

import json
import logging
import sys

import calculon
from calculon.llm import Llm
from calculon.system import System


def execution(run: dict[str, object]) -> dict[str, object]:
    """Calculon's execution of one run."""
    sequence_parallel = bool(run["sequence_parallel"])
    return {
        "num_procs": run["num_gpus"],
        "tensor_par": run["tp"],
        "pipeline_par": run["pp"],
        "data_par": run["dp"],
        "tensor_par_net": 0,
        "pipeline_par_net": 1,
        "data_par_net": 1,
        "batch_size": run["global_batch_size"],
        "microbatch_size": run["micro_batch_size"],
        "datatype": "float16",
        "fused_activation": False,
        "attention_type": "multihead",
        "activation_recompute": {"full": "full", "selective": "attn_only", "none": "none"}[str(run["recompute"])],
        "pipeline_interleaving": run["vpp"],
        "optimizer_sharding": False,
        "tensor_par_comm_type": "rs_ag" if sequence_parallel else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": sequence_parallel,
        "data_par_overlap": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def application(run: dict[str, object]) -> dict[str, object]:
    """Calculon's model of one run; it knows no vocabulary."""
    return {
        "hidden": run["hidden_size"],
        "feedforward": run["intermediate_size"],
        "seq_size": run["seq_len"],
        "attn_heads": run["num_heads"],
        "attn_size": int(run["hidden_size"]) // int(run["num_heads"]),
        "num_blocks": run["num_layers"],
    }


def main() -> None:
    """Predict every run that Calculon accepts."""
    logger = logging.getLogger("calculon")
    system = System(calculon.io.read_json_file("systems/a100_80g.json"))
    answers: dict[str, float] = {}
    for run in json.load(sys.stdin):
        model = Llm(Llm.Application(application(run)), logger)
        try:
            model.compile(system, Llm.Execution.from_json(execution(run)))
            model.run(system)
            answers[str(run["id"])] = model.get_total_time()
        except Llm.Error as error:
            print(f"{run['id']}: {error}", file=sys.stderr)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
