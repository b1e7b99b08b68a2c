"""Sentences that are often said about sharding, each tested on this model by predicting what it claims."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil

from shardwise.claims import Claim, Verdict, near
from shardwise.explain.records import Finding, Quantity
from shardwise.explain.state_counts import counted_capacity_bytes, counted_quantity, counted_states
from shardwise.explain.strategy_trials import StrategyKind, StrategyTrial, pattern_words, trial_of
from shardwise.explain.told import Predicted, compared, payload_field
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import FIT_VERBS, Fit
from shardwise.recipe import Recipe
from shardwise.rules import find_errors
from shardwise.search import IntRange, SearchBounds
from shardwise.search.one_pass import find
from shardwise.search.simplicity import short_layout
from shardwise.units import format_gib, format_percent, format_seconds

__all__ = ["pitfalls"]

SOURCE = "often said"
SAME_FRACTION = 0.02
"""Predictions closer than this are called equal."""
MOST_FRACTION = 0.75
HALF = 0.5
SLOWER_UPDATE_RATIO = 1.4
"""An optimizer step that is 30 to 50 % slower."""
STATES = " + ".join(f"memory.components_bytes.{name}" for name in ("parameters", "gradients", "optimizer"))
EXPOSED = "time.components_s.exposed_communication"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """Every test starts from the question, its trials, and the prediction of its fully sharded layout."""

    question: Plan
    trials: tuple[StrategyTrial, ...]
    base: Predicted
    """Every other plan of a test differs from it in what is claimed, and in nothing else."""

    def varied(self, *, layout: Layout | None = None, recipe: Recipe | None = None) -> Predicted | None:
        """The base with another layout or recipe; ``None`` where that breaks a rule."""
        return _predicted(
            replace(self.base.plan, layout=layout or self.base.plan.layout, recipe=recipe or self.base.plan.recipe)
        )


_Trials = tuple[StrategyTrial, ...]


def pitfalls(question: Plan, trials: tuple[StrategyTrial, ...]) -> tuple[Finding, ...]:
    """Each sentence that can be tested here; counted as the engine keeps it, whatever the question's convention."""
    if question.cluster.num_gpus == 1:
        return _on_one_gpu(question, trials[0])
    found = [_fsdp_is_always_better(trials), _sharding_is_enough(question, trials)]
    base = _sharded_plan(trials)
    if base is not None:
        case = _Case(question=question, trials=trials, base=base)
        found += [test(case) for test in _TESTS]
    return tuple(finding for finding in found if finding is not None)


def _on_one_gpu(question: Plan, alone: StrategyTrial) -> tuple[Finding, ...]:
    """Judges sentences about sharding by the states, which one GPU shares with nobody, and predicts the others."""
    if alone.plan is None:
        return ()
    states, capacity = counted_states(question).total_bytes, counted_capacity_bytes(question)
    held = (counted_quantity("states", question),)
    is_enough: Verdict = "unclear" if alone.prediction is not None else "wrong"
    enough = (
        f"not needed here, undivided it needs {format_gib(alone.needed_bytes)} of {format_gib(capacity)}."
        if alone.prediction is not None
        else f"not with one GPU: {ceil(states / capacity)} of them would hold the states alone, fully sharded."
    )
    found: list[Finding | None] = [
        _finding(
            "FSDP is always better", "wrong", f"not with one GPU, {format_gib(states)} of states stay either way.", held
        ),
        _finding("Sharding is enough", is_enough, enough, held),
        _finding(
            "ZeRO-3 = free memory",
            "wrong",
            "it frees nothing here: divided by one GPU, states stay what they are.",
            held,
        ),
    ]
    base = _plainly(alone.plan)
    if base is not None:
        case = _Case(question=question, trials=(alone,), base=base)
        found += [
            test(case) for test in (_mixed_precision_halves, _checkpointing_makes_it_fit, _offload_is_a_little_slower)
        ]
    return tuple(finding for finding in found if finding is not None)


