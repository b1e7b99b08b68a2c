"""The model that files name, found in the catalogue or worked out of Meta's own sizes."""

import re
from collections.abc import Iterator, Mapping

from shardwise.exchange.reading import Reading
from shardwise.exchange.tools.others import llama_config
from shardwise.families.catalogue import catalogue_name

ENDINGS = re.compile(r"-(instruct|base|hf|chat|it|v0\.\d|\d{4}|thinking)$")
FLAVORS = {"llama3": "llama-3.1-{}", "llama4": "llama-4-{}", "qwen3": "qwen3-{}", "deepseek_v3": "deepseek-v3"}
"""Models of torchtitan 0.2.2 by their name there; its llama3 has the sizes and rotary base of Llama 3.1."""


def model_source(reading: Reading) -> str | Mapping[str, object] | None:
    """Return what ``read_model`` takes for the named model; ``None`` where the files name none that is known."""
    meta = next((view for view in reading.views if view.tool.name == "meta"), None)
    if meta is not None:
        return llama_config(meta)
    named = reading.value("model")
    names = (catalogue_name(text) for text in _spellings(str(named))) if named is not None else ()
    return next((name for name in names if name is not None), None)


def _spellings(text: str) -> Iterator[str]:
    """The name, and what it is without the organisation that published it and the stage of its training."""
    yield text
    family, _, flavor = text.partition(" ")
    if flavor:
        yield FLAVORS.get(family, family + "-{}").format(flavor.lower())
    short = text.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    yield short
    while (shorter := ENDINGS.sub("", short)) != short:
        short = shorter
        yield short
