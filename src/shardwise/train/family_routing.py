"""Listen to the routers of a model that transformers builds, where its class calls routers and experts.

transformers' own ``output_router_logits`` takes a mask that is not two-dimensional for one of padding, and balances the
tokens of one rank.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.routing import RouterWatch, Routing, Scores, count_experts, score_experts
from shardwise.train.transformers_private import recorded_routers

__all__ = ["config_loss_coef", "experts_of", "num_chosen", "num_experts", "sparse_blocks", "watch_family"]

EXPERTS = "experts"
"""The name of the module that takes tokens, their experts and their weights, in every family that has one."""
COEFFICIENT_NAMES = ("router_aux_loss_coef", "aux_loss_coef", "moe_loss_weight")
"""Names of the loss's coefficient: the second is JetMoE's, the third DBRX's."""
CHOSEN_NAMES = ("num_experts_per_tok", "moe_k", "moe_top_k")
FORMULA = "load_balancing_loss_func"
"""The function that a family's module has where its class adds an auxiliary loss; all of them compute the same."""


def experts_of(block: nn.Module) -> nn.Module | None:
    """The stacked experts of a block; ``None`` in a dense one."""
    found = (module for name, module in block.named_modules() if name.rpartition(".")[2] == EXPERTS)
    return next((module for module in found if not isinstance(module, nn.ModuleList)), None)


def sparse_blocks(decoder: TransformersDecoder) -> dict[int, nn.Module]:
    """The blocks with experts, by their place in the model."""
    return {index: block for index, block in enumerate(decoder.blocks()) if experts_of(block) is not None}


def num_experts(block: nn.Module) -> int:
    """The experts of a sparse block, on all ranks together."""
    experts = experts_of(block)
    assert experts is not None
    named = getattr(experts, "num_experts", None)
    return named if isinstance(named, int) else int(experts.get_parameter("down_proj").size(0))


def num_chosen(decoder: TransformersDecoder) -> int:
    """The experts of each token, as the auxiliary loss counts them; 1 where the config has no word for it."""
    return int(_said(decoder, CHOSEN_NAMES) or 1)


def config_loss_coef(decoder: TransformersDecoder) -> float | None:
    """The coefficient with which the class would add its auxiliary loss; ``None`` where the class has no such loss."""
    if not hasattr(sys.modules[type(decoder.whole[0]).__module__], FORMULA):
        return None
    return float(_said(decoder, COEFFICIENT_NAMES) or 0.0) if decoder.adds_router_loss else 0.0


def _said(decoder: TransformersDecoder, names: Sequence[str]) -> Any:
    """The first of these fields that the config has, or its part about feed-forward networks (DBRX's)."""
    config = decoder.whole[0].config
    places = (config, getattr(config, "ffn_config", None))
    found = (getattr(place, name, None) for place in places for name in names)
    return next((value for value in found if value is not None), None)


def watch_family(decoder: TransformersDecoder, watch: RouterWatch) -> None:
    """Tell a watch of every router; before blocks are compiled, and after ranks divided the experts."""
    decoder.watch = watch
    routers = recorded_routers(decoder.whole[0])
    for layer, block in watch.blocks.items():
        heard = _Heard(watch, layer)
        experts = experts_of(block)
        assert experts is not None
        experts.register_forward_pre_hook(heard.hear_experts, with_kwargs=True)
        if watch.aux_loss_coef > 0:
            for router, index in _routers(block, routers):
                router.register_forward_hook(heard.scores_at(index))


def _routers(block: nn.Module, routers: tuple[tuple[type, int], ...]) -> Iterator[tuple[nn.Module, int]]:
    for module in block.modules():
        yield from ((module, index) for kind, index in routers if isinstance(module, kind))


class _Heard:
    """Scores and choices of one block's router in the pass under way."""

    def __init__(self, watch: RouterWatch, layer: int) -> None:
        self.watch, self.layer = watch, layer
        self.scores: Scores | None = None
        self.counts_E: Tensor | None = None

    def hear_experts(self, _module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """The experts are given whole numbers that say which of them each token goes to."""
        tensors = [value for value in (*given, *named.values()) if isinstance(value, Tensor)]
        chosen_TK = next((one for one in tensors if not one.is_floating_point() and one.dtype != torch.bool), None)
        if chosen_TK is not None:
            self.counts_E = count_experts(chosen_TK, self.watch.num_experts)
            self._tell()

    def scores_at(self, index: int) -> Callable[[nn.Module, Any, Any], None]:
        """Hears the logits at a place of what a router returns."""

        def hear(_module: nn.Module, _given: Any, output: Any) -> None:
            logits = output[index] if isinstance(output, tuple) else output
            self.scores = score_experts(logits.flatten(0, -2), self.watch.num_chosen)
            self._tell()

        return hear

    def _tell(self) -> None:
        """Whichever of router and experts is heard last completes the record of this pass."""
        if self.counts_E is not None:
            self.watch.note(self.layer, Routing(self.counts_E, self.scores))
        elif self.scores is not None:
            self.watch.note(self.layer, Routing(self.scores.counts, self.scores))