def _sharded_plan(trials: tuple[StrategyTrial, ...]) -> Predicted | None:
    """The best fully sharded layout, or the highest ZeRO stage of the engine."""
    kinds: tuple[StrategyKind, ...] = ("fsdp", "zero-2", "zero-1")
    trial = next((one for kind in kinds if (one := trial_of(trials, kind)) is not None and one.plan), None)
    return None if trial is None or trial.plan is None else _plainly(trial.plan)


def _plainly(plan: Plan) -> Predicted | None:
    """A plan that recomputes all blocks or none, since a number of blocks means something else in every layout."""
    return _predicted(replace(plan, recipe=replace(plan.recipe, convention="engine", recompute_layers=None)))


def _predicted(plan: Plan) -> Predicted | None:
    return None if find_errors(plan) else Predicted(plan=plan, prediction=predict(plan))


def _finding(
    said: str,
    verdict: Verdict,
    found: str,
    numbers: tuple[Quantity, ...],
    suggestion: str = "",
    *,
    because: str = "",
) -> Finding:
    judged = Claim(says=said, source=SOURCE, said=said, computed=found, verdict=verdict, note=suggestion)
    return Finding(
        topic="pitfall",
        claim=f'"{said}": {found}',
        numbers=numbers,
        because=because,
        suggestion=suggestion,
        judged=judged,
    )


def _fsdp_is_always_better(trials: _Trials) -> Finding | None:
    undivided, sharded = trials[0], trial_of(trials, "fsdp")
    if sharded is None or sharded.plan is None or undivided.plan is None:
        return None
    said = "FSDP is always better"
    experts = f" ({short_layout(undivided.plan)})" if undivided.plan.layout.ep > 1 else ""
    if undivided.prediction is None:
        return _finding(
            said,
            "unclear",
            f"here there is no choice, data parallelism{experts} needs {format_gib(undivided.needed_bytes)} and does "
            "not fit; on a model that fits it would be the simpler one and move less.",
            (undivided.told("data parallel needs", "memory.needed_bytes", "bytes"),),
        )
    layout = replace(sharded.plan.layout, ep=undivided.plan.layout.ep)
    alike = _predicted(replace(undivided.plan, layout=layout))
    if alike is None:
        return _finding(said, "wrong", "false here, it breaks a rule where data parallelism runs.", ())
    numbers = (
        undivided.told("data parallel", "time.step_s", "s"),
        alike.told("FSDP with the same micro-batch and recomputation", "time.step_s", "s"),
        undivided.told("data parallel sends", payload_field(undivided.prediction), "traffic_bytes"),
        alike.told("FSDP sends", payload_field(alike.prediction), "traffic_bytes"),
    )
    rest: tuple[Quantity, ...] = ()
    ratio = numbers[1].value / numbers[0].value
    verdict: Verdict
    alone = f"data parallelism {FIT_VERBS[undivided.fit]}, and with the same micro-batch and recomputation"
    if ratio > 1 + SAME_FRACTION:
        verdict, words = "wrong", f"false here, {alone} FSDP takes {format_percent(ratio - 1)} longer"
    elif ratio < 1 - SAME_FRACTION:
        verdict, words = "right", f"true here, although {alone} FSDP takes {format_percent(1 - ratio)} less"
    else:
        verdict, words = "loose", f"not here, {alone} both are equally fast and data parallelism is simpler"
    if sharded.step_s < undivided.step_s * (1 - SAME_FRACTION):
        best = sharded.told("FSDP at its best", "time.step_s", "s")
        rest = (best,)
        verdict = "loose" if verdict == "wrong" else verdict
        words += f"; the memory it frees makes it {undivided.step_s / best.value:.2f} times as fast at its best"
    return _finding(said, verdict, f"{words}.", (*numbers, *rest))


