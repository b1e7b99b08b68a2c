"""The practical checklist before choosing a strategy, each question answered with this model's numbers."""

from dataclasses import replace

from shardwise.engines.table import ENGINES
from shardwise.explain.records import Finding, Quantity
from shardwise.explain.state_counts import counted_capacity_bytes, counted_states
from shardwise.explain.strategy_trials import StrategyKind, StrategyTrial, settings_words, trial_of
from shardwise.explain.told import compared, told
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.memory import predict_memory
from shardwise.prediction import MemoryPrediction
from shardwise.rules import find_errors
from shardwise.search.simplicity import short_layout
from shardwise.units import (
    format_bytes_per_s,
    format_count,
    format_gib,
    format_percent,
    format_seconds,
)

__all__ = ["checklist"]

ACTIVATIONS = "memory.components_bytes.activations + memory.components_bytes.logits"
DOMINANT_FRACTION = 0.5
LARGE_LAYER_FRACTION = 0.1
"""A layer whose states are more of a GPU than this is wide: two of them gathered at once are felt."""
FAST_NETWORK_FRACTION = 0.05
"""Communication that is exposed for less of the step than this does not ask for another strategy."""


def checklist(question: Plan, trials: tuple[StrategyTrial, ...]) -> tuple[Finding, ...]:
    """Six questions in the order in which they are best asked."""
    answers = (
        _fits_one_gpu(question, trials),
        _is_wide(question, trials),
        _is_deep(question, trials),
        _optimizer_dominates(question, trials),
        _smallest_footprint(trials, question),
        _network(question, trials),
    )
    return tuple(answer for answer in answers if answer is not None)


def _fits_one_gpu(question: Plan, trials: tuple[StrategyTrial, ...]) -> Finding:
    """Data parallelism is the trial that divides nothing, unless it divides experts."""
    whole, capacity = _undivided(question, trials[0]), counted_capacity_bytes(question)
    if whole is None:
        return _states_fit_one_gpu(question)
    plan, memory = whole
    needed = told("needed undivided", memory, "memory.needed_bytes", "bytes", plan=plan)
    numbers = [needed, told("capacity", memory, "memory.capacity_bytes", "bytes", plan=plan)]
    small = _quantised(question)
    if small is not None:
        numbers.append(small)
    is_alone = question.cluster.num_gpus == 1
    if memory.fit == "fits":
        answer, advice = "yes", "data parallelism and mixed precision are enough; divide states only for larger batches"
        if is_alone:
            advice = "spend what is left on less recomputation or larger micro-batches"
    elif memory.fit == "at the edge":
        answer = "at the edge"
        advice = (
            "take an 8-bit optimizer, adapters or offload" if is_alone else "divide states, if only the optimizer's"
        )
    elif small is not None and small.value * memory.high_fraction < capacity:
        answer = "no, unless only adapters are trained on a 4-bit base"
        advice = "train adapters, or take more GPUs" if is_alone else "divide states, or train adapters"
    else:
        answer = "no"
        advice = "take more GPUs: one cannot divide states" if is_alone else "divide the states: ZeRO or FSDP first"
    return Finding(
        topic="checklist",
        claim=f"Does it fit one GPU? {answer}: undivided it needs {needed.text} of {format_gib(capacity)}.",
        numbers=tuple(numbers),
        because=f"predicted for the smallest undivided layout ({short_layout(plan)}), with one sequence at a time and "
        f"recompute={plan.recipe.recompute}{_accumulation_words(plan)}",
        suggestion=advice,
    )


def _accumulation_words(plan: Plan) -> str:
    """Whether whole gradients wait beside activations and logits for further micro-batches."""
    count = plan.num_microbatches
    if count == 1 or plan.recipe.adapter != "none":
        return ""
    return f"; whole gradients add up over {count:,} micro-batches beside activations and logits"


