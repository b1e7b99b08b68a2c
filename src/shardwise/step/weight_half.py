"""What waits between the halves of a split backward pass, for gradients of inputs and then of weights.

The half for inputs frees nothing: the graph stays. And it leaves the gradient of what every product and norm put out,
from which the other half starts. The first stage has no inputs to differentiate, and runs both halves as one.

Source: torch 2.13 ``distributed/pipelining/_backward.py`` (``stage_backward_input``: ``retain_graph=True``,
    ``param_group["grads"]``), ``stage.py`` (``backward_one_chunk``). Against traced runs: ``docs/memory.md``.
"""

from collections.abc import Iterator, Sequence

from shardwise.model import LayerSpec, MoeSpec, Weight
from shardwise.step.activation_tensors import has_plain_loss, resident
from shardwise.step.activations import BlockContext
from shardwise.step.gradient_births import births_by_block
from shardwise.step.in_flight import waiting_sets, waits_for_weights
from shardwise.step.inventory import Tensor
from shardwise.step.stage_context import StageContext
from shardwise.units import Bytes

NAME = "waiting for gradients of weights"


def _is_held(context: StageContext) -> bool:
    layout = context.plan.layout
    waits = waits_for_weights(pp=layout.pp, schedule=layout.schedule, stage=context.stage.index)
    return context.is_own_runtime and waits


def block_gradients(layer: LayerSpec, context: BlockContext) -> Bytes:
    """Of what the products and norms of one block put out."""
    norms = layer.num_norms * context.tokens * context.hidden_size // context.sequence_shards
    products = sum(_output_elements(weight, layer, context) for weight in layer.weights if weight.is_matrix)
    return (norms + products) * context.element_bytes


def _output_elements(weight: Weight, layer: LayerSpec, context: BlockContext) -> int:
    rows, tokens = weight.shape[-2], context.tokens
    if weight.is_expert and isinstance(layer.feed_forward, MoeSpec):
        routed = tokens * layer.feed_forward.num_experts_per_tok // context.sequence_shards
        return routed * rows // (context.expert_tp if weight.split == "column" else 1)
    if weight.role == "router":
        return tokens * rows // context.sequence_shards
    shards = min(context.tp, weight.split_limit or context.tp) if weight.split == "column" else 1
    return tokens * rows // shards


def head_gradients(context: StageContext) -> Bytes:
    """Of the final norm and the logits, with the inputs of both; of a divided head what the loss made of it."""
    plan, block = context.plan, context.block_context
    if not (context.stage.has_head and plan.model.has_head):
        return 0
    hidden = context.tokens * block.hidden_size * block.element_bytes
    rows = -(-plan.model.vocab_size // plan.layout.tp)
    if has_plain_loss(plan):
        return 3 * hidden + context.tokens * rows * block.element_bytes
    whole = hidden + context.states.compute_bytes * rows * block.hidden_size * (not context.has_adapter)
    return whole + 3 * hidden // block.sequence_shards


def waiting_gradients(context: StageContext) -> Iterator[Tensor]:
    """What the micro-batches hold whose weights' half waits, beyond the activations of all in flight."""
    if not _is_held(context):
        return
    layout = context.plan.layout
    sets = waiting_sets(
        pp=layout.pp,
        vpp=layout.vpp,
        schedule=layout.schedule,
        stage=context.stage.index,
        num_microbatches=context.plan.num_microbatches,
    )
    block = context.block_context
    of_blocks = sum(held.count * block_gradients(held.layer, block) for held in context.held_runs)
    yield Tensor(
        name=f"{NAME} of other micro-batches",
        component="activations",
        num_bytes=round(sets * (of_blocks + head_gradients(context))),
        born=context.timeline.forward,
        dies=context.timeline.backward_end - 1,
    )


def held_for_weights(context: StageContext, totals: Sequence[Bytes]) -> Iterator[Tensor]:
    """What stays of the running micro-batch, from each block's backward to the end, in place of what others free.

    Args:
        context: the stage.
        totals: what every run of blocks keeps.
    """
    if not _is_held(context):
        return
    timeline, vpp = context.timeline, context.plan.layout.vpp
    end = timeline.backward_end - 1
    head = head_gradients(context) // vpp
    if timeline.head_backward < end:
        yield Tensor(name=NAME, component="activations", num_bytes=head, born=timeline.head_backward + 1, dies=end)
    for run, held in enumerate(context.held_runs):
        gradients = held.count * block_gradients(held.layer, context.block_context)
        num_bytes = (resident(context, totals[run]) + gradients) // vpp
        for part, born in births_by_block(timeline.runs[run], held.count, num_bytes):
            yield Tensor(name=f"{NAME} of blocks[{run}]", component="activations", num_bytes=part, born=born, dies=end)