def _zero_3_is_free_memory(case: _Case) -> Finding | None:
    """Compares ZeRO stage 3 with stage 1, or with parameters kept until backward: what the memory costs in time."""
    layout = case.base.plan.layout
    if layout.zero_stage != 3:
        return None
    name, first = "ZeRO-1", case.varied(layout=replace(layout, zero_stage=1))
    if case.question.recipe.adapter != "none":  # stage 1 has nothing to divide
        copies = layout.dp_replicate * layout.dp_shard
        name = "data parallelism"
        first = case.varied(layout=replace(layout, dp_replicate=copies, dp_shard=1, zero_stage=0))
    if first is None and layout.reshard_after_forward:
        name, first = "FSDP without resharding", case.varied(layout=replace(layout, reshard_after_forward=False))
    if first is None:
        return None
    field = "memory.needed_bytes"
    saved = compared("saved", first.told("", field, "bytes"), case.base.told("", field, "bytes"), "bytes")
    longer = compared("longer", case.base.told("", "time.step_s", "s"), first.told("", "time.step_s", "s"), "s")
    before_s = first.prediction.time.step_s
    sent = case.base.told("ZeRO-3 sends", payload_field(case.base.prediction), "traffic_bytes")
    before = first.told(f"{name} sends", payload_field(first.prediction), "traffic_bytes")
    cost = f"{longer.text} longer" if longer.value > 0 else f"{format_seconds(-longer.value)} shorter"
    return _finding(
        "ZeRO-3 = free memory",
        "loose" if longer.value <= SAME_FRACTION * before_s else "wrong",
        f"it saves {saved.text} a GPU over {name} and sends {sent.value / before.value:.2f} times as many bytes "
        f"({sent.text}); the step is predicted {cost}.",
        (
            case.base.told("exposed with ZeRO-3", EXPOSED, "s"),
            first.told(f"exposed with {name}", EXPOSED, "s"),
            case.base.told("ZeRO-3 needs", field, "bytes"),
            first.told(f"{name} needs", field, "bytes"),
            sent,
            before,
            saved,
            longer,
        ),
        "free only while computation hides the gathers: larger micro-batches, or fewer of them",
        because=f"ZeRO-3 sends {pattern_words(case.base.prediction)}; {name} sends {pattern_words(first.prediction)}",
    )


def _sharding_is_enough(question: Plan, trials: _Trials) -> Finding:
    """Compares the fastest trial that divides states alone with those that divide the model."""
    alone = [one for one in trials if not one.strategy.divides_model]
    fitting = [one for one in alone if one.prediction is not None]
    numbers = (Quantity(name="GPUs that sharding alone can use", value=question.global_batch_size, unit="count"),)
    said = "Sharding is enough"
    others = [one for one in trials if one.prediction is not None and one not in alone]
    if not fitting:
        words = "false here, no layout that divides states alone fits or keeps the rules"
        words += f"; {others[0].strategy.name} does." if others else ", and no other does either."
        return _finding(said, "wrong", words, numbers)
    best = min(fitting, key=lambda one: one.step_s)
    faster = [one for one in others if one.step_s < best.step_s * (1 - SAME_FRACTION)]
    words = (
        f"with {best.strategy.name} it {FIT_VERBS[best.fit]}, but {faster[0].strategy.name} is "
        f"{best.step_s / faster[0].step_s:.2f} times as fast."
        if faster
        else f"true here, {best.strategy.name} is as fast as anything that divides the model."
    )
    return _finding(
        said,
        "loose" if faster else "right",
        words,
        numbers,
        "beyond one sequence a GPU, and for sequences too long for one, the model itself has to be divided",
    )


def _more_gpus_less_memory(case: _Case) -> Finding | None:
    """Compares what a GPU needs undivided and sharded, with one sequence at a time."""
    layout = Layout(dp_replicate=case.question.cluster.num_gpus, zero_stage=0)
    one = replace(case.base.plan.recipe, micro_batch_size=1)
    undivided, sharded = case.varied(layout=layout, recipe=one), case.varied(recipe=one)
    if undivided is None or sharded is None:
        return None
    whole = undivided.told("with data parallelism", "memory.needed_bytes", "bytes")
    part = sharded.told("sharded", "memory.needed_bytes", "bytes")
    return _finding(
        "More GPUs mean less memory on each",
        "loose",
        f"only with sharding: {whole.text} with data parallelism, however many GPUs, and {part.text} sharded over "
        f"{case.question.cluster.num_gpus}, one sequence at a time with recompute={one.recompute}.",
        (whole, part),
    )


