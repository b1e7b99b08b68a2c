#!/usr/bin/env bash
# Two equal runs of Llama-3.2-1B with --deterministic and two without, within 200 s: determinism.sh OUTPUT_FOLDER [SECONDS]
# Every run is a process of its own. ARGS is for other runs: ARGS="--no-compile" or, without a GPU, ARGS="--tiny".
set -u
cd "$(dirname "$0")"
source ./environment.sh "$1"
budget=${2:-195}
export PYTHONPATH="$(cd ../../src && pwd)${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore
start=$(date +%s)
rm -f "$OUTPUT/determinism.jsonl"
for mode in deterministic plain; do
  for number in 1 2; do
    left=$((start + budget - $(date +%s)))
    ((left < 15)) && { echo "== no time for $mode $number"; continue; }
    timeout -k 5 "$left" python3 determinism.py --mode "$mode" --out "$OUTPUT/determinism.jsonl" ${ARGS:-} 2>>"$OUTPUT/determinism.log" \
      || { echo "== $mode $number ended with $?"; tail -5 "$OUTPUT/determinism.log"; }
    echo "== $mode $number at $(($(date +%s) - start)) s"
  done
done
python3 determinism.py --compare "$OUTPUT/determinism.jsonl"
