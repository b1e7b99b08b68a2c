"""Tensor-parallel products and their collectives, task by task.

A divided sequence is gathered before the products that read it, and partial results are summed after those that make
them. Both are waited for, with two exceptions:

- Megatron's column-parallel backward gathers its input again beside the input gradient, and sums that over ranks beside
  the weight gradient (``core/tensor_parallel/layers.py``, ``LinearWithGradAccumulationAndAsyncCommunication``);
- asynchronous tensor parallelism cuts products and collectives into as many pieces as ranks. A gather brings one piece
  after the other while the product of the piece before runs; a product computes the pieces of other ranks first and
  sends each while the next one runs. Copy engines move the pieces, so neither side slows the other (torch
  ``distributed/_symmetric_memory`` ``_fused_all_gather_matmul`` and ``_fused_matmul_reduce_scatter``). torch fuses a
  reduce-scatter only with the one product that makes its input (``_inductor/fx_passes/micro_pipeline_tp.py``).

The two engines that hide them differ in backward. Its gathers bring what two products read, and its sums follow several
products, so torch's pass gains in forward alone: 29 % of forward and 8 % of the step with Llama 3 7B, 20 and 8 % with
70B, where a forward is a third of the step (discuss.pytorch.org/t/209487, 2024-09). Megatron's user buffers run the
gather before a row-parallel product in pieces, and that of a column-parallel one whole beside its products, as without
user buffers (NVIDIA NeMo ``collections/llm/recipes/tp_overlap_configs/userbuffers.py``, 2025).
"""

from dataclasses import dataclass, replace

from shardwise.predict.block_parts import Direction, Part
from shardwise.predict.task_writer import TaskWriter
from shardwise.simulate.engine import Task
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHabits:
    """How an engine runs tensor parallelism."""

    ranks: int
    overlaps_gradients: bool
    """Whether column-parallel products run their backward beside its collectives."""
    is_async: bool
    """Whether gathers and sums of forward run beside the pieces of their products."""
    partial_sum_s: Seconds = 0.0
    """Seconds to read every rank's partial result and write their sum, which a whole reduce-scatter does on the way."""

    @property
    def backward(self) -> "TensorHabits":
        """The habits of a backward pass, where torch's pass hides nothing."""
        return replace(self, is_async=self.is_async and self.overlaps_gradients)


def gathered_products(writer: TaskWriter, name: str, work: Direction, habits: TensorHabits, *, is_paired: bool) -> None:
    """Gather the divided sequence, if it is divided, and multiply."""
    call = writer.take("tp", "all_gather") if is_paired else None
    if call is not None and habits.is_async and work.num_products:
        _gather_in_pieces(writer, call, name, work, habits.ranks)
    else:
        writer.wait(call)
        writer.work(name, work.total_s)


def reduced_products(writer: TaskWriter, name: str, work: Direction, habits: TensorHabits, *, is_paired: bool) -> None:
    """Multiply, and sum the partial results over ranks."""
    call = _reduction(writer) if is_paired else None
    if call is not None and habits.is_async and work.num_products == 1 and call.category == "reduce_scatter":
        _scatter_in_pieces(writer, call, name, work, habits)
    else:
        writer.work(name, work.total_s)
        writer.wait(call)


def column_backward(writer: TaskWriter, name: str, part: Part, habits: TensorHabits, *, is_paired: bool) -> None:
    """Input gradient, its sum over ranks, and the weight gradient, with the input gathered again for it."""
    if is_paired and habits.overlaps_gradients and part.weight_backward_s:
        _overlapped_gradients(writer, name, part)
        return
    if is_paired:
        writer.wait(writer.take("tp", "all_gather"))
    reduced_products(writer, name, part.backward, habits, is_paired=is_paired)
    writer.work(f"{name} weights", part.weight_backward_s)


def _overlapped_gradients(writer: TaskWriter, name: str, part: Part) -> None:
    before = writer.tail
    again = writer.take("tp", "all_gather")
    gathered = () if again is None else writer.add_call(again, before)
    gradient = writer.add_work(name, part.backward.total_s, before)
    reduction = _reduction(writer)
    reduced = () if reduction is None else writer.add_call(reduction, gradient)
    weights = writer.add_work(f"{name} weights", part.weight_backward_s, (*gradient, *gathered))
    writer.tail = (*weights, *reduced)


def _reduction(writer: TaskWriter) -> Task | None:
    return writer.take("tp", "reduce_scatter") or writer.take("tp", "all_reduce")


def _gather_in_pieces(writer: TaskWriter, call: Task, name: str, work: Direction, ranks: int) -> None:
    """Multiply all pieces but the last beside the gather: ``max(work, call + work / ranks)``."""
    before = writer.tail
    gathered = writer.add_call(replace(call, slowdown_ratio=1.0), before)
    pieces = writer.add_work(name, work.pieces_s * (ranks - 1) / ranks, before)
    writer.tail = (*pieces, *gathered)
    writer.work(f"{name}, last piece", work.pieces_s / ranks)
    writer.work(f"{name}, elementwise", work.others_s)


def _scatter_in_pieces(writer: TaskWriter, call: Task, name: str, work: Direction, habits: TensorHabits) -> None:
    """Multiply all pieces but the first beside the reduction, then sum them."""
    writer.work(f"{name}, elementwise", work.others_s)
    writer.work(f"{name}, first piece", work.pieces_s / habits.ranks)
    before = writer.tail
    scattered = writer.add_call(replace(call, slowdown_ratio=1.0), before)
    pieces = writer.add_work(name, work.pieces_s * (habits.ranks - 1) / habits.ranks, before)
    writer.tail = (*pieces, *scattered)
    writer.work(f"{name}, partial sums", habits.partial_sum_s)
