"""Any decoder that transformers can build, trained by the same units, loss and sharding as our own.

Data parallelism in every ZeRO stage; the axes that divide a model's inside need our own decoder.

Shapes: B sequences, S tokens, D hidden, V vocabulary.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shardwise.recipe import Attention
from shardwise.train.loss import IGNORED_LABEL, LossSettings, summed_token_loss

KERNELS: Mapping[Attention, str] = {"flash": "sdpa", "eager": "eager"}
"""What transformers calls the ways to compute attention; some of its models have the eager one alone."""
BLOCK_MASKS = "flex_attention"
"""Its name for the fused attention that needs no whole mask."""
LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Fields of models that do more to logits than a product with the head."""


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
        with torch.device("meta"):
            whole = AutoModelForCausalLM.from_config(config, attn_implementation=kernel, dtype=dtype)
        for name, child in whole.named_children():
            self.add_module(name, child)
        self.whole = [whole]  # in a list, so that its parameters are registered once
        self.base_name = whole.base_model_prefix
        self.initializer_ratio = float(getattr(config, "initializer_range", 0.02))
        self.settings = LossSettings()
        self.compute_dtype = dtype
        """Of hidden states, and of masks that are added to scores."""
        head = whole.get_output_embeddings()
        self.has_plain_head = head.bias is None and not any(getattr(config, name, None) for name in LOGIT_CHANGES)

    def blocks(self) -> Iterator[nn.Module]:
        """The decoder layers: the longest list of modules."""
        lists = [module for module in self.modules() if isinstance(module, nn.ModuleList)]
        yield from max(lists, key=len)

    def named_blocks(self) -> Iterator[tuple[str, nn.Module]]:
        """The decoder layers with their names in the whole model."""
        blocks = {id(block) for block in self.blocks()}
        yield from ((name, module) for name, module in self.named_modules() if id(module) in blocks)

    def fill_buffers(self, device: torch.device) -> None:
        """Give tables such as rotary frequencies their values, which transformers computes on first use of a device."""
        for module in self.modules():
            empty = [name for name, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
            for name in empty:
                module.register_buffer(name, torch.empty_like(getattr(module, name), device=device), persistent=False)
            if empty:
                self.whole[0]._init_weights(module)

    def forward(self, ids_BS: Tensor, labels_BS: Tensor, document_places_BS: Tensor | None = None) -> Tensor:
        """The summed loss of all tokens that have a label, in fp32; with places, documents see themselves alone."""
        options = {} if document_places_BS is None else _apart(self.whole[0], document_places_BS, self.compute_dtype)
        hidden_BSD = getattr(self, self.base_name)(input_ids=ids_BS, use_cache=False, **options).last_hidden_state
        head = self.whole[0].get_output_embeddings()
        if self.has_plain_head:
            return summed_token_loss(hidden_BSD.flatten(0, 1), head.weight, labels_BS.flatten(), settings=self.settings)
        logits_BSV = self._changed(head(hidden_BSD)).float()
        return nn.functional.cross_entropy(
            logits_BSV.flatten(0, 1), labels_BS.flatten(), reduction="sum", ignore_index=IGNORED_LABEL
        )

    def _changed(self, logits_BSV: Tensor) -> Tensor:
        """What some families do to logits: a cap (Gemma 2), a factor (Cohere), a divisor (Granite)."""
        config = self.whole[0].config
        cap, factor = getattr(config, "final_logit_softcapping", None), getattr(config, "logit_scale", None)
        divisor = getattr(config, "logits_scaling", None)
        logits_BSV = logits_BSV * factor if factor else logits_BSV
        logits_BSV = logits_BSV / divisor if divisor else logits_BSV
        return torch.tanh(logits_BSV / cap) * cap if cap else logits_BSV


def _apart(whole: Any, places_BS: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """What keeps packed documents apart: places that begin anew, and the masks that follow from them.

    transformers makes the masks, as it does before it generates: it knows the kernel, and the windows and chunks of
    every layer. Some families forget the places where they make their masks themselves (gpt_oss, afmoe).
    """
    from transformers.masking_utils import create_masks_for_generate  # noqa: PLC0415 - seconds of imports, not for ours

    make_masks = getattr(whole, "create_masks_for_generate", create_masks_for_generate)
    hidden_BS0 = torch.empty((*places_BS.shape, 0), dtype=dtype, device=places_BS.device)
    masks = make_masks(whole.config, hidden_BS0, attention_mask=None, cache=None, position_ids=places_BS)
    return {"position_ids": places_BS, "attention_mask": masks}
