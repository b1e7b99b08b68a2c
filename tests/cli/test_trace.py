"""``shardwise trace``: text, JSON that reconcile takes, and refusals."""

import json
import sys

import pytest

from shardwise.cli.main import main
from shardwise.plan_file import read_plan
from shardwise.reconcile.measured import measured_totals

PLAN = {
    "model": {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 256,
        "max_position_embeddings": 128,
    },
    "cluster": "4xh100-sxm",
    "recipe": {"seq_len": 64, "compile": False},
    "layout": {"dp_shard": 4},
}


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN), encoding="utf-8")
    return path


def test_text_shows_memory_collectives_and_flop(plan_file, capsys):
    assert main(["trace", str(plan_file)]) == 0
    text = capsys.readouterr().out
    assert "5 of 8 blocks and 1 of 1 micro-batches were run" in text
    for words in ("Memory at the fullest moment", "reduce_scatter dp_shard 4", "layers.*", "FLOP:"):
        assert words in text


def test_the_record_is_a_measurement_that_reconcile_takes(plan_file, tmp_path, capsys):
    out = tmp_path / "measurement.json"
    assert main(["trace", str(plan_file), "--json", "--out", str(out)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == "shardwise.measurement/1"
    (stage,) = record["trace"]["stages"]
    gathers = [call for call in stage["collectives"] if call["kind"] == "all_gather" and "layers" in call["unit"]]
    assert sum(call["count"] for call in gathers) == 2 * 8 - 1
    totals = measured_totals(out, read_plan(PLAN))
    assert totals.peak_allocated_bytes == record["memory"]["peak_allocated_bytes"]
    assert main(["reconcile", str(out), "--plan", str(plan_file)]) == 0
    assert "peak allocated" in capsys.readouterr().out


@pytest.mark.parametrize("gpus", [4, 1], ids=["vocabulary over ranks", "kernels of one GPU"])
def test_a_compiled_plan_is_traced_as_it_runs_uncompiled_and_says_so(plan_file, capsys, gpus):
    plan_file.write_text(json.dumps({**PLAN, "cluster": f"{gpus}xh100-sxm", "layout": {"dp_shard": gpus}}))
    assert main(["trace", str(plan_file), "--compile"]) == 0
    assert "traced as they run without compilation" in capsys.readouterr().out


def test_an_own_module_is_found_where_the_command_is_typed(plan_file, tmp_path, monkeypatch, capsys):
    made = "nn.Sequential(nn.Embedding(96, 32), nn.Linear(32, 96))"
    code = f"from torch import nn\n\ndef make():\n    return {made}\n"
    (tmp_path / "typed_here.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["trace", str(plan_file), "--module", "typed_here:make"]) == 0
    assert "typed_here:make" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--module", "no_such_package_here:make"], "trace-module"),
        (["--module", "json"], "trace-module"),
        (["--engine", "megatron"], "train-engine"),
        (["--precision", "fp8-mixed", "--adapter", "qlora"], "recipe-fp8-quantised-base"),
        (["--offload", "nvme"], "train-not-supported"),
    ],
)
def test_what_cannot_be_traced_ends_with_a_code_and_a_fix(plan_file, capsys, words, code):
    assert main(["trace", str(plan_file), "--json", *words]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["code"] == code
    assert answer["fix"]


def test_a_file_is_not_overwritten_unasked(plan_file, tmp_path, capsys):
    out = tmp_path / "there.json"
    out.write_text("{}", encoding="utf-8")
    assert main(["trace", str(plan_file), "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