def _undivided(question: Plan, trial: StrategyTrial) -> tuple[Plan, MemoryPrediction] | None:
    """The smallest plan with every GPU holding every expert; ``None`` where that breaks a rule."""
    if trial.plan is None:
        return None
    plan = _small(trial, layout=Layout(dp_replicate=question.cluster.num_gpus, zero_stage=0))
    return None if plan is None else (plan, predict_memory(plan))


def _small(trial: StrategyTrial, *, layout: Layout) -> Plan | None:
    """A plan that runs one sequence at a time and recomputes every block; ``None`` where that breaks a rule.

    The textbook's arithmetic knows no recomputation.
    """
    if trial.plan is None:
        return None
    recipe = replace(trial.plan.recipe, micro_batch_size=1)
    if recipe.convention != "seed":
        recipe = replace(recipe, recompute="full", recompute_layers=None, recompute_modules=None)
    plan = replace(trial.plan, recipe=recipe, layout=layout)
    return None if find_errors(plan) else plan


def _states_fit_one_gpu(question: Plan) -> Finding:
    """Answers from the states alone where no undivided layout keeps the rules, as with more GPUs than sequences."""
    states, capacity = counted_states(question).total_bytes, counted_capacity_bytes(question)
    return Finding(
        topic="checklist",
        claim=f"Does it fit one GPU? {'its states do' if states < capacity else 'no'}: they are {format_gib(states)}, "
        f"and a GPU holds {format_gib(capacity)}.",
        because="no undivided layout of this batch on these GPUs keeps the rules, so states alone are compared",
        suggestion="divide the model, or take a larger global batch",
    )


def _quantised(question: Plan) -> Quantity | None:
    """The bytes that QLoRA needs on one GPU; ``None`` where it is asked about, or the engine or model lacks it."""
    if question.recipe.adapter == "qlora":
        return None
    recipe = replace(
        question.recipe, adapter="qlora", micro_batch_size=1, recompute="full", convention="engine", offload="none"
    )
    plan = replace(question, recipe=recipe, layout=Layout(dp_replicate=question.cluster.num_gpus, zero_stage=0))
    if find_errors(plan):
        return None
    name, field = "with a 4-bit base and adapters (QLoRA)", "memory.needed_bytes"
    return told(name, predict_memory(plan), field, "bytes", plan=plan)


def _is_wide(question: Plan, trials: tuple[StrategyTrial, ...]) -> Finding:
    model, capacity = question.model, counted_capacity_bytes(question)
    layer_params = max(layer.num_params for layer, _ in model.layer_runs)
    states = counted_states(question).bytes_per_param * layer_params
    is_wide = states > LARGE_LAYER_FRACTION * capacity
    tensor = trial_of(trials, "tp")
    plain = _fastest(tuple(one for one in trials if one.plan is not None and one.plan.layout.tp == 1))
    compares, advice = "", _width_advice(question, tensor, states / capacity)
    if tensor is not None and tensor.prediction is not None and plain is not None and plain.prediction is not None:
        ratio = tensor.prediction.time.step_s / plain.prediction.time.step_s
        compares = f"; with tensor parallelism the step takes {ratio:.2f} times that of {plain.strategy.name}"
        if ratio < 1:
            advice = "tensor parallelism inside a node is faster here"
        elif is_wide:
            advice = "wide, but dividing states is still faster than dividing its matrices"
    elif tensor is not None and tensor.prediction is not None:
        advice = "tensor parallelism is what makes it fit"
    return Finding(
        topic="checklist",
        claim=f"Is it wide? {'yes' if is_wide else 'no'}: its largest layer has {format_count(layer_params)} "
        f"parameters, {format_gib(states)} of states, {format_percent(states / capacity)} of a GPU{compares}.",
        numbers=(
            Quantity(name="hidden size", value=model.hidden_size, unit="count"),
            Quantity(name="states of the largest layer", value=states, unit="bytes"),
        ),
        because="tensor parallelism divides one layer's matrices and sends activations in every layer, so it pays for "
        "layers that are large and links that are fast",
        suggestion=advice,
    )


