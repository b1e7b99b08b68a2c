"""Explains an out-of-memory message: what its own numbers say, and which tensor of the plan the request was."""

from dataclasses import replace

from shardwise.explain.allocation import AllocationMatch, match_plan, match_shapes
from shardwise.explain.changes import NOTHING_FITS, first_remedy
from shardwise.explain.oom_text import OomMessage, Size, parse_oom, parse_size
from shardwise.explain.records import Finding, Quantity
from shardwise.explain.told import Predicted
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import FIT_VERBS, Prediction
from shardwise.units import format_gib, format_percent

__all__ = ["explain_allocation", "explain_out_of_memory"]

SHOWN_MATCHES = 4
FRAGMENTED_FRACTION = 0.10
"""Share of the device in cached but unused blocks from which fragmentation is worth naming."""
SAME_CAPACITY_FRACTION = 0.02
TELLING_FRACTION = 0.05


def explain_out_of_memory(text: str, *, plan: Plan | None = None) -> tuple[Finding, ...]:
    """Findings about a message of torch (CUDA, HIP, XPU, MPS, CPU) or XLA.

    Args:
        text: the message, or a log that holds it.
        plan: what was running; without it the request is read by shapes alone.
    """
    message = parse_oom(text)
    return (
        _request(message),
        *_against_plan(message, plan),
        *_accounting(message),
        *_matches(message.request, is_rounded_up=message.is_rounded_up, plan=plan),
    )


def explain_allocation(size: str, *, plan: Plan | None = None) -> tuple[Finding, ...]:
    """Which tensor an allocation of this size is.

    Args:
        size: bytes, or a size with its unit such as ``32.00 GiB``.
        plan: what was running; without it the size is read by shapes alone.
    """
    return _matches(parse_size(size), is_rounded_up=True, plan=plan)


def _request(message: OomMessage) -> Finding:
    request = message.request
    numbers = [Quantity(name="requested", value=request.num_bytes, unit="bytes")]
    sizes = (("free", message.free), ("capacity", message.capacity), ("allocated", message.allocated))
    numbers += [Quantity(name=name, value=size.num_bytes, unit="bytes") for name, size in sizes if size is not None]
    if message.capacity is not None and request.num_bytes > message.capacity.num_bytes:
        return Finding(
            topic="out-of-memory",
            claim=f"One tensor of {request.text} was asked for on a device of {message.capacity.text}: freeing memory "
            "cannot help.",
            numbers=tuple(numbers),
            because="a single allocation cannot be larger than the device",
            suggestion="make that tensor smaller; see which it is below",
        )
    free = f"{message.free.text} were free" if message.free else "less than that was free"
    return Finding(
        topic="out-of-memory",
        claim=f"The framework asked for {request.text}, and {free}.",
        numbers=tuple(numbers),
        because="the allocator asks the driver in steps of 2 MiB (20 MiB for tensors of 1 to 10 MiB), so the tensor "
        "itself may be a little smaller"
        if message.is_rounded_up
        else "the figure is the request itself",
    )


def _accounting(message: OomMessage) -> tuple[Finding, ...]:
    found = [_fragmentation(message), _other_processes(message), _outside_allocator(message), _limit(message)]
    return tuple(finding for finding in found if finding is not None)


def _fragmentation(message: OomMessage) -> Finding | None:
    unallocated, capacity = message.unallocated_bytes, message.capacity
    if unallocated is None or capacity is None or not capacity.num_bytes:
        return None
    share = unallocated / capacity.num_bytes
    holds_request = unallocated >= message.request.low_bytes
    if share < FRAGMENTED_FRACTION and not holds_request:
        return None
    numbers = (
        Quantity(name="reserved but unallocated", value=unallocated, unit="bytes"),
        Quantity(name="requested", value=message.request.num_bytes, unit="bytes"),
    )
    claim = (
        f"Fragmentation: {format_gib(unallocated)} are held by the allocator but in no tensor "
        f"({format_percent(share)} of the device)"
    )
    if holds_request:
        claim += ", more than was asked for, only not in one piece"
    return Finding(
        topic="out-of-memory",
        claim=claim + ".",
        numbers=numbers,
        because="blocks freed by tensors of other sizes cannot be joined, so a large request finds no hole",
        suggestion="set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (newer torch also reads PYTORCH_ALLOC_CONF), "
        "keep sequence lengths fixed or padded to a few sizes",
    )


def _other_processes(message: OomMessage) -> Finding | None:
    if not message.other_processes:
        return None
    total = sum(size.num_bytes for size in message.other_processes)
    return Finding(
        topic="out-of-memory",
        claim=f"{len(message.other_processes)} other process(es) hold {format_gib(total)} of the same GPU.",
        numbers=(Quantity(name="other processes", value=total, unit="bytes"),),
        because="the message lists processes besides this one",
        suggestion="stop them (nvidia-smi shows who they are), or check that every rank got its own device "
        "(torch.cuda.set_device(local_rank))",
    )


def _outside_allocator(message: OomMessage) -> Finding | None:
    outside = message.outside_allocator_bytes
    if outside is None or message.capacity is None:
        return None
    return Finding(
        topic="out-of-memory",
        claim=f"{format_gib(outside)} of this process are outside the framework's allocator.",
        numbers=(Quantity(name="outside the allocator", value=outside, unit="bytes"),),
        because="the device context, NCCL communicators and other libraries allocate by themselves",
        suggestion="fewer process groups and NCCL channels make it smaller (NCCL_MAX_NCHANNELS, NCCL_BUFFSIZE)"
        if outside > FRAGMENTED_FRACTION / 2 * message.capacity.num_bytes
        else "",
    )


