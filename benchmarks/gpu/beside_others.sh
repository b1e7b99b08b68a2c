#!/usr/bin/env bash
# Our trainer beside what its users would pick instead, on one GPU, ours and the other in turn, each in processes of its own:
# beside_others.sh OUTPUT_FOLDER [SECONDS] [NAME...], names: experts, lora, qlora, whole, fp8.
# torchtitan 0.2.2 with torchao, liger-kernel and bitsandbytes must be on PYTHONPATH with what they import.
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
budget=${2:-580}; shift; shift || true
export PYTHONPATH="$(cd ../../src && pwd)${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore
export PYTORCH_ALLOC_CONF=expandable_segments:True TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 HF_HUB_OFFLINE=1
last=$(($(date +%s) + budget))
launch() { # NAME SCRIPT ARGUMENTS...
  local left=$((last - $(date +%s))); ((left < 25)) && { echo "$1: no time left"; return 1; }
  timeout -k 5 $((left < 150 ? left : 150)) python3 -m torch.distributed.run --standalone --nproc-per-node 1 "${@:2}" \
    >>"$OUTPUT/beside.log" 2>&1 || echo "$1 failed: $(grep -E 'Error|error' "$OUTPUT/beside.log" | tail -n 1 | cut -c1-200)"
}
ours() { launch "$1" train_runs.py --suite tuning --only "$1" --gpu "${GPU:-h200-sxm}" --out "$OUTPUT/ours.jsonl"; }
peft() { launch "$1" peft_run.py --name "$1" --out "$OUTPUT/others.jsonl" "${@:2}"; }
titan() { # NAME MODEL FLAVOR SEQ_LEN BATCH RECOMPUTE MORE...
  launch "$1" titan_run.py --name "$1" --out "$OUTPUT/others.jsonl" -- --model.name "$2" --model.flavor "ours_$3" --training.seq_len "$4" \
    --training.local_batch_size "$5" --training.steps 10 --compile.enable --optimizer.lr 3e-4 --activation_checkpoint.mode "$6" "${@:7}"
}
other() {
  case $1 in
    lora | qlora) peft "$1" --model 8b --seq-len 4096 --micro-batch-size 2 --adapter "$1" --recompute ;;
    whole) peft whole --model qwen-1.5b --seq-len 4096 --micro-batch-size 4 ;;
    fp8) titan fp8 llama3 3b 8192 2 full --model.converters quantize.linear.float8 ;;
    experts) titan experts qwen3 moe-3b 4096 8 none ;;
  esac
}
for name in ${*:-experts lora qlora whole fp8}; do
  ours "$name"; other "$name"
  python3 - "$OUTPUT" "$name" <<'PY'
import json, sys
from pathlib import Path
folder, name = Path(sys.argv[1]), sys.argv[2]
def rows(file):
    path = folder / file
    return [row for row in map(json.loads, path.read_text().splitlines()) if row["name"] == name] if path.exists() else []
for ours, other in zip(rows("ours.jsonl"), rows("others.jsonl"), strict=False):
    found, said = ours.get("measured"), ours.get("predicted")
    if found is None:
        continue
    for key, unit, scale in (("tokens_per_s_per_gpu", "tokens/s", 1), ("peak_allocated_bytes", "GiB", 2**30)):
        print(f"{name}: {found[key] / scale:.2f} against {other[key] / scale:.2f} {unit} = {found[key] / other[key]:.3f} x ({other['engine']})")
    print(f"{name}: predicted over measured: step {said['step_s'] / found['step_s']:.3f}, "
          f"peak {said['peak_allocated_bytes'] / found['peak_allocated_bytes']:.3f}", flush=True)
PY
done
gzip -f "$OUTPUT/beside.log"
