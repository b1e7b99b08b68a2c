#!/usr/bin/env bash
# Our runtime, torchtitan 0.2.2 and Accelerate on the same GPUs, one configuration after the other:
# against_peers.sh OUTPUT_FOLDER [SECONDS] [NAME...]. torchtitan and what it imports must be on PYTHONPATH.
# GPUS is their number, GPU the catalogue's name of what ours is predicted for, LOOK names whose step of ours is profiled.
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
budget=${2:-580}; shift; shift || true
export PYTHONPATH="$(cd ../../src && pwd)${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore
export PYTORCH_ALLOC_CONF=expandable_segments:True TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 HF_HUB_OFFLINE=1
last=$(($(date +%s) + budget))
launch() { # NAME SCRIPT ARGUMENTS...
  local left=$((last - $(date +%s))); ((left < 40)) && return 1
  timeout -k 5 $((left < 150 ? left : 150)) python3 -m torch.distributed.run --standalone --nproc-per-node "${GPUS:-4}" "${@:2}" \
    >>"$OUTPUT/peers.log" 2>&1 || echo "$1 failed: $(grep -E 'Error|error' "$OUTPUT/peers.log" | tail -n 1 | cut -c1-200)"
}
# name model seq_len micro_batch_size recompute
cases="8b-8192-full 8b 8192 1 full
1b-4096-none 1b 4096 2 none
3b-8192-selective 3b 8192 1 selective
8b-8192-selective 8b 8192 1 selective
3b-4096-selective 3b 4096 2 selective
8b-4096-selective 8b 4096 2 selective
1b-4096-full 1b 4096 8 full
3b-4096-full 3b 4096 4 full
3b-8192-full 3b 8192 2 full
8b-4096-full 8b 4096 2 full"
while read -r name model seq batch recompute; do
  [ $# -gt 0 ] && [[ " $* " != *" $name "* ]] && continue
  launch "$name" train_runs.py --suite peers --only "$name" --gpu "${GPU:-h100-sxm}" --out "$OUTPUT/ours.jsonl" --look "${LOOK:-}"
  launch "$name" titan_run.py --name "$name" --out "$OUTPUT/titan.jsonl" -- --model.flavor "ours_$model" \
    --training.seq_len "$seq" --training.local_batch_size "$batch" --training.steps 14 --compile.enable --optimizer.lr 3e-4 \
    --activation_checkpoint.mode "$recompute" --activation_checkpoint.selective_ac_option op
  [[ " ${ACCELERATE:-} " == *" $name "* ]] && launch "$name" accelerate_run.py --model "$model" --seq-len "$seq" --name "$name" \
    --micro-batch-size "$batch" --out "$OUTPUT/accelerate.jsonl" $([ "$recompute" = none ] || echo --recompute)
  python3 - "$OUTPUT" "$name" <<'PY'
import json, sys
from pathlib import Path
folder, name = Path(sys.argv[1]), sys.argv[2]
def rows(file):
    path = folder / file
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
ours = [row.get("measured") for row in rows("ours.jsonl") if row["name"] == name]
for file in ("titan.jsonl", "accelerate.jsonl"):
    for row in rows(file):
        if row["name"] == name and ours and ours[0]:
            speed = ours[0]["tokens_per_s_per_gpu"] / row["tokens_per_s_per_gpu"]
            memory = ours[0]["peak_allocated_bytes"] / row["peak_allocated_bytes"]
            print(f'{name}: {ours[0]["tokens_per_s_per_gpu"]:.0f} against {row["tokens_per_s_per_gpu"]:.0f} '
                  f'tokens/s/GPU = {speed:.3f} x; {ours[0]["peak_allocated_bytes"] / 2**30:.2f} against '
                  f'{row["peak_allocated_bytes"] / 2**30:.2f} GiB = {memory:.3f} x ({row["engine"]})')
PY
done <<<"$cases"
gzip -f "$OUTPUT/peers.log"
