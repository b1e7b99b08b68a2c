"""--deterministic: only kernels whose sums have one order, and one sentence where there is none."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import shardwise.train
from shardwise.train.determinism import DeterminismError, determinism
from shardwise.train.job import job_from_json, job_to_json
from shardwise.train.precision import use_fast_kernels
from train.models import make_job
from train.world_member import run


def switches():
    return torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory


def without_a_form():
    """One of the few operators that torch refuses on CPUs too."""
    torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))


def test_the_switch_is_on_within_and_as_it_was_afterwards():
    before = switches()
    with determinism(is_wanted=True):
        assert switches() == (True, False)
    assert switches() == before
    with determinism(is_wanted=False):
        assert switches() == before
        without_a_form()


def test_an_operator_without_a_deterministic_form_is_named_in_one_sentence():
    before = switches()
    with pytest.raises(DeterminismError) as refused, determinism(is_wanted=True):
        without_a_form()
    assert switches() == before
    assert refused.value.code == "train-deterministic"
    assert refused.value.message == "put_ has no deterministic form on this device, and --deterministic takes no other"


def test_a_workspace_that_lets_cublas_choose_is_named():
    with pytest.raises(DeterminismError) as refused, determinism(is_wanted=True):
        raise RuntimeError("not deterministic because it uses CuBLAS; set CUBLAS_WORKSPACE_CONFIG=:4096:8")
    assert refused.value.fix == "unset CUBLAS_WORKSPACE_CONFIG, or set it to :4096:8"


def test_other_errors_stay_what_they_are():
    error = RuntimeError("connection reset by peer")
    with pytest.raises(RuntimeError) as raised, determinism(is_wanted=True):
        raise error
    assert raised.value is error
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_attention_of_cudnn_is_left_out(is_deterministic):
    with use_fast_kernels(is_deterministic=is_deterministic):
        assert torch.backends.cuda.cudnn_sdp_enabled() != is_deterministic
        assert torch.backends.cuda.flash_sdp_enabled()


def test_the_kernel_that_a_recipe_asks_for_is_the_only_one():
    with use_fast_kernels(asked="efficient"):
        assert torch.backends.cuda.mem_efficient_sdp_enabled()
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert not torch.backends.cuda.math_sdp_enabled()


def test_a_job_that_asks_for_it_trains_under_it_and_one_from_before_does_not(worlds):
    job = make_job(num_steps=2, implementation="transformers")
    asked = replace(job, is_deterministic=True)
    assert job_from_json(job_to_json(asked)) == asked
    old = {name: value for name, value in job_to_json(job).items() if name != "is_deterministic"}
    assert job_from_json(old) == job
    assert worlds[1].run(trains_under_it, asked) == [True]
    assert worlds[1].run(trains_under_it, job) == [False]


def trains_under_it(job):
    seen = []
    switch = torch.nn.functional.embedding

    def embedding(*given, **named):
        seen.append(torch.are_deterministic_algorithms_enabled())
        return switch(*given, **named)

    torch.nn.functional.embedding = embedding
    try:
        run(job)
    finally:
        torch.nn.functional.embedding = switch
    return all(seen) if seen else None


def test_no_kernel_of_ours_adds_to_what_another_program_wrote():
    sources = Path(shardwise.train.__file__).parent.rglob("*.py")
    kernels = [path for path in sources if "@triton.jit" in path.read_text(encoding="utf-8")]
    assert kernels
    assert not [path.name for path in kernels if "atomic" in path.read_text(encoding="utf-8")]
