"""Cost of whole runs against published costs, and what is refused."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shapes
from shardwise.ask.costs import cost as ask_cost
from shardwise.catalog import load_gpu, read_cluster
from shardwise.cluster import Price
from shardwise.errors import RecipeError
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.cost import CostRequest, estimate_cost, predict_cost
from shardwise.predict.cost_sensitivity import published_mfu, tuning_spread
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe

H100 = load_gpu("h100-sxm")
LLAMA_405B = shapes.model(
    shapes.dense_layer(hidden_size=16384, intermediate_size=53248, heads=128, kv_heads=8),
    num_layers=126,
    hidden_size=16384,
    vocab_size=128256,
)


def llama_405b_request(**changes):
    request = CostRequest(model=LLAMA_405B, tokens=15.6e12, gpu=H100, num_gpus=16_384, mfu_fraction=400e12 / 989.5e12)
    return replace(request, **changes)


def test_llama_405b_hours_are_reproduced_with_its_whole_run_factor():
    """Model card: 30.84M H100 hours. 400 TFLOP/s (arXiv:2407.21783 table 4) with a goodput of 0.856."""
    cost = estimate_cost(llama_405b_request(goodput_fraction=0.856))
    assert cost.gpu_hours / 1e6 == pytest.approx(30.84, abs=0.03)
    assert cost.days == pytest.approx(78.4, abs=0.2)
    assert cost.energy_mwh / 1e3 == pytest.approx(21.6, abs=0.05)


def test_llama_405b_bill_lies_inside_the_predicted_goodput_band():
    cost = estimate_cost(llama_405b_request())
    ideal = cost.gpu_hours * cost.goodput_fraction
    assert ideal / 1e6 == pytest.approx(26.4, abs=0.05)
    assert ideal / cost.goodput_high_fraction < 30.84e6 < ideal / cost.goodput_low_fraction
    assert cost.gpu_hours == pytest.approx(30.84e6, rel=0.06)


@pytest.mark.parametrize(("usd_per_gpu_hour", "million_usd"), [(3.24, 100), (3.5, 108), (2.0, 62)])
def test_the_seeds_100_million_follow_from_a_price_of_3_24(usd_per_gpu_hour, million_usd):
    cost = estimate_cost(llama_405b_request(goodput_fraction=0.856, usd_per_gpu_hour=usd_per_gpu_hour))
    assert cost.usd is not None
    assert cost.usd / 1e6 == pytest.approx(million_usd, abs=0.5)
    assert cost.price_source == "given"


def test_the_seeds_5_6_million_follow_from_2_dollars_and_the_reported_rate():
    """DeepSeek-V3: 37B active, 14.8T tokens, 343 TFLOP/s per H800 over 2.664M hours; 2.788M with the later stages."""
    layer = shapes.dense_layer(hidden_size=8192, intermediate_size=28672, heads=64, kv_heads=8)
    model = shapes.model(layer, num_layers=1, hidden_size=8192, vocab_size=1024)
    scale = 37e9 / model.num_active_params
    request = CostRequest(
        model=model,
        tokens=14.8e12 * scale,
        gpu=load_gpu("h800-sxm"),
        num_gpus=2048,
        mfu_fraction=343e12 / 989.5e12,
        usd_per_gpu_hour=2.0,
        goodput_fraction=1.0,
    )
    cost = estimate_cost(request)
    assert cost.gpu_hours / 1e6 == pytest.approx(2.664, abs=0.005)
    assert cost.usd == pytest.approx(5.33e6, rel=2e-3)
    assert cost.usd * 2.788 / 2.664 == pytest.approx(5.576e6, rel=2e-3)


def test_counting_attention_makes_the_run_dearer():
    """405B at 8,192 tokens: 101 GFLOP of causal attention more, 13 of the input table less, over 2,435."""
    plain = estimate_cost(llama_405b_request())
    counted = estimate_cost(llama_405b_request(seq_len=8192))
    assert counted.gpu_hours / plain.gpu_hours == pytest.approx(1.0365, abs=5e-4)
    assert "causal attention" in counted.assumptions[0]
    assert "6N" in plain.assumptions[0]


def test_the_price_book_says_where_its_price_is_from():
    price = Price(usd_per_gpu_hour=2.5, provider="Some Cloud", kind="on_demand", date="2026-11", source="KEY")
    cost = estimate_cost(llama_405b_request(prices=(price,)))
    assert cost.usd_per_gpu_hour == 2.5
    assert cost.price_source == "Some Cloud, on demand, 2026-11"
    assert estimate_cost(llama_405b_request(prices=(price,), usd_per_gpu_hour=3.0)).usd_per_gpu_hour == 3.0


def test_a_summary_of_the_market_is_named_in_words():
    """The price of an H100 was said to be of "several, specialist_median, 2026-03-16 (DERIVED)"."""
    cost = estimate_cost(llama_405b_request(prices=read_cluster("8xh100-sxm").node.prices))
    assert cost.price_source == "specialist median, 2026-03-16"
    contract = read_cluster({"gpu": "h100-sxm", "usd_per_gpu_hour": 2.0, "price_source": "contract"})
    assert estimate_cost(llama_405b_request(prices=contract.node.prices)).price_source == "given, contract"


def test_without_a_price_there_are_hours_but_no_dollars():
    cost = estimate_cost(llama_405b_request())
    assert cost.usd is None
    assert cost.gpu_hours > 0
    assert cost.price_source == "no price is known"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tokens": 0}, "cost-tokens"),
        ({"tokens": -1.0}, "cost-tokens"),
        ({"tokens": math.nan}, "cost-tokens"),
        ({"tokens": math.inf}, "cost-tokens"),
        ({"mfu_fraction": 40.0}, "cost-mfu"),
        ({"mfu_fraction": 0.0}, "cost-mfu"),
        ({"mfu_fraction": math.nan}, "cost-mfu"),
        ({"num_gpus": 0}, "cost-gpus"),
        ({"seq_len": 0}, "cost-seq-len"),
        ({"seq_len": -5}, "cost-seq-len"),
        ({"seq_len": 10**11}, "cost-seq-len"),
        ({"goodput_fraction": 1.5}, "cost-goodput"),
        ({"usd_per_gpu_hour": -2.0}, "cost-price"),
        ({"usd_per_gpu_hour": math.nan}, "cost-price"),
        ({"gpu": replace(H100, peaks=())}, "cost-no-peak"),
    ],
)
def test_impossible_figures_are_refused_with_a_fix(changes, code):
    with pytest.raises(RecipeError) as caught:
        estimate_cost(llama_405b_request(**changes))
    assert caught.value.code == code
    assert caught.value.fix


def test_energy_is_unknown_where_power_is():
    assert estimate_cost(llama_405b_request(gpu=replace(H100, tdp_w=0))).energy_mwh is None


def plan_with_tokens(tokens):
    return Plan(
        model=shapes.llama_3_8b(),
        cluster=read_cluster("2 x dgx-h100"),
        recipe=Recipe(seq_len=8192, tokens=tokens),
        layout=Layout(dp_shard=16),
    )


def test_a_plans_cost_follows_from_its_predicted_rate():
    plan = plan_with_tokens(1e12)
    time, throughput = predict_time(plan)
    cost = predict_cost(plan=plan, time=time, throughput=throughput, usd_per_gpu_hour=2.0)
    assert cost is not None
    ideal_hours = 1e12 / throughput.tokens_per_s_per_gpu / 3600
    assert cost.gpu_hours == pytest.approx(ideal_hours / cost.goodput_fraction)
    assert cost.days == pytest.approx(cost.gpu_hours / 16 / 24)
    assert cost.usd == pytest.approx(2 * cost.gpu_hours)


def test_a_plan_uses_the_clusters_price_unless_one_is_given():
    plan = plan_with_tokens(1e12)
    time, throughput = predict_time(plan)
    cost = predict_cost(plan=plan, time=time, throughput=throughput)
    assert cost is not None
    assert plan.cluster.price is not None
    assert cost.usd_per_gpu_hour == plan.cluster.price.usd_per_gpu_hour


def test_a_plan_without_tokens_has_no_cost():
    plan = plan_with_tokens(None)
    time, throughput = predict_time(plan)
    assert predict_cost(plan=plan, time=time, throughput=throughput) is None


@given(tokens=st.floats(1e3, 1e17), mfu=st.floats(0.01, 1.0), gpus=st.integers(1, 10**7))
def test_costs_are_finite_and_the_band_holds_its_middle(tokens, mfu, gpus):
    cost = estimate_cost(llama_405b_request(tokens=tokens, mfu_fraction=mfu, num_gpus=gpus, usd_per_gpu_hour=2.0))
    assert all(math.isfinite(value) and value > 0 for value in (cost.gpu_hours, cost.days, cost.usd, cost.energy_mwh))
    assert 0 < cost.goodput_low_fraction <= cost.goodput_fraction <= cost.goodput_high_fraction < 1


def test_the_assumption_that_moves_the_cost_most_comes_first():
    """H100 prices of the book lie a factor of ten apart, published MFUs one of 2.5, goodputs one of 1.7."""
    cost = estimate_cost(llama_405b_request(mfu_fraction=None, prices=read_cluster("2xdgx-h100").node.prices))
    assert [row.assumption for row in cost.sensitivities] == ["price", "MFU", "goodput"]
    price, mfu, goodput = cost.sensitivities
    assert price.low_gpu_hours == price.high_gpu_hours == cost.gpu_hours
    assert price.low_usd < cost.usd < price.high_usd
    assert mfu.swing_ratio == pytest.approx(46 / 18)
    assert mfu.low_gpu_hours == pytest.approx(cost.gpu_hours * 38 / 46)
    assert goodput.high_gpu_hours == pytest.approx(cost.gpu_hours * cost.goodput_fraction / cost.goodput_low_fraction)


def test_what_was_given_moves_nothing_and_has_no_band():
    given = llama_405b_request(mfu_fraction=0.4, goodput_fraction=0.9, usd_per_gpu_hour=2.0)
    cost = estimate_cost(given)
    assert cost.sensitivities == ()
    assert cost.low_gpu_hours == cost.high_gpu_hours == cost.gpu_hours


def test_speed_and_goodput_err_independently():
    """MFU from 46 to 18 % about 38, goodput from 95.5 to 55.8 % about 87.6: logarithms add up as squares."""
    cost = estimate_cost(llama_405b_request(mfu_fraction=None, usd_per_gpu_hour=2.0))
    low, high = (
        math.hypot(math.log(46 / 38), math.log(95.5 / 87.6)),
        math.hypot(math.log(38 / 18), math.log(87.6 / 55.8)),
    )
    assert cost.low_gpu_hours == pytest.approx(cost.gpu_hours * math.exp(-low), rel=1e-3)
    assert cost.high_gpu_hours == pytest.approx(cost.gpu_hours * math.exp(high), rel=1e-3)
    assert cost.high_days / cost.days == pytest.approx(cost.high_gpu_hours / cost.gpu_hours)
    assert (cost.low_usd, cost.high_usd) == (2 * cost.low_gpu_hours, 2 * cost.high_gpu_hours)


def test_a_price_and_tuning_are_no_part_of_the_band():
    """A price is paid and not predicted; a plan that is tuned less is another plan."""
    prices = read_cluster("2xdgx-h100").node.prices
    booked = estimate_cost(llama_405b_request(prices=prices, goodput_fraction=0.9))
    assert [row.assumption for row in booked.sensitivities] == ["price"]
    assert booked.low_usd == booked.high_usd == booked.usd


def test_a_plans_step_time_is_its_first_assumption():
    plan = plan_with_tokens(1e12)
    time, throughput = predict_time(plan)
    cost = predict_cost(plan=plan, time=time, throughput=throughput, usd_per_gpu_hour=2.0)
    assert {row.assumption for row in cost.sensitivities} == {"step time", "goodput"}
    step = next(row for row in cost.sensitivities if row.assumption == "step time")
    assert step.swing_ratio == pytest.approx(time.step_high_s / time.step_low_s)


def test_a_recommended_plan_may_run_as_published_runs_do():
    """Llama 2 7B on A100 at 69 % MFU is below its bill; at the 30 % from which nine in ten begin it is far above."""
    run = ask_cost("llama-2-7b", "8xa100-sxm-80", tokens=2e12, seq_len=4096).run.cost
    tuning = next(row for row in run.sensitivities if row.assumption == "tuning")
    assert tuning.low_gpu_hours == run.gpu_hours
    assert run.gpu_hours < 184_320 < tuning.high_gpu_hours
    assert tuning.swing_ratio == pytest.approx(0.686 / 0.30, rel=0.02)
    assert tuning_spread(0.15, published_mfu(H100)) is None


def test_tuning_counts_the_flop_that_the_prediction_counts():
    """A frozen base has no gradients of weights: counted as 6 N, its MFU was nearly half as much again."""
    plan = plan_with_tokens(1e9)
    plan = replace(plan, recipe=replace(plan.recipe, adapter="lora"))
    time, throughput = predict_time(plan)
    cost = predict_cost(plan=plan, time=time, throughput=throughput, origin="the recommended plan")
    tuning = next(row for row in cost.sensitivities if row.assumption == "tuning")
    assert tuning.swing_ratio == pytest.approx(throughput.mfu_fraction / 0.18)
    assert throughput.mfu_convention.startswith("4(N")


@pytest.mark.parametrize(("gpu", "mfu"), [("a100-sxm-80", 0.48), ("h100-sxm", 0.38), ("b200-sxm", 0.42)])
def test_without_an_mfu_a_run_reaches_what_published_ones_reach_on_its_architecture(gpu, mfu):
    request = llama_405b_request(gpu=load_gpu(gpu), mfu_fraction=None)
    cost = estimate_cost(request)
    assert cost.gpu_hours == pytest.approx(estimate_cost(replace(request, mfu_fraction=mfu)).gpu_hours)
    assert "published runs" in cost.assumptions[0]
