"""The same model on one node and on two: what a plan needs, which component decides, and the plan as a file."""

import json

from shardwise.plan_file import plan_to_json, read_plan
from shardwise.predict import predict
from shardwise.rules import find_refusals
from shardwise.units import format_gib

document = {
    "model": "llama-3.1-70b/config.json",
    "cluster": "8xh100-sxm",
    "recipe": {"seq_len": 4096, "global_batch_size": 16, "recompute": "full"},
}

for cluster in ("8xh100-sxm", "16xh100-sxm", "32xh100-sxm"):
    plan = read_plan({**document, "cluster": cluster})
    memory = predict(plan).memory
    verdict = "fits" if memory.fits_device else "does not fit"
    largest = max(memory.worst.components, key=lambda entry: entry.num_bytes)
    print(f"{cluster:12} dp_shard={plan.layout.dp_shard:<3} {verdict}; most of it is {largest.component}")

refusal = find_refusals(read_plan({**document, "layout": {"tp": 3}}))[0]
print(f"{refusal.rule}: {refusal.message}")
print(f"  {refusal.fix}")

print(format_gib(plan.cluster.gpu.memory_bytes), "are there, as torch reports them")
print(json.dumps(plan_to_json(plan)["layout"]))
