"""Draw the plans of the oracle, once: ``python -m benchmarks.same.draw`` writes ``plans.jsonl``.

Models, clusters and engines come from the catalogue; a plan that breaks a rule is mended by the rules' own fixes in
three of four cases, so that accepted plans reach every corner, and is kept as a refusal otherwise.
"""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from shardwise.engines.table import ENGINES
from shardwise.errors import ShardwiseError
from shardwise.plan_file import plan_to_json, read_plan
from shardwise.rules import apply_changes, find_errors
from shardwise.schedules.table import SCHEDULES

FOLDER = Path(__file__).parent
NUM_PLANS, MAX_REFUSALS_PER_RULE, MAX_FIXES = 2400, 12, 20
DENSE = [
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "llama-2-7b",
    "llama-2-70b",
    "gpt2",
    "gpt2-xl",
    "gpt3-175b",
    "gemma-2-9b",
    "gemma-3-27b",
    "gemma-7b",
    "falcon-40b",
    "mistral-7b-v0.3",
    "gpt-neox-20b",
    "bloom-176b",
    "mpt-7b",
    "bert-large",
]
EXPERTS = [
    "mixtral-8x7b",
    "mixtral-8x22b",
    "deepseek-v2-lite",
    "deepseek-v2",
    "deepseek-v3-671b",
    "gpt-oss-20b",
    "gpt-oss-120b",
    "llama-4-scout-17b-16e",
    "moonlight-16b-a3b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "jamba-v0.1",
]
GPUS = [
    "h100-sxm",
    "h100-sxm",
    "h200-sxm",
    "b200-sxm",
    "a100-sxm-80",
    "a100-sxm-40",
    "h100-pcie",
    "l40s",
    "rtx-4090",
    "mi300x",
    "v100-sxm2-32",
    "gb200",
]


def main() -> None:
    """Write the plans, accepted and refused, one a line."""
    draw = random.Random(20261129)
    kept: list[dict[str, Any]] = []
    refused: Counter[str] = Counter()
    seen: set[str] = set()
    while len(kept) < NUM_PLANS:
        document = _plan(draw)
        answer = _mended(document, draw, refused)
        text = json.dumps(answer, sort_keys=True)
        if answer is not None and text not in seen:
            seen.add(text)
            kept.append(answer)
    (FOLDER / "plans.jsonl").write_text("".join(json.dumps(plan) + "\n" for plan in kept), encoding="utf-8")
    print(f"{len(kept)} plans, {sum(refused.values())} of them refused by {len(refused)} rules")


def _mended(document: dict[str, Any], draw: random.Random, refused: Counter[str]) -> dict[str, Any] | None:
    """The plan that the rules' fixes lead to, the drawn one where its refusal is wanted, or nothing."""
    try:
        plan = read_plan(document)
    except ShardwiseError as error:
        return _refusal(document, error.code, refused)
    errors = find_errors(plan)
    if errors and draw.random() < 0.25:
        return _refusal(document, errors[0].rule, refused)
    for _ in range(MAX_FIXES):
        if not errors:
            written: dict[str, Any] = dict(plan_to_json(plan))
            return written
        plan = apply_changes(plan, errors[0].neighbour)
        errors = find_errors(plan)
    return None


def _refusal(document: dict[str, Any], rule: str, refused: Counter[str]) -> dict[str, Any] | None:
    if refused[rule] == MAX_REFUSALS_PER_RULE:
        return None
    refused[rule] += 1
    return document


def _plan(draw: random.Random) -> dict[str, Any]:
    is_moe = draw.random() < 0.4
    engine = draw.choice((*ENGINES, "native", "native", "megatron", "torchtitan"))
    gpu, per_node = draw.choice(GPUS), draw.choice((8, 8, 8, 4, 1, 2))
    num_nodes = draw.choice((1, 1, 1, 2, 4, 8, 16, 64, 256))
    world = per_node * num_nodes
    layout = _layout(draw, world, engine, is_moe)
    recipe = _recipe(draw, layout, world)
    cluster: dict[str, Any] = {"gpu": gpu, "gpus_per_node": per_node, "num_nodes": num_nodes}
    if num_nodes > 1:
        cluster["network"] = draw.choice(("ib-ndr", "ib-hdr", "ib-ndr"))
    return {
        "model": draw.choice(EXPERTS if is_moe else DENSE),
        "cluster": cluster,
        "recipe": recipe,
        "layout": layout,
        "engine": engine,
    }


