"""When DP, when FSDP, when ZeRO, when TP or PP: answered with predictions for a model and a cluster."""

from dataclasses import replace
from functools import cache

import pytest

from shardwise.catalog import read_cluster
from shardwise.explain.checklist import checklist
from shardwise.explain.pitfalls import pitfalls
from shardwise.explain.strategy import advise, try_strategies, zero_ladder
from shardwise.explain.strategy_trials import strategy_name
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.recipe import Recipe
from shardwise.search import question_of, search


@cache
def advice(model, cluster, engine="native", **recipe):
    asked = Recipe(**({"seq_len": 4096, "global_batch_size": 256} | recipe))
    return advise(model=read_model(model), cluster=read_cluster(cluster), recipe=asked, engine=engine)


def claim_about(findings, name):
    return next(finding.claim for finding in findings if finding.claim.startswith(name))


@pytest.mark.parametrize(
    ("model", "cluster", "batch"), [("gpt2", "8xa100-sxm-80", 256), ("llama-3.1-8b", "8xh100-sxm", 256)]
)
def test_what_is_recommended_is_what_plan_recommends(model, cluster, batch):
    recipe = Recipe(seq_len=1024, global_batch_size=batch)
    best = search(model=read_model(model), cluster=read_cluster(cluster), recipe=recipe).plans[0]
    found = advice(model, cluster, seq_len=1024)[-1]
    assert found.claim.startswith("Recommended here")
    assert found.because == best.why
    assert [number.value for number in found.numbers] == [
        best.prediction.time.step_s,
        best.prediction.memory.needed_bytes,
    ]
    assert {number.source.plan for number in found.numbers} == {best.plan}


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (Layout(dp_shard=8), "FSDP / ZeRO-3"),
        (Layout(dp_shard=8, reshard_after_forward=False), "FSDP that keeps gathered weights"),
        (Layout(dp_replicate=2, dp_shard=4), "HSDP of FSDP / ZeRO-3"),
        (Layout(dp_shard=8, zero_stage=1), "ZeRO-1"),
        (Layout(dp_replicate=8, zero_stage=0), "data parallel (DDP)"),
        (Layout(dp_shard=2, tp=2, pp=2), "tensor and pipeline parallel with FSDP / ZeRO-3"),
        (Layout(tp=8), "tensor parallel"),
        (Layout(), "one GPU"),
    ],
)
def test_a_plan_is_called_what_it_is(layout, name):
    assert strategy_name(layout) == name


def test_compared_trials_differ_in_what_is_claimed_alone():
    """8B on 8 A100: one sequence, everything recomputed and divided needs 20.97 GiB, 20.89 with tp=2."""
    findings = advice("llama-3.1-8b", "8xa100-sxm-80", seq_len=8192, global_batch_size=32)
    smallest = claim_about(findings, "Must the footprint")
    assert "20.89 GiB" in smallest
    numbers = {number.name: number for finding in findings for number in finding.numbers}
    assert numbers["FSDP at its smallest"].text == "20.97 GiB"
    sharded = next(finding for finding in findings if finding.claim.startswith("FSDP / ZeRO-3: fits"))
    assert sharded.numbers[0].source.plan.layout.reshard_after_forward
    piped = next(finding for finding in findings if "cuts activation memory" in finding.claim)
    recipes = {number.source.plan.recipe for number in piped.numbers}
    assert len(recipes) == 1
    assert recipes.pop().recompute_layers is None


def test_zero_3_reshards_and_gathers_twice():
    """17.80 GiB and 31 gathers of blocks, 15 of 16 twice, and one of embedding and head."""
    findings = advice("llama-3.2-1b", "8xh100-sxm", seq_len=2048, global_batch_size=64)
    assert "17.80 GiB" in claim_about(findings, "FSDP / ZeRO-3: fits")
    assert "32 all_gather" in claim_about(findings, "FSDP / ZeRO-3 communicates")
    kept = claim_about(findings, "FSDP that keeps gathered weights: fits")
    assert "19.39 GiB" in kept
    assert "reshard_after_forward=off" in kept


def test_eight_billion_parameters_do_not_fit_undivided_but_do_when_sharded():
    """120 GiB of states against 79 GiB."""
    findings = advice("llama-3.1-8b", "8xh100-sxm")
    assert "does not fit" in claim_about(findings, "data parallel (DDP)")
    assert "fits with" in claim_about(findings, "FSDP / ZeRO-3")
    assert "1.5 times" in findings[0].claim


