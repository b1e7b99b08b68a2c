"""The first lines of each help page: the options that people use most, and two commands to copy."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PAGES", "HelpStart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpStart:
    """The start of one help page."""

    common: tuple[str, ...] = ()
    """Options in the order shown; empty where a command has so few that all are."""
    examples: tuple[str, ...] = ()


STEP = ("--engine", "--seq-len", "--global-batch-size", "--precision")
DIVIDED = ("--dp-shard", "--tp", "--pp", "--micro-batch-size", "--recompute")

PAGES: Mapping[str, HelpStart] = {
    "plan": HelpStart(
        common=(*STEP, "--tokens", "--gpus", "--gpu-types", "--out", "--details", "--json"),
        examples=(
            "shardwise plan llama-3.1-8b 8xh100-sxm --seq-len 8192 --global-batch-size 128 --out plan.json",
            "shardwise plan llama-3.1-70b --gpus 64..512 --gpu-types h100-sxm,h200-sxm --tokens 1T",
        ),
    ),
    "predict": HelpStart(
        common=(*STEP, *DIVIDED, "--json"),
        examples=(
            "shardwise predict plan.json",
            "shardwise predict llama-3.1-8b 8xh100-sxm --dp-shard 8 --recompute selective",
        ),
    ),
    "explain": HelpStart(
        common=("--oom", "--record", "--strategies", *STEP, "--dp-shard", "--recompute", "--json"),
        examples=(
            "shardwise explain plan.json",
            "shardwise explain strategy llama-3.1-8b 16xh100-sxm",
        ),
    ),
    "judge": HelpStart(
        common=("--tokens-per-s", "--tokens-per-s-per-gpu", "--tflops", "--mfu", "--step-s", *STEP, "--json"),
        examples=(
            "shardwise judge llama-3.1-8b 8xh200-sxm --tflops 420",
            "shardwise judge plan.json --step-s 4.2",
        ),
    ),
    "import": HelpStart(
        examples=(
            "shardwise import ds.json args.yaml --model llama-2-7b --cluster 8xa100-sxm-80",
            "shardwise import train.toml --cluster 64xh100-sxm --out plan.json",
        )
    ),
    "export": HelpStart(
        common=("--to", "--out", "--force", "--json", *STEP, "--dp-shard", "--tp"),
        examples=(
            "shardwise export plan.json --to torchtitan --out run",
            "shardwise export plan.json --to megatron",
        ),
    ),
    "timeline": HelpStart(
        common=("--out", "--html", "--svg", *STEP, "--dp-shard", "--pp", "--json"),
        examples=(
            "shardwise timeline plan.json --html step.html",
            "shardwise timeline llama-3.1-8b 8xh100-sxm --pp 4 --global-batch-size 64 --out step.json",
        ),
    ),
    "simulate": HelpStart(
        common=("--num-ranks", "--step", "--html", "--svg", "--schedule", "--pp", "--num-microbatches", "--json"),
        examples=(
            "shardwise simulate ring --html ring.html",
            "shardwise simulate pipeline --pp 4 --num-microbatches 8",
        ),
    ),
    "cost": HelpStart(
        common=(
            *("--tokens", "--price", "--gpu", "--num-gpus", "--mfu"),
            *("--seq-len", "--goodput", "--json"),
        ),
        examples=(
            "shardwise cost plan.json --tokens 1T --price 2.50",
            "shardwise cost llama-3.1-8b 64xh100-sxm --tokens 15T",
        ),
    ),
    "train": HelpStart(
        common=(
            *("--steps", "--data", "--tokenizer", "--weights", "--learning-rate"),
            *("--out", "--resume", "--checkpoint-every", "--dry-run", "--json"),
        ),
        examples=(
            "shardwise train plan.json --steps 100",
            "shardwise train plan.json --data corpus.jsonl --tokenizer llama/ --weights llama/ --out runs/first",
        ),
    ),
    "trace": HelpStart(
        common=("--module", "--out", *STEP, "--dp-shard", "--tp", "--pp", "--json"),
        examples=(
            "shardwise trace llama-3.1-8b 8xh100-sxm --dp-shard 8 --no-compile",
            "shardwise trace plan.json --module mypackage.models:build",
        ),
    ),
    "lab": HelpStart(
        common=("--device", "--processes", "--steps", "--model", "--out", "--html", "--resume", "--json"),
        examples=("shardwise lab", "shardwise lab memory --html memory.html"),
    ),
    "catalog": HelpStart(examples=("shardwise catalog gpus h100", "shardwise catalog show h100-sxm")),
    "profile": HelpStart(
        examples=("shardwise profile run/", "shardwise profile rank0.json.gz rank1.json.gz --html profile.html")
    ),
    "calibrate": HelpStart(
        examples=(
            "shardwise calibrate --out here.json",
            "shardwise calibrate --device cpu --processes 2 --out cpu.json",
        )
    ),
    "reconcile": HelpStart(
        examples=("shardwise reconcile runs/first", "shardwise reconcile train.log --plan plan.json --out learned.json")
    ),
    "validate": HelpStart(examples=("shardwise validate", "shardwise validate --time --rows")),
    "mcp": HelpStart(examples=("shardwise mcp", "shardwise mcp --json")),
    "tokenize": HelpStart(
        examples=(
            "shardwise tokenize corpus.jsonl --tokenizer llama/ --out tokens",
            "shardwise tokenize texts/ --out bytes",
        )
    ),
}
"""By command; a command that is not here shows all its options at once."""
