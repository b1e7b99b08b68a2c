"""When nothing fits: the plan that misses the device by least, what fills it, and the smallest changes that help."""

from dataclasses import replace
from itertools import groupby

from shardwise.cluster import Cluster
from shardwise.ledger import MemoryComponent
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import MemoryPrediction, Prediction, StageMemory
from shardwise.rules.changes import changes_text
from shardwise.rules.token_batch import on_cluster
from shardwise.search.bounds import SearchBounds
from shardwise.search.candidates import OFFLOADS
from shardwise.search.clusters import bigger_gpus, size_change, with_gpu
from shardwise.search.edits import HARDWARE, Edit, question_edits, worth
from shardwise.search.hypotheses import Hypothesis, first_that_helps, free_axes, has_plan, relief_of
from shardwise.search.nearest import nearest_plan
from shardwise.search.nearest_size import nearest_size
from shardwise.search.one_pass import Found
from shardwise.search.records import ClosestPlan, Objective, Relief
from shardwise.search.repairs import batch_repair
from shardwise.units import format_gb, format_gib

__all__ = ["closest_plan", "more_gpus", "what_it_lacks"]

FEW_PREDICTIONS = 6
MAX_GPU_FACTOR = 1024
MOVED_FIELDS = ("offload", "activation_offload")
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
    """Changes under which a search finds something: near batches and freed bounds, then of each kind of edits the first
    that helps, in the order of :func:`~shardwise.search.edits.worth`."""
    few = replace(bounds, max_predictions=FEW_PREDICTIONS)
    near = (
        batch_repair(question, bounds, objective=objective),
        first_that_helps(free_axes(question, few), objective=objective),
    )
    first = [relief for relief in near if relief is not None]
    found: list[tuple[int, Relief]] = []
    edits = [edit for edit in question_edits(question, prediction.memory) if _is_untried(edit, bounds)]
    for (_, effort), kind in groupby(edits, key=lambda edit: (_kind(edit), edit.effort)):
        hypotheses = (_edited(edit, few) for edit in kind)
        relief = first_that_helps(hypotheses, objective=objective)
        found += [] if relief is None else [(effort, relief)]
    more = more_gpus(question, few) or _more_of_a_bigger_gpu(question, few)
    relief = None if more is None else relief_of(more, objective=objective)
    found += [] if relief is None else [(HARDWARE, relief)]
    found.sort(key=lambda one: worth(one[1].plan, asked=question, effort=one[0], step_s=one[1].step_s))
    return (*first, *(relief for _, relief in found))


def _kind(edit: Edit) -> str:
    """The field that an edit changes; each adapter is of its own, as frozen weights of 16 bits that fit because they
    wait for the host may be slower than those of 4 bits."""
    field, value = edit.changes[0]
    return f"{field}={value}" if field == "adapter" else field


def _is_untried(edit: Edit, bounds: SearchBounds) -> bool:
    """Whether an edit changes something that the search did not choose by itself."""
    moved = [name for name, _ in edit.changes if name in MOVED_FIELDS]
    return bool(edit.changes) and (not moved or not bounds.allows(edit.changes))


def _edited(edit: Edit, bounds: SearchBounds) -> Hypothesis:
    """The question with an edit, and with what moves to the host as the edit says."""
    offload, activations = (dict(edit.changes).get(name) for name in MOVED_FIELDS)
    if offload is not None:
        bounds = replace(bounds, offload=tuple(one for one in OFFLOADS if one == offload))
    if activations is not None:
        bounds = replace(bounds, activation_offload=bool(activations))
    caution = "" if "gpu" in dict(edit.changes) else edit.cost  # dollars say what another GPU costs
    return Hypothesis(change=changes_text(edit.changes), question=edit.plan, bounds=bounds, caution=caution)


def _states_bytes(prediction: Prediction) -> int:
    worst = prediction.memory.worst
    return sum(worst.component_bytes(component) for component in STATES)


def _more_of_a_bigger_gpu(question: Plan, bounds: SearchBounds) -> Hypothesis | None:
    """The largest part of the same make in as many GPUs as it takes, where more of the own part do not help."""
    for gpu in reversed(bigger_gpus(question.cluster.gpu)):
        cluster = with_gpu(question.cluster, gpu)
        found = None if cluster is None else more_gpus(replace(question, cluster=cluster), bounds, f"gpu={gpu.id} ")
        if found is not None:
            return found
    return None


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