def _width_advice(question: Plan, tensor: StrategyTrial | None, layer_fraction: float) -> str:
    """The advice where tensor parallelism has no step time to compare, from a layer's share of a GPU's memory."""
    if layer_fraction <= LARGE_LAYER_FRACTION:
        return "no layer is too large for a GPU; tensor parallelism only for more GPUs than sequences"
    size = "its states do not even fit layer by layer" if layer_fraction > 1 else "its layers are large"
    if question.cluster.num_gpus == 1:
        return f"{size}, and one GPU has nobody to divide a layer with"
    if tensor is None or tensor.plan is None:
        return f"{size}, and no layout here divides its matrices"
    return f"{size}; dividing its matrices too leaves {format_gib(tensor.needed_bytes)} a GPU, which does not fit"


def _fastest(trials: tuple[StrategyTrial, ...]) -> StrategyTrial | None:
    fitting = [one for one in trials if one.prediction is not None]
    return min(fitting, key=lambda one: one.step_s, default=None)


def _is_deep(question: Plan, trials: tuple[StrategyTrial, ...]) -> Finding | None:
    """Compares the activations of a pipeline's worst stage with those of the undivided model by one recipe."""
    sharded, piped = _most_sharded(trials), trial_of(trials, "pp")
    if sharded is None or sharded.plan is None:
        return None
    recipe = replace(sharded.plan.recipe, recompute_layers=None)
    plan = replace(sharded.plan, recipe=recipe)
    memory = predict_memory(plan)
    held = told("activations and logits", memory, ACTIVATIONS, "bytes", plan=plan)
    needed = told("needed", memory, "memory.needed_bytes", "bytes", plan=plan)
    share = compared("of what is needed", held, needed, "fraction")
    numbers = [Quantity(name="layers", value=question.model.num_hidden_layers, unit="count"), held, share]
    compares, advice = "", "recomputation and smaller micro-batches shrink activations; stages shrink states"
    staged = None if piped is None or piped.plan is None else replace(piped.plan, recipe=recipe)
    if staged is not None and not find_errors(staged):
        numbers.append(told("in a pipeline", predict_memory(staged), ACTIVATIONS, "bytes", plan=staged))
        compares = f"; with the same recipe a pipeline holds {numbers[-1].text} ({short_layout(staged)})"
    if piped is not None and piped.prediction is not None and sharded.prediction is None:
        advice = "a pipeline fits where sharding alone does not"
    return Finding(
        topic="checklist",
        claim=f"Is it deep, and do activations decide? {question.model.num_hidden_layers} layers; activations "
        f"{'are most' if share.value > DOMINANT_FRACTION else 'are not most'} of what a GPU needs: {held.text} with "
        f"{sharded.strategy.name}, micro-batch {recipe.micro_batch_size}, recompute={recipe.recompute}{compares}.",
        numbers=tuple(numbers),
        because="a stage has fewer layers but keeps several micro-batches of them, the first stage as many as "
        "there are stages",
        suggestion=advice,
    )


def _most_sharded(trials: tuple[StrategyTrial, ...]) -> StrategyTrial | None:
    """FSDP, or the highest ZeRO stage that the engine has, or whatever comes first."""
    kinds: tuple[StrategyKind, ...] = ("fsdp", "zero-2", "zero-1", "undivided")
    found = (trial_of(trials, kind) for kind in kinds)
    return next((trial for trial in found if trial is not None and trial.plan is not None), None)


