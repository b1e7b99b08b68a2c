#!/usr/bin/env bash
# Memory runs and probes of one GPU, within about nine minutes: one_gpu.sh OUTPUT_FOLDER
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
start=$(date +%s)
note() { echo "== $1 at $(($(date +%s) - start)) s"; }
describe_machine >"$OUTPUT/environment.txt" 2>&1
note probes; timeout -k 5 150 python3 memory_probes.py --out "$OUTPUT/probes.jsonl" 2>>"$OUTPUT/log.txt"
for family in single:170 transformers:120 compiled:140 expandable:45; do
  seconds=${family#*:}; family=${family%:*}
  left=$((start + 555 - $(date +%s)))
  seconds=$((seconds < left ? seconds : left))
  ((seconds < 25)) && continue
  note "$family"
  conf=""; [[ $family == *expandable ]] && conf="expandable_segments:True"
  PYTORCH_ALLOC_CONF=$conf timeout -k 5 "$seconds" python3 memory_runs.py --family "$family" \
    --out "$OUTPUT/memory.jsonl" --deadline $(($(date +%s) + seconds - 15)) 2>>"$OUTPUT/log.txt"
done
note end
