#!/usr/bin/env bash
# Every strategy of the runtime for a few steps on four GPUs, within four minutes: train_smoke.sh OUTPUT_FOLDER.
# GPU is the catalogue's name of what is predicted for, ONLY the comma-separated names of a part of the suite.
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
suite=${2:-smoke}; budget=${3:-235}; ranks=${4:-4}
export PYTHONPATH="$(cd ../../src && pwd)${PYTHONPATH:+:$PYTHONPATH}" PYTORCH_ALLOC_CONF=expandable_segments:True
export TORCH_NCCL_DUMP_ON_TIMEOUT=0 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 PYTHONWARNINGS=ignore
start=$(date +%s); last=$((start + budget))
# A configuration that fails ends the processes; each new start goes on behind it.
for _ in $(seq 1 12); do
  left=$((last - $(date +%s)))
  ((left < 15)) && break
  timeout -k 5 "$left" python3 -m torch.distributed.run --standalone --nproc-per-node "$ranks" train_runs.py \
    --suite "$suite" --gpu "${GPU:-h100-sxm}" ${ONLY:+--only "$ONLY"} --out "$OUTPUT/train-$suite.jsonl" --deadline $((last - 20)) 2>>"$OUTPUT/train-$suite.log" && break
done
python3 - "$OUTPUT/train-$suite.jsonl" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    row = json.loads(line)
    print(row["name"], "FAILED " + row["error"][:300] if "error" in row else "ok")
PY
tail -c 200000 "$OUTPUT/train-$suite.log" | gzip >"$OUTPUT/train-$suite.log.gz"; rm "$OUTPUT/train-$suite.log"
echo "== $(($(date +%s) - start)) s"