def _optimizer_dominates(question: Plan, trials: tuple[StrategyTrial, ...]) -> Finding:
    states = counted_states(question)
    fraction = states.optimizer_bytes / states.bytes_per_param
    answer, numbers = _optimizer_beside(question, trials)
    first, second = trial_of(trials, "zero-1"), trial_of(trials, "zero-2")
    enough = next((one for one in (first, second) if one is not None and one.prediction is not None), None)
    if enough is not None:
        advice = f"{enough.strategy.name} is enough to fit: {format_seconds(enough.step_s)} a step"
    elif question.recipe.adapter != "none":
        advice = "only adapters have optimizer states: frozen weights and activations decide"
    elif question.cluster.num_gpus == 1:
        advice = "one GPU has nobody to share with: an 8-bit optimizer, adapters or offload"
    elif first is None and second is None:
        advice = f"{question.engine} divides everything or nothing"
    else:
        advice = "dividing the optimizer and gradients is not enough; parameters have to be divided too"
    return Finding(
        topic="checklist",
        claim=f"Does the optimizer dominate? {answer}; of the states it is {states.optimizer_bytes:.3g} of "
        f"{states.bytes_per_param:.3g} bytes a parameter.",
        numbers=(Quantity(name="share of the states", value=fraction, unit="fraction"), *numbers),
        because=f"{question.recipe.optimizer} in {question.recipe.precision}, as {question.engine} keeps it",
        suggestion=advice,
    )


def _optimizer_beside(question: Plan, trials: tuple[StrategyTrial, ...]) -> tuple[str, tuple[Quantity, ...]]:
    """Whether an undivided GPU would hold more of the optimizer than of anything else, with the sharded recipe."""
    sharded = _most_sharded(trials)
    if sharded is None or sharded.plan is None:
        return "no layout keeps the rules", ()
    layout = Layout(dp_replicate=question.cluster.num_gpus, zero_stage=0)
    plan = replace(sharded.plan, layout=layout, recipe=replace(sharded.plan.recipe, recompute_layers=None))
    if find_errors(plan):
        states = counted_states(question)
        return f"{format_gib(states.optimizer_bytes * states.num_params)} undivided", ()
    memory = predict_memory(plan)
    entries = [entry for entry in memory.worst.components if entry.component not in ("optimizer", "framework")]
    other = max(entries, key=lambda entry: entry.num_bytes).component
    held, beside = (
        told(f"undivided {name}", memory, f"memory.components_bytes.{name}", "bytes", plan=plan)
        for name in ("optimizer", other)
    )
    needed = told("undivided in all", memory, "memory.needed_bytes", "bytes", plan=plan)
    is_most = held.value >= beside.value
    answer = (
        f"{'yes' if is_most else 'no'}, undivided it is {held.text} of the {needed.text} that a GPU needs, "
        f"{'more' if is_most else 'less'} than {other} ({beside.text}), micro-batch {plan.recipe.micro_batch_size}, "
        f"recompute={plan.recipe.recompute}"
    )
    return answer, (held, beside, needed)


def _smallest_footprint(trials: tuple[StrategyTrial, ...], question: Plan) -> Finding | None:
    """Names the strategy whose layout needs least memory with one sequence at a time and everything recomputed."""
    found = {trial.strategy: small for trial in trials if (small := _smallest(trial, question)) is not None}
    if not found:
        return None
    least = min(found, key=lambda strategy: found[strategy].value)
    sharded = next((small for strategy, small in found.items() if strategy.kind == "fsdp"), None)
    source = found[least].source
    plan = None if source is None else source.plan
    numbers = [found[least]]
    if sharded is not None:
        numbers.append(replace(sharded, name="FSDP at its smallest"))
    settings = f" ({settings_words(plan)})" if plan is not None else ""
    return Finding(
        topic="checklist",
        claim=f"Must the footprint be minimal? The smallest of the layouts below is {least.name} with "
        f"{found[least].text} a GPU{settings}.",
        numbers=tuple(numbers),
        because="predicted with one sequence at a time, everything recomputed and states divided as far as they go; "
        "full sharding divides states by all GPUs, and only tensor or context parallelism also divide what one "
        "sequence needs",
        suggestion="take the footprint for larger micro-batches only if that is faster",
    )


def _smallest(trial: StrategyTrial, question: Plan) -> Quantity | None:
    """The least memory that the trial's degrees need, with everything made small that the strategy does not fix."""
    if trial.plan is None:
        return None
    layout, engine = trial.plan.layout, ENGINES[question.engine]
    layout = replace(layout, sequence_parallel=layout.tp > 1 and engine.has_sequence_parallel)
    if trial.strategy.bounds.zero_stage is None and question.recipe.convention != "seed":
        layout = replace(layout, zero_stage=max(engine.zero_stages), reshard_after_forward=True)
    plan = _small(trial, layout=layout) or _small(trial, layout=trial.plan.layout)
    return None if plan is None else told("smallest", predict_memory(plan), "memory.needed_bytes", "bytes", plan=plan)


