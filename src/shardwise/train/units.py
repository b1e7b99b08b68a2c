"""The units a model is filled, sharded and gathered in: each block, the embedding, the head with its norm."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from shardwise.train.decoder.model import Decoder
from shardwise.train.foreign import ForeignModule
from shardwise.train.huggingface import TransformersDecoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A module whose parameters are gathered together."""

    name: str
    """Name in the whole model."""
    module: nn.Module
    is_block: bool
    is_last_block: bool = False
    is_embedding: bool = False
    is_vocabulary: bool = False
    """The token table or the head, a single matrix with a row for every token."""


def units_of(model: Decoder | TransformersDecoder | ForeignModule) -> Iterator[Unit]:
    """The units of a decoder or of one pipeline chunk; tied tables and tied blocks belong to no unit but the root."""
    if isinstance(model, TransformersDecoder | ForeignModule):
        ends = _ends(model) if isinstance(model, TransformersDecoder) else ()
        yield from ends[:1]
        blocks = list(model.named_blocks())
        holders = Counter(id(parameter) for _, block in blocks for parameter in block.parameters())
        for name, block in blocks:
            if all(holders[id(parameter)] == 1 for parameter in block.parameters()):
                yield Unit(name=name, module=block, is_block=True, is_last_block=block is blocks[-1][1])
        yield from ends[1:]
        return
    body = model.model
    is_tied = model.config.tie_word_embeddings
    if body.embed_tokens is not None and not is_tied:
        yield Unit(
            name="model.embed_tokens", module=body.embed_tokens, is_block=False, is_embedding=True, is_vocabulary=True
        )
    last = len(body.layers) - 1
    for position, (index, block) in enumerate(body.layers.items()):
        yield Unit(
            name=f"model.layers.{index}",
            module=block,
            is_block=True,
            is_last_block=position == last and model.lm_head is not None,
        )
    if model.lm_head is not None and not is_tied:
        yield Unit(name="lm_head", module=model.lm_head, is_block=False, is_vocabulary=True)


def _ends(model: TransformersDecoder) -> tuple[Unit, ...]:
    """Token table and head, where they are two matrices and the class does nothing else with the head."""
    head = model.loss_head
    if head is None or len(model.whole[0].all_tied_weights_keys) > 0:
        return ()
    table = model.whole[0].get_input_embeddings()
    name = next(name for name, module in model.named_modules() if module is table)
    return (
        Unit(name=name, module=table, is_block=False, is_embedding=True, is_vocabulary=True),
        Unit(name=str(model.head_name), module=head, is_block=False, is_vocabulary=True),
    )
