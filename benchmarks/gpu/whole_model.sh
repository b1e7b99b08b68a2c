#!/usr/bin/env bash
# What each stream's pool holds under FSDP2, what blocks of other families save, and Llama-3.1-8B on four GPUs,
# within about five minutes: whole_model.sh OUTPUT_FOLDER.
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
start=$(date +%s)
now() { echo $(($(date +%s) - start)); }
launch="torchrun --standalone --nproc-per-node"
describe_machine >"$OUTPUT/environment.txt" 2>&1

pair() {
  export CUDA_VISIBLE_DEVICES=0,1
  timeout -k 5 80 $launch 2 memory_runs.py --family streams --steps 4 --out "$OUTPUT/memory-a.jsonl" \
    --deadline $((start + 75)) 2>>"$OUTPUT/log-a.txt"
  PYTORCH_ALLOC_CONF=expandable_segments:True timeout -k 5 70 $launch 2 memory_runs.py --family streams-expandable \
    --steps 4 --out "$OUTPUT/memory-a.jsonl" --deadline $((start + 125)) 2>>"$OUTPUT/log-a.txt"
}
pair & a=$!
CUDA_VISIBLE_DEVICES=2 timeout -k 5 120 python3 family_probes.py --out "$OUTPUT/families.jsonl" 2>>"$OUTPUT/log-b.txt" & b=$!
wait $a; wait $b
for _ in 1 2 3; do
  left=$((290 - $(now)))
  ((left < 30)) && break
  echo "== whole model at $(now) s"
  PYTORCH_ALLOC_CONF=expandable_segments:True timeout -k 5 "$left" $launch 4 memory_runs.py --family whole-model \
    --out "$OUTPUT/memory-b.jsonl" --deadline $((start + 265)) 2>>"$OUTPUT/log-c.txt" && break
done
cat "$OUTPUT"/memory-?.jsonl >"$OUTPUT/memory.jsonl"; rm "$OUTPUT"/memory-?.jsonl
tail -n 5 "$OUTPUT"/log-?.txt
cat "$OUTPUT"/log-?.txt | gzip >"$OUTPUT/log.gz"; rm "$OUTPUT"/log-?.txt
echo "== end at $(now) s"