def _network(question: Plan, trials: tuple[StrategyTrial, ...]) -> Finding:
    """Tells the share of the step that waits for the network, of FSDP or of the fastest trial, and compares HSDP."""
    cluster = question.cluster
    if cluster.num_gpus == 1:
        return Finding(
            topic="checklist",
            claim="What is the network? One GPU communicates with nobody: 0 bytes a step.",
            suggestion="it matters with the second GPU",
        )
    sharded = trial_of(trials, "fsdp") or trials[0]
    shown = sharded if sharded.prediction is not None else _fastest(trials)
    if shown is None or shown.prediction is None:
        return _network_unknown(question)
    exposed = shown.told("exposed", "time.components_s.exposed_communication", "s")
    step = shown.told("step", "time.step_s", "s")
    share = compared("exposed of the step", exposed, step, "fraction")
    hybrid = trial_of(trials, "hsdp")
    is_fast = share.value < FAST_NETWORK_FRACTION
    advice = (
        "the network keeps up; no strategy has to be chosen for its sake"
        if is_fast
        else _slow_network_advice(shown, trials, question)
    )
    numbers = [share]
    if hybrid is not None and hybrid.prediction is not None:
        ratio = compared(f"HSDP over {shown.strategy.name}", hybrid.told("", "time.step_s", "s"), step, "ratio")
        numbers.append(ratio)
        advice = "HSDP is faster: gathers stay inside a node" if ratio.value < 1 else advice
    return Finding(
        topic="checklist",
        claim=f"What is the network? {_bandwidths(question)}; with {shown.strategy.name} "
        f"{format_percent(share.value)} of the step waits for it.",
        numbers=tuple(numbers),
        because="bandwidths are one way and per GPU; what runs under computation does not count",
        suggestion=advice,
    )


def _bandwidths(question: Plan) -> str:
    cluster, node = question.cluster, question.cluster.node
    inside = f"{format_bytes_per_s(node.scale_up_bandwidth_of(node.gpus_per_node))} a GPU inside a node"
    if cluster.num_nodes == 1:
        return inside
    between = f"{format_bytes_per_s(node.network.bandwidth_bytes_per_s)} between nodes"
    return between if node.gpus_per_node == 1 else f"{inside}, {between}"


def _slow_network_advice(shown: StrategyTrial, trials: tuple[StrategyTrial, ...], question: Plan) -> str:
    """The strategy that was predicted to wait less, if there is one; else what this cluster leaves to try."""
    fastest, cluster = _fastest(trials), question.cluster
    if fastest is not None and fastest.step_s < shown.step_s * (1 - FAST_NETWORK_FRACTION):
        return f"{fastest.strategy.name} takes {fastest.step_s / shown.step_s:.2f} times as long"
    if cluster.num_nodes == 1 or cluster.node.gpus_per_node == 1:
        return "use larger micro-batches; no strategy tried here is faster"
    return "keep gathers inside a node (HSDP), use larger micro-batches, or a pipeline across nodes"


def _network_unknown(question: Plan) -> Finding:
    offered = "HSDP, a pipeline across nodes" if "pp" in ENGINES[question.engine].axes else "larger micro-batches"
    if question.cluster.num_nodes == 1:
        offered = "larger micro-batches"
    elif question.cluster.node.gpus_per_node == 1:
        offered = offered.removeprefix("HSDP, ")
    return Finding(
        topic="checklist",
        claim=f"What is the network? {_bandwidths(question)}; nothing fits, so no step could wait for it.",
        because="bandwidths are one way and per GPU",
        suggestion=f"once a layout fits and the network limits it: {offered}",
    )
