"""Numbers of ``train`` out of range, and options that nothing would read, are refused before anything starts."""

import argparse
import json
from pathlib import Path

import pytest

from shardwise.cli import train
from shardwise.cli.command import find_command, make_parser
from shardwise.cli.main import main
from shardwise.cli.optimizer_options import add_optimizer_options, given_optimizer
from shardwise.cli.options import amount, count, positive_number, whole_number
from shardwise.cli.train_options import NUMBERS
from shardwise.plan_file import read_plan

PLAN = ["llama-3.2-1b", "1xh100-sxm", "--seq-len", "64"]
PROCESSORS = Path(__file__).parents[2] / "examples" / "two-cores.toml"
TITLES = ("run", "data", "validation", "optimizer", "experts", "checkpoints", "watch")
TRAINING = Path(__file__).parents[2] / "docs" / "training.md"


def refusal(words, capsys, tmp_path) -> dict[str, str]:
    assert main(["train", *PLAN, "--dry-run", "--json", "--out", str(tmp_path / "run"), *words]) == 2
    assert not (tmp_path / "run").exists()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--steps", "0", "a whole number from 1 to 1,000,000,000,000"),
        ("--seed", "-1", "a whole number from 0 to 9,223,372,036,854,775,807"),
        ("--learning-rate", "nan", "a finite number of at least 0"),
        ("--learning-rate", "-1", "a finite number of at least 0"),
        ("--learning-rate", "inf", "a finite number of at least 0"),
        ("--warmup-steps", "-3", "a whole number from 0 to 1,000,000,000,000"),
        ("--beta1", "1", "a number from 0 to 0.999999999"),
        ("--weight-decay", "-0.1", "a number from 0 to 1"),
        ("--decay-steps", "0", "a whole number from 1 to 1,000,000,000,000"),
        ("--max-grad-norm", "nan", "a finite number of at least 0"),
        ("--max-grad-norm", "-1", "a finite number of at least 0"),
        ("--timeout", "0", "a number from 1 to 10,000,000"),
        ("--timeout", "1e300", "a number from 1 to 10,000,000"),
        ("--profile-every", "0", "a whole number from 1 to 1,000,000,000,000"),
        ("--checkpoint-every", "1.5", "a whole number from 1 to 1,000,000,000,000"),
        ("--router-aux-loss-coef", "-1", "a finite number of at least 0"),
        ("--keep", "0", "a whole number from 1 to 1,000,000,000,000"),
    ],
)
def test_a_number_out_of_range_is_refused(option, value, words, capsys, tmp_path):
    refused = refusal([option, value], capsys, tmp_path)
    assert refused["code"] == "cli-usage"
    assert refused["error"] == f"argument {option}: '{value}' is not {words}"
    assert refused["fix"] == f"correct {option}; `shardwise train --help` says what it takes"


def test_every_number_that_is_not_the_plans_has_its_range_in_one_table():
    parser = make_parser(find_command("train"), train)
    groups = [group for group in parser._action_groups if group.title in TITLES]
    actions = [action for group in groups for action in group._group_actions]
    assert not [action.dest for action in actions if action.type in (amount, count, positive_number, whole_number)]
    named = {action.option_strings[0]: action.type for action in actions}
    assert {option: named[option] for option in NUMBERS} == {option: row.read for option, row in NUMBERS.items()}


