"""Any decoder that transformers can build, trained by the same units, loss and sharding as our own.

Data parallelism in every ZeRO stage; ``family_parallel.py`` divides the inside of some families over tp and ep.

Shapes: B sequences, S tokens, D hidden, V vocabulary.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from shardwise.recipe import Attention
from shardwise.train.decoder.groups import ALONE, BlockGroups
from shardwise.train.decoder.model import Head
from shardwise.train.family_initialise import WrittenNumbers, fill_as_family, forget_numbers
from shardwise.train.family_parts import DividedTable, FamilyExperts, no_mask
from shardwise.train.loss import IGNORED_LABEL
from shardwise.train.parameter_kinds import is_marked
from shardwise.train.plain_head import PassedOn, plain_head
from shardwise.train.pretrained.conversion import family_dtype
from shardwise.train.routing import RouterWatch

KERNELS: Mapping[Attention, str] = {"flash": "sdpa", "eager": "eager"}
"""transformers' names for the ways to compute attention; some of its models have the eager one alone."""
BLOCK_MASKS = "flex_attention"
"""transformers' name for the fused attention that needs no whole mask."""


class TransformersDecoder(nn.Module):
    """A causal language model of transformers that returns its summed loss."""

    def __init__(
        self,
        fields: dict[str, Any],
        *,
        dtype: torch.dtype = torch.float32,
        attention: Attention = "flash",
        has_block_masks: bool = False,
    ) -> None:
        super().__init__()
        from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - seconds of imports, not for ours

        options = dict(fields)
        config = AutoConfig.for_model(options.pop("model_type"), **options)
        self.adds_router_loss = bool(getattr(config, "output_router_logits", False))
        """Whether the class would add its auxiliary loss; ``family_routing.py`` computes it instead."""
        if self.adds_router_loss:
            config.output_router_logits = False
        kernel = BLOCK_MASKS if has_block_masks and attention == "flash" else KERNELS[attention]
        with torch.device("meta"), WrittenNumbers():
            whole, untouched = (
                AutoModelForCausalLM.from_config(config, attn_implementation=kernel, dtype=dtype) for _ in range(2)
            )
        self.undecayed = frozenset(name for name, parameter in whole.named_parameters() if is_marked(parameter))
        for name, child in whole.named_children():
            self.add_module(name, child)
        kept = whole.state_dict().keys()
        self.kept_buffer_names = tuple(name for name, _ in whole.named_buffers() if name in kept)
        """Buffers that are part of the model's state, which checkpoints hold."""
        for name in self.kept_buffer_names:
            owner, _, leaf = name.rpartition(".")
            buffer = whole.get_buffer(name)
            setattr(whole.get_submodule(owner), leaf, buffer.to(family_dtype(whole, name, buffer)))
        self.whole = [whole]  # in a list, so that its parameters are registered once
        self.untouched = [untouched]
        """The model as its class made it, whatever is replaced in the trained one; stays on the meta device."""
        forget_numbers(whole)
        self.initializer_ratio = float(getattr(config, "initializer_range", None) or 0.02)
        self.compute_dtype = dtype
        """dtype of hidden states, and of masks that are added to scores."""
        self.groups = ALONE
        self.watch: RouterWatch | None = None
        self.head_name = plain_head(whole)
        if self.head_name is not None:
            head = Head(whole.get_submodule(self.head_name).get_parameter("weight"))
            self.add_module(self.head_name, head)
            setattr(whole, self.head_name, PassedOn(head))

    @property
    def loss_head(self) -> Head | None:
        """The head with its loss; ``None`` where the class of the family makes logits in another way."""
        found = None if self.head_name is None else self.get_submodule(self.head_name)
        return found if isinstance(found, Head) else None

    def join(self, groups: BlockGroups) -> None:
        """Work in these groups from now on."""
        self.groups = groups
        for module in self.modules():
            if isinstance(module, Head | FamilyExperts):
                module.groups = groups
            elif isinstance(module, DividedTable):
                module.join(groups)

    def blocks(self) -> Iterator[nn.Module]:
        """The decoder layers: the longest list of modules."""
        lists = [module for module in self.modules() if isinstance(module, nn.ModuleList)]
        yield from max(lists, key=len)

    def named_blocks(self) -> Iterator[tuple[str, nn.Module]]:
        """The decoder layers with their names in the whole model."""
        blocks = {id(block) for block in self.blocks()}
        yield from ((name, module) for name, module in self.named_modules() if id(module) in blocks)

    def fill_buffers(self, device: torch.device) -> None:
        """Give tables such as rotary frequencies the values that the class of the family gives them."""
        fill_as_family(self.untouched[0], self, device=device, has_buffers_alone=True)

    def forward(
        self,
        ids_BS: Tensor,
        labels_BS: Tensor | None = None,
        document_places_BS: Tensor | None = None,
        next_after_B: Tensor | None = None,
    ) -> Tensor:
        """The summed loss of all tokens that have a label, in fp32; with places, documents see themselves alone.

        ``next_after_B`` asks for the likeliest token after one place of each sequence instead.
        """
        options = self._places(ids_BS, document_places_BS)
        if self.watch is not None:
            self.watch.open()
        given_BS_ = self.whole[0](input_ids=ids_BS, use_cache=False, **options).logits
        if self.watch is not None:
            self.watch.close()
        if self.loss_head is not None:
            return self.loss_head(given_BS_, labels_BS, next_after_B)
        if next_after_B is not None:
            rows_B = torch.arange(ids_BS.size(0), device=ids_BS.device)
            return given_BS_[rows_B, next_after_B].float().argmax(dim=1)
        assert labels_BS is not None
        return nn.functional.cross_entropy(
            given_BS_.float().flatten(0, 1), labels_BS.flatten(), reduction="sum", ignore_index=IGNORED_LABEL
        )

    def _places(self, ids_BS: Tensor, places_BS: Tensor | None) -> dict[str, Any]:
        """Positions and masks of tokens, where the class would not work them out by itself.

        It knows no documents, and under sequence parallelism it sees a part of the sequence alone.
        """
        if places_BS is not None:
            return {"position_ids": places_BS, "attention_mask": _masks(self.whole[0], places_BS, self.compute_dtype)}
        if not self.groups.is_sequence_parallel:
            return {}
        masks = _masks(self.whole[0], ids_BS, self.compute_dtype, has_documents=False)
        positions_1S = torch.arange(ids_BS.size(1), device=ids_BS.device)[None]
        return {"position_ids": positions_1S, "attention_mask": no_mask(ids_BS.device) if masks is None else masks}

    def train(self, mode: bool = True) -> Self:
        """Dropout on or off, of the class's own forward too."""
        self.whole[0].training = mode
        return super().train(mode)


def _masks(whole: Any, places_BS: Tensor, dtype: torch.dtype, *, has_documents: bool = True) -> Any:
    """The masks of every kind of layer; with documents, those that follow from places that begin anew.

    transformers makes the masks, as it does before it generates: it knows the kernel, and the windows and chunks of
    every layer. Some families forget the places where they make their masks themselves (gpt_oss, afmoe).
    """
    from transformers.masking_utils import create_masks_for_generate  # noqa: PLC0415 - seconds of imports, not for ours

    make_masks = getattr(whole, "create_masks_for_generate", create_masks_for_generate)
    hidden_BS0 = torch.empty((*places_BS.shape, 0), dtype=dtype, device=places_BS.device)
    # Neither a mask of padding nor a cache, by position: the cache's name has changed since transformers 5.17.
    return make_masks(whole.config, hidden_BS0, None, None, position_ids=places_BS if has_documents else None)
