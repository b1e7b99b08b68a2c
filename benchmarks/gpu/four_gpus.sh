#!/usr/bin/env bash
# Memory runs and collective sweeps on four GPUs of one host, within about nine and a half minutes:
# four_gpus.sh OUTPUT_FOLDER. Two pairs of GPUs work side by side first, then all four together.
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
start=$(date +%s)
now() { echo $(($(date +%s) - start)); }
describe_machine >"$OUTPUT/environment.txt" 2>&1

# measure NAME RANKS FAMILIES LAST_SECOND [ALLOCATOR]
# A run that fails ends its process (the other ranks may wait in a collective); the next start skips it.
measure() {
  local name=$1 ranks=$2 families=$3 last=$4
  for _ in 1 2 3 4; do
    local left=$((last - $(now)))
    ((left < 25)) && return
    echo "== $families on $ranks GPUs at $(now) s"
    PYTORCH_ALLOC_CONF=${5:-} timeout -k 5 "$left" torchrun --standalone --nproc-per-node "$ranks" \
      memory_runs.py --family "$families" --out "$OUTPUT/memory-$name.jsonl" \
      --deadline $((start + last - 12)) 2>>"$OUTPUT/log-$name.txt" && return
  done
}

pair_a() {
  export CUDA_VISIBLE_DEVICES=0,1
  timeout -k 5 60 torchrun --standalone --nproc-per-node 2 collective_memory.py --out "$OUTPUT/probes.jsonl" 2>>"$OUTPUT/log-a.txt"
  measure a 2 fsdp2 260
  measure a 2 fsdp2-expandable 310 expandable_segments:True
}

pair_b() {
  export CUDA_VISIBLE_DEVICES=2,3
  measure b 2 ddp,tensor-parallel,pipeline 140
  measure b 2 fsdp2-transformers,fsdp2-compiled 310
}

pair_a & a=$!
pair_b & b=$!
wait $a; wait $b
echo "== all four at $(now) s"
timeout -k 5 60 torchrun --standalone --nproc-per-node 4 collective_memory.py --out "$OUTPUT/probes.jsonl" 2>>"$OUTPUT/log-c.txt"
measure c 4 four 440
echo "== collectives at $(now) s"
timeout -k 5 60 torchrun --standalone --nproc-per-node 4 collective_sweep.py --out "$OUTPUT/collectives-4.csv" 2>>"$OUTPUT/log-c.txt"
CUDA_VISIBLE_DEVICES=0,1 timeout -k 5 45 torchrun --standalone --nproc-per-node 2 collective_sweep.py --out "$OUTPUT/collectives-2.csv" 2>>"$OUTPUT/log-c.txt"
merge() { head -qn 1 "${@:2}" | head -n 1 >"$1"; tail -qn +2 "${@:2}" >>"$1"; rm "${@:2}"; }
merge "$OUTPUT/collectives.csv" "$OUTPUT"/collectives-[24].csv
merge "$OUTPUT/contention.csv" "$OUTPUT"/collectives-?-contention.csv
cat "$OUTPUT"/memory-?.jsonl >"$OUTPUT/memory.jsonl"; rm "$OUTPUT"/memory-?.jsonl

left=$((572 - $(now)))
echo "== kernels at $(now) s"
for gpu in 0 1 2 3; do
  CUDA_VISIBLE_DEVICES=$gpu timeout -k 5 "$left" python3 kernel_sweep.py --share $gpu/4 --out "/tmp/kernels/$gpu" \
    --budget-s $((left - 15)) 2>>"$OUTPUT/log-d.txt" &
done
wait
for table in attention bandwidth gemm-sustained gemm; do merge "/tmp/kernels/$table.csv" /tmp/kernels/?/$table.csv; done
tar -czf "$OUTPUT/kernels.tgz" -C /tmp/kernels attention.csv bandwidth.csv gemm-sustained.csv gemm.csv
tail -n 3 "$OUTPUT"/log-?.txt
cat "$OUTPUT"/log-?.txt | gzip >"$OUTPUT/log.gz"; rm "$OUTPUT"/log-?.txt
echo "== end at $(now) s"