def test_hybrid_sharding_of_70b_needs_more_than_a_node():
    """141 GB of states per GPU when divided over the 8 GPUs of a node."""
    findings = advice("llama-3.1-70b", "64xh100-sxm", seq_len=8192)
    assert "does not fit" in claim_about(findings, "HSDP")


def test_the_engines_ladder_says_why_it_is_not_the_papers():
    """native keeps 4 + 4 + 8 bytes and computes with a copy in 2: 18 over 2 + 4 + 12/8 is 2.40, over 2 + 16/8 4.50."""
    recipe = Recipe(seq_len=2048, global_batch_size=256)
    ladder = zero_ladder(
        question_of(
            model=read_model("llama-3.1-8b"), cluster=read_cluster("8xh100-sxm"), recipe=recipe, engine="native"
        )
    )
    assert ladder.claim.startswith("The same ladder in native")
    saves = {number.name: round(number.value, 2) for number in ladder.numbers if number.unit == "ratio"}
    assert (saves["ZeRO-1 saves"], saves["ZeRO-2 saves"]) == (2.40, 4.50)
    assert "4 bytes of weights, 4 of gradients and 8 of optimizer" in ladder.because


def test_the_ladder_of_zero_stages_shows_the_savings_of_the_paper():
    """16 bytes over 64 ranks with 2-byte weights and gradients: ZeRO-1 3.8x, ZeRO-2 7.3x, ZeRO-3 64x (1910.02054)."""
    findings = advice("llama-3.1-70b", "64xh100-sxm", engine="deepspeed", seq_len=8192)
    ladder = next(finding for finding in findings if finding.claim.startswith("States per GPU"))
    assert [round(quantity.value, 1) for quantity in ladder.numbers] == [3.8, 7.2, 64.0]


def test_each_fitting_strategy_has_its_communication_pattern():
    findings = advice("llama-3.1-8b", "8xh100-sxm")
    patterns = {
        finding.claim.split(" communicates")[0]: finding.claim
        for finding in findings
        if finding.topic == "communication"
    }
    assert "all_gather over dp_shard" in patterns["FSDP / ZeRO-3"]
    assert "all_to_all over dp_shard" in patterns["FSDP / ZeRO-3"]  # gradients, exchanged in 16 bits
    assert "over tp" in patterns["tensor parallel with data parallel"]
    assert "send_recv over pp" in patterns["pipeline parallel with data parallel"]


def test_data_parallel_all_reduces_once_a_step_and_fsdp_moves_more():
    findings = advice("gpt2", "8xa100-sxm-80", seq_len=1024)
    payload = {
        finding.claim.split(" communicates")[0]: finding.numbers[0].value
        for finding in findings
        if finding.topic == "communication"
    }
    assert "all_reduce" in claim_about(findings, "data parallel (DDP) communicates")
    assert payload["FSDP / ZeRO-3"] > payload["data parallel (DDP)"]


def test_every_verdict_is_a_prediction():
    question = question_of(
        model=read_model("llama-3.1-8b"),
        cluster=read_cluster("16xh100-sxm"),
        recipe=Recipe(seq_len=4096, global_batch_size=64),
        engine="native",
    )
    for trial in try_strategies(question):
        assert trial.plan is not None
        assert trial.plan.global_batch_size == 64
        if trial.prediction is not None:
            assert trial.prediction.fits
        else:
            assert trial.needed_bytes > question.cluster.gpu.memory_bytes


def test_a_strategy_at_the_edge_of_the_device_is_said_to_be():
    """ZeRO-1 of 7B on four cards of 40 GB needs 39.4 of 39.5 GiB: a prediction may be that much too low."""
    findings = advice("llama-2-7b", "4xa100-sxm-40", seq_len=4096, global_batch_size=8)
    assert claim_about(findings, "ZeRO-1:").startswith("ZeRO-1: at the edge with 39.4")
    assert claim_about(findings, "ZeRO-2:").startswith("ZeRO-2: fits with 36.")


