"""When nothing fits: the plan that misses the device by least, what fills it, and the smallest changes that help."""

from collections.abc import Iterator
from dataclasses import replace

from shardwise.errors import ShardwiseError
from shardwise.families import read_model
from shardwise.ledger import MemoryComponent
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import MemoryPrediction, Prediction, StageMemory
from shardwise.rules import OFFERS
from shardwise.search.bounds import SearchBounds
from shardwise.search.clusters import bigger_gpus, resized, size_text, with_gpu
from shardwise.search.hypotheses import Hypothesis, free_axes, tried
from shardwise.search.one_pass import Found
from shardwise.search.records import ClosestPlan, Relief
from shardwise.search.repairs import batch_repair
from shardwise.units import format_gb, format_gib

__all__ = ["closest_plan", "what_it_lacks"]

FEW_PREDICTIONS = 6
MAX_RELIEFS = 5
MAX_GPU_FACTOR = 1024
MAX_HALVINGS = 12
RELIEF_LOSS_CHUNKS = 8
STATES: tuple[MemoryComponent, ...] = ("parameters", "gradients", "optimizer")


def closest_plan(question: Plan, bounds: SearchBounds, found: Found) -> ClosestPlan | None:
    """What came closest, ``None`` when every candidate breaks a rule."""
    nearest = found.evaluation.nearest
    plan = nearest[0] if nearest is not None else found.smallest
    if plan is None:
        return None
    prediction = predict(plan)
    return ClosestPlan(
        plan=plan,
        prediction=prediction,
        missing_bytes=prediction.memory.missing_bytes,
        lacks=what_it_lacks(prediction.memory),
        because=_what_fills_it(prediction),
        reliefs=tuple(_reliefs(question, bounds, prediction)),
    )


def what_it_lacks(memory: MemoryPrediction) -> str:
    """The shortage of the device; where it has none, of the host or of its drives."""
    if memory.missing_bytes or memory.fits_host:
        return format_gib(memory.missing_bytes)
    missing_host = memory.host_bytes_per_node - memory.host_capacity_bytes
    if memory.host_capacity_bytes and missing_host > 0:
        return f"{format_gib(missing_host)} of host memory per node"
    return f"{format_gb(memory.nvme_bytes_per_node - memory.nvme_capacity_bytes)} of drives per node"


def _what_fills_it(prediction: Prediction) -> str:
    worst = prediction.memory.worst
    states = _states_bytes(prediction)
    capacity = prediction.memory.capacity_bytes
    if not prediction.memory.fits_host:
        return _what_fills_the_host(prediction.memory)
    if states > capacity:
        return (
            f"parameters, gradients and optimizer states alone are {format_gib(states)} per GPU, more than its "
            f"{format_gib(capacity)}; no batch size or recomputation can help"
        )
    return f"model states take {format_gib(states)} per GPU and {_largest_rest(worst)}"


def _what_fills_the_host(memory: MemoryPrediction) -> str:
    needed, has = format_gib(memory.host_bytes_per_node), format_gib(memory.host_capacity_bytes)
    if memory.host_capacity_bytes and memory.host_bytes_per_node > memory.host_capacity_bytes:
        return f"what is offloaded needs {needed} of host memory per node, more than the {has} that it has"
    needed, has = format_gb(memory.nvme_bytes_per_node), format_gb(memory.nvme_capacity_bytes)
    return f"what is offloaded needs {needed} of drives per node, more than the {has} that it has"


def _largest_rest(worst: StageMemory) -> str:
    rest = [entry for entry in worst.components if entry.component not in STATES]
    top = max(rest, key=lambda entry: entry.num_bytes)
    return f"{top.component.replace('_', ' ')} {format_gib(top.num_bytes)}"


def _reliefs(question: Plan, bounds: SearchBounds, prediction: Prediction) -> Iterator[Relief]:
    """Changes under which a search finds something, smallest first; more GPUs and a smaller model last."""
    few = replace(bounds, max_predictions=FEW_PREDICTIONS)
    other_batch = batch_repair(question, bounds)
    if other_batch is not None:
        yield other_batch
    found = int(other_batch is not None)
    for hypothesis in _hypotheses(question, few):
        relief = tried(hypothesis)
        if relief is not None:
            yield relief
            found += 1
        if found == MAX_RELIEFS:
            return
    shortage_ratio = _states_bytes(prediction) / prediction.memory.capacity_bytes
    more = next(_more_gpus(question, few, least_factor=shortage_ratio), None)
    if more is None:
        more = next(_more_of_a_bigger_gpu(question, few, prediction), None)
    smaller = next(_smaller_models(question, few, least_factor=shortage_ratio), None)
    yield from (relief for relief in (more, smaller) if relief is not None)


