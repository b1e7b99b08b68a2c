"""The whole explanation of a plan, and what the textbook convention leaves out."""

import pytest

from shardwise.catalog import read_cluster
from shardwise.errors import LayoutError
from shardwise.explain.conventions import seed_differences
from shardwise.explain.explanation import explain
from shardwise.explain.records import Quantity
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe


def plan(model="llama-3.1-8b", cluster="8xh100-sxm", layout=None, **recipe):
    return Plan(
        model=read_model(model),
        cluster=read_cluster(cluster),
        recipe=Recipe(**({"seq_len": 8192, "global_batch_size": 64} | recipe)),
        layout=layout or Layout(dp_shard=8),
    )


def test_a_verdict_comes_first_and_every_finding_has_a_claim():
    explanation = explain(plan())
    assert explanation.findings[0].topic == "verdict"
    assert all(
        finding.claim.endswith(".") or finding.claim.endswith("}")
        for finding in explanation.findings
        if finding.topic != "caution"
    )
    topics = {finding.topic for finding in explanation.findings}
    assert {"verdict", "headroom", "memory", "time", "world-size"} <= topics


def test_a_plan_that_does_not_fit_gets_changes_that_do():
    explanation = explain(plan(micro_batch_size=4))
    assert not explanation.prediction.fits
    assert explanation.changes
    assert explanation.changes[0].fits


def test_one_sequence_on_one_gpu_is_said_in_the_singular():
    step = next(
        one
        for one in explain(plan(cluster="1xh100-sxm", layout=Layout(), global_batch_size=1)).findings
        if one.topic == "time"
    )
    assert step.because.startswith("a step trains one sequence of ")
    assert step.because.endswith(" tokens in one micro-batch on one data-parallel rank")


def test_a_roomy_plan_gets_changes_that_make_it_faster():
    explanation = explain(plan(recompute="full"))
    assert all(change.step_ratio < 1 for change in explanation.changes)


def test_an_invalid_plan_is_refused_by_its_rule():
    with pytest.raises(LayoutError) as refusal:
        explain(plan(layout=Layout(dp_shard=4)))
    assert refusal.value.code == "layout-world-size"


def test_the_seed_convention_is_answered_with_where_reality_differs():
    explanation = explain(plan("70B", "8xh100-sxm", recompute="full", convention="seed"))
    differences = [finding for finding in explanation.findings if finding.topic == "convention"]
    assert len(differences) == 6


def test_seventy_billion_on_eight_gpus_is_105_gb_in_the_textbook_and_140_in_states():
    """FORMULAS audit: 105 GB per GPU in 2 + 2 + 8 bytes; with the fp32 master copy 140."""
    differences = seed_differences(plan("70B", "8xh100-sxm", recompute="full"))
    verdicts = {one.judged.says.partition(":")[0]: one.judged.verdict for one in differences if one.judged}
    assert verdicts["textbook states per GPU"] in ("loose", "wrong")
    assert verdicts.keys() == {"textbook", "textbook states per GPU"}
    states = next(finding for finding in differences if finding.claim.startswith("Bytes per parameter"))
    textbook, engine = (quantity.value / 1e9 for quantity in states.numbers)
    assert textbook == pytest.approx(105.0, rel=0.01)
    assert engine == pytest.approx(140.0, rel=0.01)


def test_405b_needs_61_cards_in_the_textbook_and_more_in_an_engine():
    differences = seed_differences(plan("405B", "64xh100-sxm", layout=Layout(dp_shard=64), recompute="full"))
    fewest = next(finding for finding in differences if finding.claim.startswith("GPUs needed"))
    assert [quantity.value for quantity in fewest.numbers] == [61, 77]


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (Quantity(name="a", value=85_899_345_920, unit="bytes"), "80.00 GiB"),
        (Quantity(name="a", value=1.5e9, unit="traffic_bytes"), "1.50 GB"),
        (Quantity(name="a", value=-0.0123, unit="s"), "-12.3 ms"),
        (Quantity(name="a", value=0.4125, unit="fraction"), "41.2%"),
        (Quantity(name="a", value=16, unit="count"), "16"),
        (Quantity(name="a", value=8_030_261_248, unit="count"), "8.03B"),
        (Quantity(name="a", value=1_234_567.8, unit="usd"), "$1,234,568"),
        (Quantity(name="a", value=2.5, unit="ratio"), "2.50x"),
        (Quantity(name="a", value=989.5e12, unit="flop_per_s"), "989.5 TFLOP/s"),
        (Quantity(name="a", value=450e9, unit="bytes_per_s"), "450.0 GB/s"),
    ],
)
def test_a_quantity_prints_in_the_unit_people_use(quantity, text):
    assert quantity.text == text
