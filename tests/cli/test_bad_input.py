"""Bad input gets one sentence, a code, a fix and exit code 2; never a traceback, on any command."""

import json

import pytest

from shardwise.cli.main import main

GOOD = {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {"seq_len": 4096}, "layout": {"dp_shard": 8}}


def plan_with(**parts) -> str:
    return json.dumps({**GOOD, **parts})


def refused(words, capsys) -> tuple[str, str]:
    """Run, and return the code and the sentence of the refusal, after checking its shape in both forms."""
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    sentence, fix = printed.err.splitlines()[0], printed.err.splitlines()[-1]
    assert sentence.startswith("error: ")
    assert fix.startswith("  fix: ")
    assert "Traceback" not in printed.err
    assert main([words[0], "--json", *words[1:]]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert list(answer) == ["ok", "error", "code", "fix"]
    assert answer["ok"] is False
    assert sentence == f"error: {answer['error']} [{answer['code']}]".splitlines()[0]
    return answer["code"], answer["error"]


FILES = {
    "broken JSON": ('{"model": ', "plan-syntax"),
    "empty": ("", "plan-empty"),
    "binary": ("\0\1\2", "plan-not-text"),
    "a list": ("[1, 2]", "plan-not-a-mapping"),
    "no model": ('{"cluster": "8xh100-sxm", "recipe": {"seq_len": 1}}', "plan-missing-key"),
    "no sequence length": (plan_with(recipe={}), "plan-missing-key"),
    "NaN": (plan_with(recipe={"seq_len": 4096}).replace("4096", "NaN"), "plan-not-finite"),
    "infinite tokens": (plan_with(recipe={"seq_len": 1, "tokens": 7}).replace("7", "1e999"), "plan-not-finite"),
    "negative sequence length": (plan_with(recipe={"seq_len": -1}), "plan-out-of-range"),
    "zero micro-batch": (plan_with(recipe={"seq_len": 64, "micro_batch_size": 0}), "plan-out-of-range"),
    "text for a number": (plan_with(recipe={"seq_len": "long"}), "plan-wrong-type"),
    "unknown key": (plan_with(recipe={"seq_len": 64, "seqlen": 64}), "plan-unknown-key"),
    "unknown precision": (plan_with(recipe={"seq_len": 64, "precision": "int3"}), "plan-unknown-choice"),
    "unknown GPU": (plan_with(cluster="8xh100000"), "cluster-unknown"),
    "a billion GPUs": (plan_with(cluster="1000000000xh100-sxm"), "cluster-size"),
    "no GPUs": (plan_with(cluster="0xh100-sxm"), "cluster-size"),
    "ambiguous GPU": (plan_with(cluster="8xa100"), "cluster-ambiguous-gpu"),
    "unknown model": (plan_with(model="llama-9-1b"), "model-unknown-name"),
    "config without fields": (plan_with(model={"hidden_size": 4096}), None),
    "tp=7": (plan_with(layout={"tp": 7}), None),
    "world size": (plan_with(layout={"dp_shard": 5}), "layout-world-size"),
    "deep nesting": ("[" * 100_000, None),
}


@pytest.mark.parametrize("name", FILES)
def test_a_plan_that_cannot_be_used_is_refused_by_predict(name, tmp_path, capsys):
    text, code = FILES[name]
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    found, _ = refused(["predict", str(path)], capsys)
    assert code is None or found == code


@pytest.mark.parametrize("command", ["predict", "explain", "cost", "plan"])
@pytest.mark.parametrize("name", ["broken JSON", "unknown GPU", "NaN", "config without fields"])
def test_the_other_commands_refuse_it_too(command, name, tmp_path, capsys):
    text, _ = FILES[name]
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    refused([command, str(path)], capsys)


@pytest.mark.parametrize("command", ["predict", "explain", "cost", "plan"])
def test_a_missing_file_is_refused_by_name(command, capsys, tmp_path):
    code, message = refused([command, str(tmp_path / "nothing.json")], capsys)
    assert code == "plan-not-found"
    assert "nothing.json" in message


@pytest.mark.parametrize("command", ["predict", "explain", "plan", "cost"])
def test_a_model_without_a_cluster_is_told_what_is_missing(command, capsys):
    code, message = refused([command, "llama-3.1-8b"], capsys)
    assert code == "cli-usage"
    assert "cluster" in message


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--tp", "7"], None),
        (["--tp", "-1"], "plan-out-of-range"),
        (["--tp", "0"], "plan-out-of-range"),
        (["--tp", "1e9"], "cli-usage"),
        (["--seq-len", "9" * 5000], "cli-usage"),
        (["--seq-len", "1" + "0" * 30], "plan-out-of-range"),
        (["--tokens", "nan"], "cli-usage"),
        (["--tokens=-5T"], "plan-out-of-range"),
        (["--tokens", "-1T"], "plan-out-of-range"),
        (["--lora-dropout-fraction", "-.5"], "plan-out-of-range"),
        (["--precision", "int3"], "cli-usage"),
        (["--stage-layers", "a,b"], "cli-usage"),
        (["--engine", "jax"], "cli-usage"),
    ],
)
def test_impossible_options_are_refused(words, code, capsys):
    found, _ = refused(["predict", "llama-3.1-8b", "8xh100-sxm", *words], capsys)
    assert code is None or found == code


