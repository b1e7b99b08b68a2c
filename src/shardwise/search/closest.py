"""When nothing fits: the plan that misses the device by least, what fills it, and the smallest changes that help."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from math import ceil

from shardwise.cluster import Cluster
from shardwise.engines.table import ENGINES
from shardwise.errors import ShardwiseError
from shardwise.families import read_model
from shardwise.ledger import MemoryComponent
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import MemoryPrediction, Prediction, StageMemory
from shardwise.rules import Changes
from shardwise.rules.changes import changes_text
from shardwise.rules.token_batch import on_cluster
from shardwise.search.bounds import SearchBounds
from shardwise.search.clusters import bigger_gpus, size_change, with_gpu, with_host_memory
from shardwise.search.hypotheses import Hypothesis, changed, first_that_helps, free_axes, has_plan, relief_of
from shardwise.search.narrow_states import narrow_states
from shardwise.search.nearest import nearest_plan
from shardwise.search.nearest_size import nearest_size
from shardwise.search.one_pass import Found
from shardwise.search.records import ClosestPlan, Objective, Relief
from shardwise.search.repairs import batch_repair
from shardwise.units import GIB, format_gb, format_gib

__all__ = ["FUSED_ATTENTION", "LOSS_CHUNKS", "closest_plan", "more_gpus", "what_it_lacks"]

FEW_PREDICTIONS = 6
MORE_GPUS_FACTOR = 2
"""More GPUs stand before a change of the recipe where they take less than half its GPU-seconds."""
MAX_RELIEFS = 5
MAX_GPU_FACTOR = 1024
MAX_HALVINGS = 12
CLOSER_SIZES = 3
LOSS_CHUNKS = 8
"""Pieces of the loss that are proposed where it is computed in one."""
FUSED_ATTENTION: Changes = (("attention", "flash"), ("attention_kernel", None))
"""The engine's fused kernel in place of written-out scores."""
ADAPTER_CAUTIONS = {
    "lora": "trains adapters instead of the model",
    "qlora": "trains adapters beside a base of 4 bits",
}
HOST_RESERVE_RATIO = 1.02
"""Host memory that is proposed over what the closest plan keeps there, whose estimate and prediction differ by less."""
STATES: tuple[MemoryComponent, ...] = ("parameters", "gradients", "optimizer")


def closest_plan(
    question: Plan, bounds: SearchBounds, found: Found, *, objective: Objective = "step_time"
) -> ClosestPlan | None:
    """The plan that comes closest to fitting; ``None`` when every candidate breaks a rule."""
    nearest = nearest_plan(question, bounds, found)
    if nearest is None:
        return None
    plan = nearest[0]
    prediction = predict(plan)
    return ClosestPlan(
        plan=plan,
        prediction=prediction,
        missing_bytes=prediction.memory.missing_bytes,
        lacks=what_it_lacks(prediction.memory),
        because=_what_fills_it(prediction),
        reliefs=_reliefs(question, bounds, prediction, objective),
    )


def what_it_lacks(memory: MemoryPrediction) -> str:
    """The shortage of the device, of the host and of its drives, as far as there is any."""
    host, drives = memory.host_missing_bytes, memory.nvme_missing_bytes
    beside = [
        *([f"{format_gib(host)} of host memory per node"] if host else []),
        *([f"{format_gb(drives)} of drives per node"] if drives else []),
    ]
    device = format_gib(memory.missing_bytes)
    if not beside:
        return device
    return " and ".join([*([f"{device} per GPU"] if memory.missing_bytes else []), *beside])


def _what_fills_it(prediction: Prediction) -> str:
    worst = prediction.memory.worst
    states = _states_bytes(prediction)
    capacity = prediction.memory.capacity_bytes
    if not prediction.memory.fits_host:
        return _what_fills_the_host(prediction.memory)
    if states > capacity:
        there = [name for name in STATES if worst.component_bytes(name)]
        named = " and ".join(filter(None, (", ".join(there[:-1]), there[-1]))).replace("optimizer", "optimizer states")
        return (
            f"{named} alone are {format_gib(states)} per GPU, more than its {format_gib(capacity)}; no batch size or "
            "recomputation can help"
        )
    return f"model states take {format_gib(states)} per GPU and {_largest_rest(worst)}"


