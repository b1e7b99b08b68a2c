"""Logs of torchtitan: the config that it prints where it is told to, and the lines with which every run starts.

Source: torchtitan 0.2.2 ``train.py``, ``distributed/parallel_dims.py``; main 2026-08 (b5bcd76c) ``trainer.py``.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping

from shardwise.exchange.facts import Document, Fact, facts_of, scalar_of

NOISE = re.compile(r"\x1b\[[0-9;]*m|^\[\w+\]:\s?", flags=re.MULTILINE)
"""Colours, and the rank that torchrun puts before a line."""
CONFIG = re.compile(r"Running with (?:configs|args): ")
STARTS = ("Trainer is initialized with", "Training starts at step", "Building device mesh with parallelism")
DEGREES = {
    "pp": "pipeline_parallel_degree",
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "cp": "context_parallel_degree",
    "tp": "tensor_parallel_degree",
    "ep": "expert_parallel_degree",
}
LINES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (
        re.compile(
            r"local batch size (\d+), global batch size (\d+), gradient accumulation steps \d+, "
            r"sequence length (\d+)"
        ),
        ("training.local_batch_size", "training.global_batch_size", "training.seq_len"),
    ),
    (
        re.compile(
            r"initialized with (\d+) tokens per DP rank, (\d+) tokens per train step, gradient accumulation "
            r"steps \d+, maximum context length (\d+)"
        ),
        ("training.num_tokens_per_dp_rank", "training.num_tokens_per_train_step", "training.max_context_length"),
    ),
    (re.compile(r"Model (\S+) (\S+) size: [\d,]+ total parameters"), ("model.name", "model.flavor")),
    (re.compile(r"Applied (none|full|selective) activation checkpointing"), ("activation_checkpoint.mode",)),
    (re.compile(r"Applied (FullAC|SelectiveAC|MemoryBudgetAC) activation"), ("activation_checkpoint.kind",)),
)
MESH = re.compile(r"Building device mesh with parallelism: ([\w=, ]+)")
OLD_MESH = re.compile(r"Building \d-D device mesh with \[([\w', ]+)\], \[([\d, ]+)\]")
COMPILED = "Compiling each TransformerBlock with torch.compile"


def is_torchtitan_log(text: str) -> bool:
    """Return whether a text holds lines with which a run of torchtitan starts."""
    return any(start in text for start in STARTS) or CONFIG.search(text) is not None


def read_torchtitan_log(text: str, *, file: str) -> Document:
    """The facts of a log: its printed config, and the start lines for what it does not print."""
    plain = NOISE.sub("", text)
    facts = {fact.key: fact for fact in (*_lines(plain, file), *_config(plain, file))}
    return Document(file=file, facts=tuple(facts.values()), program="log")


def _config(text: str, file: str) -> Iterator[Fact]:
    start = CONFIG.search(text)
    if start is None:
        return
    try:
        tree, _ = json.JSONDecoder().raw_decode(text, start.end())
    except ValueError:
        line = text[start.end() :].partition("\n")[0]
        try:
            tree = ast.literal_eval(line)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            tree = {}
    yield from facts_of(tree, file=file) if isinstance(tree, Mapping) else ()


def _lines(text: str, file: str) -> Iterator[Fact]:
    for pattern, keys in LINES:
        match = pattern.search(text)
        for key, value in zip(keys, match.groups() if match else (), strict=False):
            yield Fact(key=key, value=scalar_of(value), place=f"{file}:{match[0][:40] if match else ''}")
    mesh, old = MESH.search(text), OLD_MESH.search(text)
    if mesh is not None:
        pairs = [part.strip().partition("=")[::2] for part in mesh[1].split(",")]
    else:
        pairs = list(zip(re.findall(r"\w+", old[1]), re.findall(r"\d+", old[2]), strict=False)) if old else []
    for name, degree in pairs:
        if name in DEGREES:
            yield Fact(key=f"parallelism.{DEGREES[name]}", value=scalar_of(degree), place=f"{file}:device mesh")
    if old is not None:
        degrees = [degree for name, degree in pairs if name in ("dp_shard", "dp")]
        value = scalar_of(degrees[0]) if degrees else 1
        yield Fact(key="parallelism.data_parallel_shard_degree", value=value, place=f"{file}:device mesh")
    if COMPILED in text:
        yield Fact(key="compile.enable", value=True, place=f"{file}:{COMPILED[:9]}")
    if STARTS[1] in text and "activation checkpointing to the model" not in text:
        yield Fact(key="activation_checkpoint.mode", value="none", place=f"{file}:no line about it")
