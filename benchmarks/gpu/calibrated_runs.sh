#!/usr/bin/env bash
# Calibrate four GPUs, then train runs the calibration has not seen: calibrated_runs.sh OUTPUT [BUDGET_S [RANKS [EXTRA]]].
# Eight minutes at most; EXTRA is "--device cpu --tiny" to try the logic. benchmarks/calibrated_runs_report.py reads it.
set -u
cd "$(dirname "$0")"
mkdir -p "$1"; out=$(cd "$1" && pwd)
source ./environment.sh "$out"
budget=${2:-465}; ranks=${3:-4}; extra=${4:-}
export PYTHONPATH="$(cd ../../src && pwd)${PYTHONPATH:+:$PYTHONPATH}" PYTORCH_ALLOC_CONF=expandable_segments:True
export TORCH_NCCL_DUMP_ON_TIMEOUT=0 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 PYTHONWARNINGS=ignore
start=$(date +%s); last=$((start + budget))
describe_machine >"$OUTPUT/machine.txt" 2>&1
device=cuda; [[ "$extra" == *cpu* ]] && device=cpu OMP_NUM_THREADS=1
${PYTHON:-python3} -m shardwise calibrate --device "$device" --processes "$ranks" --seconds "${SECONDS_TO_CALIBRATE:-60}" --force \
  --out "$OUTPUT/calibration.json" 2>&1 | tee "$OUTPUT/calibration.txt"
echo "== calibrated in $(($(date +%s) - start)) s"
[ -f "$OUTPUT/calibration.json" ] || exit 1
# A run that fails ends the processes; each new start goes on behind it.
for _ in $(seq 1 8); do
  left=$((last - $(date +%s)))
  ((left < 20)) && break
  timeout -k 5 "$left" ${PYTHON:-python3} -m torch.distributed.run --standalone --nproc-per-node "$ranks" calibrated_runs.py \
    --calibration "$OUTPUT/calibration.json" --out "$OUTPUT/runs.jsonl" --deadline $((last - 25)) $extra \
    2>>"$OUTPUT/runs.log" && break
done
${PYTHON:-python3} ../calibrated_runs_report.py "$OUTPUT" | tee "$OUTPUT/report.txt"
tail -c 200000 "$OUTPUT/runs.log" | gzip >"$OUTPUT/runs.log.gz"; rm -f "$OUTPUT/runs.log"
echo "== $(($(date +%s) - start)) s"