def _hypotheses(question: Plan, bounds: SearchBounds) -> Iterator[Hypothesis]:
    recipe = question.recipe
    yield from free_axes(question, bounds)
    if recipe.attention == "eager":
        flash = replace(question, recipe=replace(recipe, attention="flash"))
        yield Hypothesis(change="attention=flash", question=flash, bounds=bounds)
    if recipe.loss_chunks == 1 and question.model.has_head:
        chunked = replace(question, recipe=replace(recipe, loss_chunks=RELIEF_LOSS_CHUNKS))
        yield Hypothesis(change=f"loss_chunks={RELIEF_LOSS_CHUNKS}", question=chunked, bounds=bounds)
    if bounds.offload is not None or recipe.offload != "none":
        yield from _offload_hypotheses(question, bounds)
    if recipe.optimizer == "adamw" and "adamw-8bit" in OFFERS[question.engine].optimizers:
        small = replace(question, recipe=replace(recipe, optimizer="adamw-8bit"))
        yield Hypothesis(
            change="optimizer=adamw-8bit", question=small, bounds=bounds, caution="other numerics: check the loss"
        )
    for gpu in bigger_gpus(question.cluster.gpu):
        cluster = with_gpu(question.cluster, gpu)
        if cluster is not None:
            bigger = replace(question, cluster=cluster)
            yield Hypothesis(change=f"gpu={gpu.id}", question=bigger, bounds=bounds, caution="other hardware")
    if recipe.adapter == "none" and "lora" in OFFERS[question.engine].adapters:
        lora = replace(question, recipe=replace(recipe, adapter="lora"))
        yield Hypothesis(
            change="adapter=lora", question=lora, bounds=bounds, caution="trains adapters instead of the model"
        )


def _offload_hypotheses(question: Plan, bounds: SearchBounds) -> Iterator[Hypothesis]:
    """Offload modes other than the pinned one; a free search has tried them all already."""
    for offload in ("optimizer", "parameters", "nvme"):
        if offload in OFFERS[question.engine].offloads and offload != question.recipe.offload:
            moved = replace(bounds, offload=(offload,))
            yield Hypothesis(
                change=f"offload={offload}", question=question, bounds=moved, caution="the update runs on the host"
            )


def _states_bytes(prediction: Prediction) -> int:
    worst = prediction.memory.worst
    return sum(worst.component_bytes(component) for component in STATES)


def _doublings(least_factor: float) -> int:
    """The first power of two, of two and more, that is not below a factor."""
    factor = 2
    while factor < least_factor:
        factor *= 2
    return factor


def _more_of_a_bigger_gpu(question: Plan, bounds: SearchBounds, prediction: Prediction) -> Iterator[Relief]:
    """The largest part of the same make in as many GPUs as it takes, where more of the own part do not help."""
    for gpu in reversed(bigger_gpus(question.cluster.gpu)):
        cluster = with_gpu(question.cluster, gpu)
        if cluster is not None:
            least = _states_bytes(prediction) / gpu.memory_bytes
            yield from _more_gpus(
                replace(question, cluster=cluster), bounds, least_factor=least, prefix=f"gpu={gpu.id} "
            )


def _smaller_models(question: Plan, bounds: SearchBounds, *, least_factor: float) -> Iterator[Relief]:
    """The first half, quarter and so on of the parameters, in the usual shape, that fits as everything else is."""
    if question.model.is_moe:
        return
    factor = _doublings(least_factor)
    for _ in range(MAX_HALVINGS):
        billions = question.model.num_params / factor / 1e9
        try:
            smaller = replace(question, model=read_model(f"{billions:.2g}B"))
        except ShardwiseError:  # no usual shape is so small
            return
        relief = tried(
            Hypothesis(change=f"model={billions:.2g}B", question=smaller, bounds=bounds, caution="another model")
        )
        if relief is not None:
            yield relief
        factor *= 2


def _more_gpus(question: Plan, bounds: SearchBounds, *, least_factor: float = 2, prefix: str = "") -> Iterator[Relief]:
    """The smallest doubling of the cluster on which something fits; a part of a server grows to whole ones."""
    factor = _doublings(least_factor)
    while factor <= MAX_GPU_FACTOR:
        cluster = resized(question.cluster, factor * question.cluster.num_gpus)
        if not isinstance(cluster, str):
            step = replace(question, cluster=cluster, recipe=_with_divisible_batch(question, cluster.num_gpus).recipe)
            change = prefix + size_text(cluster, asked=question.cluster)
            relief = tried(Hypothesis(change=change, question=step, bounds=bounds, caution=f"{factor} times the GPUs"))
            if relief is not None:
                yield relief
                return
        factor *= 2


def _with_divisible_batch(question: Plan, num_gpus: int) -> Plan:
    """The question with a batch that gives every GPU of a larger cluster at least one sequence."""
    size = question.global_batch_size
    if size % num_gpus == 0:
        return question
    larger = -(-size // num_gpus) * num_gpus
    return replace(question, recipe=replace(question.recipe, global_batch_size=larger))
