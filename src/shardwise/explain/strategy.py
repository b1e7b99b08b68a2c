"""When data parallel, FSDP, ZeRO, tensor, pipeline or context parallel: answered for one model on one cluster.

Every sentence rests on a search restricted to that strategy, so that "it fits" and "it is slower" are predictions with
the best micro-batch size and recomputation the strategy allows, not rules of thumb. The questions of the practical
checklist and the sentences of its pitfalls are answered from the same predictions.
"""

from collections.abc import Iterable
from dataclasses import replace

from shardwise.cluster import Cluster
from shardwise.engines.table import OWN_ENGINE, EngineName
from shardwise.explain.checklist import checklist
from shardwise.explain.pitfalls import pitfalls
from shardwise.explain.records import Finding, Quantity
from shardwise.explain.state_counts import counted_capacity_bytes, counted_states
from shardwise.explain.strategy_trials import StrategyTrial, component_s, exposed_s, try_strategies
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.prediction import CommunicationEntry, Prediction
from shardwise.recipe import Recipe
from shardwise.search import question_of
from shardwise.search.simplicity import short_layout
from shardwise.units import format_count, format_gb, format_gib, format_percent, format_seconds

__all__ = ["StrategyTrial", "advise", "try_strategies"]

TIE_FRACTION = 0.05
"""Step times of two strategies that are closer than this cannot be told apart by a prediction."""
EQUAL_FRACTION = 0.005
SMALL_PAYLOAD_FRACTION = 0.001


def advise(
    *, model: ModelSpec, cluster: Cluster, recipe: Recipe, engine: EngineName = OWN_ENGINE
) -> tuple[Finding, ...]:
    """Which strategy when, and why, with this model's numbers; the last finding is the recommendation."""
    question = question_of(model=model, cluster=cluster, recipe=recipe, engine=engine)
    trials = try_strategies(question)
    return (
        _one_gpu(question),
        _ladder(question),
        *checklist(question, trials),
        *(_strategy_finding(trial, trials, question) for trial in trials),
        *(
            _communication(trial.strategy.name, trial.prediction)
            for trial in trials
            if trial.prediction is not None and trial.prediction.time.communication
        ),
        *pitfalls(question, trials),
        _recommendation(trials, question),
    )


def _one_gpu(question: Plan) -> Finding:
    counted, capacity = counted_states(question), counted_capacity_bytes(question)
    per_param, params, states = counted.bytes_per_param, counted.num_params, counted.total_bytes
    keeps = (
        "the textbook counts"
        if question.recipe.convention == "seed"
        else f"{question.engine} keeps weights, gradients, master copy and moments,"
    )
    fits = states < capacity
    return Finding(
        topic="strategy",
        claim=f"One {question.cluster.gpu.name} holds {format_gib(capacity)}; the states of {format_count(params)} "
        f"parameters are {format_gib(states)}, {states / capacity:.1f} times that.",
        numbers=(
            Quantity(name="states", value=states, unit="bytes"),
            Quantity(name="capacity", value=capacity, unit="bytes"),
            Quantity(name="bytes per parameter", value=per_param, unit="count"),
        ),
        because=f"{keeps} {per_param:g} bytes per parameter with {question.recipe.optimizer} in "
        f"{question.recipe.precision}",
        suggestion="states alone do not force any division" if fits else "states have to be divided or made smaller",
    )


def _ladder(question: Plan) -> Finding:
    """What each ZeRO stage divides, over all GPUs of the cluster."""
    states, world = counted_states(question), question.cluster.num_gpus
    params = states.num_params
    weights, gradients, optimizer = states.weight_bytes, states.gradient_bytes, states.optimizer_bytes
    per_param = (
        weights + gradients + optimizer,
        weights + gradients + optimizer / world,
        weights + (gradients + optimizer) / world,
        (weights + gradients + optimizer) / world,
    )
    sizes = [each * params for each in per_param]
    return Finding(
        topic="strategy",
        claim=f"States per GPU over {world} GPUs: {format_gib(sizes[0])} undivided (DDP), {format_gib(sizes[1])} with "
        f"ZeRO-1, {format_gib(sizes[2])} with ZeRO-2, {format_gib(sizes[3])} with ZeRO-3 or FSDP.",
        numbers=tuple(
            Quantity(name=f"ZeRO-{stage} saves", value=sizes[0] / size, unit="ratio")
            for stage, size in enumerate(sizes)
            if stage
        ),
        because=f"stage 1 divides the optimizer ({optimizer:g} of {per_param[0]:g} bytes per parameter), stage 2 "
        f"gradients too ({gradients:g}), stage 3 also weights ({weights:g}); activations are never divided by it",
    )


