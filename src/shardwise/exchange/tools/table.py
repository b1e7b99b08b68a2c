"""Every tool by name: rows of ``tools.csv``, in the order in which a tie between two is decided."""

from collections.abc import Mapping
from csv import DictReader
from importlib.resources import files
from types import MappingProxyType

from shardwise.exchange.names import Tool, names_of, nothing_more
from shardwise.exchange.tools import deepspeed, huggingface, megatron, others, torchtitan

READERS = {
    **torchtitan.READERS,
    **megatron.READERS,
    **deepspeed.READERS,
    **huggingface.READERS,
    **others.READERS,
}


def _load_tools() -> Mapping[str, Tool]:
    text = files("shardwise").joinpath("exchange/tools/tools.csv").read_text(encoding="utf-8")
    tools = (
        Tool(
            name=row["name"],
            title=row["title"],
            version=row["version"],
            source=row["source"],
            names=names_of(*row["tables"].split()),
            programs=tuple(row["programs"].split()),
            work_out=READERS.get(row["name"], nothing_more),
        )
        for row in DictReader(text.splitlines())
    )
    return MappingProxyType({tool.name: tool for tool in tools})


TOOLS = _load_tools()
