"""How transformers maps the tensors of checkpoints to those of its modules, taken from transformers itself.

A checkpoint may spell a tensor otherwise than the module that holds it, keep every expert's matrices apart, or have two
matrices in one. transformers has a table of that for every family, which ``from_pretrained`` follows and
``save_pretrained`` reverses (transformers 5.24, ``conversion_mapping.py`` and ``core_model_loading.py``). Here the same
table is followed for one group of tensors at a time, so that memory holds a group and not a model.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from shardwise.train.transformers_private import kept_dtypes, may_be_missing_patterns, unsaved_names

__all__ = ["Conversion", "Group", "conversion_of", "family_dtype"]

Shape = tuple[int, ...]
STACKING = "MergeModulelist"
ALONG_EXPERTS = ("Concatenate", "Transpose")
"""Operations after a stacking that treat every expert by itself, unless they work on its dim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tensors of a checkpoint that become tensors of the model together."""

    first: str
    """The first of the model's tensors."""
    sources: tuple[tuple[str, str], ...]
    """Pattern of the table and name in the checkpoint, in the order of the table."""
    transform: Any = None
    """Converts the sources to the model's tensors; ``None`` where the one source is the one tensor."""

    @property
    def stack_size(self) -> int:
        """Matrices that each pattern stacks along the first dim of the model's tensor; 0 where nothing is stacked."""
        if self.transform is None:
            return 0
        first, *others = self.transform.operations
        dims = [getattr(op, name) for op in others for name in ("dim", "dim0", "dim1") if name in vars(op)]
        is_apart = all(type(op).__name__ in ALONG_EXPERTS for op in others) and 0 not in dims
        if type(first).__name__ != STACKING or first.dim != 0 or not is_apart:
            return 0
        counts = {sum(pattern == other for other, _ in self.sources) for pattern, _ in self.sources}
        return counts.pop() if len(counts) == 1 else 0

    def of_experts(self, start: int, size: int) -> "Group":
        """This group with ``size`` matrices of every stack alone, from ``start`` on."""
        kept, seen = [], dict.fromkeys((pattern for pattern, _ in self.sources), 0)
        for pattern, name in self.sources:
            if start <= seen[pattern] < start + size:
                kept.append((pattern, name))
            seen[pattern] += 1
        return Group(first=self.first, sources=tuple(kept), transform=self.transform)


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The table of one model, which stands on the meta device."""

    model: Any
    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    """The model's tensors by name, aliases of tied ones as well."""

    @cached_property
    def aliases(self) -> Mapping[str, tuple[str, ...]]:
        """Every parameter that has several names, under each of them."""
        names: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        return {name: tuple(group) for group in names.values() if len(group) > 1 for name in group}

    def may_be_missing(self, name: str) -> bool:
        """Whether the class itself says that checkpoints may lack the tensor."""
        return any(re.search(pattern, name) for pattern in may_be_missing_patterns(self.model))

    def groups(self, saved: Iterable[str]) -> Iterator[Group]:
        """Tensors of a checkpoint in the groups that become tensors of the model, by the names in the checkpoint."""
        from transformers.core_model_loading import dot_natural_key  # noqa: PLC0415 - seconds of imports

        found: dict[str, list[tuple[str, str]]] = {}
        transforms: dict[str, Any] = {}
        for name in sorted(saved, key=dot_natural_key):
            target, pattern = self._renamed(name)
            if target not in self.tensors:
                continue
            found.setdefault(target, []).append((pattern or name, name))
            if pattern is not None:
                transforms[target] = self._by_pattern[pattern]
        for target, sources in found.items():
            yield Group(first=target, sources=tuple(sources), transform=transforms.get(target))

    def convert(self, group: Group, read: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        """The model's tensors of a group that has a transform."""
        transform = deepcopy(group.transform)
        for pattern, name in group.sources:
            transform.add_tensor(group.first, name, pattern, read(name))
        made = transform.convert(group.first, model=self.model, config=self.model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}

    def as_saved(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors of the model as ``save_pretrained`` writes them; whole groups of :meth:`saved_groups`."""
        from transformers.core_model_loading import revert_weight_conversion  # noqa: PLC0415 - as above

        made: dict[str, torch.Tensor] = revert_weight_conversion(self.model, dict(tensors))
        return made

    def saved_groups(self) -> Iterator[tuple[str, ...]]:
        """The model's tensors that are written, tied ones once, in the groups that are written together."""
        from transformers.core_model_loading import apply_converters  # noqa: PLC0415 - as above

        groups: dict[str, list[str]] = {}
        left_out = {*self.model.all_tied_weights_keys, *unsaved_names(self.model)}
        for name in self.tensors:
            if name not in left_out:
                target, _ = apply_converters(name, self._reversed_converters)
                groups.setdefault(target, []).append(name)
        yield from (tuple(names) for names in groups.values())

    def saved_dtype(self, name: str) -> torch.dtype:
        """The type that ``from_pretrained`` gives a tensor of the model where the rest has the model's type."""
        return family_dtype(self.model, name, self.tensors[name])

    def _renamed(self, name: str) -> tuple[str, str | None]:
        from transformers.core_model_loading import rename_source_key  # noqa: PLC0415 - as above

        base, known = self.model.base_model_prefix, self.tensors
        renamings, converters = self._forward
        target, pattern = rename_source_key(name, renamings, converters, base, known)
        if target not in known and name in known:
            target, pattern = rename_source_key(name, [], [], base_model_prefix=base, meta_state_dict=known)
        return target, pattern

    @cached_property
    def _forward(self) -> tuple[list[Any], list[Any]]:
        """Renamings and conversions of loading."""
        from transformers.conversion_mapping import get_model_conversion_mapping  # noqa: PLC0415 - as above
        from transformers.core_model_loading import WeightConverter, WeightRenaming  # noqa: PLC0415 - as above

        table = get_model_conversion_mapping(self.model)
        renamings = [entry for entry in table if isinstance(entry, WeightRenaming)]
        return renamings, [entry for entry in table if isinstance(entry, WeightConverter)]

    @cached_property
    def _by_pattern(self) -> Mapping[str, Any]:
        return {pattern: entry for entry in self._forward[1] for pattern in entry.source_patterns}

    @cached_property
    def _reversed_converters(self) -> list[Any]:
        return [entry.reverse_transform() for entry in reversed(self._forward[1])]


def family_dtype(model: Any, name: str, tensor: torch.Tensor) -> torch.dtype:
    """The type of a tensor of a model of transformers: fp32 for the few that its class keeps in it, else its own."""
    kept = (kind for pattern, kind in kept_dtypes(model).items() if re.search(pattern.replace("*", ".*"), name))
    return next(kept, tensor.dtype)


def conversion_of(fields: Mapping[str, Any], *, dtype: torch.dtype = torch.float32) -> Conversion:
    """The table of the model that ``AutoModelForCausalLM`` builds of a config, whose tensors are of a type."""
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - as above

    options = dict(fields)
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype)
    return Conversion(model=model, tensors=model.state_dict())