def _strategy_finding(trial: StrategyTrial, trials: tuple[StrategyTrial, ...], question: Plan) -> Finding:
    name, when = trial.strategy.name, trial.strategy.when
    if trial.plan is None:
        return Finding(topic="strategy", claim=f"{name}: not possible here.", because=trial.refusal or when)
    capacity = counted_capacity_bytes(question)
    numbers = (
        Quantity(name="needed per GPU", value=trial.needed_bytes, unit="bytes"),
        Quantity(name="capacity", value=capacity, unit="bytes"),
    )
    if trial.prediction is None:
        return Finding(
            topic="strategy",
            claim=f"{name}: does not fit; its smallest layout needs {format_gib(trial.needed_bytes)} of "
            f"{format_gib(capacity)} ({short_layout(trial.plan)}).",
            numbers=numbers,
            because=f"it is the choice {when}; here it is not enough",
        )
    step_s = trial.prediction.time.step_s
    fastest_s = min(other.prediction.time.step_s for other in trials if other.prediction is not None)
    slower = step_s / fastest_s - 1
    comparison = "as fast as any" if slower < EQUAL_FRACTION else f"{format_percent(slower)} slower than the fastest"
    return Finding(
        topic="strategy",
        claim=f"{name}: fits with {format_gib(trial.needed_bytes)} of {format_gib(capacity)}, "
        f"{format_seconds(step_s)} per step, {comparison} ({_settings(trial.plan)}).",
        numbers=(
            *numbers,
            Quantity(name="step", value=step_s, unit="s"),
            Quantity(name="exposed communication", value=exposed_s(trial.prediction), unit="s"),
            Quantity(name="recompute", value=component_s(trial.prediction, "recompute"), unit="s"),
            Quantity(name="pipeline bubble", value=component_s(trial.prediction, "pipeline_bubble"), unit="s"),
        ),
        because=f"use it {when}",
    )


def _settings(plan: Plan) -> str:
    recipe = plan.recipe
    return f"{short_layout(plan)}, micro_batch_size={recipe.micro_batch_size}, recompute={recipe.recompute}"


def _communication(name: str, prediction: Prediction) -> Finding:
    """The pattern of a strategy: which collectives, over which axis, how often, how many bytes."""
    entries = prediction.time.communication
    total = sum(entry.num_bytes * entry.count for entry in entries)
    shown = [entry for entry in _by_kind(entries) if entry.num_bytes > SMALL_PAYLOAD_FRACTION * total]
    return Finding(
        topic="communication",
        claim=f"{name} communicates {format_gb(total)} of payload per GPU and step: "
        f"{', '.join(_pattern(entry) for entry in shown[:4])}.",
        numbers=(
            Quantity(name="payload per step", value=total, unit="traffic_bytes"),
            Quantity(name="in total", value=sum(entry.total_s for entry in entries), unit="s"),
            Quantity(name="exposed", value=sum(entry.exposed_s for entry in entries), unit="s"),
        ),
        because="what is not exposed runs under computation",
    )


def _by_kind(entries: Iterable[CommunicationEntry]) -> list[CommunicationEntry]:
    """Entries of one kind over one axis added up; ``count`` is of calls and ``num_bytes`` of all of them together."""
    merged: dict[tuple[str, str], CommunicationEntry] = {}
    for entry in entries:
        key = (entry.kind, entry.axis)
        before = merged.get(key)
        merged[key] = replace(
            entry,
            count=entry.count + (before.count if before else 0),
            num_bytes=entry.num_bytes * entry.count + (before.num_bytes if before else 0),
        )
    return sorted(merged.values(), key=lambda entry: -entry.num_bytes)


def _pattern(entry: CommunicationEntry) -> str:
    return f"{entry.count:,} {entry.kind} over {entry.axis} ({entry.group_size} ranks, {format_gb(entry.num_bytes)})"


def _recommendation(trials: tuple[StrategyTrial, ...], question: Plan) -> Finding:
    """The first strategy, in order of simplicity, that is as fast as the fastest within the error."""
    fitting = [trial for trial in trials if trial.plan is not None and trial.prediction is not None]
    if not fitting:
        return _nothing_fits([trial for trial in trials if trial.plan is not None], question)
    fastest = min(fitting, key=lambda trial: trial.step_s)
    chosen = next(trial for trial in fitting if trial.step_s <= fastest.step_s * (1 + TIE_FRACTION))
    behind = format_percent(chosen.step_s / fastest.step_s - 1)
    reason = (
        "it is the fastest"
        if chosen is fastest
        else f"it is {behind} from the fastest ({fastest.strategy.name}), inside the error of a prediction, and simpler"
    )
    settings = f" ({_settings(chosen.plan)})" if chosen.plan is not None else ""
    return Finding(
        topic="strategy",
        claim=f"Recommended here: {chosen.strategy.name}{settings}.",
        numbers=(
            Quantity(name="step", value=chosen.step_s, unit="s"),
            Quantity(name="needed per GPU", value=chosen.needed_bytes, unit="bytes"),
        ),
        because=f"{reason}; start with the simplest setup that works and add an axis only for a reason",
        suggestion="shardwise plan searches all combinations of these",
    )


def _nothing_fits(possible: list[StrategyTrial], question: Plan) -> Finding:
    capacity = format_gib(counted_capacity_bytes(question))
    if not possible:
        return Finding(
            topic="strategy",
            claim="No strategy has a layout that keeps all rules.",
            suggestion="shardwise plan lists the rules that exclude them, each with a fix",
        )
    least = min(possible, key=lambda trial: trial.needed_bytes)
    return Finding(
        topic="strategy",
        claim=f"No strategy fits; {least.strategy.name} comes closest with {format_gib(least.needed_bytes)} of "
        f"{capacity} per GPU.",
        numbers=(Quantity(name="needed per GPU", value=least.needed_bytes, unit="bytes"),),
        suggestion="shardwise plan names what would help: more GPUs, offload, an 8-bit optimizer or adapters",
    )