def _limit(message: OomMessage) -> Finding | None:
    if message.allowed is None:
        return None
    return Finding(
        topic="out-of-memory",
        claim=f"The process may use only {message.allowed.text} of the device.",
        numbers=(Quantity(name="allowed", value=message.allowed.num_bytes, unit="bytes"),),
        because="torch.cuda.set_per_process_memory_fraction set a limit",
        suggestion="raise or remove the fraction",
    )


def _matches(size: Size, *, is_rounded_up: bool, plan: Plan | None) -> tuple[Finding, ...]:
    matches = match_plan(size, plan=plan, is_rounded_up=is_rounded_up) if plan is not None else ()
    if matches:
        return tuple(_match(match, size) for match in _distinct(matches)[:SHOWN_MATCHES])
    shapes = match_shapes(size, is_rounded_up=is_rounded_up)
    if not shapes:
        return (_no_match(size, plan),)
    return tuple(_match(match, size) for match in shapes[:SHOWN_MATCHES])


def _distinct(matches: tuple[AllocationMatch, ...]) -> list[AllocationMatch]:
    """One match per kind and size: many weights share a shape."""
    seen: dict[tuple[str, int], AllocationMatch] = {}
    for match in matches:
        key = (match.group, match.num_bytes)
        known = seen.get(key)
        if known is None:
            seen[key] = match
        elif known.name.count(",") < SHOWN_MATCHES:
            seen[key] = replace(known, name=f"{known.name}; {match.name}")
    return list(seen.values())


def _match(match: AllocationMatch, size: Size) -> Finding:
    certainty = {
        "exact": "has exactly this size in the plan"
        if match.num_bytes == size.num_bytes
        else "has this size in the plan",
        "unmade": "would have this size, and the plan makes none",
        "multiple": "would have this size with a larger micro-batch than the plan's",
        "shape": "would have this size, by its shape alone",
    }[match.kind]
    telling = "" if match.chance_fraction < TELLING_FRACTION else "; an unrelated tensor could have this size as well"
    return Finding(
        topic="allocation",
        claim=f"{match.name}: {certainty} ({format_gib(match.num_bytes)}).",
        numbers=(
            Quantity(name="bytes", value=match.num_bytes, unit="bytes"),
            Quantity(name="chance of a coincidence", value=match.chance_fraction, unit="fraction"),
        ),
        because=match.expression + telling,
        suggestion=match.fix,
    )


def _no_match(size: Size, plan: Plan | None) -> Finding:
    where = "of this plan" if plan is not None else "that can be told without a plan"
    return Finding(
        topic="allocation",
        claim=f"{size.text} is no tensor {where}.",
        numbers=(Quantity(name="bytes", value=size.num_bytes, unit="bytes"),),
        because="it matches no weight, unit, flat buffer, activation, logits or scores within the rounding of the text"
        if plan is not None
        else "small or common sizes fit too many shapes",
        suggestion="check that micro_batch_size and seq_len are those of the run that failed"
        if plan is not None
        else "give the plan that was running",
    )


def _against_plan(message: OomMessage, plan: Plan | None) -> tuple[Finding, ...]:
    """The memory that the plan is predicted to need, beside the message's, and whether the device is the plan's."""
    if plan is None:
        return ()
    prediction = predict(plan)
    memory = prediction.memory
    found = [_need(message, plan, prediction)]
    capacity = message.capacity
    if capacity is not None and abs(capacity.num_bytes / memory.capacity_bytes - 1) > SAME_CAPACITY_FRACTION:
        found.append(
            Finding(
                topic="caution",
                claim=f"The message comes from a device of {capacity.text}, the plan is for {plan.cluster.gpu.name} "
                f"with {format_gib(memory.capacity_bytes)}.",
                suggestion="use the cluster that the message is from",
            )
        )
    return tuple(found)


def _need(message: OomMessage, plan: Plan, prediction: Prediction) -> Finding:
    """The plan's own need by the prediction, the log's figures of the same things, and what to change."""
    memory, allocated, outside = prediction.memory, message.allocated, message.outside_allocator_bytes
    told_by_plan = Predicted(plan=plan, prediction=prediction).told
    numbers = [
        told_by_plan("predicted need", "memory.needed_bytes", "bytes"),
        told_by_plan("predicted peak in tensors", "memory.peak_allocated_bytes", "bytes"),
    ]
    logged = f"the message asks for {message.request.text}"
    if allocated is not None:
        logged = f"the message has {allocated.text} in tensors and asks for {message.request.text} more"
        at_failure = allocated.num_bytes + message.request.num_bytes
        numbers.append(Quantity(name="in tensors at the failure", value=at_failure, unit="bytes"))
    if outside is not None:
        numbers.append(told_by_plan("predicted framework", "memory.components_bytes.framework", "bytes"))
        numbers.append(Quantity(name="outside the allocator at the failure", value=outside, unit="bytes"))
    return Finding(
        topic="out-of-memory",
        claim=f"The plan {FIT_VERBS[memory.fit]} by prediction: it needs {format_gib(memory.needed_bytes)} of "
        f"{format_gib(memory.capacity_bytes)} per GPU; {logged}.",
        numbers=tuple(numbers),
        because=f"the predicted peak is {memory.worst.peak_moment}; the message is about one moment, and the peak may "
        "lie later in the step",
        suggestion=_remedy(plan, prediction),
    )


def _remedy(plan: Plan, prediction: Prediction) -> str:
    """The first change that is predicted to fit; of a plan that should have fitted, what to compare."""
    if prediction.fit == "fits":
        return "the prediction says that it fits: compare the settings, and other processes on the GPU, with the log's"
    change = first_remedy(plan, prediction)
    return NOTHING_FITS if change is None else f"{change.edit} needs {format_gib(change.needed_bytes)} ({change.fit})"
