"""Fixes name the option where a plan file and the command line spell a value differently."""

import doctest

import pytest

from shardwise.cli import spelling
from shardwise.cli.main import main


def test_the_examples_hold():
    assert doctest.testmod(spelling).failed == 0


def test_a_refusal_of_options_says_what_to_type(capsys):
    assert main(["predict", "llama-3.1-8b", "8xh100-sxm", "--recompute", "full", "--recompute-layers", "99"]) == 2
    assert "--recompute-layers" in capsys.readouterr().err


@pytest.mark.parametrize("fix", ["set dp_shard=8", "name a GPU of the catalogue", "set zero_stage=3 and ep=1"])
def test_values_that_both_spell_alike_stay(fix):
    assert spelling.with_option_spelling(fix, ["predict", "8B", "8xh100", "--tp", "3"]) == fix


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--tensor-model-parallel-size", "8"], "write --tp instead of --tensor-model-parallel-size"),
        (["--mbs", "2"], "write --micro-batch-size instead of --mbs"),
        (["--tp-comm-overlap"], "write --async-tensor-parallel instead of --tp-comm-overlap"),
        (["--use-distributed-optimizer"], "write --zero-stage instead of --use-distributed-optimizer"),
        (["--hsdp", "2"], "write --dp-replicate instead of --hsdp"),
        (["--precision", "fp8"], "write --precision fp8-mixed"),
        (["--fp8"], "write --precision fp8-mixed"),
        (["--bf16"], "write --precision bf16-mixed"),
        (["--qlora"], "write --adapter qlora"),
        (["--lora", "16"], "write --adapter lora --lora-rank 16"),
        (["--seq-len", "-5"], "write seq_len: 4096"),
    ],
)
def test_what_other_tools_call_an_option_is_answered_by_ours(words, fix, capsys):
    assert main(["predict", "llama-3.1-8b", "8xh100-sxm", *words]) == 2
    assert fix in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--gpu", "8"], "write --gpus instead of --gpu"),
        (["--zero", "3"], "write --zero-stage instead of --zero"),
        (["--sequence-paralel"], "write --sequence-parallel instead of --sequence-paralel"),
        (["--engine", "megatorn"], "write --engine megatron"),
        (["--engine", "torch-titan"], "write --engine torchtitan"),
        (["--schedule", "interleave"], "write --schedule interleaved"),
    ],
)
def test_a_near_spelling_is_proposed(words, fix, capsys):
    assert main(["plan", "llama-3.1-8b", "8xh100-sxm", *words]) == 2
    assert f"fix: {fix}\n" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--bogus"], ["--bogus", "3"], ["--xyz=1"], ["--a"], ["--"], ["-x"]])
@pytest.mark.parametrize("command", ["plan", "predict", "train", "cost"])
def test_what_is_near_to_nothing_is_told_where_the_options_stand(command, words, capsys):
    if words == ["--"]:
        words = ["--", "one-place-too-many"]
    assert main([command, "llama-3.1-8b", "8xh100-sxm", *words]) == 2
    files = "fix: leave it out, or give files that are all of another tool\n"
    fix = files if words[0] == "--" else f"fix: run `shardwise {command} --help`\n"
    assert fix in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--engine", "foo"), ("--schedule", "xyz"), ("--precision", "int3")])
def test_a_value_near_to_none_is_answered_by_no_arbitrary_one(option, value, capsys):
    assert main(["plan", "llama-3.1-8b", "8xh100-sxm", option, value]) == 2
    assert f"fix: correct {option}; `shardwise plan --help` says what it takes\n" in capsys.readouterr().err


def test_a_value_of_a_plan_near_to_none_is_answered_by_no_arbitrary_one(tmp_path, capsys):
    path = tmp_path / "plan.json"
    path.write_text('{"model": "gpt2", "cluster": "1xh100-sxm", "engine": "foo", "recipe": {"seq_len": 64}}')
    assert main(["predict", str(path)]) == 2
    assert "fix: write one of these names, or leave engine out\n" in capsys.readouterr().err
