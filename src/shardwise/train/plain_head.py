"""Whether the logits of a model of transformers are nothing but hidden states times the head's matrix.

Then the loss needs no logits of the whole batch: hidden states go to the loss that multiplies piece by piece. Families
do more than that in many ways (caps, factors, a norm or a dense layer before the head), so the class's own forward is
asked: with numbers in the place of what its base model answers, and a head that gives back what it is given.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shardwise.train.torch_private import unset_fake_temporarily

__all__ = ["PassedOn", "plain_head"]

NUM_TOKENS = 2
LARGEST = 100.0
"""The probe's hidden states reach from minus this to this, beyond every cap of logits."""


class Answer(NamedTuple):
    """The answer of transformers' base models: hidden states, and nothing of whatever else they may return."""

    last_hidden_state: Tensor
    past_key_values: None = None
    cache: None = None
    cache_params: None = None
    state: None = None
    mems: None = None
    hidden_states: None = None
    attentions: None = None
    cross_attentions: None = None
    router_logits: None = None
    image_hidden_states: None = None


class Answering(nn.Module):
    """Stands for a base model, or for the decoder inside one."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer

    @property
    def decoder(self) -> "Answering":
        """This object itself, for classes that ask the decoder of their base model."""
        return self

    def forward(self, *_given: Any, **_named: Any) -> Answer:
        """The answer to anything."""
        return self.answer


class PassedOn(nn.Module):
    """Stands for a head and gives what it is given; some classes ask for its matrix's dtype."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = [head]  # in a list, so that it is no part of this one

    @property
    def weight(self) -> Tensor:
        """The head's matrix, as it is now."""
        return self.head[0].get_parameter("weight")

    def forward(self, hidden: Tensor) -> Tensor:
        """The hidden states as they are."""
        return hidden


def plain_head(model: Any) -> str | None:
    """The name of the head where the class does nothing to hidden states before it and nothing to logits after it.

    ``None`` where it does more, where the head adds a bias, or where the class cannot be asked: its own logits are
    right in any case.
    """
    from transformers import PreTrainedModel  # noqa: PLC0415 - seconds of imports, not for our decoder

    children = dict(model.named_children())
    name = next((name for name, child in children.items() if child is model.get_output_embeddings()), None)
    bases = [name for name, child in children.items() if isinstance(child, PreTrainedModel)]
    if name is None or len(bases) != 1:
        return None
    head = children[name]
    if type(head).forward is not nn.Linear.forward or head.bias is not None:
        return None
    width = int(head.get_parameter("weight").size(1))
    with unset_fake_temporarily():  # a traced run has numbers here too
        hidden = torch.linspace(-LARGEST, LARGEST, NUM_TOKENS * width).view(1, NUM_TOKENS, width)
        stand_ins = {name: PassedOn(head), bases[0]: Answering(Answer(hidden))}
        try:
            _put(model, stand_ins)
            given = model(input_ids=torch.zeros(1, NUM_TOKENS, dtype=torch.long), use_cache=False).logits
        except Exception:  # noqa: BLE001 - whatever a class says to this is no yes
            return None
        finally:
            _put(model, {name: children[name] for name in stand_ins})
        return name if isinstance(given, Tensor) and torch.equal(given.float(), hidden) else None


def _put(model: nn.Module, modules: Mapping[str, nn.Module]) -> None:
    for name, module in modules.items():
        setattr(model, name, module)
