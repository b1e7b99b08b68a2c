"""Who watches the routers of a job's model, and what evens out their load, as job, config and class say."""

from collections.abc import Sequence

import torch
from torch import nn

from shardwise.errors import ModelError
from shardwise.train.decoder.blocks import is_sparse
from shardwise.train.decoder.model import Decoder
from shardwise.train.family_routing import config_loss_coef, num_chosen, num_experts, sparse_blocks, watch_family
from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.job import Job
from shardwise.train.routable import own_loss_coef, require_routable
from shardwise.train.routing import RouterWatch, biases_of

__all__ = ["require_routing", "sparse_blocks_of", "watch_routers"]


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
    coef = require_routing(decoders, job)
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


def require_routing(decoders: Sequence[nn.Module], job: Job) -> float:
    """The coefficient of the auxiliary loss, where all that the job asks of these decoders' routers is possible.

    Raises:
        LayoutError: as :func:`watch_routers`.
        ModelError: the same.
    """
    blocks = sparse_blocks_of(decoders)
    coef = _loss_coef(decoders[0], job) if blocks else 0.0
    if blocks:
        require_routable(job, coef=coef, has_biases=any(biases_of(block) for block in blocks.values()))
    return coef


def _loss_coef(decoder: nn.Module, job: Job) -> float:
    """The coefficient that is asked for, or the one with which transformers would add the loss."""
    asked = job.routing.aux_loss_ratio
    if isinstance(decoder, TransformersDecoder):
        of_class = config_loss_coef(decoder)
        if of_class is None and asked:
            raise ModelError(
                f"transformers computes no auxiliary loss for {job.model_config['model_type']}",
                code="train-router-loss",
                fix="leave out --router-aux-loss-coef; where routers have biases, set --router-bias-update-rate 0.001",
            )
        return (of_class or 0.0) if asked is None else asked
    return own_loss_coef(job)


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