def _layout(draw: random.Random, world: int, engine: str, is_moe: bool) -> dict[str, Any]:
    rest, degrees = world, {}
    for name, choices in (("tp", (1, 1, 2, 4, 8)), ("pp", (1, 1, 1, 2, 4, 8)), ("cp", (1, 1, 1, 1, 2))):
        fitting = [degree for degree in choices if rest % degree == 0]
        degrees[name] = draw.choice(fitting)
        rest //= degrees[name]
    replicas = draw.choice([count for count in (1, 1, 1, 2, 4) if rest % count == 0])
    layout: dict[str, Any] = {**degrees, "dp_replicate": replicas, "dp_shard": rest // replicas}
    layout["zero_stage"] = draw.choice((1, 1, 2, 3) if engine == "megatron" else (0, 1, 2, 3, 3, 3))
    if degrees["pp"] > 1:
        layout["schedule"] = draw.choice(SCHEDULES)
        layout["vpp"] = draw.choice((1, 1, 2))
    if is_moe:
        layout["ep"] = draw.choice((1, 2, 4, 8))
    _maybe(draw, layout, 0.5, "sequence_parallel", (True,))
    _maybe(draw, layout, 0.2, "reshard_after_forward", (False,))
    _maybe(draw, layout, 0.05, "prefetch_units", (0, 2))
    _maybe(draw, layout, 0.1, "defer_grad_reduce", (True, False))
    _maybe(draw, layout, 0.1, "spread_vocabulary", (True, False))
    _maybe(draw, layout, 0.1, "exchange_gradients", (True, False))
    return layout


def _recipe(draw: random.Random, layout: dict[str, Any], world: int) -> dict[str, Any]:
    size, microbatches = draw.choice((1, 1, 2, 4)), draw.choice((1, 2, 4, 8, 16))
    recipe: dict[str, Any] = {
        "seq_len": draw.choice((1024, 2048, 4096, 8192, 8192, 32768)),
        "micro_batch_size": size,
        "global_batch_size": size * microbatches * world // (layout["tp"] * layout["pp"] * layout["cp"]),
        "precision": draw.choice(("bf16-mixed", "bf16-mixed", "bf16-mixed", "bf16", "fp8-mixed", "fp16-mixed", "fp32")),
        "recompute": draw.choice(("none", "selective", "full")),
    }
    _maybe(draw, recipe, 0.3, "compile", (True, False))
    _maybe(draw, recipe, 0.3, "optimizer", ("adamw-8bit", "sgd", "sgd-momentum", "adafactor", "lion", "muon"))
    _maybe(draw, recipe, 0.2, "adapter", ("lora", "lora", "qlora"))
    if "adapter" in recipe:
        _maybe(draw, recipe, 0.7, "lora_targets", ("all-linear", "qv"))
        _maybe(draw, recipe, 0.3, "lora_dropout_fraction", (0.1,))
    _maybe(draw, recipe, 0.2, "offload", ("optimizer", "parameters"))
    _maybe(draw, recipe, 0.15, "activation_offload", (True,))
    _maybe(draw, recipe, 0.1, "recompute_layers", (1, 3))
    _maybe(draw, recipe, 0.1, "loss_chunks", (4, 8))
    _maybe(draw, recipe, 0.1, "fused_loss", (True, False))
    _maybe(draw, recipe, 0.1, "overlap_grad_reduce", (True, False))
    _maybe(draw, recipe, 0.1, "reduce_dtype", ("fp32", "bf16"))
    _maybe(draw, recipe, 0.1, "mean_document_len", (512,))
    _maybe(draw, recipe, 0.1, "routing_imbalance_ratio", (1.3,))
    _maybe(draw, recipe, 0.1, "clip_gradients", (False,))
    _maybe(draw, recipe, 0.05, "blocking_launches", (True,))
    _maybe(draw, recipe, 0.05, "attention", ("eager",))
    _maybe(draw, recipe, 0.05, "convention", ("seed",))
    _maybe(draw, recipe, 0.3, "tokens", (1e12,))
    return recipe


def _maybe(draw: random.Random, fields: dict[str, Any], share: float, name: str, values: tuple[Any, ...]) -> None:
    if draw.random() < share:
        fields[name] = draw.choice(values)


if __name__ == "__main__":
    main()
