"""What docs/extending.md adds works: every change of the page is made to a copy of the package and used there."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from habits.source_tree import ROOT
from shardwise.units import GIB

PAGE = ROOT / "docs" / "extending.md"
BLOCK = re.compile(r"(?P<words>[^`#]*(?:`[^`\n]+`[^`#]*)+):\n\n```\w+\n(?P<text>.*?)```\n", re.DOTALL)
NAMED = re.compile(r"`([^`\n]+)`")
WAYS = {"new file": "new", "replaces": "instead", "begins": "begins"}
"""What is done with a block by the words before it; otherwise it goes after the line that is named last."""
MODEL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def sections(page):
    """The text under every heading, by the heading."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def change(folder, path, anchor, how, text):
    """Write one block of the page into the copy."""
    target = folder / path.removeprefix("src/")
    if how == "new":
        assert not target.exists()
        target.write_text(text, encoding="utf-8")
        return
    lines = target.read_text(encoding="utf-8").splitlines(keepends=True)
    found = [
        i for i, line in enumerate(lines) if (line.startswith(anchor) if how != "after" else line == f"{anchor}\n")
    ]
    assert len(found) == 1, (path, anchor, found)
    end = found[0] + 1
    lines[found[0] if how == "instead" else end : end] = [text]
    target.write_text("".join(lines), encoding="utf-8")


def extend(folder, section):
    """Make a section's changes; the paths it touched."""
    touched, path = [], ""
    for block in BLOCK.finditer(section):
        words, names = block["words"], NAMED.findall(block["words"])
        paths = [name for name in names if name.startswith("src/")]
        path = paths[-1] if paths else path
        how = next((how for word, how in WAYS.items() if word in words), "after")
        change(folder, path, names[-1], how, block["text"])
        touched.append(path)
    return set(touched)


@pytest.fixture
def copy(tmp_path):
    """A copy of the package."""
    shutil.copytree(ROOT / "src", tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "copy"


@pytest.fixture
def run(copy):
    """Run Python with the copy; what it printed."""

    def ran(*arguments, given=""):
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, input=given, capture_output=True, text=True, check=False, cwd=copy, env=environment
        ).stdout

    return ran


@pytest.fixture
def touched(copy):
    """Make the changes of a section of the page; how many files they touched."""
    page = sections(PAGE.read_text(encoding="utf-8"))
    return lambda heading: len(extend(copy, page[heading]))


def plan(**parts):
    return {
        "model": MODEL,
        "cluster": {"node": "dgx-h100", "num_nodes": 1},
        "recipe": {"seq_len": 512, "global_batch_size": 128},
        **parts,
    }


def predicted(run, document):
    return json.loads(run("-m", "shardwise", "predict", "-", "--json", given=json.dumps(document)))


BUILT = """
from shardwise.optimizers import OPTIMIZERS
from shardwise.train.optimizers import optimizer_class
print(optimizer_class(OPTIMIZERS["rmsprop"]).__name__)
"""


def test_a_field_of_the_recipe_is_two_files(run, touched):
    assert touched("A field of the recipe") == 2
    recipe = {"seq_len": 512, "global_batch_size": 128}
    states = predicted(run, plan(recipe={**recipe, "num_averages": 1}))["memory"]["components_bytes"]["optimizer"]
    adam = predicted(run, plan())["memory"]["components_bytes"]["optimizer"]
    assert 2 * states == 3 * adam
    assert predicted(run, plan(recipe={**recipe, "num_averages": 5}))["code"] == "plan-out-of-range"
    assert predicted(run, plan(recipe={**recipe, "ema": 1}))["fix"] == "write num_averages"
    words = ("-m", "shardwise", "predict", "-", "--json", "--num-averages", "1")
    typed = json.loads(run(*words, given=json.dumps(plan())))
    assert typed["memory"]["components_bytes"]["optimizer"] == states
    assert "--num-averages N" in run("-m", "shardwise", "plan", "--help")


def test_an_optimizer_is_two_files(run, touched):
    assert touched("An optimizer") == 2
    document = plan(recipe={"seq_len": 512, "global_batch_size": 128, "optimizer": "rmsprop"})
    states = predicted(run, document)["memory"]["components_bytes"]["optimizer"]
    adam = predicted(run, plan())["memory"]["components_bytes"]["optimizer"]
    assert 2 * states == adam
    assert predicted(run, {**document, "engine": "megatron"})["code"] == "engine-optimizer"
    assert run("-c", BUILT) == "RMSprop\n"


def test_a_schedule_is_three_files(run, touched):
    assert touched("A pipeline schedule") == 3
    layout = {"pp": 8, "schedule": "eager-1f1b"}
    stages = predicted(run, plan(engine="megatron", layout=layout))["memory"]["stages"]
    assert [stage["in_flight_micro_batches"] for stage in stages] == [15, 13, 11, 9, 7, 5, 3, 1]
    assert predicted(run, plan(engine="deepspeed", layout=layout))["code"] == "engine-schedule"


def test_an_engine_is_two_files(run, touched):
    assert touched("An engine") == 2
    document = plan(engine="inhouse", layout={"pp": 2, "dp_shard": 4})
    assert predicted(run, document)["fits"]
    assert predicted(run, {**document, "layout": {"cp": 2, "dp_shard": 4}})["code"] == "engine-axes"


def test_a_gpu_of_a_known_architecture_is_one_row(run, touched):
    assert touched("A GPU of a known architecture") == 1
    answer = predicted(run, plan(cluster={"gpu": "h100-64", "gpus_per_node": 4, "num_nodes": 1}))
    assert 60 * GIB < answer["memory"]["capacity_bytes"] < 64 * GIB
    assert answer["time"]["step_s"] > 0


def test_a_family_with_one_odd_weight_is_two_files(run, touched):
    assert touched("A model family with one odd weight") == 2
    ours = predicted(run, plan(model={**MODEL, "model_type": "tempered"}))
    llama = predicted(run, plan())
    assert ours["parameters"]["total"] - llama["parameters"]["total"] == MODEL["num_hidden_layers"]


def test_a_rule_is_one_file(run, touched):
    assert touched("A rule") == 1
    recipe = {"seq_len": 500, "global_batch_size": 128}
    answer = predicted(run, plan(recipe=recipe))
    assert (answer["code"], answer["fix"]) == ("recipe-sequence-tiles", "set seq_len=512")
    assert predicted(run, plan(recipe={**recipe, "seq_len": 512}))["fits"]
    assert predicted(run, plan(recipe=recipe, engine="torchtitan"))["fits"]


def test_a_name_without_a_record_is_refused_like_any_unknown_name(run, copy):
    change(copy, "src/shardwise/optimizers.py", '    "muon",', "after", '    "rmsprop",\n')
    change(copy, "src/shardwise/schedules/table.py", '    "dualpipe",', "after", '    "eager-1f1b",\n')
    change(copy, "src/shardwise/engines/table.py", '    "nanotron",', "after", '    "inhouse",\n')
    recipe = {"seq_len": 512, "optimizer": "rmsprop"}
    for document in (plan(recipe=recipe), plan(layout={"pp": 2, "schedule": "eager-1f1b"}), plan(engine="inhouse")):
        assert predicted(run, document)["code"] == "plan-unknown-choice"
