"""Calibrate this machine's CPUs, train two processes under several layouts, and print how far predictions were.

    PYTHONPATH=src python benchmarks/calibrated_cpu_run.py --record

prints, and writes ``benchmarks/results/calibrated_cpu_run-DATE.json``. The aim is a step within 25 % and allocated
tensors within 3 %. Other programs on the machine slow runs and not the calibration, which counts the time its own
thread computed: the load is recorded, and the fastest step beside the median.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import median

from shardwise.calibration_file import read_calibration

ROOT = Path(__file__).parent.parent
MODEL = {
    "model_type": "llama",
    "hidden_size": 320,
    "intermediate_size": 896,
    "num_hidden_layers": 4,
    "num_attention_heads": 10,
    "num_key_value_heads": 10,
    "vocab_size": 4096,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""None of the sizes that a calibration times."""
LAYOUTS = {
    "ddp": {"dp_shard": 2, "zero_stage": 0},
    "fsdp": {"dp_shard": 2},
    "fsdp, full recomputation": {"dp_shard": 2},
    "tensor parallel": {"dp_shard": 1, "tp": 2},
    "pipeline": {"dp_shard": 1, "pp": 2},
    "context parallel": {"dp_shard": 1, "cp": 2},
}
NUM_STEPS = 14
PROFILE_EVERY = 13


def plan_of(name: str) -> dict[str, object]:
    """The plan of one layout."""
    recipe = {
        "seq_len": 256,
        "micro_batch_size": 2,
        "global_batch_size": 8,
        "precision": "fp32",
        "compile": False,
        "recompute": "full" if "recomputation" in name else "none",
    }
    cluster = str(ROOT / "examples" / "two-cores.toml")
    return {"model": MODEL, "cluster": cluster, "recipe": recipe, "layout": LAYOUTS[name]}


def shardwise(*words: str) -> None:
    """Run a command of this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-m", "shardwise", *words], check=True, env=environment, stdout=subprocess.DEVNULL)


def measure(name: str, folder: Path, calibration: Path) -> dict[str, object]:
    """One run beside its predictions."""
    plan, run = folder / "plan.json", folder / name.replace(" ", "-").replace(",", "")
    plan.write_text(json.dumps(plan_of(name)), encoding="utf-8")
    words = ["train", str(plan), "--device", "cpu", "--steps", str(NUM_STEPS), "--profile-every", str(PROFILE_EVERY)]
    load = os.getloadavg()[0]
    shardwise(*words, "--out", str(run), "--calibration", str(calibration), "--json")
    measured = json.loads((run / "measurement.json").read_text(encoding="utf-8"))
    predicted = json.loads((run / "prediction.json").read_text(encoding="utf-8"))
    steps = [step["step_s"] for step in measured["steps"][3:-1]]
    return {
        "name": name,
        "load_before": load,
        "predicted_step_s": predicted["time"]["step_s"],
        "median_step_s": median(steps),
        "fastest_step_s": min(steps),
        "predicted_allocated_bytes": predicted["memory"]["peak_allocated_bytes"],
        "allocated_bytes": measured["memory"]["peak_allocated_bytes"],
    }


def line(row: dict[str, object]) -> str:
    """The errors of one run."""
    step, memory = float(str(row["predicted_step_s"])), float(str(row["predicted_allocated_bytes"]))
    allocated = row["allocated_bytes"]
    said = f"{memory / float(str(allocated)) - 1:+.1%}" if allocated else "-"
    return (
        f"{row['name']!s:26} step {1e3 * float(str(row['median_step_s'])):7.1f} ms "
        f"(fastest {1e3 * float(str(row['fastest_step_s'])):7.1f}), predicted {1e3 * step:7.1f}: "
        f"{step / float(str(row['median_step_s'])) - 1:+.1%} of the median, "
        f"{step / float(str(row['fastest_step_s'])) - 1:+.1%} of the fastest; allocated {said}; "
        f"load {row['load_before']:.1f}"
    )


def main() -> None:
    """Calibrate, train, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calibration = folder / "calibration.json"
        shardwise("calibrate", "--device", "cpu", "--processes", "2", "--out", str(calibration))
        machine = read_calibration(calibration).machine
        rows = []
        for layout in LAYOUTS:
            rows.append(measure(layout, folder, calibration))
            print(line(rows[-1]), flush=True)
    if arguments.record:
        path = ROOT / "benchmarks" / "results" / f"calibrated_cpu_run-{date.today().isoformat()}.json"
        record = {"device": machine.device, "versions": dict(machine.versions), "runs": rows}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
