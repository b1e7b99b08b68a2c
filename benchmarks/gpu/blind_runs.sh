#!/usr/bin/env bash
# The runs that benchmarks/blind_runs.py predicted, each in a process of its own, and dense compiled runs beside a
# calibration of the same GPU: blind_runs.sh OUTPUT [BUDGET_S]. Liger must be on PYTHONPATH. GPU is the catalogue's name.
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
last=$(($(date +%s) + ${2:-400})); start=$(date +%s)
export PYTHONPATH="$(cd ../../src && pwd)${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore HF_HUB_OFFLINE=1
export PYTORCH_ALLOC_CONF=expandable_segments:True TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
gpu=${GPU:-h200-sxm}; torchrun="python3 -m torch.distributed.run --standalone --nproc-per-node 1"
left() { echo $((last - $(date +%s))); }
say() { echo "== $(($(date +%s) - start)) s: $*"; }
describe_machine >"$OUTPUT/machine.txt" 2>&1
names() { python3 -c "import sys; from train_suites import SUITES; print(*(r.name for r in SUITES['blind'] if (r.engine == 'native') == (sys.argv[1] == 'ours')), sep='\n')" "$1"; }
while read -r name; do
  (($(left) < 20)) && break
  timeout -k 5 60 $torchrun train_runs.py --suite blind --only "$name" --gpu "$gpu" --out "$OUTPUT/ours.jsonl" \
    2>>"$OUTPUT/runs.log" || say "$name failed"
done < <(names ours)
say "our runs"
while read -r name; do
  (($(left) < 20)) && break
  timeout -k 5 60 python3 transformers_run.py --only "$name" --gpu "$gpu" --out "$OUTPUT/transformers.jsonl" \
    2>>"$OUTPUT/runs.log" || say "$name failed"
done < <(names transformers)
say "runs of transformers"
if (($(left) > 90)); then
  python3 -m shardwise calibrate --device cuda --processes 1 --seconds 60 --force --out "$OUTPUT/calibration.json" \
    >"$OUTPUT/calibration.txt" 2>&1
  say "calibrated"
  timeout -k 5 "$(left)" $torchrun calibrated_runs.py --suite one-gpu-compiled --gpu "$gpu" \
    --calibration "$OUTPUT/calibration.json" --out "$OUTPUT/calibrated.jsonl" --deadline $((last - 15)) 2>>"$OUTPUT/runs.log"
  say "calibrated runs"
fi
(($(left) > 30)) && timeout -k 5 "$(left)" $torchrun train_runs.py --suite probed --gpu "$gpu" --out "$OUTPUT/probed.jsonl" \
  --look gpt2-xl 2>>"$OUTPUT/runs.log"
say "done"
tail -c 300000 "$OUTPUT/runs.log" | gzip >"$OUTPUT/runs.log.gz"; rm -f "$OUTPUT/runs.log"
