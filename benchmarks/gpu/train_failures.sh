# Checkpoints and failures on two GPUs, each run started by the command line: prints what each ends with. $OUT keeps the logs.
set -u
export PYTHONPATH=$PWD/src XDG_CACHE_HOME=$OUT/cache SHARDWISE_DEBUG=
D=$OUT; T="python3 -m shardwise train"
python3 -c "import torch,transformers,sys;print(torch.__version__,transformers.__version__,sys.version.split()[0],torch.cuda.device_count())"
plan(){ python3 - "$@" <<'PY'
import json,sys
name,mbs,seq,rec=sys.argv[1],int(sys.argv[2]),int(sys.argv[3]),sys.argv[4]
json.dump({"model":"llama-3.2-1b","cluster":{"gpu":"h100-sxm","gpus_per_node":2,"num_nodes":1},"recipe":{"seq_len":seq,"micro_batch_size":mbs,"global_batch_size":2*mbs,"recompute":rec,"compile":False},"layout":{"dp_shard":2}},open(name,"w"))
PY
}
plan /tmp/p.json 2 2048 none; plan /tmp/oom.json 64 8192 none
t0=$(date +%s)
$T /tmp/p.json --steps 12 --checkpoint-every 4 --keep 9 --out /tmp/sync --json > $D/sync.json 2>$D/sync.err; echo sync rc=$? $(( $(date +%s)-t0 ))s; t0=$(date +%s)
$T /tmp/p.json --steps 12 --checkpoint-every 4 --keep 9 --async-checkpoints --out /tmp/async --json > $D/async.json 2>$D/async.err; echo async rc=$? $(( $(date +%s)-t0 ))s; t0=$(date +%s)
$T /tmp/p.json --steps 12 --resume /tmp/async/checkpoints/step-00000008 --out /tmp/res --json > $D/res.json 2>$D/res.err; echo resume rc=$? $(( $(date +%s)-t0 ))s
for r in sync async res; do echo $r; python3 -c "
import json
for l in open('/tmp/$r/metrics.jsonl'):
    m=json.loads(l); print(m['step'], m['loss'], round(m['step_s'],3))"; done
t0=$(date +%s); $T /tmp/oom.json --steps 4 --out /tmp/oom --json; echo oom rc=$? $(( $(date +%s)-t0 ))s; tail -3 /tmp/oom/output.log; cat /tmp/oom/failures/*.json
(for i in $(seq 100); do sleep 1; [ -f /tmp/kill/metrics.jsonl ] && [ $(wc -l < /tmp/kill/metrics.jsonl) -gt 3 ] && break; done; kill -9 $(python3 -c "import json;print(json.load(open('/tmp/kill/ranks/rank-0001.json'))['pid'])"); date +%s > /tmp/killed) &
$T /tmp/p.json --steps 100000 --out /tmp/kill --json; echo kill rc=$? $(( $(date +%s)-$(cat /tmp/killed) ))s after
(for i in $(seq 100); do sleep 1; [ -f /tmp/hang/metrics.jsonl ] && [ $(wc -l < /tmp/hang/metrics.jsonl) -gt 3 ] && break; done; kill -STOP $(python3 -c "import json;print(json.load(open('/tmp/hang/ranks/rank-0001.json'))['pid'])"); date +%s > /tmp/stopped) &
$T /tmp/p.json --steps 100000 --timeout 15 --out /tmp/hang --json; echo hang rc=$? $(( $(date +%s)-$(cat /tmp/stopped) ))s after; ls /tmp/hang/failures; tail -3 /tmp/hang/output.log
for f in sync async res; do cp /tmp/$f/output.log $D/$f.log; done; cp /tmp/oom/output.log $D/oom.log; cp /tmp/kill/output.log $D/kill.log; cp /tmp/hang/output.log $D/hang.log; tail -c 600 $D/*.err
