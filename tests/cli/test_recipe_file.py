"""Recipes: one file for every option of ``train``, checked before anything is written, and kept in the run folder."""

import json
import re
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml

from recipes import NAMES, RECIPES, lay_out
from shardwise.cli.command import find_command, make_parser
from shardwise.cli.main import main
from shardwise.cli.recipe_options import recipe_sections
from shardwise.cli.recipe_schema import recipe_schema
from shardwise.plan_file import read_plan

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "recipe.schema.json"
PLAN = {"model": "tiny-llama", "cluster": "two-cores.toml", "recipe": {"seq_len": 64}, "layout": {"dp_shard": 2}}
NOT_IN_A_RECIPE = {"--help", "--json", "--dry-run", "--lint", "--show-batch", "--model", "--cluster"}


@pytest.fixture
def desk(tmp_path, monkeypatch):
    shutil.copytree(ROOT / "examples" / "tiny-llama", tmp_path / "tiny-llama")
    shutil.copy(ROOT / "examples" / "two-cores.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, **parts):
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"plan": PLAN, **parts}), encoding="utf-8")
    return path


def job_of(words):
    assert main(["train", *map(str, words), "--dry-run", "--json", "--out", "run"]) == 0
    return json.loads(Path("run/job.json").read_text(encoding="utf-8"))


def test_text_is_read_by_the_tokenizer_of_the_weights_which_a_resume_finds(desk):
    """Pretrained weights know the tokens of their own tokenizer alone; bytes would train without a complaint."""
    Path("corpus.txt").write_text("some text " * 100, encoding="utf-8")
    lay_out(desk)
    base = desk / "models" / "llama-3.1-8b"
    words = [base / "config.json", "cores1.toml", "--seq-len", "64", "--data", "corpus.txt", "--weights", base]
    assert job_of(words)["data"]["tokenizer"] == str(base)
    assert json.loads(Path("run/recipe.json").read_text(encoding="utf-8"))["data"]["tokenizer"] == str(base)
    shutil.rmtree("run")
    assert job_of(words[:-2])["data"]["tokenizer"] is None


def refusal(words, capsys):
    assert main(["train", *map(str, words), "--dry-run", "--json", "--out", "run"]) == 2
    assert not Path("run").exists()
    answer = json.loads(capsys.readouterr().out)
    return answer["error"], answer["fix"]


def test_every_option_of_the_command_is_a_field_of_the_recipe():
    """Of its plan, or of a section; but for those that ask for an answer instead of a run."""
    entry = find_command("train")
    parser = make_parser(entry, entry.load())
    options = {option for action in parser._actions for option in action.option_strings if option.startswith("--")}
    properties = recipe_schema()["properties"]
    plan = properties["plan"]["anyOf"][0]["properties"]
    groups = [
        plan["recipe"],
        plan["layout"],
        *(part for name, part in properties.items() if name not in ("schema", "plan")),
    ]
    fields = {name for group in groups for name in group["properties"]}
    named = {option.removeprefix("--").removeprefix("no-").replace("-", "_") for option in options - NOT_IN_A_RECIPE}
    assert named == fields


def test_a_section_is_a_group_of_the_help_page():
    entry = find_command("train")
    assert {"run", "data", "optimizer", "checkpoints", "watch"} <= {*recipe_sections(make_parser(entry, entry.load()))}


def test_the_published_schema_is_that_of_the_program():
    """After a wanted change: ``make docs``."""
    assert json.loads(PUBLISHED.read_text(encoding="utf-8")) == recipe_schema()


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_of_the_examples_keeps_to_the_schema(name):
    document = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(document, recipe_schema())


WRONG = [
    ({"opt": {"eps": 1e-8}}, "opt is not a field of a recipe", "write optimizer"),
    (
        {"optimizer": {"lerning_rate": 1e-3}},
        "optimizer.lerning_rate is not a field of a recipe",
        "write learning_rate",
    ),
    ({"run": {"beta2": 0.9}}, "run.beta2 is not a field of a recipe", "write it under optimizer"),
    ({"run": {"steps": "many"}}, "run.steps is 'many', not a whole number", "write a number such as 10"),
    ({"run": {"steps": 0}}, "run.steps is 0, outside 1 to 1000000000000", "write steps: 1"),
    ({"optimizer": {"beta1": 2}}, "optimizer.beta1 is 2, outside 0 to 0.999999999", "write beta1: 0.999999999"),
    ({"optimizer": {"decay": "wds"}}, "optimizer.decay is 'wds', not one of", 'write decay: "wsd"'),
    ({"optimizer": {"undecayed": [3]}}, "optimizer.undecayed[0] is 3, not text", 'write undecayed: "3", in quotes'),
    (
        {"checkpoints": {"async_checkpoints": 1}},
        "checkpoints.async_checkpoints is 1, neither true nor false",
        "write async_checkpoints: true or async_checkpoints: false, without quotes",
    ),
    ({"watch": []}, "watch is a list, not a group of fields", "write watch as a mapping, such as {profile_every: ...}"),
    ({"schema": "shardwise.recipe/9"}, "the schema is 'shardwise.recipe/9'", 'write schema: "shardwise.recipe/1"'),
    ({"plan": {**PLAN, "recipe": {"seqlen": 4}}}, "recipe.seqlen is not a field of a plan", "write seq_len"),
    ({"plan": 5}, "plan is 5, neither a plan nor the path of one", "write plan: plan.json"),
]


