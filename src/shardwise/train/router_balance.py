"""Who watches the routers of a job's model, and what evens out their load, as job, config and class say."""

from collections.abc import Sequence

import torch
from torch import nn

from shardwise.errors import LayoutError, ModelError
from shardwise.train.decoder.blocks import is_sparse
from shardwise.train.decoder.model import Decoder
from shardwise.train.family_routing import config_loss_coef, num_chosen, num_experts, sparse_blocks, watch_family
from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.job import Job
from shardwise.train.routing import RouterWatch, biases_of

__all__ = ["sparse_blocks_of", "watch_routers"]

OWN_LOSS_COEF = 0.001
"""``router_aux_loss_coef`` of a Mixtral and of a Qwen3-MoE config that leaves it out. Source: transformers 5.24."""


def sparse_blocks_of(decoders: Sequence[nn.Module]) -> dict[int, nn.Module]:
    """The blocks of this rank with experts, by their place in the model."""
    found: dict[int, nn.Module] = {}
    for decoder in decoders:
        if isinstance(decoder, Decoder):
            layers = decoder.model.layers.items()
            found |= {int(index): block for index, block in layers if is_sparse(block)}
        elif isinstance(decoder, TransformersDecoder):
            found |= sparse_blocks(decoder)
    return found


def watch_routers(decoders: Sequence[nn.Module], job: Job, device: torch.device) -> RouterWatch | None:
    """A watch over the routers of these decoders, which their blocks report to; ``None`` where there is no router.

    Raises:
        LayoutError: an auxiliary loss over all layers is asked for, of which pipeline stages see their own alone.
        ModelError: the model has no bias to move, or its class no auxiliary loss.
    """
    blocks, layout, spec = sparse_blocks_of(decoders), job.layout, job.routing
    if not blocks:
        return None
    coef = _loss_coef(decoders[0], job)
    if coef > 0 and layout.pp > 1:
        raise LayoutError(
            f"the auxiliary loss of routers is one over all layers, and with pp={layout.pp} no rank sees them all",
            code="train-router-loss",
            fix="set pp to 1, or --router-aux-loss-coef 0",
        )
    if spec.bias_update_ratio > 0 and not any(biases_of(block) for block in blocks.values()):
        raise ModelError(
            f"{job.model_config['model_type']} adds no bias before it chooses experts, so none can be moved",
            code="train-router-bias",
            fix="leave out --router-bias-update-rate, or set --router-aux-loss-coef 0.001",
        )
    if not (coef or spec.bias_update_ratio or spec.expert_load in ("ratio", "counts")):
        return None
    watch = RouterWatch(
        blocks=blocks,
        num_layers=_num_layers(decoders[0]),
        num_experts=num_experts(next(iter(blocks.values()))),
        num_chosen=_num_chosen(decoders[0]),
        num_copies=1 if layout.sequence_parallel else layout.tp,
        aux_loss_coef=coef,
        bias_update_rate=spec.bias_update_ratio,
        device=device,
    )
    for decoder in decoders:
        if isinstance(decoder, Decoder):
            decoder.watch_routers(watch)
        elif isinstance(decoder, TransformersDecoder):
            watch_family(decoder, watch)
    return watch


def _loss_coef(decoder: nn.Module, job: Job) -> float:
    """The coefficient that is asked for, or the one with which transformers would add the loss."""
    asked, fields = job.routing.aux_loss_ratio, job.model_config
    if isinstance(decoder, TransformersDecoder):
        of_class = config_loss_coef(decoder)
        if of_class is None and asked:
            raise ModelError(
                f"transformers computes no auxiliary loss for {fields['model_type']}",
                code="train-router-loss",
                fix="leave out --router-aux-loss-coef; where routers have biases, set --router-bias-update-rate 0.001",
            )
        return (of_class or 0.0) if asked is None else asked
    if asked is not None:
        return asked
    given = fields.get("router_aux_loss_coef")
    return float(str(OWN_LOSS_COEF if given is None else given)) if fields.get("output_router_logits") else 0.0


def _num_layers(decoder: nn.Module) -> int:
    if isinstance(decoder, TransformersDecoder):
        return len(list(decoder.blocks()))
    assert isinstance(decoder, Decoder)
    return decoder.config.num_hidden_layers


def _num_chosen(decoder: nn.Module) -> int:
    if isinstance(decoder, TransformersDecoder):
        return num_chosen(decoder)
    assert isinstance(decoder, Decoder)
    return decoder.config.num_experts_per_tok
