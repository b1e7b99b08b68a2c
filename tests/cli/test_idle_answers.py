"""Options that the model, the engine or the bounds leave nothing for are refused by ``plan`` and ``predict``."""

import pytest

from shardwise.cli.main import main

DENSE, RECURRENT, MOE = "gpt2", "mamba-130m", "mixtral-8x7b"


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--routing-imbalance-ratio", "2"], "leave out --routing-imbalance-ratio"),
        (["--recompute-modules", "mlp"], "add --engine megatron, or leave out --recompute-modules"),
        (
            ["--recompute-modules", "mlp", "--engine", "megatron", "--recompute", "full"],
            "add --recompute selective, or leave out --recompute-modules",
        ),
        (["--mean-document-len", "1024"], "leave out --mean-document-len"),
        (
            ["--mean-document-len", "100", "--attention", "eager"],
            "add --attention flash, or leave out --mean-document-len",
        ),
    ],
)
@pytest.mark.parametrize("command", ["plan", "predict"])
def test_an_option_that_nothing_reads_is_refused(command, words, fix, capsys):
    assert main([command, DENSE, "1xh100-sxm", "--seq-len", "1024", *words]) == 2
    printed = capsys.readouterr().err
    assert f"error: {words[0]} does nothing " in printed
    assert f"fix: {fix}\n" in printed


def test_layers_are_recomputed_only_where_a_search_may_recompute(capsys):
    words = ["plan", DENSE, "1xh100-sxm", "--seq-len", "1024", "--recompute-layers", "3", "--no-what-if", "--top", "1"]
    assert main([*words, "--recompute", "none"]) == 2
    assert "fix: add --recompute full, or leave out --recompute-layers" in capsys.readouterr().err
    assert main(words) == 0


def test_a_sweep_refuses_it_too(capsys):
    words = ["plan", DENSE, "--gpus", "1..2", "--gpu-types", "h100-sxm", "--routing-imbalance-ratio", "2"]
    assert main(words) == 2
    assert "fix: leave out --routing-imbalance-ratio" in capsys.readouterr().err


def test_documents_are_kept_apart_by_attention_alone(capsys):
    assert main(["predict", RECURRENT, "1xh100-sxm", "--seq-len", "1024", "--mean-document-len", "100"]) == 2
    assert "in a model without attention to keep apart" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [MOE, "8xh100-sxm", "--routing-imbalance-ratio", "1.5"],
        [DENSE, "1xh100-sxm", "--seq-len", "1024", "--mean-document-len", "100"],
    ],
)
def test_what_is_read_is_answered(words, capsys):
    assert main(["predict", *words]) in (0, 3)
    assert capsys.readouterr().err == ""
