"""Sentences that are often said about sharding, each tested on this model by predicting what it claims."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil

from shardwise.explain.records import Finding, Quantity
from shardwise.explain.state_counts import counted_capacity_bytes, counted_states
from shardwise.explain.strategy_trials import StrategyTrial, activation_bytes, component_s, exposed_s, trial_named
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.recipe import Recipe
from shardwise.rules import find_errors
from shardwise.search import IntRange, SearchBounds
from shardwise.search.one_pass import find
from shardwise.search.simplicity import short_layout
from shardwise.units import format_gb, format_gib, format_percent, format_seconds

__all__ = ["pitfalls"]

SAME_FRACTION = 0.02
"""Predictions closer than this are called equal."""
MOST_FRACTION = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What every test starts from: the question, the trials, and the fully sharded layout of the question."""

    question: Plan
    trials: tuple[StrategyTrial, ...]
    sharded: Plan
    prediction: Prediction


_Trials = tuple[StrategyTrial, ...]


def pitfalls(question: Plan, trials: tuple[StrategyTrial, ...]) -> tuple[Finding, ...]:
    """Each sentence that can be tested here; counted as the engine keeps it, whatever the question's convention."""
    if question.cluster.num_gpus == 1:
        return _on_one_gpu(question, trials[0])
    found = [_fsdp_is_always_better(trials), _sharding_is_enough(question, trials)]
    sharded = _sharded_plan(trials)
    if sharded is not None:
        case = _Case(question=question, trials=trials, sharded=sharded, prediction=predict(sharded))
        found += [test(case) for test in _TESTS]
    return tuple(finding for finding in found if finding is not None)


def _on_one_gpu(question: Plan, alone: StrategyTrial) -> tuple[Finding, ...]:
    """Nobody to share with: what is said of sharding follows from that, the rest is predicted."""
    if alone.plan is None:
        return ()
    states, capacity = counted_states(question).total_bytes, counted_capacity_bytes(question)
    held = (Quantity(name="states", value=states, unit="bytes"),)
    enough = (
        f"not needed here, undivided it needs {format_gib(alone.needed_bytes)} of {format_gib(capacity)}."
        if alone.prediction is not None
        else f"not with one GPU: {ceil(states / capacity)} of them would hold the states alone, fully sharded."
    )
    found: list[Finding | None] = [
        _finding("FSDP is always better", f"not with one GPU, {format_gib(states)} of states stay either way.", held),
        _finding("Sharding is enough", enough, held),
        _finding("ZeRO-3 = free memory", "it frees nothing here: divided by one GPU, states stay what they are.", held),
    ]
    plan = replace(alone.plan, recipe=replace(alone.plan.recipe, convention="engine"))
    if not find_errors(plan):
        case = _Case(question=question, trials=(alone,), sharded=plan, prediction=predict(plan))
        found += [
            test(case) for test in (_mixed_precision_halves, _checkpointing_makes_it_fit, _offload_is_a_little_slower)
        ]
    return tuple(finding for finding in found if finding is not None)


def _sharded_plan(trials: tuple[StrategyTrial, ...]) -> Plan | None:
    """The best fully sharded layout, or the highest ZeRO stage of the engine."""
    names = ("FSDP", "ZeRO-2", "ZeRO-1")
    trial = next((one for name in names if (one := trial_named(trials, name)) is not None and one.plan), None)
    if trial is None or trial.plan is None:
        return None
    plan = replace(trial.plan, recipe=replace(trial.plan.recipe, convention="engine"))
    return None if find_errors(plan) else plan


def _varied(plan: Plan, *, layout: Layout | None = None, recipe: Recipe | None = None) -> Prediction | None:
    """The prediction of a plan with another layout or recipe; ``None`` when it breaks a rule."""
    varied = replace(plan, layout=layout or plan.layout, recipe=recipe or plan.recipe)
    return None if find_errors(varied) else predict(varied)


def _traffic_bytes(prediction: Prediction) -> float:
    return sum(entry.num_bytes * entry.count for entry in prediction.time.communication)


def _finding(said: str, verdict: str, numbers: tuple[Quantity, ...], suggestion: str = "") -> Finding:
    return Finding(topic="pitfall", claim=f'"{said}": {verdict}', numbers=numbers, suggestion=suggestion)


