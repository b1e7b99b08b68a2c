"""Tensors kept between the halves of a split backward pass: first gradients of inputs, later gradients of weights.

The half for inputs frees nothing: the graph stays. It also leaves the output gradient of every product and norm, from
which the other half starts. The first stage has no inputs to differentiate, and runs both halves as one.

Source: torch 2.13 ``distributed/pipelining/_backward.py`` (``stage_backward_input``: ``retain_graph=True``,
    ``param_group["grads"]``), ``stage.py`` (``backward_one_chunk``). Against traced runs: ``docs/memory.md``.
"""

from collections.abc import Iterator, Sequence

from shardwise.columns import either, rounded
from shardwise.step.gradient_first_uses import first_uses_by_block
from shardwise.step.inventory import Tensor
from shardwise.step.stage_activations import resident
from shardwise.step.stage_context import StageContext
from shardwise.units import Bytes

NAME = "waiting for gradients of weights"


def head_gradients(context: StageContext) -> Bytes:
    """Bytes left for the head's weight half: gradients and inputs of the final norm and the logits; a divided head's
    loss has already made the weight gradient, which waits instead."""
    plan, block = context.plan, context.block_context
    if not (context.held.has_head and plan.model.has_head):
        return 0
    hidden = context.tokens * block.hidden_size * block.element_bytes
    rows = -(-plan.model.vocab_size // plan.layout.tp)
    plain = 3 * hidden + context.tokens * rows * block.element_bytes
    whole = hidden + context.states.compute_bytes * rows * block.hidden_size * (not context.has_adapter)
    return either(context.has_plain_loss, plain, whole + 3 * hidden // block.sequence_shards)


def waiting_gradients(context: StageContext) -> Iterator[Tensor]:
    """Tensors of the micro-batches whose weight half waits, beyond the activations of all in flight."""
    if not context.held.waits_for_weights:
        return
    of_blocks = sum(held.count * block.gradients for held, block in zip(context.held_runs, context.blocks, strict=True))
    yield Tensor(
        name=f"{NAME} of other micro-batches",
        component="activations",
        num_bytes=rounded(context.held.num_waiting_sets * (of_blocks + head_gradients(context))),
        first_use=context.timeline.forward,
        last_use=context.timeline.backward_end - 1,
    )


def held_for_weights(context: StageContext, totals: Sequence[Bytes]) -> Iterator[Tensor]:
    """Tensors of the running micro-batch that stay from each block's backward to the end, in place of freed ones.

    Args:
        context: the stage.
        totals: what every run of blocks keeps.
    """
    if not context.held.waits_for_weights:
        return
    timeline, vpp = context.timeline, context.plan.layout.vpp
    end = timeline.backward_end - 1
    head = head_gradients(context) // vpp
    yield Tensor(name=NAME, component="activations", num_bytes=head, first_use=timeline.head_backward + 1, last_use=end)
    for run, held in enumerate(context.held_runs):
        gradients = held.count * context.blocks[run].gradients
        num_bytes = (resident(context, totals[run]) + gradients) // vpp
        for part, first_use in first_uses_by_block(timeline.runs[run], held.count, num_bytes):
            yield Tensor(
                name=f"{NAME} of blocks[{run}]",
                component="activations",
                num_bytes=part,
                first_use=first_use,
                last_use=end,
            )
