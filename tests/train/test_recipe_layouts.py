"""Ten steps of every recipe of the examples: one process, FSDP2, and tensor parallelism with FSDP2 learn the same."""

import pytest

from recipes import NAMES, job_of, lay_out, tiny_words
from train.curves import assert_same
from train.world_member import run

pytestmark = pytest.mark.runs

MORE = {"continued-8b-packed": ["--decay-steps", "4"]}


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return lay_out(tmp_path_factory.mktemp("recipes"))


@pytest.mark.parametrize("name", NAMES)
def test_ten_steps_of_a_recipe_are_the_same_under_every_layout(worlds, desk, monkeypatch, name):
    monkeypatch.chdir(desk)
    monkeypatch.setenv("XDG_CACHE_HOME", str(desk / "cache"))
    shared = ["--precision", "fp32", "--steps", "10", "--learning-rate", "2e-3", "--warmup-steps", "2"]
    shared += MORE.get(name, [])
    alone, experts = ({"ep": 1}, {"ep": 2}) if "moe" in name else ({}, {})
    expected = worlds[1].run(run, job_of([*tiny_words(name, count=1, **alone), *shared]))[0]
    assert len(expected.losses) == 10
    assert expected.losses[-1] < expected.losses[0]
    assert_same(worlds[2].run(run, job_of([*tiny_words(name, count=2, **experts), *shared])), expected, relative=1e-5)
    words = tiny_words(name, count=4, **{"dp_shard": 2, "tp": 2, **experts})
    assert_same(worlds[4].run(run, job_of([*words, *shared])), expected, relative=1e-5)