def _fsdp_is_always_better(trials: _Trials) -> Finding | None:
    undivided, sharded = trials[0], trial_named(trials, "FSDP")
    if sharded is None or sharded.plan is None or undivided.plan is None:
        return None
    said = "FSDP is always better"
    experts = f" ({short_layout(undivided.plan)})" if undivided.plan.layout.ep > 1 else ""
    if undivided.prediction is None:
        return _finding(
            said,
            f"here there is no choice, data parallelism{experts} needs {format_gib(undivided.needed_bytes)} and does "
            "not fit; on a model that fits it would be the simpler one and move less.",
            (Quantity(name="data parallel needs", value=undivided.needed_bytes, unit="bytes"),),
        )
    if sharded.prediction is None:
        return _finding(said, "false here, it does not fit where data parallelism does.", ())
    ratio = sharded.step_s / undivided.step_s
    numbers = (
        Quantity(name="data parallel", value=undivided.step_s, unit="s"),
        Quantity(name="FSDP", value=sharded.step_s, unit="s"),
        Quantity(name="data parallel sends", value=_traffic_bytes(undivided.prediction), unit="traffic_bytes"),
        Quantity(name="FSDP sends", value=_traffic_bytes(sharded.prediction), unit="traffic_bytes"),
    )
    if ratio > 1 + SAME_FRACTION:
        verdict = f"false here, data parallelism fits and FSDP takes {format_percent(ratio - 1)} longer."
    elif ratio < 1 - SAME_FRACTION:
        verdict = (
            f"true here, though data parallelism fits: the memory it frees makes it {1 / ratio:.2f} times as fast."
        )
    else:
        verdict = "not here, both are equally fast and data parallelism is simpler."
    return _finding(said, verdict, numbers)


def _zero_3_is_free_memory(case: _Case) -> Finding | None:
    """Compares ZeRO stage 3 with stage 1: what the last bytes of memory cost in traffic and time."""
    if case.sharded.layout.zero_stage != 3:
        return None
    first = _varied(case.sharded, layout=replace(case.sharded.layout, zero_stage=1))
    stage = 1
    if first is None:
        stage, first = 2, _varied(case.sharded, layout=replace(case.sharded.layout, zero_stage=2))
    if first is None:
        return None
    saved = first.memory.needed_bytes - case.prediction.memory.needed_bytes
    sent, before = _traffic_bytes(case.prediction), _traffic_bytes(first)
    longer_s = case.prediction.time.step_s - first.time.step_s
    cost = f"{format_seconds(longer_s)} longer" if longer_s > 0 else f"{format_seconds(-longer_s)} shorter"
    return _finding(
        "ZeRO-3 = free memory",
        f"it saves {format_gib(saved)} a GPU over ZeRO-{stage} and sends {sent / before:.2f} times as many bytes "
        f"({format_gb(sent)}); the step is predicted {cost}.",
        (
            Quantity(name="exposed with ZeRO-3", value=exposed_s(case.prediction), unit="s"),
            Quantity(name=f"exposed with ZeRO-{stage}", value=exposed_s(first), unit="s"),
        ),
        "free only while computation hides the gathers: larger micro-batches, or fewer of them",
    )


def _sharding_is_enough(question: Plan, trials: _Trials) -> Finding:
    """Everything that divides states alone, beside everything that divides the model."""
    alone = [one for one in trials if not {"tensor", "pipeline", "context"} & set(one.strategy.name.split())]
    fitting = [one for one in alone if one.prediction is not None]
    numbers = (Quantity(name="GPUs that sharding alone can use", value=question.global_batch_size, unit="count"),)
    said = "Sharding is enough"
    others = [one for one in trials if one.prediction is not None and one not in alone]
    if not fitting:
        verdict = "false here, no layout that divides states alone fits or keeps the rules"
        verdict += f"; {others[0].strategy.name} does." if others else ", and no other does either."
        return _finding(said, verdict, numbers)
    best = min(fitting, key=lambda one: one.step_s)
    faster = [one for one in others if one.step_s < best.step_s * (1 - SAME_FRACTION)]
    verdict = (
        f"it fits, but {faster[0].strategy.name} is {best.step_s / faster[0].step_s:.2f} times as fast."
        if faster
        else f"true here, {best.strategy.name} is as fast as anything that divides the model."
    )
    return _finding(
        said,
        verdict,
        numbers,
        "beyond one sequence a GPU, and for sequences too long for one, the model itself has to be divided",
    )