def _what_fills_the_host(memory: MemoryPrediction) -> str:
    needed, has = format_gib(memory.host_bytes_per_node), format_gib(memory.host_capacity_bytes)
    if memory.host_missing_bytes:
        return f"what is offloaded needs {needed} of host memory per node, more than the {has} that it has"
    needed, has = format_gb(memory.nvme_bytes_per_node), format_gb(memory.nvme_capacity_bytes)
    return f"what is offloaded needs {needed} of drives per node, more than the {has} that it has"


def _largest_rest(worst: StageMemory) -> str:
    rest = [entry for entry in worst.components if entry.component not in STATES]
    top = max(rest, key=lambda entry: entry.num_bytes)
    return f"{top.component.replace('_', ' ')} {format_gib(top.num_bytes)}"


def _reliefs(question: Plan, bounds: SearchBounds, prediction: Prediction, objective: Objective) -> tuple[Relief, ...]:
    """Changes under which a search finds something: near batches, freed bounds, then what trains as was asked on such
    GPUs, on others, adapters, and a smaller model; of each the cheapest first."""
    few = replace(bounds, max_predictions=FEW_PREDICTIONS)
    near = (batch_repair(question, bounds, objective=objective), _fewer_bounds(question, few, objective))
    first = [relief for relief in near if relief is not None]
    kinds = _kinds(question, few, prediction.memory)
    found = (first_that_helps(kind, objective=objective) for kind in kinds)
    reliefs = list(islice((relief for relief in found if relief is not None), MAX_RELIEFS - len(first)))
    for last in (more_gpus(question, few) or _more_of_a_bigger_gpu(question, few), _smaller_model(question, few)):
        relief = None if last is None else relief_of(last, objective=objective)
        if relief is not None:
            reliefs.append(relief)
    order = {relief.change: (*_distance(relief.plan, question), _price(relief, question)) for relief in reliefs}
    return (*first, *sorted(reliefs, key=lambda relief: order[relief.change]))


def _distance(plan: Plan, question: Plan) -> tuple[bool, bool, bool]:
    """How far a plan is from what was asked: another model, adapters instead of its weights, other GPUs."""
    adapts = (plan.recipe.adapter == "none") != (question.recipe.adapter == "none")
    return plan.model != question.model, adapts, plan.cluster.gpu != question.cluster.gpu


def _price(relief: Relief, question: Plan) -> float:
    """GPU-seconds a token; those of GPUs that nobody said are there count more."""
    num_gpus = relief.plan.cluster.num_gpus
    factor = 1 if num_gpus == question.cluster.num_gpus else MORE_GPUS_FACTOR
    return factor * relief.step_s * num_gpus / relief.plan.tokens_per_step


def _fewer_bounds(question: Plan, bounds: SearchBounds, objective: Objective) -> Relief | None:
    return first_that_helps(free_axes(question, bounds), objective=objective)


def _kinds(question: Plan, bounds: SearchBounds, memory: MemoryPrediction) -> Iterator[Iterable[Hypothesis]]:
    """Changes that hold less, those of the recipe before those of the hardware; of each kind the first that helps."""
    recipe = question.recipe
    if recipe.writes_scores:
        yield (changed(question, bounds, FUSED_ATTENTION),)
    if recipe.loss_chunks == 1 and question.model.has_head:
        yield (changed(question, bounds, (("loss_chunks", LOSS_CHUNKS),)),)
    if bounds.offload is not None or recipe.offload != "none":
        yield _offload_hypotheses(question, bounds)
    yield _narrow_states(question, bounds)
    yield _adapters(question, bounds)
    yield from ((bigger,) for bigger in _bigger_gpus(question, bounds))
    yield _roomier_hosts(question, bounds, memory)


def _narrow_states(question: Plan, bounds: SearchBounds) -> Iterator[Hypothesis]:
    for changes in narrow_states(question):
        yield changed(question, bounds, changes, "other numerics: check the loss")


def _adapters(question: Plan, bounds: SearchBounds) -> Iterator[Hypothesis]:
    """Adapters instead of every weight: beside a base of 16 bits, then of 4."""
    if question.recipe.adapter != "none":
        return
    for adapter, caution in ADAPTER_CAUTIONS.items():
        if adapter in ENGINES[question.engine].adapters:
            yield changed(question, bounds, (("adapter", adapter),), caution)


def _bigger_gpus(question: Plan, bounds: SearchBounds) -> Iterator[Hypothesis]:
    for gpu in bigger_gpus(question.cluster.gpu):
        cluster = with_gpu(question.cluster, gpu)
        if cluster is not None:
            bigger = replace(question, cluster=cluster)
            yield Hypothesis(change=f"gpu={gpu.id}", question=bigger, bounds=bounds)