def test_the_page_on_training_says_every_range():
    text = TRAINING.read_text(encoding="utf-8")
    assert [option for option, row in NUMBERS.items() if f"| `{option}` | {row.words} |" not in text] == []


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--async-checkpoints"], "--async-checkpoints does nothing without --checkpoint-every"),
        (["--async-checkpoints", "--export", "out"], "--async-checkpoints does nothing without --checkpoint-every"),
        (["--checkpoints", "states"], "--checkpoints does nothing without --checkpoint-every"),
        (["--keep", "3"], "--keep does nothing without --checkpoint-every"),
        (["--expert-load", "counts"], "--expert-load does nothing in a model without routed experts"),
        (["--router-aux-loss-coef", "0"], "--router-aux-loss-coef does nothing in a model without routed experts"),
        (["--tokenizer", "tokenizer.json"], "--tokenizer does nothing without --data"),
        (["--data-field", "body"], "--data-field does nothing without --data"),
        (["--packing", "documents"], "--packing does nothing without --data"),
        (["--mask-documents"], "--mask-documents does nothing without --data"),
        (["--loss-on", "all"], "--loss-on does nothing without --data"),
        (
            ["--overlong", "drop", "--data", "a.txt", "--packing", "stream"],
            "--overlong does nothing where rows are joined and cut anywhere",
        ),
        (["--validate-every", "5"], "--validate-every does nothing without validation data"),
        (["--validation", "a.txt"], "--validation does nothing without --validate-every"),
        (["--patience", "5"], "--patience does nothing without --validate-every"),
        (["--generate", "a.txt"], "--generate does nothing without --validate-every"),
        (
            ["--validation-fraction", "0.1", "--validation", "a.txt", "--validate-every", "5"],
            "--validation-fraction does nothing beside --validation",
        ),
        (
            ["--validation-fraction", "0.1", "--validate-every", "5"],
            "--validation-fraction does nothing without --data",
        ),
        (
            ["--validation-fraction", "0.1", "--data", "synthetic", "--validate-every", "5"],
            "--validation-fraction does nothing without --data",
        ),
        (
            ["--generate-tokens", "5", "--validation", "a.txt", "--validate-every", "5"],
            "--generate-tokens does nothing without --generate",
        ),
        (["--mean-document-len", "16"], "--mean-document-len does nothing without documents that are kept apart"),
        (
            ["--mean-document-len", "16", "--data", "a.txt"],
            "--mean-document-len does nothing without documents that are kept apart",
        ),
        (
            ["--weights", "a", "--resume", "b"],
            "--weights does nothing beside --resume without --adapter",
        ),
        (["--schedule", "zbv"], "--schedule does nothing without a pipeline"),
        (["--sequence-parallel"], "--sequence-parallel does nothing without tensor parallelism"),
        (["--defer-grad-reduce"], "--defer-grad-reduce does nothing where one rank has all gradients"),
        (["--reduce-dtype", "bf16"], "--reduce-dtype does nothing on one rank, which reduces nothing"),
        (
            ["--no-reshard-after-forward"],
            "--no-reshard-after-forward does nothing below zero_stage 3, where parameters stay whole from forward to "
            "backward",
        ),
        (
            ["--blocking-launches", "--device", "cpu"],
            "--blocking-launches does nothing on CPUs, which launch no kernels",
        ),
        (
            ["--routing-imbalance-ratio", "2"],
            "--routing-imbalance-ratio does nothing in a model without routed experts",
        ),
        (["--random-weights", "--weights", "a"], "--random-weights does nothing beside --weights"),
        (
            ["--random-weights", "--resume", "b"],
            "--random-weights does nothing beside --resume without --adapter",
        ),
        (["--max-grad-norm", "1", "--no-clip-gradients"], "--max-grad-norm does nothing in a plan that never clips"),
        (["--decay-steps", "4"], "--decay-steps does nothing with a schedule that decays in all steps or in none"),
        (["--min-learning-rate-ratio", "0"], "--min-learning-rate-ratio does nothing with a constant learning rate"),
        (
            ["--beta2", "0.9", "--optimizer", "sgd-momentum"],
            "--beta2 does nothing with an optimizer other than adamw, adamw-8bit, lion, muon",
        ),
        (
            ["--eps", "1e-6", "--optimizer", "lion"],
            "--eps does nothing with an optimizer other than adamw, adamw-8bit, muon",
        ),
        (["--merge"], "--merge does nothing without adapters"),
        (["--lora-rank", "4"], "--lora-rank does nothing without --adapter"),
        (["--lora-alpha", "4"], "--lora-alpha does nothing without --adapter"),
        (["--use-rslora"], "--use-rslora does nothing without --adapter"),
        (["--lora-targets", "all-linear"], "--lora-targets does nothing without --adapter"),
        (["--lora-dropout-fraction", "0.1"], "--lora-dropout-fraction does nothing without --adapter"),
        (["--recompute-layers", "2"], "--recompute-layers does nothing where nothing is recomputed"),
    ],
)
def test_an_option_that_nothing_would_read_is_refused(words, error, capsys, tmp_path):
    refused = refusal(words, capsys, tmp_path)
    assert (refused["code"], refused["error"]) == ("cli-usage", error)
    assert refused["fix"].endswith(f"leave out {words[0]}")


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--no-fused-loss"], "set fused_loss to null (leave out --fused-loss and --no-fused-loss)"),
        (["--fused-loss"], "set fused_loss to null (leave out --fused-loss and --no-fused-loss)"),
        (["--convention", "seed"], "set convention to engine"),
    ],
)
def test_what_only_a_prediction_reads_is_refused(words, fix, capsys, tmp_path):
    refused = refusal(words, capsys, tmp_path)
    assert (refused["code"], refused["fix"]) == ("train-not-supported", fix)


