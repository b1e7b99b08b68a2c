"""Any decoder that transformers can build, trained by the same units, loss and sharding as our own.

Data parallelism in every ZeRO stage; the axes that divide a model's inside need our own decoder.

Shapes: B sequences, S tokens, D hidden, V vocabulary.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from shardwise.recipe import Attention
from shardwise.train.family_initialise import WrittenNumbers, fill_as_family, forget_numbers
from shardwise.train.loss import IGNORED_LABEL, LossSettings, summed_token_loss
from shardwise.train.parameter_kinds import is_marked
from shardwise.train.plain_head import PassedOn, plain_head
from shardwise.train.pretrained.conversion import family_dtype

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
        self.settings = LossSettings()
        self.compute_dtype = dtype
        """dtype of hidden states, and of masks that are added to scores."""
        self.plain_head = plain_head(whole)
        if self.plain_head is not None:
            setattr(whole, self.plain_head, PassedOn(self.get_submodule(self.plain_head)))

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
        options = {} if document_places_BS is None else _apart(self.whole[0], document_places_BS, self.compute_dtype)
        given_BS_ = self.whole[0](input_ids=ids_BS, use_cache=False, **options).logits
        if next_after_B is not None:
            given_BV = given_BS_[torch.arange(ids_BS.size(0), device=ids_BS.device), next_after_B]
            if self.plain_head is not None:
                weight_VD = self.get_submodule(self.plain_head).get_parameter("weight")
                given_BV = given_BV.to(weight_VD.dtype) @ weight_VD.t()
            return given_BV.float().argmax(dim=1)
        assert labels_BS is not None
        if self.plain_head is not None:
            weight_VD = self.get_submodule(self.plain_head).get_parameter("weight")
            return summed_token_loss(given_BS_.flatten(0, 1), weight_VD, labels_BS.flatten(), settings=self.settings)
        return nn.functional.cross_entropy(
            given_BS_.float().flatten(0, 1), labels_BS.flatten(), reduction="sum", ignore_index=IGNORED_LABEL
        )

    def train(self, mode: bool = True) -> Self:
        """Dropout on or off, of the class's own forward too."""
        self.whole[0].training = mode
        return super().train(mode)


def _apart(whole: Any, places_BS: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """What keeps packed documents apart: places that begin anew, and the masks that follow from them.

    transformers makes the masks, as it does before it generates: it knows the kernel, and the windows and chunks of
    every layer. Some families forget the places where they make their masks themselves (gpt_oss, afmoe).
    """
    from transformers.masking_utils import create_masks_for_generate  # noqa: PLC0415 - seconds of imports, not for ours

    make_masks = getattr(whole, "create_masks_for_generate", create_masks_for_generate)
    hidden_BS0 = torch.empty((*places_BS.shape, 0), dtype=dtype, device=places_BS.device)
    # Neither a mask of padding nor a cache, by position: the cache's name has changed since transformers 5.17.
    masks = make_masks(whole.config, hidden_BS0, None, None, position_ids=places_BS)
    return {"position_ids": places_BS, "attention_mask": masks}
