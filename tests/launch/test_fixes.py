"""The fix of the only thing that is wrong with a plan makes it one that is not refused again."""

import json
import random
import re
from dataclasses import fields

import pytest

from habits.source_tree import ROOT
from shardwise.errors import ShardwiseError
from shardwise.launch.request import require_native
from shardwise.launch.support import GAPS, require_supported
from shardwise.layout import Layout
from shardwise.plan_file import read_plan
from shardwise.recipe import Recipe
from shardwise.rules import find_errors

MODEL = json.loads((ROOT / "examples" / "tiny-llama" / "config.json").read_text(encoding="utf-8"))
LAYOUT_FIELDS, RECIPE_FIELDS = ({field.name for field in fields(kind)} for kind in (Layout, Recipe))
CHOICES = {
    "pp": [1, 2, 4],
    "schedule": ["1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"],
    "vpp": [None, 1, 2, 3],
    "recompute": ["none", "selective", "full"],
    "recompute_layers": [None, 2, 99],
    "compile": [None, True, False],
    "offload": ["none", "optimizer", "parameters", "nvme"],
    "tied": [False, True],
    "engine": ["native", "fsdp2", "torchtitan", "megatron", "deepspeed", "accelerate", "fsdp1"],
    "zero_stage": [None, 0, 1, 2, 3],
    "tp": [1, 2],
    "cp": [1, 2],
    "precision": ["bf16-mixed", "fp32", "fp16-mixed", "fp8-mixed", "bf16"],
    "optimizer": ["adamw", "sgd", "muon", "adafactor", "adamw-8bit", "lion"],
    "activation_offload": [False, True],
    "adapter": ["none", "lora", "qlora"],
    "global_batch_size": [64, 6],
    "sequence_parallel": [None, True, False],
    "attention": ["flash", "eager"],
    "async_tensor_parallel": [None, True],
    "fused_loss": [None, True],
    "wrap_ends": [None, True, False],
    "overlap_grad_reduce": [None, True, False],
    "reshard_after_forward": [None, True, False],
    "fused_optimizer": [None, True],
    "broadcast_weights": [None, True],
}
"""The first of each is what a plan has that does not say otherwise."""
VALUES = {"true": True, "false": False, "null": None}


def plan_of(chosen):
    """A plan document for eight GPUs."""
    given = {name: value for name, value in chosen.items() if value is not None}
    degree = given["pp"] * given["tp"] * given["cp"]
    return {
        "model": {**MODEL, "num_hidden_layers": 16, "tie_word_embeddings": given["tied"]},
        "cluster": "8xh100-sxm",
        "engine": given["engine"],
        "recipe": {"seq_len": 512, "micro_batch_size": 1} | _of(given, RECIPE_FIELDS),
        "layout": {"dp_shard": max(1, 8 // degree)} | _of(given, LAYOUT_FIELDS),
    }


def _of(given, names):
    return {name: value for name, value in given.items() if name in names}


def refusals(document, *, trains):
    """The fix of everything that would be refused: by the rules, and by what trains the plan."""
    try:
        plan = read_plan(document)
    except ShardwiseError as error:
        return [error.fix]
    found = [refusal.fix for refusal in find_errors(plan)]
    if not trains:
        return found
    if plan.engine != "native":
        return [*found, _fix_of(require_native, plan)]
    num_gaps = sum(gap.is_asked(plan) for gap in GAPS)
    return [*found, *(_fix_of(require_supported, plan) for _ in range(num_gaps))]


def _fix_of(require, plan):
    with pytest.raises(ShardwiseError) as refused:
        require(plan)
    return refused.value.fix


def followed(document, fix):
    """The document with the first thing that the fix proposes."""
    first = re.split(r", or | \(", fix)[0]
    found = re.findall(r"(\w+)(?:=| to |: )\"?([\w.-]+)", first)
    made = {**document, "layout": dict(document["layout"]), "recipe": dict(document["recipe"])}
    known = [(name, value) for name, value in found if name in {*LAYOUT_FIELDS, *RECIPE_FIELDS, "engine"}]
    assert known, fix
    for name, text in known:
        value = VALUES.get(text, int(text) if text.isdigit() else text)
        part = made if name == "engine" else made["layout" if name in LAYOUT_FIELDS else "recipe"]
        part[name] = value
        if value is None:
            del part[name]
    return made


@pytest.mark.parametrize("trains", [True, False], ids=["train", "predict"])
def test_a_fix_that_is_followed_is_not_refused_again(trains):
    chance, num_followed, again = random.Random(6), 0, {}
    for _ in range(2500):
        names = chance.sample(list(CHOICES), chance.randint(1, 5))
        chosen = {name: chance.choice(values) if name in names else values[0] for name, values in CHOICES.items()}
        document = plan_of(chosen)
        found = refusals(document, trains=trains)
        if len(found) != 1:
            continue
        num_followed += 1
        left = refusals(followed(document, found[0]), trains=trains)
        if left:
            again.setdefault((found[0], left[0]), {name: chosen[name] for name in names})
    assert again == {}
    assert num_followed > 200


def test_a_fix_that_leads_nowhere_would_be_found():
    plain = {name: values[0] for name, values in CHOICES.items()}
    document = plan_of({**plain, "pp": 2, "vpp": 2, "schedule": "interleaved"})
    assert refusals(document, trains=True) == []
    assert refusals(followed(document, "set schedule to 1f1b"), trains=True) == ["set schedule=interleaved"]
