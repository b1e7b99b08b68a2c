"""When data parallel, FSDP, ZeRO, tensor, pipeline or context parallel: answered for one model on one cluster.

Every sentence rests on a search restricted to that strategy, so that "it fits" and "it is slower" are predictions with
the best micro-batch size and recomputation the strategy allows, not rules of thumb. The questions of the practical
checklist and the sentences of its pitfalls are answered from the same predictions.
"""

from collections.abc import Iterator
from dataclasses import replace

from shardwise.cluster import Cluster
from shardwise.engines.table import ENGINES, OWN_ENGINE, EngineName
from shardwise.explain.checklist import checklist
from shardwise.explain.pitfalls import pitfalls
from shardwise.explain.records import Finding, Quantity
from shardwise.explain.state_counts import (
    HELD_COMPONENTS,
    StateCount,
    counted_capacity_bytes,
    counted_quantity,
    counted_states,
    states_sentence,
    told_states,
    undivided,
)
from shardwise.explain.strategy_trials import (
    StrategyTrial,
    pattern_words,
    settings_words,
    strategy_name,
    try_strategies,
)
from shardwise.explain.told import compared, each_call, payload_field, told
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.recipe import Recipe
from shardwise.rules import find_errors
from shardwise.search import ClosestPlan, question_of, search
from shardwise.units import format_count, format_gb, format_gib, format_percent, format_seconds

__all__ = ["StrategyTrial", "advise", "try_strategies", "zero_ladder"]

PAPER_STATES = StateCount(weight_bytes=2, gradient_bytes=2, optimizer_bytes=12, num_params=1)
"""Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1: fp16 weights and gradients, fp32 master copy and moments."""
SMALL_COPY_BYTES = 0.05
EQUAL_FRACTION = 0.005


def advise(
    *, model: ModelSpec, cluster: Cluster, recipe: Recipe, engine: EngineName = OWN_ENGINE
) -> tuple[Finding, ...]:
    """Findings that compare the strategies by predictions of this model; the last one recommends what ``plan`` does."""
    question = question_of(model=model, cluster=cluster, recipe=recipe, engine=engine)
    trials = try_strategies(question)
    return (
        _one_gpu(question),
        *_ladders(question),
        *checklist(question, trials),
        *(_strategy_finding(trial, trials, question) for trial in trials),
        *(
            _communication(trial, trial.prediction)
            for trial in trials
            if trial.prediction is not None and trial.prediction.time.communication
        ),
        *pitfalls(question, trials),
        _recommendation(question),
    )


def _one_gpu(question: Plan) -> Finding:
    counted, capacity = counted_states(question), counted_capacity_bytes(question)
    per_param, params, states = counted.bytes_per_param, counted.num_params, counted.total_bytes
    keeps = "the textbook counts" if question.recipe.convention == "seed" else f"{question.engine} keeps"
    is_held = states < capacity
    return Finding(
        topic="strategy",
        claim=f"One {question.cluster.gpu.name} holds {format_gib(capacity)}; the states of {format_count(params)} "
        f"parameters are {format_gib(states)}, {states / capacity:.1f} times that.",
        numbers=(
            counted_quantity("states", question),
            Quantity(name="capacity", value=capacity, unit="bytes"),
            Quantity(name="bytes per parameter", value=per_param, unit="count"),
        ),
        because=f"{keeps} {counted.weight_bytes:.3g} bytes of weights, {counted.gradient_bytes:.3g} of gradients and "
        f"{counted.optimizer_bytes:.3g} of optimizer states a parameter with {question.recipe.optimizer} in "
        f"{question.recipe.precision}"
        if question.recipe.adapter == "none"
        else states_sentence(question),
        suggestion="states alone do not force any division" if is_held else "states have to be divided or made smaller",
    )


def _ladders(question: Plan) -> Iterator[Finding]:
    """Each ZeRO stage divides some states, by the paper and by the engine; beside adapters few are left to divide."""
    recipe = question.recipe
    if recipe.adapter != "none" and recipe.convention != "seed":
        yield _adapter_ladder(question)
        return
    if question.cluster.num_gpus == 1:  # nobody to divide with
        return
    yield _paper_ladder(question)
    ladder = zero_ladder(question)
    if ladder is not None:
        yield ladder