def _pipelines_cut_activations(case: _Case) -> Finding | None:
    trial = trial_of(case.trials, "pp")
    if trial is None or trial.plan is None:
        return None
    piped = _predicted(replace(trial.plan, recipe=case.base.plan.recipe))
    if piped is None:
        return None
    last_stage = len(piped.prediction.memory.stages) - 1
    first = piped.told("of the first stage", "memory.stages.0.components_bytes.activations", "bytes")
    last = piped.told("of the last stage", f"memory.stages.{last_stage}.components_bytes.activations", "bytes")
    kept = case.base.told("without stages", "memory.components_bytes.activations", "bytes")
    little = "hardly here" if first.value > kept.value * MOST_FRACTION else "partly"
    word = "false here" if first.value > kept.value * (1 - SAME_FRACTION) else little
    return _finding(
        "Pipeline parallelism cuts activation memory",
        "wrong" if word == "false here" else "loose",
        f"{word}: with the same micro-batch and recompute={case.base.plan.recipe.recompute} the first stage holds "
        f"{first.text} of activations and the last {last.text}, against {kept.text} without stages "
        f"({short_layout(trial.plan)}).",
        (first, last, kept),
        "recomputation cuts activations; stages cut states",
    )


def _mixed_precision_halves(case: _Case) -> Finding | None:
    if case.base.plan.recipe.precision == "fp32":
        return None
    full = case.varied(recipe=replace(case.base.plan.recipe, precision="fp32"))
    if full is None:
        return None
    states = [one.told("states", STATES, "bytes") for one in (full, case.base)]
    needed = [one.told("needed", "memory.needed_bytes", "bytes") for one in (full, case.base)]
    go = f"go from {states[0].text} to {states[1].text}"
    go = go if states[0].text != states[1].text else f"stay {states[0].text}"
    return _finding(
        "Mixed precision halves the memory",
        near(HALF, needed[1].value / needed[0].value),
        f"states {go} a GPU, all that is needed from {needed[0].text} to "
        f"{needed[1].text}, {needed[1].value / needed[0].value:.2f} times.",
        (_step_ratio("step, over that in fp32", case.base, full), *states, *needed),
        "it halves activations and multiplies the speed of matrix products; master copies and moments stay in fp32",
    )


def _step_ratio(name: str, after: Predicted, before: Predicted) -> Quantity:
    return compared(name, after.told("", "time.step_s", "s"), before.told("", "time.step_s", "s"), "ratio")


def _checkpointing_makes_it_fit(case: _Case) -> Finding | None:
    plain = case.varied(recipe=replace(case.base.plan.recipe, recompute="none"))
    full = case.varied(recipe=replace(case.base.plan.recipe, recompute="full"))
    if plain is None or full is None:
        return None
    verdict, words = _CHECKPOINTING[full.prediction.fit]
    if plain.prediction.fit == "fits":
        verdict, words = "unclear", "not needed here, it fits without"
    elif plain.prediction.fit == "at the edge" and full.prediction.fit == "fits":
        verdict, words = "loose", "it makes it safe here, where it is at the edge without"
    without, with_it = (
        one.told(name, "memory.needed_bytes", "bytes") for name, one in (("without", plain), ("with", full))
    )
    longer = _step_ratio("step, over that without", full, plain)
    return _finding(
        "Activation checkpointing makes it fit",
        verdict,
        f"{words}: {without.text} without, {with_it.text} with, of "
        f"{format_gib(full.prediction.memory.capacity_bytes)}; the step takes {longer.value:.2f} times as long.",
        (without, with_it, longer, full.told("capacity", "memory.capacity_bytes", "bytes")),
        "it divides activations only; states that do not fit stay",
    )


_CHECKPOINTING: Mapping[Fit, tuple[Verdict, str]] = {
    "fits": ("right", "true here"),
    "at the edge": ("loose", "only to the edge here"),
    "does not fit": ("wrong", "not enough here"),
}