def _more_gpus_less_memory(case: _Case) -> Finding | None:
    """Data parallelism on a few and on all GPUs, one sequence at a time."""
    layout = Layout(dp_replicate=case.question.cluster.num_gpus, zero_stage=0)
    one = replace(case.sharded.recipe, micro_batch_size=1)
    undivided = _varied(case.sharded, layout=layout, recipe=one)
    sharded = _varied(case.sharded, recipe=one)
    if undivided is None or sharded is None:
        return None
    return _finding(
        "More GPUs mean less memory on each",
        f"only with sharding: {format_gib(undivided.memory.needed_bytes)} with data parallelism, however many GPUs, "
        f"and {format_gib(sharded.memory.needed_bytes)} sharded over {case.question.cluster.num_gpus}.",
        (),
    )


def _pipelines_cut_activations(case: _Case) -> Finding | None:
    trial = trial_named(case.trials, "pipeline parallel")
    if trial is None or trial.plan is None:
        return None
    piped = _varied(trial.plan, recipe=case.sharded.recipe)
    if piped is None:
        return None
    alone, stages = (
        activation_bytes(case.prediction.memory),
        [stage.component_bytes("activations") for stage in piped.memory.stages],
    )
    kept = case.prediction.memory.worst.component_bytes("activations")
    first, last = stages[0], stages[-1]
    little = "hardly here" if first > kept * MOST_FRACTION else "partly"
    word = "false here" if first > kept * (1 - SAME_FRACTION) else little
    return _finding(
        "Pipeline parallelism cuts activation memory",
        f"{word}: with the same micro-batch the first stage holds {format_gib(first)} of activations and the last "
        f"{format_gib(last)}, against {format_gib(kept)} without stages ({short_layout(trial.plan)}).",
        (Quantity(name="with logits, without stages", value=alone, unit="bytes"),),
        "recomputation cuts activations; stages cut states",
    )


def _mixed_precision_halves(case: _Case) -> Finding | None:
    if case.sharded.recipe.precision == "fp32":
        return None
    full = _varied(case.sharded, recipe=replace(case.sharded.recipe, precision="fp32"))
    if full is None:
        return None
    before, after = full.memory.worst, case.prediction.memory.worst
    states = [
        sum(stage.component_bytes(name) for name in ("parameters", "gradients", "optimizer"))
        for stage in (before, after)
    ]
    return _finding(
        "Mixed precision halves the memory",
        f"states go from {format_gib(states[0])} to {format_gib(states[1])} a GPU, all that is needed from "
        f"{format_gib(before.needed_bytes)} to {format_gib(after.needed_bytes)}, "
        f"{after.needed_bytes / before.needed_bytes:.2f} times.",
        (Quantity(name="step, over that in fp32", value=_step_ratio(case.prediction, full), unit="ratio"),),
        "it halves activations and multiplies the speed of matrix products; master copies and moments stay in fp32",
    )


def _step_ratio(after: Prediction, before: Prediction) -> float:
    return after.time.step_s / before.time.step_s


def _checkpointing_makes_it_fit(case: _Case) -> Finding | None:
    plain = _varied(case.sharded, recipe=replace(case.sharded.recipe, recompute="none"))
    full = _varied(case.sharded, recipe=replace(case.sharded.recipe, recompute="full"))
    if plain is None or full is None:
        return None
    helped = "true here" if full.fits else "not enough here"
    verdict = "not needed here, it fits without" if plain.fits else helped
    return _finding(
        "Activation checkpointing makes it fit",
        f"{verdict}: {format_gib(plain.memory.needed_bytes)} without, {format_gib(full.memory.needed_bytes)} with, of "
        f"{format_gib(full.memory.capacity_bytes)}; the step takes {_step_ratio(full, plain):.2f} times as long.",
        (),
        "it divides activations only; states that do not fit stay",
    )


