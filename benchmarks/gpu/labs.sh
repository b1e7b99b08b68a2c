#!/usr/bin/env bash
# The seven labs on the GPUs of one host with real models: labs.sh OUTPUT_FOLDER [SECONDS] [GPU]. GPU is the catalogue's
# name, asked of nvidia-smi where it is not given. Runs that labs have in common are made once, labs with few new runs
# come first. One JSON line a lab in labs.jsonl as soon as it ends, with how long it took; lab-files.tar holds what
# each lab prints and draws, lab-runs.jsonl every run that ended, also of a lab that did not. LABS names some of them.
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
budget=${2:-540}; gpu=${3:-}
export PYTHONPATH="$(cd ../../src && pwd)${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore TORCH_NCCL_DUMP_ON_TIMEOUT=0
start=$(date +%s)
runs=$(mktemp -d); drawn=$(mktemp -d)
options=(--device "${DEVICE:-cuda}" --steps 8 --out "$runs" --resume --force)
[[ -n $gpu ]] && options+=(--gpu "$gpu")
[[ -n ${PROCESSES:-} ]] && options+=(--processes "$PROCESSES")
: >"$OUTPUT/labs.jsonl"

as_json() {
  python3 -m shardwise lab "$1" "${options[@]}" --json 2>>"$OUTPUT/labs.log" |
    python3 -c 'import json, sys; print(json.dumps({"wall_s": int(sys.argv[1]), **json.load(sys.stdin)}))' "$2" >>"$OUTPUT/labs.jsonl"
}
keep() { tar -cf "$OUTPUT/lab-files.tar" -C "$drawn" .; }

for lab in ${LABS:-scaling prefetch checkpointing communication throughput offload memory}; do
  left=$((budget - 10 - ($(date +%s) - start))); began=$(date +%s)
  ((left > 170)) && left=170  # a run that hangs takes one lab, not all
  ((left < 20)) && { echo "$lab: no time left"; continue; }
  # The text also of a lab that is stopped; then the same from its runs as JSON, while the next one starts.
  COLUMNS=120 timeout -s INT -k 10 "$left" python3 -m shardwise lab "$lab" "${options[@]}" \
    --svg "$drawn/$lab.svg" --html "$drawn/$lab.html" >"$drawn/$lab.txt" 2>>"$OUTPUT/labs.log"
  code=$?; took=$(($(date +%s) - began))
  echo "$lab: exit $code, $took s, $(find "$runs" -name measurement.json | wc -l) runs after $(($(date +%s) - start)) s"
  ((code == 0)) && as_json "$lab" "$took" &
  keep
done
wait
# Runs that ended are kept even when their lab did not: prediction and measurement, one line each.
python3 - "$OUTPUT" "$runs" <<'PY'
import json, sys
from pathlib import Path
out, runs = Path(sys.argv[1]), Path(sys.argv[2])
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
