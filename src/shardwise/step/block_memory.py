"""How many bytes one block keeps and brings back: the tensors of ``saved_activations.py``, added up."""

from dataclasses import dataclass

from shardwise.model import LayerSpec, MoeSpec, Weight
from shardwise.step.saved_activations import BlockContext, SavedTensor, saved_tensors
from shardwise.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMemory:
    """Bytes of one block and one micro-batch."""

    whole: Bytes
    """Bytes kept from forward to backward without recomputation."""
    dense: Bytes
    """The part of ``whole`` that does not belong to routed experts."""
    input: Bytes
    """The part of ``whole`` from which everything else is recomputed: the block's input."""
    kept_selectively: Bytes
    """The part of ``whole`` that is kept under selective recomputation."""
    revived_selectively: Bytes
    """Bytes that selective recomputation brings back at once; single modules come back one after the other."""
    gradients: Bytes
    """Bytes of the gradients of its products' and norms' outputs."""


def block_memory(layer: LayerSpec, context: BlockContext) -> BlockMemory:
    """The bytes of one block."""
    tensors = saved_tensors(layer, context)
    whole = sum(tensor.num_bytes for tensor in tensors)
    kept = _kept_selectively(tensors, context)
    return BlockMemory(
        whole=whole,
        dense=sum(tensor.num_bytes for tensor in tensors if not tensor.is_routed),
        input=tensors[0].num_bytes,
        kept_selectively=kept,
        revived_selectively=_revived_by_module(tensors, context) if context.selective.modules else whole - kept,
        gradients=_gradients(layer, context),
    )


def _kept_selectively(tensors: tuple[SavedTensor, ...], context: BlockContext) -> Bytes:
    """Bytes of one block that selective recomputation keeps, by the first of three rules that applies.

    Where the recipe names modules, all that their recomputation does not drop; else, under Megatron's policy, all but
    the attention scores; else, under torchtitan's, the block's input, attention and every second matrix product, in
    eager mode with the last one: 15.5 and, compiled, 13.5 bytes per token and hidden element of a Llama-3-8B block
    (measured on an H100).
    """
    rule = context.selective
    if rule.modules is not None:
        return sum(tensor.num_bytes for tensor in tensors if not set(rule.modules).intersection(tensor.modules))
    if rule.policy == "core_attention":
        return sum(tensor.num_bytes for tensor in tensors if not tensor.is_core_attention)
    kept = sum(tensor.num_bytes for tensor in tensors if tensor.kept_by_operation_policy)
    last_product = 0 if rule.is_compiled else context.tokens * context.hidden_size * context.element_bytes
    return tensors[0].num_bytes + kept + last_product


def _revived_by_module(tensors: tuple[SavedTensor, ...], context: BlockContext) -> Bytes:
    each = (
        sum(tensor.num_bytes for tensor in tensors if module in tensor.modules)
        for module in context.selective.modules or ()
    )
    return max(each, default=0)


def _gradients(layer: LayerSpec, context: BlockContext) -> Bytes:
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
