"""What lies beside the weights of an exported model: its tokenizer with the chat template, and how it generates."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from shardwise.errors import ShardwiseError
from shardwise.train.data.chat import stop_tokens
from shardwise.train.data.tokenizer import open_tokenizer

__all__ = ["Companions"]

CONFIG_FILE, GENERATION_FILE, TOKENIZER_FILE = "config.json", "generation_config.json", "tokenizer.json"
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Fields of a config from which transformers generates where there are no settings of generation."""
TOKENIZER_FILES = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)
"""Files that transformers reads a tokenizer from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    """Where the files lie that belong to a model besides its weights and its config."""

    weights: Path | None = None
    """Folder of the checkpoint that the run began with."""
    tokenizer: Path | None = None
    """The tokenizer of the run, a ``tokenizer.json`` or its folder; ``None`` means the one beside the weights."""

    def copy_to(self, folder: Path) -> None:
        """Copy the tokenizer and the settings of generation into the folder of the exported model."""
        place = self.tokenizer or self.weights
        if place is None:
            return
        named, place = (place, place.parent) if place.is_file() else (place / TOKENIZER_FILE, place)
        found = [place / name for name in TOKENIZER_FILES] + [(self.weights or place) / GENERATION_FILE]
        for path in found:
            if path.is_file():
                shutil.copy2(path, folder / path.name)
        if named.is_file():
            shutil.copy2(named, folder / TOKENIZER_FILE)
            _add_stops(folder)


def _add_stops(folder: Path) -> None:
    """Name every token at which the model was taught to stop among those that end a generation.

    A base model's settings know the end of texts alone, and a class's own defaults another tokenizer's. A file that is
    no tokenizer teaches no stop, and the trained model is exported beside it all the same.
    """
    try:
        stops = stop_tokens(open_tokenizer(folder))
    except ShardwiseError:
        return
    path, config = folder / GENERATION_FILE, folder / CONFIG_FILE
    settings = (
        _read(path) if path.is_file() else {name: value for name, value in _read(config).items() if name in SPECIAL}
    )
    held = settings.get("eos_token_id")
    known = held if isinstance(held, list) else [held] if held is not None else []
    if missing := [token for token in stops if token not in known]:
        path.write_text(json.dumps({**settings, "eos_token_id": [*known, *missing]}, indent=2) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