def _adapter_ladder(question: Plan) -> Finding:
    """Adapters alone have gradients and optimizer states, so that only the stage that divides weights saves memory."""
    whole, world = undivided(question), question.cluster.num_gpus
    states = told_states("undivided", whole)
    trained = told_states("gradients and optimizer states", whole, components=("gradients", "optimizer"))
    sharded = replace(whole, layout=Layout(dp_shard=world))
    divides = world > 1 and not find_errors(sharded)
    third = told_states("ZeRO-3, with the units it gathers", sharded, components=HELD_COMPONENTS) if divides else None
    saved = "" if third is None else f"; ZeRO-3 divides the frozen weights as well: {third.text} a GPU over {world:,}"
    return Finding(
        topic="strategy",
        claim=f"ZeRO-1 and ZeRO-2 do not apply to {question.recipe.adapter}: the gradients and optimizer states that "
        f"they divide are {trained.text} of {states.text}{saved}.",
        numbers=(states, trained, *(() if third is None else (third,))),
        because="gradients and optimizer states exist of the adapters alone, and frozen weights are the rest",
    )


def _paper_ladder(question: Plan) -> Finding:
    """Counts the states that each ZeRO stage leaves on a GPU as the paper does, or as the textbook where asked to."""
    is_textbook = question.recipe.convention == "seed"
    states, world = counted_states(question) if is_textbook else PAPER_STATES, question.cluster.num_gpus
    weights, gradients, optimizer = states.weight_bytes, states.gradient_bytes, states.optimizer_bytes
    per_param = (
        weights + gradients + optimizer,
        weights + gradients + optimizer / world,
        weights + (gradients + optimizer) / world,
        (weights + gradients + optimizer) / world,
    )
    num_params = states.num_params if is_textbook else question.model.num_params
    sizes = [each * num_params for each in per_param]
    return Finding(
        topic="strategy",
        claim=f"States per GPU over {world:,} GPUs as the {'textbook' if is_textbook else 'ZeRO paper'} counts them: "
        f"{format_gib(sizes[0])} undivided (DDP), {format_gib(sizes[1])} with ZeRO-1, {format_gib(sizes[2])} with "
        f"ZeRO-2, {format_gib(sizes[3])} with ZeRO-3.",
        numbers=tuple(
            Quantity(name=f"ZeRO-{stage} saves", value=sizes[0] / size, unit="ratio")
            for stage, size in enumerate(sizes)
            if stage
        ),
        because=f"stage 1 divides the optimizer ({optimizer:g} of {per_param[0]:g} bytes per parameter), stage 2 "
        f"gradients too ({gradients:g}), stage 3 also weights ({weights:g}); activations are never divided by it",
    )


def zero_ladder(question: Plan) -> Finding | None:
    """Each ZeRO stage as the engine was predicted to hold it, and why it saves another factor than in the paper."""
    world, offer = question.cluster.num_gpus, ENGINES[question.engine]
    whole = undivided(question)
    if world == 1 or question.recipe.convention == "seed":
        return None
    plans = {
        stage: replace(whole, layout=Layout(dp_shard=world, zero_stage=stage)) for stage in offer.zero_stages if stage
    }
    held = {
        stage: told_states(f"ZeRO-{stage}", plan, components=HELD_COMPONENTS)
        for stage, plan in plans.items()
        if not find_errors(plan)
    }
    if find_errors(whole) or not held:
        return None
    alone = told_states("undivided", whole, components=HELD_COMPONENTS)
    counted = counted_states(question)
    copy_bytes = alone.value / counted.num_params - counted.bytes_per_param
    copies = f", and up to {copy_bytes:.3g} of copies it computes with" if copy_bytes > SMALL_COPY_BYTES else ""
    sizes = ", ".join(f"{size.text} with {size.name}" for size in held.values())
    return Finding(
        topic="strategy",
        claim=f"The same ladder in {question.engine}, with the weights it gathers: {alone.text} undivided, {sizes}.",
        numbers=(
            alone,
            *held.values(),
            *(compared(f"{size.name} saves", alone, size, "ratio") for size in held.values()),
        ),
        because=f"{question.engine} keeps {counted.weight_bytes:.3g} bytes of weights, {counted.gradient_bytes:.3g} of "
        f"gradients and {counted.optimizer_bytes:.3g} of optimizer states a parameter{copies}; the paper counts 2, 2 "
        "and 12, and no unit that stage 3 gathers",
    )


