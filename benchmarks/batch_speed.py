"""How many plans a second `shardwise predict plans.jsonl` answers: `make bench`, or `python benchmarks/batch_speed.py`.

A thousand distinct plans of six models with different layouts, so that no answer is remembered. The work is checked:
every line has to be a prediction. Writes benchmarks/results/batch_speed.json.
"""

import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from itertools import cycle, islice, product
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "batch_speed.json"
NUM_PLANS = 1000
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "mixtral-8x7b", "qwen3-8b", "gpt2")
DEGREES = ((1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (1, 4))
RECOMPUTES = ("none", "selective", "full")


def plans() -> list[str]:
    """Plan files, one a line, no two alike."""
    settings = islice(cycle(product(DEGREES, RECOMPUTES, MODELS)), NUM_PLANS)
    return [
        json.dumps(
            {
                "model": model,
                "cluster": "64xh100-sxm",
                "recipe": {
                    "seq_len": 128 * (1 + number % 8),
                    "global_batch_size": 512 * (1 + number // 108),
                    "recompute": recompute,
                },
                "layout": {"tp": tp, "pp": pp},
            }
        )
        for number, ((tp, pp), recompute, model) in enumerate(settings)
    ]


def main() -> None:
    """Answer the plans once, print the speed and record it."""
    lines = plans()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plans.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "shardwise", "predict", str(path)], capture_output=True, text=True, check=True
        )
        wall_s = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    refused = [answer for answer in answers if "schema" not in answer]
    if len(set(lines)) != NUM_PLANS or len(answers) != NUM_PLANS or refused:
        raise SystemExit(f"{len(answers)} answers, {len(refused)} refused, such as {refused[:1]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    facts = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_average_1min": round(os.getloadavg()[0], 2),
        "num_plans": NUM_PLANS,
        "wall_s": round(wall_s, 3),
        "cpu_s": round(cpu_s, 3),
        "plans_per_cpu_s": round(NUM_PLANS / cpu_s),
    }
    RESULTS.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(f"{NUM_PLANS} plans in {wall_s:.2f} s, {cpu_s:.2f} CPU-s: {facts['plans_per_cpu_s']} plans per CPU-second")


if __name__ == "__main__":
    main()