@pytest.mark.parametrize("cluster", ["8xa100", "1000000000xh100-sxm", "-3xh100-sxm", "h1000", "nan", "", "no.toml"])
@pytest.mark.parametrize("command", ["predict", "plan", "explain"])
def test_impossible_clusters_are_refused(command, cluster, capsys):
    refused([command, "llama-3.1-8b", cluster], capsys)


@pytest.mark.parametrize("model", ["", "llama-9", "nothing/config.json", "-7B", "0B", "1e99B", "nanB"])
def test_impossible_models_are_refused(model, capsys):
    refused(["predict", "--", model, "8xh100-sxm"], capsys)


def test_a_config_of_100_megabytes_is_refused_unread(tmp_path, capsys):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 * 10**6)
    code, _ = refused(["predict", str(path), "8xh100-sxm"], capsys)
    assert code == "model-file-too-large"


def test_a_plan_file_of_100_megabytes_is_refused_unread(tmp_path, capsys):
    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        file.truncate(100 * 10**6)
    code, _ = refused(["predict", str(path)], capsys)
    assert code == "plan-too-large"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["cost", "llama-3.1-8b", "8xh100-sxm"], "cost-tokens"),
        (["cost", "llama-3.1-8b", "8xh100-sxm", "--tokens", "0"], "cost-tokens"),
        (["cost", "llama-3.1-8b", "8xh100-sxm", "--tokens", "1T", "--mfu", "1.5"], "cost-mfu"),
        (["cost", "llama-3.1-8b", "8xh100-sxm", "--tokens", "1T", "--mfu", "nan"], "cost-mfu"),
        (["cost", "llama-3.1-8b", "8xh100-sxm", "--tokens", "1T", "--price", "-1"], "cost-price"),
        (["cost", "llama-3.1-8b", "8xh100-sxm", "--tokens", "1T", "--gpu", "h100-sxm"], "cli-usage"),
        (["cost", "llama-3.1-8b", "--gpu", "h100-sxm", "--tokens", "1T"], "cli-usage"),
        (["cost", "llama-3.1-8b", "--gpu", "h100-sxm", "--num-gpus", "0", "--tokens", "1T"], "cost-gpus"),
        (["plan", "llama-3.1-8b", "8xh100-sxm", "--tp", "many"], "search-bounds"),
        (["plan", "llama-3.1-8b", "8xh100-sxm", "--tp", "3"], "search-bounds"),
        (["plan", "llama-3.1-8b", "8xh100-sxm", "--top", "0"], "cli-usage"),
        (["plan", "llama-3.1-8b", "8xh100-sxm", "--schedule", "best"], "cli-usage"),
        (["catalog", "gpus", "h1000000"], "catalog-no-entry"),
        (["catalog", "show"], "cli-usage"),
        (["catalog", "show", "h1000000"], "catalog-no-entry"),
        (["catalog", "tpus"], "cli-usage"),
        (["validate", "--family", "NOBODY"], "cli-usage"),
    ],
)
def test_each_command_refuses_its_own_impossibilities(words, code, capsys):
    found, _ = refused(words, capsys)
    assert found == code


@pytest.mark.parametrize("command", ["predict", "plan", "explain", "timeline", "cost"])
@pytest.mark.parametrize("name", ["-", "plan.yaml", "plan.json", "plans.jsonl"])
def test_a_plan_beside_a_cluster_is_refused_because_it_names_its_own(command, name, tmp_path, capsys):
    source = name if name == "-" else str(tmp_path / name)
    if name != "-":
        (tmp_path / name).write_text(plan_with(), encoding="utf-8")
    code, message = refused([command, source, "16xh100-sxm"], capsys)
    assert code == "cli-usage"
    assert message.endswith("names its own cluster, but 16xh100-sxm was given beside it")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--num-gpus", "1000000000"], "cost-gpus"),
        (["--num-gpus", "8", "--mfu", "1e-300"], "cost-mfu"),
        (["--num-gpus", "8", "--mfu", "-.4"], "cost-mfu"),
        (["--num-gpus", "8", "--goodput", "1e-9"], "cost-goodput"),
        (["--num-gpus", "8", "--mfu", "nan"], "cost-mfu"),
    ],
)
def test_a_cost_that_no_cluster_could_run_up_is_refused(words, code, capsys):
    assert refused(["cost", "llama-3.1-8b", "--gpu", "h100-sxm", "--tokens", "1T", *words], capsys)[0] == code


def test_a_share_of_a_peak_that_nobody_published_is_refused(capsys):
    code, message = refused(["cost", "llama-3.1-8b", "dgx-spark", "--tokens", "1T"], capsys)
    assert code == "cost-no-peak"
    assert "bf16 peak of gb10-spark" in message


@pytest.mark.parametrize("name", ["8xh100-sxm", "h100-sxm"])
def test_a_cluster_alone_is_told_that_the_model_is_missing(name, capsys):
    assert main(["predict", name]) == 2
    assert f"fix: name the model as well: llama-3.1-8b {name}\n" in capsys.readouterr().err
