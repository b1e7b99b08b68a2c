#!/usr/bin/env bash
# Peak memory of rank 0 of more ranks than there are GPUs, ours and torchtitan's: imagined_memory.sh OUTPUT_FOLDER RANKS [NAME...].
# Each GPU here plays rank 0 of RANKS by itself: it computes and holds what that rank would, nothing is communicated, and
# neither losses nor times mean anything. Names are those of against_peers.sh; torchtitan must be on PYTHONPATH.
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
ranks=$2; shift 2
export PYTHONPATH="$(cd ../../src && pwd)${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore
export PYTORCH_ALLOC_CONF=expandable_segments:True HF_HUB_OFFLINE=1
play() { # GPU NAME...
  local gpu=$1 log="$OUTPUT/imagined-$1.log"; shift
  export CUDA_VISIBLE_DEVICES=$gpu
  for name in "$@"; do
    IFS=- read -r model seq recompute <<<"$name"
    local batch
    batch=$(python3 -c "import sys; from train_suites import PEERS; print(next(r.recipe['micro_batch_size'] for r in PEERS if r.name == sys.argv[1]))" "$name") || continue
    timeout -k 5 120 python3 train_runs.py --suite peers --only "$name" --gpu "${GPU:-h100-sxm}" --ranks-imagined "$ranks" --steps 4 \
      --out "$OUTPUT/imagined-ours-$gpu.jsonl" >>"$log" 2>&1 || echo "$name: ours failed: $(grep -E 'Error' "$log" | tail -n 1)"
    timeout -k 5 120 python3 titan_run.py --name "$name" --out "$OUTPUT/imagined-titan-$gpu.jsonl" --ranks-imagined "$ranks" -- \
      --model.flavor "ours_$model" --training.seq_len "$seq" --training.local_batch_size "$batch" --training.steps 6 --compile.enable \
      --activation_checkpoint.mode "$recompute" --activation_checkpoint.selective_ac_option op \
      >>"$log" 2>&1 || echo "$name: torchtitan failed: $(grep -E 'Error' "$log" | tail -n 1)"
    echo "$name done at $SECONDS s"
  done
}
[ $# -gt 0 ] || set -- 8b-8192-full 8b-8192-selective 3b-8192-selective 3b-8192-full 1b-4096-none 1b-4096-full \
  8b-4096-full 8b-4096-selective 3b-4096-full 3b-4096-selective
num_gpus=$(nvidia-smi -L | wc -l)
for ((gpu = 0; gpu < num_gpus; gpu++)); do
  mine=(); for ((i = gpu + 1; i <= $#; i += num_gpus)); do mine+=("${!i}"); done
  play "$gpu" "${mine[@]}" &
done
wait
python3 - "$OUTPUT" <<'PY'
import json, sys
from pathlib import Path
folder = Path(sys.argv[1])
def rows(kind):
    return {row["name"]: row for path in folder.glob(f"imagined-{kind}-*.jsonl") for row in map(json.loads, path.read_text().splitlines())}
ours, titan = rows("ours"), rows("titan")
for name in ours:
    if "measured" in ours[name]:
        mine, said = ours[name]["measured"]["peak_allocated_bytes"], ours[name]["predicted"]["peak_allocated_bytes"]
        theirs = titan[name]["peak_allocated_bytes"] if name in titan else float("nan")
        print(f"{name}: {mine / 2**30:.2f} (predicted {said / 2**30:.2f}) against {theirs / 2**30:.2f} GiB = {mine / theirs:.3f} x")
PY
