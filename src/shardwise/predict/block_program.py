"""One block of a micro-batch as a program, its collectives where they happen."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardwise.predict.block_parts import Branch
from shardwise.predict.block_steps import BlockCall, Step, StepWriter
from shardwise.predict.context_parallel_steps import attention_steps
from shardwise.predict.tensor_parallel_steps import (
    TensorHabits,
    column_backward,
    gathered_products,
    reduced_products,
)
from shardwise.step.inventory import OperationPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHabits:
    """What an engine runs beside the collectives of a block."""

    tensor: TensorHabits
    cp: int
    hides_combine: bool
    """Shared experts run beside the way back of routed tokens."""


def forward_steps(
    branches: Sequence[Branch],
    calls: Iterable[BlockCall],
    habits: BlockHabits,
    *,
    phase: OperationPhase = "forward",
) -> tuple[Step, ...]:
    """A block's forward, or the same again when it is recomputed."""
    writer = StepWriter(calls, phase)
    pairs = _num_pairs(writer)
    for index, branch in enumerate(branches):
        is_paired = index < pairs
        writer.work(f"{branch.name} norm", branch.part("norm").forward.total_s)
        if branch.has_experts:
            _routed_forward(writer, branch, habits, is_paired=is_paired)
            continue
        inputs, outputs = branch.part("inputs").forward, branch.part("outputs").forward
        gathered_products(writer, f"{branch.name} inputs", inputs, habits.tensor, is_paired=is_paired)
        _core(writer, branch, branch.part("core").forward.total_s, habits)
        reduced_products(writer, f"{branch.name} outputs", outputs, habits.tensor, is_paired=is_paired)
    return writer.finished()


def backward_steps(branches: Sequence[Branch], calls: Iterable[BlockCall], habits: BlockHabits) -> tuple[Step, ...]:
    """A block's backward, without what is recomputed for it."""
    writer = StepWriter(calls, "backward")
    pairs = _num_pairs(writer)
    for index, branch in reversed(tuple(enumerate(branches))):
        is_paired = index < pairs
        if branch.has_experts:
            _routed_backward(writer, branch, is_paired=is_paired)
        else:
            outputs = branch.part("outputs")
            name = f"{branch.name} outputs"
            gathered_products(writer, name, outputs.backward, habits.tensor, is_paired=is_paired)
            writer.work(f"{name} weights", outputs.weight_backward_s)
            _core(writer, branch, branch.part("core").backward.total_s, habits)
            inputs = branch.part("inputs")
            column_backward(writer, f"{branch.name} inputs", inputs, habits.tensor, is_paired=is_paired)
        writer.work(f"{branch.name} norm", branch.part("norm").whole_backward_s)
    return writer.finished()


def _num_pairs(writer: StepWriter) -> int:
    """Branches whose products communicate: one sum in each direction."""
    return max(writer.count("tp", "reduce_scatter"), writer.count("tp", "all_reduce"))


def _core(writer: StepWriter, branch: Branch, duration_s: float, habits: BlockHabits) -> None:
    """Attention in pieces when the first branch's sequence is divided, or any other core."""
    if habits.cp > 1 and branch.name.startswith("attention"):
        attention_steps(writer, branch.name, duration_s, cp=habits.cp)
    else:
        writer.work(branch.name, duration_s)


def _routed_forward(writer: StepWriter, branch: Branch, habits: BlockHabits, *, is_paired: bool) -> None:
    """Route, send, compute and bring back; shared experts before the exchanges, or beside the way back."""
    writer.wait(writer.take("tp", "all_gather") if is_paired else None)
    shared_s = branch.part("shared experts").forward.total_s
    writer.work("routing", branch.part("inputs").forward.total_s)
    writer.work("shared experts", 0.0 if habits.hides_combine else shared_s)
    writer.wait(writer.take("ep", "all_to_all", name="expert dispatch"))
    writer.work("experts", branch.part("experts").forward.total_s)
    combine = writer.take("ep", "all_to_all", name="expert combine")
    writer.beside(combine, "shared experts", shared_s if habits.hides_combine else 0.0)
    writer.work("combined experts", branch.part("outputs").forward.total_s)
    writer.wait(_reduction(writer, is_paired=is_paired))


def _routed_backward(writer: StepWriter, branch: Branch, *, is_paired: bool) -> None:
    writer.wait(writer.take("tp", "all_gather") if is_paired else None)
    writer.work("combined experts", branch.part("outputs").whole_backward_s)
    writer.wait(writer.take("ep", "all_to_all", name="expert combine"))
    writer.work("experts", branch.part("experts").whole_backward_s)
    writer.wait(writer.take("ep", "all_to_all", name="expert dispatch"))
    writer.work("shared experts", branch.part("shared experts").whole_backward_s)
    writer.work("routing", branch.part("inputs").whole_backward_s)
    again = writer.count("tp", "all_gather") > writer.count("tp", "reduce_scatter") if is_paired else False
    writer.wait(writer.take("tp", "all_gather") if again else None)
    writer.wait(_reduction(writer, is_paired=is_paired))


def _reduction(writer: StepWriter, *, is_paired: bool) -> BlockCall | None:
    if not is_paired:
        return None
    return writer.take("tp", "reduce_scatter") or writer.take("tp", "all_reduce")
