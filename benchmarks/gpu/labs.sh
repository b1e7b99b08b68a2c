#!/usr/bin/env bash
# The seven labs on the GPUs of one host with real models, within four minutes: labs.sh OUTPUT_FOLDER [SECONDS] [GPU].
# One JSON line a lab in labs.jsonl; runs that labs have in common are made once. What is not reached is left out.
# LABS names some of them.
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
budget=${2:-235}; gpu=${3:-h100-sxm}
export PYTHONPATH="$(cd ../../src && pwd)${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore TORCH_NCCL_DUMP_ON_TIMEOUT=0
start=$(date +%s)
runs=$(mktemp -d)
for lab in ${LABS:-communication memory throughput checkpointing scaling prefetch offload}; do
  left=$((budget - ($(date +%s) - start)))
  ((left < 15)) && { echo "$lab: no time left"; continue; }
  timeout -s INT -k 10 "$left" python3 -m shardwise lab "$lab" --device cuda --gpu "$gpu" --steps 8 \
    --out "$runs" --resume --json >"$OUTPUT/lab-$lab.json" 2>>"$OUTPUT/labs.log"
  echo "$lab: exit $? after $(($(date +%s) - start)) s"
done
# Runs that ended are kept even when their lab did not: prediction and measurement, one line each.
python3 - "$OUTPUT" "$runs" <<'PY'
import json, sys
from pathlib import Path
out, runs = Path(sys.argv[1]), Path(sys.argv[2])
with (out / "labs.jsonl").open("w") as file:
    for path in sorted(out.glob("lab-*.json")):
        text = path.read_text()
        if text.strip():
            file.write(json.dumps(json.loads(text)) + "\n")
        path.unlink()
with (out / "lab-runs.jsonl").open("w") as file:
    for folder in sorted(runs.iterdir()):
        row = {"run": folder.name}
        for name in ("plan", "prediction", "measurement", "trial"):
            path = folder / f"{name}.json"
            row[name] = json.loads(path.read_text()) if path.exists() else None
        if row["measurement"] is None and row["trial"] is None:
            log = folder / "output.log"
            row["output"] = log.read_text(errors="replace")[-3000:] if log.exists() else None
        file.write(json.dumps(row) + "\n")
PY
tail -n 5 "$OUTPUT/labs.log"
echo "== $(($(date +%s) - start)) s"
