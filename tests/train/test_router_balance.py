"""The auxiliary loss of routers, biases that even out their load, and what a run says of the load of experts."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from shardwise.train.job import RoutingSpec
from shardwise.train.routing import RouterWatch, Routing, count_experts, score_experts
from train.curves import assert_same
from train.models import LLAMA, MIXTRAL, make_job
from train.representatives import representatives
from train.world_member import Result, records

BALANCED = {**MIXTRAL, "output_router_logits": True, "router_aux_loss_coef": 0.1}
LOG_3 = 1.0986122886681098


def watch_of(**given):
    sizes = {"num_layers": 2, "num_experts": 2, "num_chosen": 1, "num_copies": 1}
    settings = {"blocks": {}, **sizes, "aux_loss_coef": 0.5, "bias_update_rate": 0.0, "device": torch.device("cpu")}
    return RouterWatch(**{**settings, **given})


def as_result(steps):
    return Result(losses=[step.loss for step in steps], norms=[step.gradient_norm for step in steps])


def test_the_loss_of_two_experts_is_what_the_formula_gives_by_hand():
    """Two of three tokens prefer the first; probabilities 3/4 and 1/4: 2 (2/3 x 7/12 + 1/3 x 5/12) = 19/18."""
    watch = watch_of()
    logits = torch.tensor([[LOG_3, 0.0], [0.0, LOG_3], [LOG_3, 0.0]], requires_grad=True)
    scores = score_experts(logits, 1)
    watch.open()
    watch.note(0, Routing(scores.counts, scores))
    watch.close()
    loss = watch.take_loss(torch.tensor(6))
    assert loss.item() == pytest.approx(0.5 * 6 * 19 / 18)
    loss.backward()
    # 0.5 x 6 x 2 / 3 x p (1 - p) x (f_1 - f_2) = 2 x 3 / 16 / 3
    assert logits.grad[0].tolist() == pytest.approx([0.125, -0.125])
    assert watch.end_step().aux_loss.item() == pytest.approx(19 / 18)


def test_one_loss_is_made_of_all_layers_as_transformers_makes_it():
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    watch = watch_of(num_experts=5, num_chosen=2)
    layers = [torch.randn(7, 5, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    watch.open()
    for index, logits in enumerate(layers):
        scores = score_experts(logits, 2)
        watch.note(index, Routing(scores.counts, scores))
    watch.close()
    found = watch.take_loss(torch.tensor(1)).item() / 0.5
    assert found == pytest.approx(load_balancing_loss_func(tuple(layers), 5, 2).item(), rel=1e-6)


def test_what_is_no_expert_is_counted_nowhere():
    assert count_experts(torch.tensor([[0, 2], [5, 2], [3, 9]]), 4).tolist() == [1, 0, 2, 1]


def test_what_recomputation_and_validation_say_is_not_counted_again():
    watch, routing = watch_of(), Routing(torch.tensor([3, 1]))
    watch.open()
    watch.note(1, routing)
    watch.close()
    watch.note(1, routing)
    with torch.no_grad():
        watch.open()
        watch.note(1, routing)
        watch.close()
    assert watch.end_step().load.tolist() == [[0, 0], [3, 1]]
    assert watch.end_step().load.tolist() == [[0, 0], [0, 0]]


def test_biases_of_full_experts_fall_and_those_of_empty_ones_rise_by_the_rate():
    block = nn.Module()
    block.register_buffer("e_score_correction_bias", torch.tensor([0.5, 0.0, 0.0, 0.0]))
    load = torch.tensor([[9.0, 1.0, 6.0, 8.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    watch_of(blocks={0: block}, num_experts=4, bias_update_rate=0.25).move_biases(load)
    assert block.e_score_correction_bias.tolist() == [0.25, 0.25, 0.0, -0.25]


def test_a_record_names_the_fullest_expert_and_counts_on_request(worlds):
    (steps,) = worlds[1].run(records, replace(make_job(model=MIXTRAL), routing=RoutingSpec(expert_load="counts")))
    counts = steps[0].expert_counts
    assert list(counts) == ["0", "1", "2", "3"]
    assert [sum(row) for row in counts.values()] == [8 * 32 * 2] * 4
    for layer, ratio in steps[0].expert_load_ratios.items():
        assert ratio == pytest.approx(max(counts[layer]) / 128)
    assert steps[0].router_aux_loss is None


def test_nothing_is_said_where_nobody_asks_or_nothing_is_routed(worlds):
    (steps,) = worlds[1].run(records, replace(make_job(model=MIXTRAL), routing=RoutingSpec(expert_load="none")))
    (dense,) = worlds[1].run(records, make_job(model=LLAMA))
    assert steps[0].expert_load_ratios is None
    assert dense[0].expert_load_ratios is None


LAYOUTS = {
    "fsdp": (2, {"dp_shard": 2}),
    "ep": (2, {"dp_shard": 2, "ep": 2}),
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}),
    "tp": (2, {"tp": 2}),
    "tp, sequence parallel": (2, {"tp": 2, "sequence_parallel": True}),
    "cp": (2, {"cp": 2}),
}


@pytest.fixture(scope="module")
def balanced_alone(worlds):
    return worlds[1].run(records, make_job(model=BALANCED, num_steps=10))[0]


@pytest.mark.parametrize("name", representatives(LAYOUTS, ("fsdp", "ep", "tp, sequence parallel", "cp")))
def test_a_layout_balances_for_ten_steps_what_one_process_balances(worlds, balanced_alone, name):
    size, layout = LAYOUTS[name]
    for steps in worlds[size].run(records, make_job(model=BALANCED, layout=layout, num_steps=10)):
        assert_same([as_result(steps)], as_result(balanced_alone))
        for step, other in zip(steps, balanced_alone, strict=True):
            assert step.router_aux_loss == pytest.approx(other.router_aux_loss, rel=1e-6)
            assert step.expert_load_ratios == pytest.approx(other.expert_load_ratios)


@pytest.mark.parametrize("name", representatives(("fsdp", "ep"), ("ep",)))
def test_experts_without_a_loss_train_for_ten_steps_what_one_process_trains(worlds, curve, name):
    size, layout = LAYOUTS[name]
    alone = curve(1, model=MIXTRAL, num_steps=10)
    for steps in worlds[size].run(records, make_job(model=MIXTRAL, layout=layout, num_steps=10)):
        assert_same([as_result(steps)], alone)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputed_blocks_balance_the_same(worlds, balanced_alone, recompute):
    (steps,) = worlds[1].run(records, make_job(model=BALANCED, num_steps=4, recompute=recompute))
    assert_same([as_result(steps)], as_result(balanced_alone[:4]))
    assert steps[3].expert_load_ratios == balanced_alone[3].expert_load_ratios


def test_transformers_blocks_balance_as_ours_do(worlds, balanced_alone):
    for recompute in ("none", "full"):
        job = make_job(model=BALANCED, num_steps=4, implementation="transformers", recompute=recompute)
        (steps,) = worlds[1].run(records, job)
        for step, other in zip(steps, balanced_alone, strict=False):
            assert step.router_aux_loss == pytest.approx(other.router_aux_loss, abs=0.1)
            assert step.expert_load_ratios is not None


def test_a_coefficient_of_the_job_goes_before_that_of_the_config(worlds, balanced_alone):
    asked = replace(make_job(model=MIXTRAL), routing=RoutingSpec(aux_loss_ratio=0.1))
    refused = replace(make_job(model=BALANCED), routing=RoutingSpec(aux_loss_ratio=0.0))
    assert_same([as_result(worlds[1].run(records, asked)[0])], as_result(balanced_alone[:4]))
    assert worlds[1].run(records, refused)[0][0].router_aux_loss is None