@pytest.mark.parametrize(
    "words",
    [
        ["--recompute", "full", "--recompute-layers", "2"],
        ["--adapter", "lora", "--lora-rank", "4", "--lora-targets", "all-linear", "--random-weights"],
        ["--random-weights"],
        ["--no-sequence-parallel", "--no-defer-grad-reduce", "--blocking-launches"],
        ["--max-grad-norm", "2"],
        ["--no-clip-gradients"],
    ],
)
def test_what_has_something_to_act_on_is_not_refused(words, tmp_path):
    assert main(["train", *PLAN, "--dry-run", "--json", "--out", str(tmp_path), *words]) == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--checkpoint-every", "5"], (5, 2, False)),
        (["--checkpoint-every", "5", "--keep", "7", "--async-checkpoints"], (5, 7, True)),
    ],
)
def test_what_was_asked_of_checkpoints_is_in_the_job(words, expected, tmp_path):
    assert main(["train", *PLAN, "--dry-run", "--json", "--out", str(tmp_path), *words]) == 0
    saved = json.loads((tmp_path / "job.json").read_text(encoding="utf-8"))["checkpoint"]
    assert (saved["every_steps"], saved["num_kept"], saved["is_async"]) == expected


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--undecayed", "*embed_token.*"], "train-pattern"),
        (["--group-rate", "*.lora_A.weight=1e-3"], "train-pattern"),
        (["--group-rate", "lm_head"], "cli-usage"),
        (["--group-rate", "lm_head=fast"], "cli-usage"),
    ],
)
def test_a_pattern_that_fits_nothing_is_refused(words, code, capsys, tmp_path):
    assert refusal(words, capsys, tmp_path)["code"] == code


def test_what_was_asked_of_the_optimizer_is_in_the_job(tmp_path):
    words = ["--decay", "wsd", "--decay-steps", "3", "--min-learning-rate-ratio", "0", "--weight-decay", "0.2"]
    words += [
        "--beta1",
        "0.8",
        "--beta2",
        "0.99",
        "--eps",
        "1e-6",
        "--undecayed",
        "*q_proj*",
        "--undecayed",
        "model.n*",
    ]
    words += ["--group-rate", "*embed_tokens*=1e-5", "--learning-rate", "0.5", "--warmup-steps", "7"]
    assert main(["train", *PLAN, "--dry-run", "--json", "--out", str(tmp_path), *words]) == 0
    assert json.loads((tmp_path / "job.json").read_text(encoding="utf-8"))["optimizer"] == {
        "learning_rate": 0.5,
        "weight_decay_fraction": 0.2,
        "beta_1_fraction": 0.8,
        "beta_2_fraction": 0.99,
        "epsilon": 1e-6,
        "max_grad_norm": 1.0,
        "num_warmup_steps": 7,
        "decay": "wsd",
        "num_decay_steps": 3,
        "min_learning_rate_ratio": 0.0,
        "undecayed": ["*q_proj*", "model.n*"],
        "group_rates": [["*embed_tokens*", 1e-5]],
    }


@pytest.mark.parametrize(
    ("adapter", "weights", "expected"),
    [
        ("none", None, (3e-4, 0.1)),
        ("none", "base", (2e-5, 0.1)),
        ("lora", "base", (2e-4, 0.0)),
        ("qlora", None, (2e-4, 0.0)),
    ],
)
def test_the_usual_rate_and_decay_are_those_of_what_is_trained(adapter, weights, expected):
    parser = argparse.ArgumentParser()
    add_optimizer_options(parser.add_argument_group())
    arguments = parser.parse_args([], argparse.Namespace(weights=weights, resume=None, steps=10))
    plan = read_plan({"model": PLAN[0], "cluster": PLAN[1], "recipe": {"seq_len": 64, "adapter": adapter}})
    spec = given_optimizer(arguments, plan)
    assert (spec.learning_rate, spec.weight_decay_fraction) == expected


FP8 = ["--precision", "fp8-mixed", "--seq-len", "64", "--device", "cpu", "--dry-run", "--json"]


def test_fp8_is_planned_for_parts_that_have_it_and_can_be_tried_on_processors(capsys, tmp_path):
    """``tests/train/test_fp8.py`` runs the emulated products."""
    assert main(["train", "llama-3.2-1b", "1xh100-sxm", *FP8, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["train", "llama-3.2-1b", str(PROCESSORS), *FP8, "--out", str(tmp_path / "refused")]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "recipe-fp8-hardware"


@pytest.mark.parametrize(
    ("words", "expected"),
    [([], 0), (["--steps", "1000"], 30), (["--steps", "1000", "--warmup-steps", "0"], 0), (["--steps", "20000"], 100)],
)
def test_the_learning_rate_rises_in_a_share_of_the_run_unless_it_is_told(words, expected, tmp_path):
    assert main(["train", *PLAN, "--dry-run", "--json", "--out", str(tmp_path / "run"), *words]) == 0
    job = json.loads((tmp_path / "run" / "job.json").read_text(encoding="utf-8"))
    assert job["optimizer"]["num_warmup_steps"] == expected
