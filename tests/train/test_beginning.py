"""Random weights and made-up tokens are said wherever a run says what it is."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from shardwise.train.beginning import beginning, said_at_the_start, words_of
from shardwise.train.job import CheckpointSpec, DataSpec, OptimizerSpec
from train.models import make_job

WAYS = list(product(["none", "lora", "qlora"], [None, "base"], [None, "run"], ["synthetic", "/data/text"]))


@pytest.mark.parametrize(("adapter", "weights", "resume_from", "source"), WAYS, ids=str)
def test_what_is_random_or_made_up_is_called_so_and_nothing_else_is(adapter, weights, resume_from, source):
    spec = CheckpointSpec(initial_weights=weights, resume_from=resume_from)
    job = replace(make_job(adapter=adapter), checkpoint=spec, data=DataSpec(source=source))
    said, words = beginning(job), words_of(job)
    is_random = weights is None and (adapter != "none" or resume_from is None)
    assert (said["weights"] == "random") == is_random == words["weights"].startswith("random, drawn from seed 0")
    assert (said["weights_path"] is None) == is_random
    assert (said["tokens"] == "synthetic") == (source == "synthetic") == words["tokens"].startswith("synthetic")
    assert (
        ("adapters" in words) == (adapter != "none" and resume_from is not None) == (said["adapters"] == "checkpoint")
    )
    assert said["in_words"] == words
    assert all(f"{name}: {text}" in said_at_the_start(job) for name, text in words.items())


def test_a_warm_up_that_outlasts_the_run_is_said():
    job = make_job(num_steps=10)
    rising = replace(job, optimizer=OptimizerSpec(num_warmup_steps=11))
    assert said_at_the_start(rising).endswith(
        "; learning rate: still rising at the end, as --warmup-steps 11 exceed 10 steps"
    )
    assert "still rising" not in said_at_the_start(replace(job, optimizer=OptimizerSpec(num_warmup_steps=10)))


def test_the_numbers_of_the_optimizer_are_said_given_or_not():
    spec = OptimizerSpec(learning_rate=2e-5, decay="cosine", num_warmup_steps=30)
    assert words_of(replace(make_job(), optimizer=spec))["optimizer"] == (
        "adamw, learning rate 2e-05 (cosine to 0.1 of it) after 30 steps of warm-up, weight decay 0.1"
    )


@pytest.mark.parametrize(
    ("precision", "optimizer", "is_said"),
    [("bf16", "adamw", True), ("bf16", "sgd", False), ("bf16-mixed", "adamw", False), ("fp32", "adamw", False)],
)
def test_weights_that_pure_bf16_cannot_move_are_said(precision, optimizer, is_said):
    job = make_job(precision=precision, optimizer=optimizer)
    words = words_of(replace(job, optimizer=OptimizerSpec(learning_rate=2e-5)))["optimizer"]
    assert ("in pure bf16 no weight above 0.01 moves" in words) == is_said
    stays, moves = torch.tensor([0.0103, 0.005], dtype=torch.bfloat16)
    assert stays - 2e-5 == stays
    assert moves - 2e-5 != moves


def test_full_weights_that_go_on_are_those_of_the_checkpoint():
    job = replace(make_job(), checkpoint=CheckpointSpec(resume_from="run"))
    assert words_of(job)["weights"] == "go on from run"


def test_adapters_beside_random_weights_are_said_to_fit_nothing_else():
    assert "fit no other model" in words_of(make_job(adapter="lora"))["weights"]
    assert "fit no other model" not in words_of(make_job())["weights"]
