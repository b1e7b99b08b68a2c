"""The recipes of ``examples/recipes`` on models small enough for this machine: what tests give beside the files."""

import json
import tempfile
from argparse import Namespace
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.cli import train
from shardwise.cli.command import find_command, make_parser
from shardwise.cli.plan_source import calibrated_plan_from
from shardwise.cli.recipe_file import read_with_recipe
from shardwise.train.job import Job

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
NAMES = ("lora-8b-one-24gb", "qlora-70b-two-24gb", "full-8b-eight-gpus", "continued-8b-packed", "sft-moe-30b")
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 264,
    "max_position_embeddings": 512,
}
DENSE = {"model_type": "llama", **SIZES, "rms_norm_eps": 1e-5}
EXPERTS = {
    "model_type": "qwen3_moe",
    **SIZES,
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "tie_word_embeddings": False,
}
WIDE = {**DENSE, "hidden_size": 128, "intermediate_size": 128}
"""Rows of 4-bit matrices that two ranks divide into whole blocks of 64 weights."""
MODELS = {"llama-3.1-8b": DENSE, "llama-3.1-70b": WIDE, "qwen3-30b-a3b": EXPERTS}
CORE = """\
num_nodes = 1
gpus_per_node = {count}
[gpu]
name = "one CPU core"
vendor = "host"
memory_gib = 4
memory_bandwidth_gb_per_s = 6.6
fp32_tflop_per_s = 0.15
bf16_tflop_per_s = 0.001
scale_up_gb_per_s = 0.7
"""


def lay_out(folder: Path) -> Path:
    """A folder with ``models/NAME`` as the recipes name them, tiny, and clusters of one, two and four cores."""
    for count in (1, 2, 4):
        (folder / f"cores{count}.toml").write_text(CORE.format(count=count), encoding="utf-8")
    backend = Tokenizer(models.BPE(vocab={byte: n for n, byte in enumerate(sorted(bytes_alphabet()))}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    for name, config in MODELS.items():
        torch.manual_seed(5)
        fields = {key: value for key, value in config.items() if key != "model_type"}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(str(config["model_type"]), **fields))
        model.save_pretrained(folder / "models" / name)
        backend.save(str(folder / "models" / name / "tokenizer.json"))
        (folder / "models" / name / "tokenizer_config.json").write_text(
            json.dumps({"eos_token": "<end>"}), encoding="utf-8"
        )
    return folder


def bytes_alphabet() -> list[str]:
    return list(pre_tokenizers.ByteLevel.alphabet())


def model_of(name: str) -> str:
    """The model of a recipe, which is the name of its folder under ``models``."""
    lines = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("  model:"))


def tiny_words(name: str, *, count: int, **layout: int) -> list[str]:
    """What is typed to run a recipe on cores of this machine: another model, cluster, length and layout."""
    degrees = {"dp_shard": count, **layout}
    options = [f"--{field.replace('_', '-')}={value}" for field, value in degrees.items()]
    model = str(Path("models") / model_of(name))
    return [
        str(RECIPES / f"{name}.yaml"),
        *("--model", f"{model}/config.json", "--cluster", f"cores{count}.toml", "--seq-len", "64"),
        *("--micro-batch-size", "1", "--global-batch-size", "4", "--no-compile", "--device", "cpu"),
        *(["--mean-document-len", "32"] if "mean_document_len" in (RECIPES / f"{name}.yaml").read_text() else []),
        *options,
    ]


def job_of(words: list[str]) -> Job:
    """The job that ``train`` would start, with nothing written or started."""
    entry = find_command("train")
    arguments = read_with_recipe(lambda: make_parser(entry, entry.load()), words, Namespace(typed_words=()))
    plan = calibrated_plan_from(arguments)
    job, _ = train._checked_job(plan, arguments, folder=Path(tempfile.mkdtemp()), prediction=None)
    return job
