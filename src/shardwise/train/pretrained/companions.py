"""What lies beside the weights of an exported model: its tokenizer with the chat template, and how it generates."""

import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Companions"]

GENERATION_FILE, TOKENIZER_FILE = "generation_config.json", "tokenizer.json"
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
