"""Options that nothing would read are refused by every command that reads a plan."""

import json

import pytest

from shardwise.cli.main import main

QUESTION = ["llama-3.2-1b", "1xh100-sxm", "--seq-len", "512", "--json"]


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--lora-rank", "8"], "add --adapter lora, or leave out --lora-rank"),
        (["--lora-targets", "all-linear"], "add --adapter lora, or leave out --lora-targets"),
        (["--recompute-layers", "3"], "add --recompute full, or leave out --recompute-layers"),
        (["--recompute", "none", "--recompute-layers", "3"], "add --recompute full, or leave out --recompute-layers"),
        (["--overlap-grad-reduce"], "leave out --overlap-grad-reduce"),
        (["--overlap-grad-reduce", "--engine", "fsdp2"], "leave out --overlap-grad-reduce"),
    ],
)
@pytest.mark.parametrize("command", ["predict", "timeline"])
def test_an_option_without_what_it_belongs_to_is_refused(command, words, fix, capsys):
    assert main([command, *QUESTION, *words]) == 2
    refused = json.loads(capsys.readouterr().out)
    assert (refused["code"], refused["fix"]) == ("cli-usage", fix)


@pytest.mark.parametrize(
    "words",
    [
        ["--adapter", "lora", "--lora-rank", "8"],
        ["--recompute", "full", "--recompute-layers", "3"],
        ["--overlap-grad-reduce", "--engine", "megatron"],
    ],
)
def test_with_it_the_option_is_read(words):
    assert main(["predict", *QUESTION, *words]) == 0


def test_what_a_plan_file_holds_is_what_the_option_belongs_to(tmp_path):
    plan = {
        "model": "llama-3.2-1b",
        "cluster": "1xh100-sxm",
        "recipe": {"seq_len": 512, "adapter": "lora", "recompute": "full"},
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    assert main(["predict", str(path), "--json", "--lora-rank", "8", "--recompute-layers", "3"]) == 0


def test_a_search_chooses_the_recomputation_whose_layers_are_given(capsys):
    assert main(["plan", *QUESTION[:-1], "--recompute", "full", "--recompute-layers", "3", "--json"]) in (0, 3)
    assert "does nothing" not in capsys.readouterr().out