def _offload_is_a_little_slower(case: _Case) -> Finding | None:
    choices = ("optimizer", "parameters")
    found = (_varied(case.sharded, recipe=replace(case.sharded.recipe, offload=choice)) for choice in choices)  # type: ignore[arg-type]
    offloaded = next((one for one in found if one is not None), None)
    if offloaded is None or case.sharded.recipe.offload != "none":
        return None
    update_s = component_s(case.prediction, "optimizer")
    slow_s = component_s(offloaded, "optimizer") + component_s(offloaded, "offload")
    return _finding(
        "Offloading makes optimizer steps 30 to 50% slower",
        f"here the update goes from {format_seconds(update_s)} to {format_seconds(slow_s)}, and the step takes "
        f"{_step_ratio(offloaded, case.prediction):.2f} times as long.",
        (
            Quantity(name="a GPU then needs", value=offloaded.memory.needed_bytes, unit="bytes"),
            Quantity(name="the host of a node", value=offloaded.memory.host_bytes_per_node, unit="bytes"),
        ),
        "use it to fit what GPUs cannot hold, with large batches",
    )


def _tensor_parallel_across_nodes(case: _Case) -> Finding | None:
    """The fastest layout whose tensor-parallel group leaves the node, beside the fastest inside."""
    cluster, inside = case.question.cluster, trial_named(case.trials, "tensor parallel with")
    per_node = cluster.node.gpus_per_node
    if cluster.num_nodes == 1 or inside is None or inside.prediction is None:
        return None
    wider = IntRange(low=per_node + 1, high=cluster.num_gpus)
    one = IntRange(low=1, high=1)
    bounds = SearchBounds(tp=wider, cp=one, pp=one, offload=(case.question.recipe.offload,), max_predictions=1)
    fitting = find(case.question, bounds).evaluation.fitting
    said = "Tensor parallelism stays inside a node"
    if not fitting:
        return _finding(said, "as it must here, no wider layout keeps the rules and fits.", ())
    best = min(fitting, key=lambda one: one.prediction.time.step_s)
    ratio = best.prediction.time.step_s / inside.step_s
    verdict = "true here" if ratio > 1 else "not necessary here"
    return _finding(
        said,
        f"{verdict}: across nodes ({short_layout(best.plan)}) the step takes {ratio:.2f} times that inside a node.",
        (Quantity(name="exposed communication", value=exposed_s(best.prediction), unit="s"),),
    )


def _scaling_is_linear(case: _Case) -> Finding | None:
    """Compares the step on one node and on all with the same work per GPU (weak scaling)."""
    cluster = case.question.cluster
    per_gpu, rest = divmod(case.question.global_batch_size, cluster.num_gpus)
    if cluster.num_nodes == 1 or rest or case.sharded.layout.tp * case.sharded.layout.pp * case.sharded.layout.cp > 1:
        return None
    num_gpus = cluster.node.gpus_per_node
    node = replace(
        case.sharded,
        cluster=replace(cluster, num_nodes=1),
        layout=replace(case.sharded.layout, dp_shard=num_gpus, dp_replicate=1),
        recipe=replace(case.sharded.recipe, global_batch_size=per_gpu * num_gpus),
    )
    alone = _varied(node)
    if alone is None:
        return None
    efficiency = case.prediction.throughput.tokens_per_s_per_gpu / alone.throughput.tokens_per_s_per_gpu
    return _finding(
        "N GPUs process N times more data",
        f"with the same work on each GPU {cluster.num_gpus} GPUs reach {format_percent(efficiency)} of the "
        f"rate per GPU of {num_gpus}.",
        (Quantity(name="exposed communication", value=exposed_s(case.prediction), unit="s"),),
    )


_TESTS: tuple[Callable[[_Case], Finding | None], ...] = (
    _zero_3_is_free_memory,
    _more_gpus_less_memory,
    _pipelines_cut_activations,
    _mixed_precision_halves,
    _checkpointing_makes_it_fit,
    _offload_is_a_little_slower,
    _tensor_parallel_across_nodes,
    _scaling_is_linear,
)
