"""Every number of an explanation is a field of the prediction of the plan that it names, whoever asks."""

import json
import math
import random
import re

import pytest

from shardwise.catalog import read_cluster
from shardwise.errors import ShardwiseError
from shardwise.explain import advise, explain
from shardwise.explain.told import Predicted, compared, field_amount
from shardwise.plan_file import plan_to_json, read_plan
from shardwise.predict import exposed_communication, predict
from shardwise.predict.memory import most_bytes
from shardwise.render.json_answers import explanation_object, findings_object
from shardwise.render.json_records import json_object, prediction_object
from shardwise.rules import find_errors

MODELS = ("llama-3.2-1b", "llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b")
LAYOUTS = (
    {"dp_shard": 8},
    {"dp_replicate": 8, "zero_stage": 0},
    {"dp_shard": 8, "zero_stage": 1},
    {"dp_replicate": 2, "dp_shard": 4},
    {"dp_shard": 4, "tp": 2},
    {"dp_shard": 4, "pp": 2},
    {"dp_shard": 8, "ep": 8},
    {"dp_shard": 2, "tp": 2, "pp": 2, "zero_stage": 1},
)
CHOICES = {
    "engine": ("native", "fsdp2", "fsdp1", "torchtitan", "megatron", "deepspeed", "accelerate"),
    "adapter": ("none", "none", "lora", "qlora"),
    "offload": ("none", "none", "optimizer", "parameters"),
    "recompute": ("none", "selective", "full"),
    "convention": ("engine", "engine", "engine", "seed"),
}


def drawn(count, seed=7):
    """Plans that keep all rules, drawn over engines, adapters, experts and offload."""
    draw, found = random.Random(seed), []
    while len(found) < count:
        chosen = {name: draw.choice(values) for name, values in CHOICES.items()}
        engine = chosen.pop("engine")
        written = {
            "model": draw.choice(MODELS),
            "cluster": "8xh100-sxm",
            "engine": engine,
            "recipe": {"seq_len": 2048, "micro_batch_size": 1, "global_batch_size": 16, **chosen},
            "layout": draw.choice(LAYOUTS),
        }
        try:
            plan = read_plan(written)
        except ShardwiseError:
            continue
        if not find_errors(plan):
            found.append(plan)
    return found


def looked_up(document, field, plan):
    """The number under a field, read from the JSON answer of a new prediction."""
    return sum(math.prod(one(document, path, plan) for path in term.split(" x ")) for term in field.split(" + "))


def one(document, path, plan):
    head, _, rest = path.partition(".")
    if head == "most_bytes":
        return most_bytes(plan, *rest.split(","))
    if head == "exposed":
        document = {"exposed": json_object(exposed_communication(plan))}
    found, left = document, path
    while left:
        if isinstance(found, list):
            step, _, left = left.partition(".")
            found = found[int(step)]
            continue
        key = max((key for key in found if left == key or left.startswith(f"{key}.")), key=len)
        found, left = found[key], left[len(key) + 1 :]
    return found


def wrong_numbers(answer):
    """Numbers of a JSON answer that are not what a new prediction of their plan says."""
    plans = [read_plan(plan) for plan in answer["plans"]]
    documents = [prediction_object(plan=plan, prediction=predict(plan)) for plan in plans]
    wrong, num_held = [], 0
    for finding in answer["findings"]:
        for number in finding["numbers"]:
            if "field" not in number:
                continue
            value = looked_up(documents[number["plan"]], number["field"], plans[number["plan"]])
            if "against" in number:
                other = number["against"]
                second = looked_up(documents[other["plan"]], other["field"], plans[other["plan"]])
                value = value / second if number["unit"] in ("ratio", "fraction") else value - second
            num_held += 1
            if not math.isclose(value, number["value"], rel_tol=1e-9, abs_tol=1e-12):
                wrong.append((finding["claim"], number, value))
    return wrong, num_held


@pytest.mark.parametrize("plan", drawn(12), ids=lambda plan: f"{plan.engine}-{plan.model.name}-{plan.recipe.adapter}")
def test_every_explained_number_is_a_field_of_the_prediction_of_its_plan(plan):
    answer = json.loads(json.dumps(explanation_object(explain(plan))))
    wrong, num_held = wrong_numbers(answer)
    assert wrong == []
    assert num_held >= 20
    for change in answer["changes"]:
        again = predict(read_plan(change["plan"]))
        assert (change["needed_bytes"], change["fit"]) == (again.memory.needed_bytes, again.fit)
        assert change["step_s"] == pytest.approx(again.time.step_s, rel=1e-9)


@pytest.fixture(scope="module")
def one_billion():
    plan = read_plan(
        {
            "model": "llama-3.2-1b",
            "cluster": "8xh100-sxm",
            "recipe": {"seq_len": 2048, "global_batch_size": 64},
            "layout": {"dp_shard": 8},
        }
    )
    return advise(model=plan.model, cluster=read_cluster("8xh100-sxm"), recipe=plan.recipe)


def test_every_number_of_the_strategies_is_a_field_of_the_prediction_of_its_plan(one_billion):
    wrong, num_held = wrong_numbers(json.loads(json.dumps(findings_object(one_billion))))
    assert wrong == []
    assert num_held >= 60


def test_amounts_in_a_claim_about_a_plan_stand_among_its_numbers(one_billion):
    """Seconds, GiB and GB that a pitfall or a checklist names are those that say where they come from."""
    for finding in one_billion:
        if finding.topic == "pitfall":
            told = {number.text.lstrip("-") for number in finding.numbers}
            said = set(re.findall(r"\d[\d.,]* (?:GiB|GB|s|ms|us)\b", finding.claim))
            assert said - told == set(), finding.claim


def test_a_changed_number_is_found():
    plan = drawn(1)[0]
    answer = json.loads(json.dumps(explanation_object(explain(plan))))
    answer["findings"][0]["numbers"][0]["value"] *= 1.01
    assert len(wrong_numbers(answer)[0]) == 1


def test_sums_products_and_comparisons_of_fields():
    plan = read_plan(
        {
            "model": "llama-3.2-1b",
            "cluster": "8xh100-sxm",
            "recipe": {"seq_len": 2048},
            "layout": {"dp_shard": 8},
        }
    )
    found = Predicted(plan=plan, prediction=predict(plan))
    time = found.prediction.time
    assert field_amount(found.prediction, "time.step_s x throughput.tokens_per_s") == pytest.approx(
        plan.tokens_per_step, rel=1e-9
    )
    parts = " + ".join(f"time.components_s.{entry.component}" for entry in time.components)
    assert field_amount(found.prediction, parts) == pytest.approx(time.step_s)
    step, half = found.told("step", "time.step_s", "s"), found.told("forward", "time.components_s.forward", "s")
    assert compared("share", half, step, "fraction").value == half.value / step.value
    assert compared("rest", step, half, "s").value == step.value - half.value
    assert plan_to_json(compared("rest", step, half, "s").against.plan) == plan_to_json(plan)
