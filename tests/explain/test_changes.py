"""Every change that is shown was predicted, helps, breaks no rule and keeps what is trained."""

import pytest

from shardwise.catalog import read_cluster
from shardwise.explain.changes import faster_changes, remedies
from shardwise.explain.choices import choice_edits
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.rules import find_errors
from shardwise.search.edits import HARDWARE, TRAINING


def plan(model="llama-3.1-8b", cluster="8xh100-sxm", layout=None, engine="native", **recipe):
    return Plan(
        model=read_model(model),
        cluster=read_cluster(cluster),
        recipe=Recipe(**({"seq_len": 8192, "global_batch_size": 64} | recipe)),
        layout=layout or Layout(dp_shard=8),
        engine=engine,
    )


def changes_of(asked, find=remedies):
    prediction = predict(asked)
    return prediction, find(asked, prediction)


def test_each_change_repeats_under_prediction():
    prediction, changes = changes_of(plan(micro_batch_size=4))
    assert changes
    for change in changes:
        again = predict(change.plan)
        assert change.fits == again.fits
        assert change.device_used_bytes == again.memory.worst.device_used_bytes
        assert change.saved_bytes == prediction.memory.needed_bytes - again.memory.needed_bytes
        assert change.step_s == again.time.step_s
        assert change.step_ratio == pytest.approx(again.time.step_s / prediction.time.step_s)


def test_no_change_alters_the_batch_or_breaks_a_rule():
    asked = plan(micro_batch_size=4)
    for change in changes_of(asked)[1]:
        assert change.plan.global_batch_size == asked.global_batch_size
        assert change.plan.recipe.seq_len == asked.recipe.seq_len
        assert find_errors(change.plan) == ()


def test_flags_come_before_layouts_and_layouts_before_other_training():
    _, changes = changes_of(plan(micro_batch_size=4))
    efforts = [change.effort for change in changes]
    assert efforts == sorted(efforts)
    assert efforts[0] == 0


def test_all_changes_fit_when_one_does():
    assert all(change.fits for change in changes_of(plan(micro_batch_size=4))[1])


def test_recomputation_is_found_for_a_plan_that_activations_overflow():
    _, changes = changes_of(plan(micro_batch_size=2))
    assert "recompute=full" in [change.edit for change in changes]


def test_several_edits_are_added_up_when_no_single_one_is_enough():
    """8B undivided on 80 GB: states of 120 GiB and activations of twice that need more than one change."""
    asked = plan(layout=Layout(dp_replicate=8, zero_stage=0), seq_len=16384, micro_batch_size=8, recompute="none")
    _, changes = changes_of(asked)
    combined = changes[0]
    assert combined.fits
    assert len(combined.changes) > 1


def test_flags_are_added_up_before_activations_move_to_the_host():
    """LoRA of an 8B on a gaming card: full recomputation alone is at the edge, and with two sequences it is safe."""
    asked = plan(cluster="1xrtx-4090", layout=Layout(), seq_len=4096, micro_batch_size=4, adapter="lora")
    _, (first, second, *_) = changes_of(asked)
    assert first.edit == "recompute=full micro_batch_size=2"
    assert first.fits
    assert not first.is_borderline
    assert second.edit == "activation_offload=true"
    assert second.step_s > 1.1 * first.step_s


def test_a_fitting_plan_gets_faster_not_smaller():
    asked = plan(recompute="full")
    prediction, changes = changes_of(asked, faster_changes)
    assert prediction.fits
    assert "recompute=none" in [change.edit for change in changes]
    assert all(change.fits and change.step_ratio < 0.99 for change in changes)


def test_adapters_come_behind_what_trains_the_same_weights():
    """8B in two stages of DeepSpeed's pipeline was told to train adapters, although the host holds the optimizer."""
    layout = Layout(pp=2, zero_stage=1)
    asked = plan(
        cluster="2xh100-sxm", layout=layout, engine="deepspeed", seq_len=4096, global_batch_size=32, compile=False
    )
    edits = [change.edit for change in changes_of(asked)[1]]
    assert edits[0] == "offload=optimizer"
    assert "adapter=lora" in edits


def test_weights_of_4_bits_are_tried_where_adapters_on_whole_ones_do_not_fit():
    """No change alone was said to make it fit, and --adapter qlora did."""
    asked = plan(cluster="1xrtx-4090", layout=Layout(), seq_len=2048)
    fits = {change.edit: change.fits for change in changes_of(asked)[1]}
    assert fits["adapter=qlora"]
    assert not fits.get("adapter=lora", False)
    megatron = plan(cluster="2xh100-sxm", layout=Layout(tp=2), engine="megatron", compile=False, seq_len=8192)
    assert "adapter=qlora" not in [change.edit for change in changes_of(megatron)[1]]


