#!/usr/bin/env bash
# Memory runs over several GPUs and the collective sweep, within about nine and a half minutes:
# several_gpus.sh OUTPUT_FOLDER NUM_GPUS
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
ranks=$2
start=$(date +%s)
launch="torchrun --standalone --nproc-per-node $ranks"
note() { echo "== $1 at $(($(date +%s) - start)) s"; }
describe_machine >"$OUTPUT/environment.txt" 2>&1
note collectives-memory
timeout -k 5 60 $launch collective_memory.py --out "$OUTPUT/probes.jsonl" 2>>"$OUTPUT/log.txt"

# A run that fails ends its process (the other ranks may wait in a collective); the next start skips it.
measure() {
  local families=$1 seconds=$2 left=$((start + 570 - $(date +%s)))
  seconds=$((seconds < left ? seconds : left))
  local deadline=$(($(date +%s) + seconds))
  note "$families"
  for _ in 1 2 3 4; do
    seconds=$((deadline - $(date +%s)))
    ((seconds < 25)) && return
    PYTORCH_ALLOC_CONF=${3:-} timeout -k 5 "$seconds" $launch memory_runs.py --family "$families" \
      --out "$OUTPUT/memory.jsonl" --deadline $((deadline - 15)) 2>>"$OUTPUT/log.txt" && return
  done
}
measure fsdp2 190
measure ddp,tensor-parallel,pipeline 120
note collectives
timeout -k 5 60 $launch collective_sweep.py --out "$OUTPUT/collectives.csv" 2>>"$OUTPUT/log.txt"
measure fsdp2-transformers,fsdp2-compiled 140
measure fsdp2-expandable 60 expandable_segments:True
note end