@pytest.mark.parametrize("cluster", ["8xh100-sxm", "16xa100-sxm-80"])
def test_each_strategy_is_shown_by_its_fastest_layout_that_fits_safely(cluster):
    """ZeRO-1 and 2 of 8B were shown by plans that need 79.14 and 79.13 of 79.18 GiB, and said to fit."""
    recipe = Recipe(seq_len=8192, global_batch_size=32)
    question = question_of(
        model=read_model("llama-3.1-8b"), cluster=read_cluster(cluster), recipe=recipe, engine="native"
    )
    trials = [trial for trial in try_strategies(question) if trial.prediction is not None]
    assert len(trials) >= 5
    assert {trial.fit for trial in trials} == {"fits"}
    for trial in trials:
        assert (
            trial.prediction.memory.needed_bytes * trial.prediction.memory.high_fraction
            < trial.told("capacity", "memory.capacity_bytes", "bytes").value
        )


def test_beside_adapters_the_stages_that_divide_the_optimizer_do_not_apply():
    """0.20 of 15.21 GiB have gradients and optimizer states; full training was counted, 119.66 GiB."""
    findings = advice("llama-3.1-8b", "8xh100-sxm", seq_len=8192, adapter="lora")
    ladder = next(finding for finding in findings if "ZeRO-1 and ZeRO-2 do not apply" in finding.claim)
    assert "0.20 GiB of 15.21 GiB" in ladder.claim
    assert "ZeRO-3 divides the frozen weights as well: 4.26 GiB a GPU over 8" in ladder.claim
    assert not any(finding.claim.startswith(("ZeRO-1:", "ZeRO-2:", "States per GPU")) for finding in findings)
    free = next(finding for finding in findings if '"ZeRO-3 = free memory"' in finding.claim)
    assert "over data parallelism" in free.claim
    assert any("bytes per parameter 2.03" in f"{number.name} {number.text}" for number in findings[0].numbers)


def test_engines_without_an_axis_are_not_asked_for_it():
    findings = advice("llama-3.1-8b", "8xh100-sxm", engine="fsdp1")
    assert not any(finding.claim.startswith(("tensor", "pipeline")) for finding in findings)


def test_long_sequences_bring_context_parallelism_in():
    findings = advice("llama-3.1-8b", "8xh100-sxm", seq_len=131072, global_batch_size=8)
    assert any(finding.claim.startswith("context parallel") for finding in findings)


def test_one_gpu_has_one_strategy():
    findings = advice("gpt2", "1xh100-sxm", seq_len=1024, global_batch_size=8)
    assert findings[-1].claim.startswith("Recommended here: one GPU (recompute none, micro-batch ")
    assert findings[-1].claim.endswith("): fits.")
    assert not any("ZeRO paper" in finding.claim for finding in findings)


def test_one_gpu_at_the_edge_is_said_to_be():
    """8 bytes a parameter in pure bf16, which keeps no master copy: 77.07 of 79.18 GiB."""
    asked = {"engine": "accelerate", "precision": "bf16", "seq_len": 2048, "global_batch_size": 1}
    findings = advice("qwen3-8b", "1xh100-sxm", **asked)
    assert findings[-1].claim.endswith("): at the edge.")
    assert "2 bytes of weights, 2 of gradients and 4 of optimizer states" in findings[0].because
    assert "? at the edge: undivided it needs 77.07 GiB" in claim_about(findings, "Does it fit one GPU")
    assert claim_about(findings, "one GPU:").startswith("one GPU: at the edge with 77.07 GiB")


def test_when_nothing_fits_the_closest_is_named():
    findings = advice("llama-3.1-405b", "8xh100-sxm", global_batch_size=8)
    assert findings[-1].claim.startswith("No strategy fits")
    assert findings[-1].numbers[0].value == pytest.approx(800 * 2**30, rel=0.1)


def test_answers_do_not_hang_on_the_words_of_a_strategy():
    """Trials under other names give the numbers and verdicts that they give under their own."""
    question = question_of(
        model=read_model("llama-3.1-8b"),
        cluster=read_cluster("16xh100-sxm"),
        recipe=Recipe(seq_len=4096, global_batch_size=256),
        engine="native",
    )
    trials = try_strategies(question)
    reworded = tuple(
        replace(trial, strategy=replace(trial.strategy, name=f"way {place}")) for place, trial in enumerate(trials)
    )
    assert {trial.strategy.kind for trial in trials if trial.strategy.divides_model} == {"tp", "pp", "3d"}
    for find_answers in (checklist, pitfalls):
        own, other = find_answers(question, trials), find_answers(question, reworded)
        assert [[number.value for number in one.numbers] for one in own] == [
            [number.value for number in one.numbers] for one in other
        ]
        assert [one.judged and one.judged.verdict for one in own] == [
            one.judged and one.judged.verdict for one in other
        ]
