"""Facts are the keys and values of a foreign file, each with its place, before they are given a meaning."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Scalar: TypeAlias = int | float | str | bool | None
FactValue: TypeAlias = Scalar | tuple["FactValue", ...]

MAX_FACTS = 5000
"""A model's config with every field of its family has some hundreds."""
REPEATED_PREFIXES: Mapping[str, str] = {"fsdp_config": "fsdp_", "parallelism_config": "parallelism_config_"}
"""Sections whose keys repeat the section: ``fsdp_config.fsdp_version`` is read as ``fsdp_config.version``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One key of one file and its value."""

    key: str
    """The key with underscores instead of dashes; its sections are written before it, as in ``section.key``."""
    value: FactValue
    place: str
    """``file:key`` as the user wrote the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The facts of one file, or of one program's arguments on a line of a script."""

    file: str
    facts: tuple[Fact, ...]
    program: str = ""
    """The program that the arguments are handed to; empty for a file."""

    def keys(self) -> frozenset[str]:
        """Every key, each section above a key among them."""
        return frozenset(part for fact in self.facts for part in _with_sections(fact.key))


FILE_KEYS = ("deepspeed", "deepspeed_config", "deepspeed_config_file", "config_file", "argument_file", "config")
"""Keys whose value may be another file of the run."""
TREE_SUFFIXES = (".json", ".yaml", ".yml", ".toml")
FILE_SUFFIXES = (*TREE_SUFFIXES, ".py")


def names_a_file(fact: Fact) -> bool:
    """Return whether a fact names another file of the run."""
    is_key = fact.key.rpartition(".")[2] in FILE_KEYS
    return is_key and isinstance(fact.value, str) and fact.value.endswith(FILE_SUFFIXES)


def _with_sections(key: str) -> Iterator[str]:
    parts = key.split(".")
    return (".".join(parts[: count + 1]) for count in range(len(parts)))


def facts_of(tree: Mapping[str, object], *, file: str) -> tuple[Fact, ...]:
    """The leaves of a document of plain values; a list of scalars is one leaf.

    >>> [(fact.key, fact.value) for fact in facts_of({"zero": {"stage": 3}, "a-b": [1, 2]}, file="x")]
    [('zero.stage', 3), ('a_b', (1, 2))]
    """
    return tuple(_leaves(tree, key="", shown="", file=file))


def _leaves(value: object, *, key: str, shown: str, file: str) -> Iterator[Fact]:
    if isinstance(value, Mapping):
        prefix = REPEATED_PREFIXES.get(key, "")
        for name, item in value.items():
            plain = str(name).replace("-", "_").removeprefix(prefix)
            yield from _leaves(item, key=_joined(key, plain), shown=_joined(shown, str(name)), file=file)
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, key=f"{key}.{index}", shown=f"{shown}.{index}", file=file)
    else:
        yield Fact(key=key, value=_plain(value), place=f"{file}:{shown}")


def _joined(section: str, name: str) -> str:
    return f"{section}.{name}" if section else name


def _plain(value: object) -> FactValue:
    if isinstance(value, list | tuple):
        return tuple(_scalar(item) for item in value)
    return _scalar(value)


def _scalar(value: object) -> Scalar:
    return value if value is None or isinstance(value, int | float | str) else str(value)


WORDS: Mapping[str, Scalar] = {"true": True, "false": False, "none": None, "null": None}


def scalar_of(text: str) -> Scalar:
    """Return the value that a word of a command line or a log stands for.

    >>> [scalar_of(word) for word in ("8", "1e-5", "True", "bf16")]
    [8, 1e-05, True, 'bf16']
    """
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    for number in (int, float):
        try:
            return number(text) if len(text) < 40 and text[:1] in "+-.0123456789" else text
        except ValueError:
            continue
    return text
