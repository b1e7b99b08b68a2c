"""What stands beside the recommended plan: the fastest, and at most three that differ in kind."""

from dataclasses import replace

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.search import IntRange, SearchBounds, search
from shardwise.search.shortlist import shortlist


def found(model, cluster, *, bounds=None, **recipe):
    return search(
        model=read_model(model),
        cluster=read_cluster(cluster),
        recipe=Recipe(seq_len=4096, global_batch_size=32, **recipe),
        engine="native",
        bounds=bounds or SearchBounds(),
    )


@pytest.fixture(scope="module")
def one_gpu():
    return found("llama-3.1-8b", "1xh200-sxm", adapter="lora")


@pytest.fixture(scope="module")
def server():
    return found("llama-3.1-8b", "8xh100-sxm")


def test_on_one_gpu_micro_batch_and_recomputation_are_compared(one_gpu):
    """Row A14: every plan of one GPU has the same degrees, and a ranking of degrees has one line."""
    chosen = shortlist(one_gpu)
    plans = [chosen.recommended.plan, *(one.plan for one in chosen.alternatives)]
    settings = [(plan.recipe.micro_batch_size, plan.recipe.recompute) for plan in plans]
    assert len(chosen.alternatives) == 3
    assert len({size for size, _ in settings}) > 1
    assert len({mode for _, mode in settings}) > 1
    moved = [(plan.recipe.offload, plan.recipe.activation_offload) for plan in plans]
    assert len(set(zip(settings, moved, strict=True))) == 4  # what moves to the host makes another kind


def test_every_plan_beside_it_is_predicted_as_the_command_predicts_it(one_gpu, server):
    for result in (one_gpu, server):
        chosen = shortlist(result)
        now_s = chosen.recommended.prediction.time.step_s
        for one in (*chosen.alternatives, *([chosen.fastest] if chosen.fastest else [])):
            assert one.prediction.time.step_s == pytest.approx(predict(one.plan).time.step_s, rel=1e-12)
            assert one.step_ratio * now_s == pytest.approx(one.prediction.time.step_s)
            assert one.prediction.fits


def test_on_a_server_the_alternatives_are_other_kinds_of_parallelism(server):
    chosen = shortlist(server)
    axes = [
        tuple(degree > 1 for degree in (plan.layout.tp, plan.layout.cp, plan.layout.pp, plan.layout.dp_replicate))
        for plan in (chosen.recommended.plan, *(one.plan for one in chosen.alternatives))
    ]
    assert len(set(axes)) >= 3
    assert [one.step_ratio for one in chosen.alternatives] == sorted(one.step_ratio for one in chosen.alternatives)


def test_the_fastest_is_named_only_where_another_plan_is_recommended(server):
    chosen = shortlist(server)
    steps = [ranked.prediction.time.step_s for ranked in (*server.plans, *server.pareto)]
    if chosen.fastest is None:
        assert chosen.recommended.prediction.time.step_s == min(steps)
    else:
        assert chosen.fastest.prediction.time.step_s == min(steps)
        assert chosen.fastest.plan not in [one.plan for one in chosen.alternatives]
    quickest, *_, slowest = sorted((*server.plans, *server.pareto), key=lambda ranked: ranked.prediction.time.step_s)
    other = replace(server, plans=(slowest, *server.plans))
    assert shortlist(other).fastest.prediction.time.step_s == min(steps)
    assert shortlist(replace(server, plans=(quickest, *server.plans))).fastest is None


def test_variants_keep_the_bounds_that_were_asked(one_gpu):
    bounds = SearchBounds(micro_batch_size=IntRange(low=2, high=2))
    pinned = found("llama-3.1-8b", "1xh200-sxm", bounds=bounds, adapter="lora")
    assert {one.plan.recipe.micro_batch_size for one in shortlist(pinned).alternatives} == {2}


def test_no_plan_has_no_shortlist(server):
    assert shortlist(replace(server, plans=())) is None


def test_a_slower_plan_of_the_same_parallelism_is_shown_only_where_it_needs_less(one_gpu, server):
    """LoRA on one H200 listed 16.6 % more time for 23 GiB more, and the optimizer on the host, which helped nobody."""
    for result in (one_gpu, server):
        chosen = shortlist(result)
        now = chosen.recommended
        for one in chosen.alternatives:
            same = [axis for axis in ("tp", "cp", "pp", "ep", "dp_replicate") if axis_of(one.plan, axis) > 1]
            if not same and axis_of(one.plan, "zero_stage") == axis_of(now.plan, "zero_stage") and one.step_ratio >= 1:
                assert one.prediction.memory.needed_bytes < 0.98 * now.prediction.memory.needed_bytes
    assert {one.plan.recipe.offload for one in shortlist(one_gpu).alternatives} == {"none"}


def axis_of(plan, name):
    return getattr(plan.layout, name)
