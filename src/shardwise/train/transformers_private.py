"""What the trainer uses of transformers that it does not offer as public, each with what it is for.

Nobody else names it. Read in transformers 5.24, where ``modeling_utils.PreTrainedModel`` has all of them.
"""

from typing import Any

import torch
from torch import nn

from shardwise.train.library_gate import library_gate

__all__ = ["fill_with_its_own_values", "kept_dtypes", "may_be_missing_patterns", "recorded_routers", "unsaved_names"]


def fill_with_its_own_values(author: Any, module: nn.Module) -> None:
    """Give a module the first values that the class of the model draws for it."""
    with library_gate("transformers"):
        fill = author._init_weights
    fill(module)


def kept_dtypes(model: Any) -> dict[str, torch.dtype]:
    """Patterns of the tensors that a class keeps in another type than the model's, and that type."""
    with library_gate("transformers"):
        made = model._get_dtype_plan
    return made(model.dtype)


def may_be_missing_patterns(model: Any) -> tuple[str, ...]:
    """Patterns of the tensors that the class expects some checkpoints to lack."""
    with library_gate("transformers"):
        return tuple(model._keys_to_ignore_on_load_missing or ())


def unsaved_names(model: Any) -> tuple[str, ...]:
    """The tensors that ``save_pretrained`` leaves out."""
    with library_gate("transformers"):
        return tuple(model._keys_to_ignore_on_save or ())


def recorded_routers(model: Any) -> tuple[tuple[type, int], ...]:
    """The classes whose output holds router logits in a model, and at which place of it; none in a dense model."""
    with library_gate("transformers"):
        tables = [part._can_record_outputs or {} for part in model.modules() if hasattr(part, "_can_record_outputs")]
    found = [table["router_logits"] for table in tables if "router_logits" in table]
    recorders = [one for each in found for one in (each if isinstance(each, list) else [each])]
    pairs = [(one.target_class, one.index) if hasattr(one, "target_class") else (one, 0) for one in recorders]
    return tuple(dict.fromkeys(pairs))