def test_what_fits_safely_is_shown_before_what_is_faster_at_the_edge():
    """recompute=none was to be changed first: 76.91 of 79.20 GiB, for a plan with 48.9 GiB to spare."""
    asked = plan("qwen2.5-7b", "8xa100-sxm-80", engine="accelerate", seq_len=4096, micro_batch_size=2, recompute="full")
    _, changes = changes_of(asked, faster_changes)
    kinds = [change.fit for change in changes]
    assert kinds[0] == "fits"
    assert "at the edge" in kinds
    assert kinds == sorted(kinds, reverse=True)


def test_a_plan_at_its_best_has_nothing_to_change_much():
    best = plan(
        model="gpt2",
        cluster="1xh100-sxm",
        layout=Layout(zero_stage=0),
        seq_len=1024,
        global_batch_size=32,
        micro_batch_size=32,
    )
    _, changes = changes_of(best, faster_changes)
    assert all(change.step_ratio > 0.5 for change in changes)


def hardware(plan, prediction):
    """Other hardware on which a plan fits."""
    return tuple(change for change in remedies(plan, prediction) if change.effort == HARDWARE)


def test_more_nodes_and_bigger_gpus_are_offered_when_the_hardware_is_too_small():
    asked = plan(model="llama-3.1-70b", recompute="full")
    prediction, changes = changes_of(asked, hardware)
    assert not prediction.fits
    edits = [change.edit for change in changes]
    assert any(edit.startswith("num_nodes=") for edit in edits)
    assert any(edit.startswith("gpu=") for edit in edits)
    assert all(change.fits and change.effort == 3 for change in changes)


def test_a_part_of_a_server_grows_to_whole_ones():
    asked = plan(
        model="llama-3.1-70b", cluster="4xh100-sxm", layout=Layout(tp=4), recompute="full", global_batch_size=8
    )
    _, changes = changes_of(asked, hardware)
    (more,) = [change for change in changes if "dp_shard=" in change.edit]
    assert more.edit == "num_gpus=24 dp_shard=6 global_batch_size=12"
    assert more.plan.cluster.num_nodes == 3
    assert more.plan.cluster.node.gpus_per_node == 8


def test_megatron_is_not_offered_what_it_does_not_have():
    asked = plan(engine="megatron", layout=Layout(dp_shard=8, zero_stage=1), micro_batch_size=4)
    edits = [change.edit for change in changes_of(asked)[1]]
    assert not any("adamw-8bit" in edit or "precision=bf16" in edit for edit in edits)


def test_a_borderline_plan_is_offered_what_makes_it_safe():
    lengths = range(8192, 24576, 256)
    plans = (plan(seq_len=length, global_batch_size=64) for length in lengths)
    borderline = next(asked for asked in plans if predict(asked).memory.is_borderline)
    _, changes = changes_of(borderline)
    assert changes
    assert not any(change.is_borderline for change in changes)


@pytest.mark.parametrize(("engine", "is_offered"), [("torchtitan", True), ("megatron", False)])
def test_compiling_is_offered_where_the_engine_has_the_switch(engine, is_offered):
    asked = plan("llama-3.1-8b", engine=engine, layout=Layout(dp_shard=8), seq_len=1024, compile=False)
    offered = {change.edit for change in changes_of(asked, faster_changes)[1]}
    assert ("compile=true" in offered) is is_offered


def test_the_largest_gain_of_a_plan_that_fits_stands_first_and_each_knob_once():
    """micro_batch_size=4 stood before tp=1, which gains more, and beside micro_batch_size=2, which gains less."""
    asked = plan(cluster="16xa100-sxm-80", layout=Layout(tp=8, dp_shard=2, sequence_parallel=True), seq_len=4096)
    prediction = predict(asked)
    changes = faster_changes(asked, prediction, also=choice_edits(asked))
    ratios = [change.step_ratio for change in changes if change.fit == "fits" and change.effort < TRAINING]
    assert ratios == sorted(ratios)
    assert changes[0].edit.startswith("tp=1 dp_shard=16")
    assert len({change.changes[0][0] for change in changes if change.fit == "fits"}) == len(ratios)
