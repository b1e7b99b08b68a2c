"""The auxiliary loss of a family's small model, as the trainer finds it and as the family's class does."""

import torch

from shardwise.train.family_initialise import fill_as_family
from shardwise.train.family_routing import config_loss_coef, num_chosen, num_experts, sparse_blocks, watch_family
from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.routing import RouterWatch
from train.tiny_families import tiny_fields

CPU = torch.device("cpu")
EAGER = ("gpt_oss",)


def family_decoder(model_type, **fields):
    attention = "eager" if model_type in EAGER else "flash"
    decoder = TransformersDecoder({**tiny_fields(model_type), **fields}, attention=attention)
    decoder.fill_buffers(CPU)
    fill_as_family(decoder.untouched[0], decoder, device=CPU)
    return decoder


def both_losses(model_type):
    """Ours, the class's, and the gradients of both by the name of the parameter."""
    decoder = family_decoder(model_type, output_router_logits=True)
    chosen, coefficient = num_chosen(decoder), config_loss_coef(decoder)
    blocks = sparse_blocks(decoder)
    watch = RouterWatch(
        blocks=blocks,
        num_layers=4,
        num_experts=num_experts(next(iter(blocks.values()))),
        num_chosen=chosen,
        num_copies=1,
        aux_loss_coef=1.0,
        bias_update_rate=0.0,
        device=CPU,
    )
    watch_family(decoder, watch)
    ids = torch.randint(3, 100, (2, 16), generator=torch.Generator().manual_seed(1))
    found = []
    torch.manual_seed(0)  # PhiMoE's routers draw noise
    decoder(ids, ids)
    for loss in (watch.take_loss(torch.tensor(1)), None):
        wanted = loss
        if wanted is None:
            torch.manual_seed(0)
            wanted = decoder.whole[0](input_ids=ids, use_cache=False, output_router_logits=True).aux_loss
        decoder.zero_grad()
        wanted.backward()
        found.append((wanted.item(), {n: p.grad for n, p in decoder.named_parameters() if p.grad is not None}))
    return found, coefficient
