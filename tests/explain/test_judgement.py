"""A reported rate: what each convention makes of it, how far from prediction and publications, and what explains it."""

import json

import pytest

import shardwise as sw
from shardwise.cli.main import main
from shardwise.units import format_seconds

H200 = ("llama-3.1-8b", "8xh200-sxm")
FSDP = {"seq_len": 8192, "dp_shard": 8, "global_batch_size": 64}


def judged(*where, **asked):
    return sw.judge(*where, **asked).judgement


def test_420_tflops_on_h200_are_42_per_cent_of_the_dense_peak_and_21_of_the_sparse_one():
    found = judged("h200-sxm", tflops=420)
    assert found.findings[0].claim == "42.4% of the dense bf16 peak of H200 SXM 141GB."
    assert found.sparse_fraction == pytest.approx(0.212, abs=0.0005)
    assert found.readings == ()


def test_21_per_cent_of_a_run_on_h200_was_divided_by_the_sparse_peak():
    found = judged(*H200, mfu=21.2, **FSDP)
    assert found.findings[0].claim == "The reported 21.2% is 42.4% of the dense bf16 peak of H200 SXM 141GB."
    assert "sparsity" in found.findings[0].because
    assert found.readings[0].divided_by == "sparse"
    assert found.readings[0].mfu_fraction == pytest.approx(0.424, abs=0.0005)


def test_42_per_cent_of_the_same_run_is_taken_as_it_stands():
    likely = judged(*H200, mfu=0.424, **FSDP).readings[0]
    assert (likely.divided_by, likely.counted) == ("dense", "model FLOP, causal attention once")
    assert likely.mfu_fraction == pytest.approx(0.424)


def test_conventions_differ_by_what_they_count():
    """8B at 8,192 tokens: 16 percent more with the whole square of attention, a third more with recomputation."""
    rates = {one.counted: one.tokens_per_s_per_gpu for one in judged(*H200, tflops=420, **FSDP).readings}
    ours = rates["model FLOP, causal attention once"]
    assert ours == pytest.approx(8160, abs=1)
    assert ours / rates["model FLOP, the whole square of attention"] == pytest.approx(1.125, abs=0.001)
    assert ours / rates["with everything recomputed"] == pytest.approx(4 / 3)


def test_a_rate_is_the_same_however_it_is_typed():
    per_gpu = judged(*H200, tokens_per_s_per_gpu=8000.0, **FSDP)
    together = judged(*H200, tokens_per_s=64_000.0, **FSDP)
    seconds = judged(*H200, step_s=64 * 8192 / 64_000, **FSDP)
    assert together.readings == per_gpu.readings
    assert seconds.readings[0].tokens_per_s_per_gpu == pytest.approx(8000.0)


def test_the_predicted_rate_is_as_predicted_and_needs_no_cause():
    predicted = sw.predict(*H200, **FSDP)
    found = judged(predicted.plan, tokens_per_s_per_gpu=predicted.throughput.tokens_per_s_per_gpu)
    assert found.readings[0].predicted_ratio == pytest.approx(1.0)
    assert found.readings[0].mfu_fraction == pytest.approx(predicted.throughput.mfu_fraction)
    assert found.is_in_band
    assert found.causes == ()


@pytest.mark.parametrize("changed", [{}, {"adapter": "lora"}, {"adapter": "qlora"}, {"mean_document_len": 1024}])
def test_a_predicted_rate_and_its_mfu_stand_for_each_other(changed):
    """Weights that adapters leave frozen count 4 N: at 6 N the predicted QLoRA run was called impossible."""
    predicted = sw.predict("llama-3.1-8b", "8xh200-sxm", **FSDP, **changed)
    rate, mfu = predicted.throughput.tokens_per_s_per_gpu, predicted.throughput.mfu_fraction
    for asked in ({"tokens_per_s_per_gpu": rate}, {"mfu": mfu}):
        likely = judged(predicted.plan, **asked).readings[0]
        assert likely.counted == "model FLOP, causal attention once"
        assert likely.tokens_per_s_per_gpu == pytest.approx(rate)
        assert likely.mfu_fraction == pytest.approx(mfu)
        assert likely.predicted_ratio == pytest.approx(1.0)
        assert likely.is_possible


@pytest.mark.parametrize(("adapter", "ratio"), [("none", 4 / 3), ("lora", 3 / 2)])
def test_a_second_forward_pass_is_a_third_of_full_training_and_half_of_adapters(adapter, ratio):
    rates = {
        one.counted: one.tokens_per_s_per_gpu for one in judged(*H200, tflops=420, **FSDP, adapter=adapter).readings
    }
    assert rates["model FLOP, causal attention once"] / rates["with everything recomputed"] == pytest.approx(ratio)