@pytest.mark.parametrize(("parts", "error", "fix"), WRONG, ids=[error[:30] for _, error, _ in WRONG])
def test_a_wrong_recipe_is_refused_with_file_key_and_fix(desk, capsys, parts, error, fix):
    path = write(desk, **parts)
    said, way = refusal([path], capsys)
    assert str(path) in said
    assert error in said
    assert way.startswith(fix)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), recipe_schema())


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        ({"optimizer": {"group_rate": "lm_head"}}, "optimizer.group_rate[0]: 'lm_head' is not PATTERN=RATE"),
        ({"optimizer": {"group_rate": ["a=1", "b=x"]}}, "optimizer.group_rate[1]: 'x' is not a finite number"),
        ({"checkpoints": {"keep": 4}}, "--keep does nothing without --checkpoint-every"),
    ],
)
def test_what_no_schema_says_is_refused_as_on_the_command_line(desk, capsys, parts, error):
    assert error in refusal([write(desk, **parts)], capsys)[0]


def test_a_recipe_is_the_run_that_its_options_would_be(desk):
    parts = {
        "run": {"steps": 7, "device": "cpu", "deterministic": True},
        "data": {"shuffle": True},
        "optimizer": {"learning_rate": 1e-3, "group_rate": ["*embed*=1e-4"], "undecayed": "*embed*"},
        "checkpoints": {"checkpoint_every": 3, "async_checkpoints": True},
        "watch": {"profile_every": 2, "memory_snapshot": False},
    }
    from_file = job_of([write(desk, **parts)])
    words = ["--seq-len", "64", "--dp-shard", "2", "--steps", "7", "--device", "cpu", "--deterministic"]
    words += ["--learning-rate", "1e-3", "--group-rate", "*embed*=1e-4", "--undecayed", "*embed*"]
    words += ["--checkpoint-every", "3", "--async-checkpoints", "--profile-every", "2"]
    shutil.rmtree("run")
    assert from_file == job_of(["tiny-llama", "two-cores.toml", *words])


def test_what_is_typed_wins_over_the_file_and_is_said(desk, capsys):
    path = write(desk, run={"steps": 7}, optimizer={"group_rate": ["*embed*=1e-4"], "learning_rate": 0.1})
    job = job_of([path, "--steps", "9", "--group-rate", "lm_head*=0.5", "--seq-len", "32", "--learning-rate", "0.1"])
    assert (job["num_steps"], job["recipe"]["seq_len"]) == (9, 32)
    assert job["optimizer"]["group_rates"] == [["lm_head*", 0.5]]
    said = capsys.readouterr().err
    assert "--steps is taken instead of run.steps in recipe.yaml (7)" in said
    assert '--group-rate is taken instead of optimizer.group_rate in recipe.yaml (["*embed*=1e-4"])' in said
    assert "--seq-len is taken instead of plan.recipe.seq_len in recipe.yaml (64)" in said
    assert "--learning-rate" not in said


def test_the_recipe_that_a_run_keeps_is_the_same_run(desk, monkeypatch):
    """Paths in it are absolute, so that it can be read from anywhere."""
    Path("notes.txt").write_text("The plan names the layout.\n" * 99, encoding="utf-8")
    first = job_of([write(desk, data={"data": "notes.txt"}), "--steps", "5", "--packing", "documents"])
    kept = desk / "run" / "recipe.json"
    document = json.loads(kept.read_text(encoding="utf-8"))
    jsonschema.validate(document, recipe_schema())
    assert document["data"] == {"data": [str(desk / "notes.txt")], "packing": "documents"}
    assert document["run"] == {"steps": 5, "out": str(desk / "run")}
    (desk / "elsewhere").mkdir()
    monkeypatch.chdir(desk / "elsewhere")
    assert main(["train", str(kept), "--dry-run", "--json", "--out", "run"]) == 0
    again = json.loads(Path("run/job.json").read_text(encoding="utf-8"))
    assert {**again, "run_folder": ""} == {**first, "run_folder": ""}


def test_a_path_is_looked_for_beside_the_recipe_first(desk, monkeypatch):
    (desk / "sub").mkdir()
    for folder in (desk, desk / "sub"):
        (folder / "notes.txt").write_text(f"{folder}\n" * 99, encoding="utf-8")
    plan = {**PLAN, "model": "../tiny-llama", "cluster": "../two-cores.toml"}
    path = write(desk / "sub", plan=plan, data={"data": "notes.txt"})
    assert job_of([path])["data"]["source"] == str(desk / "sub" / "notes.txt")


def test_the_plan_of_a_recipe_may_be_a_file_and_every_command_reads_it(desk, capsys):
    Path("plan.json").write_text(json.dumps(PLAN), encoding="utf-8")
    path = write(desk, plan="plan.json", run={"steps": 3})
    assert read_plan(path) == read_plan(Path("plan.json"))
    assert main(["predict", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True


def test_a_run_without_a_plan_says_what_to_name(desk, capsys):
    assert "PLAN|MODEL" in refusal([], capsys)[0]
    said, fix = refusal(["--resume", "nowhere"], capsys)
    assert re.match(r"no recipe.json lies in nowhere or above it", said)
    assert fix == "name the plan as well: shardwise train plan.json --resume nowhere"


def test_a_recipe_is_read_once(desk, monkeypatch):
    opened = []
    monkeypatch.setattr(
        "shardwise.plan_file.read.read_plan_bytes", lambda path: opened.append(path) or path.read_bytes()
    )
    job_of([write(desk, run={"steps": 3})])
    assert [path.name for path in opened if path.suffix == ".yaml"] == ["recipe.yaml"]
