"""How many combinations Calculon's exhaustive search tries per CPU second. Run inside a checkout of Calculon.

Its own search, unchanged, over GPT-3 175B on 1,024 A100, one tensor and pipeline degree after the other, until
``SECONDS`` of CPU time are spent. Prints ``{"combinations": ..., "cpu_s": ..., "best": ...}``.
"""

import json
import sys
import time

import calculon
from calculon.llm import Llm
from calculon.llm.optimal_execution import OptimalExecution
from calculon.system import System

SECONDS = 20.0
NUM_GPUS = 1024
BATCH = 1536


def main() -> None:
    """Search until the time is spent."""
    app = Llm.Application(calculon.io.read_json_file("models/gpt3-175B.json"))
    system = System(calculon.io.read_json_file("systems/a100_80g.json"))
    tried, best = 0, None
    started = time.process_time()
    for tp in (8, 4, 2, 1):
        for pp in (8, 16, 4, 2, 1, 32):
            for interleaving in Llm.get_valid_pipeline_interleavings(app.num_blocks, pp):
                for recompute in ("attn_only", "full", "none"):
                    dp = NUM_GPUS // (tp * pp)
                    found = OptimalExecution.search(
                        False,
                        1,
                        False,
                        NUM_GPUS,
                        BATCH,
                        "float16",
                        app,
                        system,
                        tp,
                        pp,
                        dp,
                        interleaving,
                        BATCH // dp * dp,
                        recompute,
                        True,
                        "rs_ag",
                        [True],
                        False,
                        False,
                        False,
                    )
                    tried += found[1]
                    for candidate in found[0]:
                        if best is None or candidate[0] > best[0]:
                            best = (candidate[0], candidate[1])
                    if time.process_time() - started > SECONDS:
                        spent = time.process_time() - started
                        json.dump({"combinations": tried, "cpu_s": spent, "best": best}, sys.stdout)
                        return


if __name__ == "__main__":
    main()
