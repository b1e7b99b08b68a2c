"""Attention over a sequence that context-parallel ranks divide, task by task.

A rank attends to its own keys and values and to those of every other rank, piece by piece; under a causal mask zig-zag
gives every rank equal pieces. How keys and values travel depends on the engine:

- *ring* (Megatron): each hop runs beside the piece before the one that needs it. In backward the gradients of keys and
  values follow one piece behind and come home after the last, beside nothing;
- *gather* (torch ``experimental/_context_parallel/_attention.py``): one all-gather beside a rank's own piece; in
  backward the gradients follow one piece behind, and the last hop brings them home. A compiler that traces these calls
  waits for each where it stands (``_functional_collectives.py``, ``_maybe_wrap_tensor``), so that nothing is hidden;
- *exchange* (Ulysses, DeepSpeed): tokens against heads before attention, and back after it.

Hops and calls are those that the inventory lists for a block (``step/collectives.py``).
"""

from dataclasses import replace

from shardwise.predict.task_writer import TaskWriter
from shardwise.simulate.engine import Task
from shardwise.units import Seconds


def attention_tasks(writer: TaskWriter, name: str, duration_s: Seconds, *, cp: int, is_traced: bool = False) -> None:
    """Attention of one block in the direction of the writer."""
    gather = writer.take("cp", "all_gather")
    hops = [call for _ in range(cp) if (call := writer.take("cp", "send_recv")) is not None]
    if gather is not None:
        _gathered(writer, name, duration_s / cp, gather, hops, cp=cp, is_traced=is_traced)
    elif hops and writer.phase == "backward":
        _ring_backward(writer, name, duration_s / cp, hops)
    elif hops:
        _ring(writer, name, duration_s / cp, hops)
    else:
        writer.wait(writer.take("cp", "all_to_all"))
        writer.work(name, duration_s)
        writer.wait(writer.take("cp", "all_to_all"))


def _gathered(
    writer: TaskWriter, name: str, piece_s: Seconds, gather: Task, hops: list[Task], *, cp: int, is_traced: bool
) -> None:
    """Pieces after one gather; in backward hop i follows piece i, beside piece i + 1 unless all is waited for."""
    if is_traced:
        writer.wait(gather)
        writer.work(name, cp * piece_s)
        for hop in hops:
            writer.wait(hop)
        return
    writer.beside(gather, f"{name} own piece", piece_s)
    if not hops:
        writer.work(f"{name} other pieces", piece_s * (cp - 1))
        return
    worked = writer.tail
    sent: tuple[int, ...] = ()
    for number, hop in enumerate(hops, start=1):
        sent = writer.add_call(hop, (*worked, *sent))
        if number < cp:
            worked = writer.add_work(f"{name} piece {number + 1}", piece_s, worked)
    writer.tail = (*worked, *sent)


def _ring(writer: TaskWriter, name: str, piece_s: Seconds, hops: list[Task]) -> None:
    """Ring attention: piece i needs hop i, which starts with piece i - 1."""
    worked = passed = writer.tail
    for number, hop in enumerate((*hops, None)):
        ready = tuple(dict.fromkeys((*worked, *passed)))
        if hop is not None:
            passed = writer.add_call(hop, ready)
        worked = writer.add_work(f"{name} piece {number + 1}", piece_s, ready)
    writer.tail = worked


def _ring_backward(writer: TaskWriter, name: str, piece_s: Seconds, hops: list[Task]) -> None:
    """A hop of the inventory is one of keys and values and one, as long, of their gradients."""
    worked = passed = writer.tail
    gradients: tuple[int, ...] = ()
    for number in range(len(hops) + 1):
        ready = tuple(dict.fromkeys((*worked, *passed)))
        if number < len(hops):
            half = replace(hops[number], duration_s=hops[number].duration_s / 2)
            passed = writer.add_call(half, ready)
        worked = writer.add_work(f"{name} piece {number + 1}", piece_s, ready)
        if number:
            half = replace(hops[number - 1], duration_s=hops[number - 1].duration_s / 2)
            gradients = writer.add_call(half, (*worked, *gradients))
    writer.tail = (*worked, *gradients)