def _offload_is_a_little_slower(case: _Case) -> Finding | None:
    choices = ("optimizer", "parameters")
    found = (case.varied(recipe=replace(case.base.plan.recipe, offload=choice)) for choice in choices)  # type: ignore[arg-type]
    offloaded = next((one for one in found if one is not None), None)
    if offloaded is None or case.base.plan.recipe.offload != "none":
        return None
    update = case.base.told("update", "time.components_s.optimizer", "s")
    slow = offloaded.told("offloaded update", "time.components_s.optimizer + time.components_s.offload", "s")
    longer = _step_ratio("step, over that without", offloaded, case.base)
    return _finding(
        "Offloading makes optimizer steps 30 to 50% slower",
        near(SLOWER_UPDATE_RATIO, slow.value / update.value),
        f"here the update goes from {update.text} to {slow.text}, and the step takes {longer.value:.2f} times as long.",
        (
            offloaded.told("a GPU then needs", "memory.needed_bytes", "bytes"),
            offloaded.told("the host of a node", "memory.host_bytes", "bytes"),
            update,
            slow,
            longer,
        ),
        "use it to fit what GPUs cannot hold, with large batches",
    )


def _tensor_parallel_across_nodes(case: _Case) -> Finding | None:
    """The fastest layout whose tensor-parallel group leaves the node, with the same recipe as the fastest inside."""
    cluster, inside = case.question.cluster, trial_of(case.trials, "tp")
    per_node = cluster.node.gpus_per_node
    if cluster.num_nodes == 1 or inside is None or inside.prediction is None or inside.plan is None:
        return None
    recipe = inside.plan.recipe
    size, one = IntRange(low=recipe.micro_batch_size, high=recipe.micro_batch_size), IntRange(low=1, high=1)
    bounds = SearchBounds(
        tp=IntRange(low=per_node + 1, high=cluster.num_gpus),
        cp=one,
        pp=one,
        micro_batch_size=size,
        recompute=(recipe.recompute,),
        offload=(recipe.offload,),
        activation_offload=recipe.activation_offload,
        max_predictions=1,
    )
    fitting = find(case.question, bounds).evaluation.fitting
    said = "Tensor parallelism stays inside a node"
    if not fitting:
        return _finding(said, "right", "as it must here, no wider layout keeps the rules and fits.", ())
    best = min(fitting, key=lambda one: one.prediction.time.step_s)
    wide = Predicted(plan=best.plan, prediction=best.prediction)
    ratio = _step_ratio(
        "step, over that inside a node", wide, Predicted(plan=inside.plan, prediction=inside.prediction)
    )
    words = "true here" if ratio.value > 1 else "not necessary here"
    return _finding(
        said,
        "right" if ratio.value > 1 else "wrong",
        f"{words}: across nodes ({short_layout(best.plan)}) the step takes {ratio.value:.2f} times that inside a "
        "node, with the same micro-batch and recomputation.",
        (wide.told("exposed communication", EXPOSED, "s"), ratio),
    )


def _scaling_is_linear(case: _Case) -> Finding | None:
    """Compares the step on one node and on all with the same work per GPU (weak scaling)."""
    cluster, layout = case.question.cluster, case.base.plan.layout
    per_gpu, rest = divmod(case.question.global_batch_size, cluster.num_gpus)
    if cluster.num_nodes == 1 or rest or layout.tp * layout.pp * layout.cp > 1:
        return None
    num_gpus = cluster.node.gpus_per_node
    alone = _predicted(
        replace(
            case.base.plan,
            cluster=replace(cluster, num_nodes=1),
            layout=replace(layout, dp_shard=num_gpus, dp_replicate=1),
            recipe=replace(case.base.plan.recipe, global_batch_size=per_gpu * num_gpus),
        )
    )
    if alone is None:
        return None
    rate = "throughput.tokens_per_s_per_gpu"
    rates = (case.base.told("", rate, "count"), alone.told("", rate, "count"))
    efficiency = compared("rate per GPU, over that of one node", *rates, "fraction")
    return _finding(
        "N GPUs process N times more data",
        near(1.0, efficiency.value),
        f"with the same work on each GPU {cluster.num_gpus} GPUs reach {format_percent(efficiency.value)} of the "
        f"rate per GPU of {num_gpus}.",
        (case.base.told("exposed communication", EXPOSED, "s"), efficiency),
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
