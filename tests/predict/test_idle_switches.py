"""A prediction says which switches of a plan cost time and save nothing."""

from dataclasses import replace

import pytest

from search.test_idle_switches import LORA, MLA
from shardwise.predict import predict
from shardwise.predict.idle_switches import IDLE_SWITCH, idle_switches
from shardwise.render.json_records import prediction_object
from shardwise.render.text_prediction import prediction_text


def said(plan):
    return [(refusal.neighbour, refusal.message) for refusal in idle_switches(plan, predict(plan))]


def test_recomputation_that_the_peak_does_not_feel_is_said():
    """Row A13: nothing but `explain` said so."""
    ((neighbour, message),) = said(MLA)
    assert neighbour == (("recompute", "none"),)
    with_it, without = predict(MLA), predict(replace(MLA, recipe=replace(MLA.recipe, recompute="none")))
    assert with_it.memory.needed_bytes == pytest.approx(without.memory.needed_bytes, rel=0.005)
    cost_s = with_it.time.step_s - without.time.step_s
    assert f"recompute=selective costs {1000 * cost_s:.1f} ms of a step" in message


def test_states_on_the_host_that_nobody_had_to_move_are_said_in_text_and_json():
    prediction = predict(LORA)
    (refusal,) = idle_switches(LORA, prediction)
    assert refusal.fix == "set offload=none"
    written = prediction_object(plan=LORA, prediction=prediction)["warnings"]
    assert written[-1] == {"rule": IDLE_SWITCH, "warning": refusal.message, "fix": refusal.fix}
    assert f"[{IDLE_SWITCH}]" in " ".join(prediction_text(plan=LORA, prediction=prediction).split())


def test_switches_that_save_memory_or_cost_nothing_are_not_questioned():
    kept = replace(LORA, recipe=replace(LORA.recipe, offload="none"))
    assert said(kept) == []
    assert said(replace(kept, recipe=replace(kept.recipe, recompute="full"))) == []
