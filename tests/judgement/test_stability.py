"""A little more or less of the batch, the memory, the sequence or the servers changes a recommendation little, or the
screen names what it hangs on: a batch that GPUs do not share, or memory that binds."""

import json
import random
import re
import shlex
from math import prod

import pytest

from judgement.test_questions import QUESTIONS, said
from shardwise.catalog import read_cluster

MOST_CHANGE = 0.10
SEED = 20
NUM_QUESTIONS = 12
SEQUENCE_STEP = 128
"""Sequences are cut in multiples of this; the longest of odd lengths fit no ring of attention."""
VARIED = [
    one
    for one in QUESTIONS["question"]
    if "refuses" not in one and all(option in one["command"] for option in ("--seq-len", "--global-batch-size"))
]
DRAWN = random.Random(SEED).sample(VARIED, NUM_QUESTIONS)


def with_option(words, name, value):
    changed = list(words)
    changed[changed.index(name) + 1] = str(value)
    return changed


def option(words, name):
    return int(words[words.index(name) + 1])


def variations(words, folder):
    """The question with one thing changed by a few per cent, each with what was changed."""
    batch, seq_len = option(words, "--global-batch-size"), option(words, "--seq-len")
    for factor in (0.95, 1.05):
        if round(batch * factor) not in (0, batch):
            yield f"batch {factor}", with_option(words, "--global-batch-size", round(batch * factor))
    for factor in (0.9, 1.1):
        shorter = round(seq_len * factor / SEQUENCE_STEP) * SEQUENCE_STEP
        if shorter:
            yield f"sequence {factor}", with_option(words, "--seq-len", shorter)
    cluster = read_cluster(words[2])
    for factor in (0.95, 1.05):
        file = folder / f"memory-{factor}.json"
        memory_gib = factor * cluster.gpu.memory_bytes / 2**30
        file.write_text(json.dumps({**json.loads(cluster.spec_json), "memory_gib": memory_gib}), encoding="utf-8")
        yield f"memory {factor}", [*words[:2], str(file), *words[3:]]
    count, name = re.fullmatch(r"(\d+)x(.+)", words[2]).groups()
    per_server = read_cluster(f"1x{name}").num_gpus if int(count) < cluster.num_gpus else cluster.node.gpus_per_node
    step = 1 if int(count) < cluster.num_gpus else per_server
    for servers in (-step, step):
        if cluster.num_nodes > 1:
            yield f"servers {servers:+}", [*words[:2], f"{int(count) + servers}x{name}", *words[3:]]


def rate_of(answer):
    return answer["recommended"]["prediction"]["throughput"]["tokens_per_s_per_gpu"]


def use_of(answer):
    """Share of the dense peak: attention over a million tokens takes nearly all of it, in proportion to them."""
    return answer["recommended"]["prediction"]["throughput"]["mfu_fraction"]


def names_the_cause(words, least_rate):
    """Whether the screen offers a batch that brings the rate back, says that memory binds, or refuses by a rule."""
    exit_code, answer = said(words)
    if exit_code:
        return exit_code == 2 or "batch" in json.dumps(answer)
    sensitivity = answer["what_if"]
    if sensitivity["binding"].startswith("Memory binds"):
        return True
    layout = answer["recommended"]["plan"]["layout"]
    num_gpus = prod(layout[name] for name in ("dp_replicate", "dp_shard", "tp", "cp", "pp"))
    offered = [change for change in sensitivity["changes"] if change["change"].startswith("global_batch_size=")]
    for change in offered:
        recipe = change["plan"]["recipe"]
        rate = recipe["global_batch_size"] * recipe["seq_len"] / change["step_s"] / num_gpus
        if rate >= least_rate:
            return True
    return False


@pytest.mark.runs
@pytest.mark.parametrize("question", DRAWN, ids=[one["id"] for one in DRAWN])
def test_a_little_more_or_less_changes_little_or_the_screen_says_why(question, tmp_path):
    words = shlex.split(question["command"])[1:]
    exit_code, answer = said([*words, "--no-what-if"])
    assert exit_code == 0
    now, used = rate_of(answer), use_of(answer)
    unexplained = []
    for name, changed in variations(words, tmp_path):
        exit_code, other = said([*changed, "--no-what-if"])
        ratio = 0.0 if exit_code else use_of(other) / used if "sequence" in name else rate_of(other) / now
        if abs(ratio - 1) > MOST_CHANGE and not names_the_cause(changed, (1 - MOST_CHANGE) * now):
            # more is a reason as well: the question itself hung on its batch or its memory
            if ratio > 1 and names_the_cause(words, (1 - MOST_CHANGE) * rate_of(other)):
                continue
            unexplained.append(f"{name}: {ratio:.2f}")
    assert unexplained == []
