"""Which trained parameters belong to which unit of the model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from shardwise.train.decoder.model import Decoder
from shardwise.train.parameters import Trained
from shardwise.train.units import units_of


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitEntries:
    """A module and the parameters that are first needed when its forward begins."""

    module: nn.Module
    entries: tuple[Trained, ...]


def entries_by_unit(decoders: Sequence[Decoder], trained: Sequence[Trained]) -> Iterator[UnitEntries]:
    """Of every chunk what belongs to no unit (the last norm, a tied table), then its units as forward meets them."""
    by_parameter = {id(entry.parameter): entry for entry in trained}
    for decoder in decoders:
        units = [
            UnitEntries(module=unit.module, entries=_taken(unit.module, by_parameter)) for unit in units_of(decoder)
        ]
        yield UnitEntries(module=decoder, entries=_taken(decoder, by_parameter))
        yield from units


def _taken(module: nn.Module, by_parameter: dict[int, Trained]) -> tuple[Trained, ...]:
    found = (by_parameter.pop(id(parameter), None) for parameter in module.parameters())
    return tuple(entry for entry in found if entry is not None)