def _strategy_finding(trial: StrategyTrial, trials: tuple[StrategyTrial, ...], question: Plan) -> Finding:
    name, when = trial.strategy.name, trial.strategy.when
    if trial.plan is None:
        return Finding(topic="strategy", claim=f"{name}: not possible here.", because=trial.refusal or when)
    capacity = counted_capacity_bytes(question)
    numbers = (
        trial.told("needed per GPU", "memory.needed_bytes", "bytes"),
        trial.told("capacity", "memory.capacity_bytes", "bytes"),
    )
    if trial.prediction is None:
        return Finding(
            topic="strategy",
            claim=f"{name}: does not fit; its smallest layout needs {format_gib(trial.needed_bytes)} of "
            f"{format_gib(capacity)} ({settings_words(trial.plan)}).",
            numbers=numbers,
            because=f"it is the choice {when}; here it is not enough",
        )
    step_s = trial.prediction.time.step_s
    fastest_s = min(other.prediction.time.step_s for other in trials if other.prediction is not None)
    slower = step_s / fastest_s - 1
    comparison = "as fast as any" if slower < EQUAL_FRACTION else f"{format_percent(slower)} slower than the fastest"
    return Finding(
        topic="strategy",
        claim=f"{name}: {trial.prediction.fit} with {format_gib(trial.needed_bytes)} of {format_gib(capacity)}, "
        f"{format_seconds(step_s)} per step, {comparison} ({settings_words(trial.plan)}).",
        numbers=(
            *numbers,
            trial.told("step", "time.step_s", "s"),
            trial.told("exposed communication", "time.components_s.exposed_communication", "s"),
            trial.told("recompute", "time.components_s.recompute", "s"),
            trial.told("pipeline bubble", "time.components_s.pipeline_bubble", "s"),
        ),
        because=f"use it {when}",
    )


def _communication(trial: StrategyTrial, prediction: Prediction) -> Finding:
    """The pattern of a strategy: which collectives, over which axis, how often, how many bytes."""
    entries = prediction.time.communication
    total = sum(entry.num_bytes * entry.count for entry in entries)
    return Finding(
        topic="communication",
        claim=f"{trial.strategy.name} communicates {format_gb(total)} of payload per GPU and step: "
        f"{pattern_words(prediction)}.",
        numbers=(
            trial.told("payload per step", payload_field(prediction), "traffic_bytes"),
            trial.told("in total", each_call(prediction, "total_s"), "s"),
            trial.told("exposed", each_call(prediction, "exposed_s"), "s"),
        ),
        because="what is not exposed runs under computation",
    )


def _recommendation(question: Plan) -> Finding:
    """Repeats what ``plan`` recommends for the same question."""
    result = search(model=question.model, cluster=question.cluster, recipe=question.recipe, engine=question.engine)
    if not result.plans:
        return _nothing_fits(result.closest, question)
    best = result.plans[0]
    return Finding(
        topic="strategy",
        claim=f"Recommended here: {strategy_name(best.plan.layout)} ({settings_words(best.plan)}): "
        f"{best.prediction.fit}.",
        numbers=(
            told("step", best.prediction, "time.step_s", "s", plan=best.plan),
            told("needed per GPU", best.prediction, "memory.needed_bytes", "bytes", plan=best.plan),
        ),
        because=best.why,
        suggestion="shardwise plan shows what stands beside it, and what would change it",
    )


def _nothing_fits(closest: ClosestPlan | None, question: Plan) -> Finding:
    capacity = format_gib(counted_capacity_bytes(question))
    if closest is None:
        return Finding(
            topic="strategy",
            claim="No strategy has a layout that keeps all rules.",
            suggestion="shardwise plan lists the rules that exclude them, each with a fix",
        )
    needed = told("needed per GPU", closest.prediction, "memory.needed_bytes", "bytes", plan=closest.plan)
    return Finding(
        topic="strategy",
        claim=f"No strategy fits; {strategy_name(closest.plan.layout)} ({settings_words(closest.plan)}) comes closest "
        f"with {needed.text} of {capacity} per GPU.",
        numbers=(needed,),
        because=closest.because,
        suggestion=f"{closest.reliefs[0].change}; shardwise plan names what else would help" if closest.reliefs else "",
    )
