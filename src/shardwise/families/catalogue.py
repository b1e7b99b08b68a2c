"""The model catalogue: an index of names and aliases, and one ``config.json`` of facts per model."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

_FOLDER = "catalog/models"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One row of ``catalog/models/models.csv``."""

    name: str
    model_type: str
    aliases: tuple[str, ...]
    """Other names, such as the repository it is published in."""
    num_params: int
    """Exact count; the tests hold the family code to it."""
    published: str
    """The figure its makers or others publish, as they print it; empty when none was found."""
    source: str
    """The source of the config's facts."""
    date: str
    note: str


@lru_cache(maxsize=1)
def load_models() -> tuple[ModelEntry, ...]:
    """Every model of the catalogue, by name."""
    text = files("shardwise").joinpath(f"{_FOLDER}/models.csv").read_text(encoding="utf-8")
    return tuple(
        ModelEntry(
            name=row["name"],
            model_type=row["model_type"],
            aliases=tuple(row["aliases"].split()),
            num_params=int(row["num_params"]),
            published=row["published"],
            source=row["source"],
            date=row["date"],
            note=row["note"],
        )
        for row in csv.DictReader(text.splitlines())
    )


@lru_cache(maxsize=1)
def names_by_spelling() -> Mapping[str, str]:
    """Catalogue name of every name and alias in lower case."""
    spellings: dict[str, str] = {}
    for entry in load_models():
        for spelling in (entry.name, *entry.aliases):
            spellings[spelling.casefold()] = entry.name
    return spellings


def catalogue_name(text: str) -> str | None:
    """The catalogue's own name for a model, whatever the case; ``None`` when it is not there."""
    return names_by_spelling().get(text.strip().casefold())


def catalogue_config(name: str) -> Mapping[str, object]:
    """The config of a model of the catalogue."""
    text = files("shardwise").joinpath(f"{_FOLDER}/{name}.json").read_text(encoding="utf-8")
    config: Mapping[str, object] = json.loads(text)
    return config