def _offload_hypotheses(question: Plan, bounds: SearchBounds) -> Iterator[Hypothesis]:
    """Offload modes other than the pinned one; a free search has tried them all already."""
    for offload in ("optimizer", "parameters", "nvme"):
        if offload in ENGINES[question.engine].offloads and offload != question.recipe.offload:
            moved = replace(bounds, offload=(offload,))
            yield Hypothesis(
                change=f"offload={offload}", question=question, bounds=moved, caution="the update runs on the host"
            )


def _states_bytes(prediction: Prediction) -> int:
    worst = prediction.memory.worst
    return sum(worst.component_bytes(component) for component in STATES)


def _roomier_hosts(question: Plan, bounds: SearchBounds, memory: MemoryPrediction) -> Iterator[Hypothesis]:
    """The host memory that the closest plan lacks, where it is all that it lacks."""
    if memory.missing_bytes or memory.host_bytes_per_node <= memory.host_capacity_bytes:
        return
    enough_gib = ceil(HOST_RESERVE_RATIO * memory.host_bytes_per_node / GIB)
    cluster = with_host_memory(question.cluster, enough_gib)
    if cluster is not None:
        roomier = replace(question, cluster=cluster)
        yield Hypothesis(
            change=f"host_memory_gib={enough_gib}", question=roomier, bounds=bounds, caution="in a cluster file"
        )


def _more_of_a_bigger_gpu(question: Plan, bounds: SearchBounds) -> Hypothesis | None:
    """The largest part of the same make in as many GPUs as it takes, where more of the own part do not help."""
    for gpu in reversed(bigger_gpus(question.cluster.gpu)):
        cluster = with_gpu(question.cluster, gpu)
        found = None if cluster is None else more_gpus(replace(question, cluster=cluster), bounds, f"gpu={gpu.id} ")
        if found is not None:
            return found
    return None


def _smaller_model(question: Plan, bounds: SearchBounds) -> Hypothesis | None:
    """The largest model of the usual shape that is found to fit as everything else is.

    Parameters are halved until one fits; between that and the last that did not it is looked for a few times more.
    """
    if question.model.is_moe:
        return None
    too_many = question.model.num_params / 1e9
    billions, found = too_many / 2, None
    for _ in range(MAX_HALVINGS):
        found = _of_size(question, bounds, billions)
        if found is not None:
            break
        too_many, billions = billions, billions / 2
    for _ in range(CLOSER_SIZES if found is not None else 0):
        middle = (billions + too_many) / 2
        larger = _of_size(question, bounds, middle)
        found, billions, too_many = (found, billions, middle) if larger is None else (larger, middle, too_many)
    return found


def _of_size(question: Plan, bounds: SearchBounds, billions: float) -> Hypothesis | None:
    name = f"{billions:.2g}B" if billions < 100 else f"{billions:.0f}B"
    try:
        smaller = replace(question, model=read_model(name))
    except ShardwiseError:  # no usual shape has this size
        return None
    found = Hypothesis(change=f"model={name}", question=smaller, bounds=bounds, caution="another model")
    return found if has_plan(found) else None


def more_gpus(question: Plan, bounds: SearchBounds, prefix: str = "") -> Hypothesis | None:
    """The nearest larger cluster on which something fits, with the batch that is assumed for it where nobody gave one;
    a part of a server grows to whole ones.
    """
    asked = question.cluster

    def grown(cluster: Cluster) -> Hypothesis | None:
        change, caution = f"{prefix}{changes_text(size_change(cluster, asked=asked))}", f"{cluster.num_gpus:,} GPUs"
        more = on_cluster(question, cluster)
        found = [Hypothesis(change=change, question=more, bounds=bounds, caution=caution)]
        larger = _with_divisible_batch(more)
        if larger != more:
            change = f"{change} global_batch_size={larger.global_batch_size}"
            found.append(Hypothesis(change=change, question=larger, bounds=bounds, caution=caution))
        return next(filter(has_plan, found), None)

    return nearest_size(asked, answer=grown, max_factor=MAX_GPU_FACTOR)


def _with_divisible_batch(question: Plan) -> Plan:
    """The question with a batch that gives every GPU of a larger cluster at least one sequence."""
    size, num_gpus = question.global_batch_size, question.cluster.num_gpus
    if size % num_gpus == 0:
        return question
    larger = -(-size // num_gpus) * num_gpus
    return replace(question, recipe=replace(question.recipe, global_batch_size=larger))