@pytest.mark.parametrize("setting", [{"recompute": "full"}, {"offload": "optimizer"}])
def test_a_run_with_another_setting_is_explained_by_it(setting):
    """The rate of the plan with one setting changed: that setting explains the whole of it."""
    rate = sw.predict(*H200, **FSDP, **setting).throughput.tokens_per_s_per_gpu
    (name, value) = next(iter(setting.items()))
    causes = {cause.setting: cause for cause in judged(*H200, tokens_per_s_per_gpu=rate, **FSDP).causes}
    assert causes[f"{name}={value}"].left_ratio == pytest.approx(1.0)


def test_causes_come_in_the_order_in_which_an_engineer_checks_them():
    """A flag of debugging stood first; kernels, then what moves, then data and clocks are looked at before it."""
    settings = [cause.setting for cause in judged(*H200, tokens_per_s_per_gpu=5500.0, **FSDP).causes]
    order = ["attention=eager", "recompute=full", "offload=optimizer", "data loading", "clocks, heat and power"]
    assert [one for one in settings if one in order] == order
    assert settings[-1] == "blocking_launches=true"


def test_each_cause_has_the_size_that_the_prediction_gives_it():
    """A run at half the predicted rate: half of its step is what data would have to hold up."""
    predicted = sw.predict(*H200, **FSDP)
    rate = predicted.throughput.tokens_per_s_per_gpu
    causes = {cause.setting: cause for cause in judged(*H200, tokens_per_s_per_gpu=rate / 2, **FSDP).causes}
    with_eager = sw.predict(*H200, **FSDP, attention="eager").throughput.tokens_per_s_per_gpu
    assert causes["attention=eager"].tokens_per_s_per_gpu == with_eager
    step_s = predicted.time.step_s
    assert f"{format_seconds(step_s)} of {format_seconds(2 * step_s)}" in causes["data loading"].words
    assert causes["data loading"].tokens_per_s_per_gpu is None


def test_communication_that_nothing_hides_takes_its_time_from_the_prediction():
    """DDP of a 1B model over slow Ethernet hides most of its reduction behind the backward pass."""
    asked = {"seq_len": 2048, "dp_replicate": 16, "zero_stage": 0, "micro_batch_size": 4, "global_batch_size": 64}
    predicted = sw.predict("llama-3.2-1b", "16xh100-sxm", **asked)
    hidden_s = sum(one.total_s - one.exposed_s for one in predicted.time.communication)
    rate = predicted.throughput.tokens_per_s_per_gpu
    expected = rate * predicted.time.step_s / (predicted.time.step_s + hidden_s)
    found = judged(predicted.plan, tokens_per_s_per_gpu=expected).causes
    (bare,) = [cause for cause in found if cause.setting == "overlap in a profile"]
    assert bare.left_ratio == pytest.approx(1.0)


def test_a_run_that_is_faster_than_predicted_waits_for_nothing():
    settings = [cause.setting for cause in judged(*H200, tokens_per_s_per_gpu=14_000.0, **FSDP).causes]
    assert "precision=fp8-mixed" in settings
    assert "data loading" not in settings


def test_a_rate_beyond_the_peak_is_doubted():
    found = judged(*H200, mfu=0.95, **FSDP)
    assert not any(one.is_possible for one in found.readings if one.counted.startswith("model"))


def test_the_best_published_run_is_of_the_same_peak_kind_and_width():
    """Of bf16 runs of dense models near 8B on parts of 989 TFLOP/s: it was 45.6 % of a 2.65B at 512 tokens."""
    best = judged(*H200, mfu=0.4, **FSDP).best
    assert (best.id, best.precision, best.seq_len) == ("FMSFSDP-005", "bf16-mixed", 4096)
    assert best.mfu_fraction == pytest.approx(0.416, abs=0.001)
    eight_bit = judged("llama-3.1-8b", "32xh200-sxm", mfu=0.5, seq_len=8192, dp_shard=32, precision="fp8-mixed").best
    assert eight_bit.precision == "fp8-mixed"
    assert eight_bit.mfu_fraction > best.mfu_fraction


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "0 figures are given"),
        ({"mfu": 0.4, "tflops": 400}, "2 figures are given"),
        ({"mfu": -1}, "is not a positive figure"),
    ],
)
def test_one_positive_figure_is_judged(asked, says):
    with pytest.raises(sw.ShardwiseError, match=says):
        sw.judge("h200-sxm", **asked)


def test_tokens_need_a_model():
    with pytest.raises(sw.ShardwiseError) as caught:
        sw.judge("h200-sxm", tokens_per_s_per_gpu=8000)
    assert caught.value.fix == "name the model as well: llama-3.1-8b h200-sxm"


def test_the_command_answers_first_and_in_json(capsys):
    words = ["judge", *H200, "--tflops", "420", "--seq-len", "8192", "--dp-shard", "8", "--global-batch-size", "64"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "42.4% of the dense bf16 peak of H200 SXM 141GB."
    assert lines[2].startswith("Likeliest: 8,160 tokens/s per GPU, MFU 42.4%")
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(sw.judge(*H200, tflops=420.0, **FSDP).to_dict()))
    assert printed["schema"] == "shardwise.judgement/1"
