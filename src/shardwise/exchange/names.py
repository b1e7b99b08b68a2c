"""The record of one foreign tool: its names for our fields, read one way for import and the other way for export."""

from collections.abc import Callable, Iterator, Mapping
from csv import DictReader
from dataclasses import dataclass, replace
from dataclasses import field as record_field
from functools import cache
from importlib.resources import files

from shardwise.exchange.facts import Document, Fact, FactValue, scalar_of
from shardwise.fields import Value

__all__ = ["Claim", "Name", "Readers", "Strength", "Tool", "View", "names_of", "nothing_more"]

TOGETHER, BESIDE = "+", "-"
CLUSTER_PLACE = "--cluster"
"""The place that is printed for a number of GPUs that the user gave with ``--cluster``."""
RECIPE_KEYS = ("module", "recipe", "factory")
"""Options that name a recipe: of torchtitan, of Megatron-Bridge and of NeMo."""
UNREAD_RECIPE = "unread_recipe"
"""A claim that a line names a recipe which no file here holds, so that its degrees are not the tool's defaults."""
RECOMPUTE_EVERY = "recompute_every"
"""A claim that selective recomputation, as torchtitan has it, recomputes one of so many blocks whole."""
NEAR_RATIO = 0.85
"""Share of letters that a misspelled key has in common with what was meant: two keys of a tool may differ in a word."""
Strength = int
DEFAULT, FILE, LINE, OPTION = range(4)
"""How much a claim weighs: a tool's default, a file, a command line, and what the user of ``import`` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """One key of a tool: a row of ``tools/names/TOOL.csv``."""

    key: str
    field: str
    """Our field, or a number that joins files together, such as ``world_size``; ``+`` where the key says something
    together with others, ``-`` where a plan has no part of the key nor of anything below it."""
    values: Mapping[str, Value] = record_field(default_factory=dict)
    """The tool's values, in any case, and ours; exports write the first of those. Empty where both are a number;
    ``0=null *=*`` where 0 says nothing and every other number is ours."""
    default: Value = None
    """The value, in our words, that the tool uses when the key is absent; ``None`` where that sets no field."""

    @property
    def is_plain(self) -> bool:
        """Whether the tool's value is ours, as a number is."""
        return not self.values or "*" in self.values

    def ours(self, theirs: str) -> Value:
        """Translate a value of the tool into ours; an empty value gives the default of the key."""
        return {one.lower(): ours for one, ours in self.values.items()}.get(theirs.lower()) if theirs else self.default

    def leaves_open(self, theirs: str) -> bool:
        """Whether a value of the tool is one that says nothing of the field."""
        return any(one.lower() == theirs.lower() and ours is None for one, ours in self.values.items())


def names_of(*tables: str) -> tuple[Name, ...]:
    """The rows of some tables; of a key that stands in two the first counts. ``sizes@model`` puts a section before.

    A key that says several fields has a row for each in one table.
    """
    rows: list[Name] = []
    for table in tables:
        name, _, section = table.partition("@")
        before = {row.key for row in rows}
        placed = (replace(row, key=f"{section}.{row.key}" if section else row.key) for row in _rows(name))
        rows += [row for row in placed if row.key not in before]
    return tuple(rows)


@cache
def _rows(table: str) -> tuple[Name, ...]:
    text = files("shardwise").joinpath(f"exchange/tools/names/{table}.csv").read_text(encoding="utf-8")
    return tuple(
        Name(
            key=row["key"],
            field=row["field"],
            values={theirs: _ours(ours) for theirs, ours in _pairs(row["values"])},
            default=_ours(row["default"]) if row["default"] else None,
        )
        for row in DictReader(text.splitlines())
    )


def _ours(text: str) -> Value:
    """A value of ours; ``none`` is the name of a choice here."""
    return text if text == "none" else scalar_of(text)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for pair in text.split():
        theirs, _, ours = pair.rpartition("=")
        yield theirs, ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim is the value that one file gives one field, in our words."""

    field: str
    value: Value
    place: str
    strength: Strength = FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The facts of one document by key, as its tool reads them."""

    tool: "Tool"
    document: Document
    by_key: Mapping[str, Fact]
    is_line: bool
    others: frozenset[str] = frozenset()
    """Tools that read the other documents of the same reading."""

    @property
    def sections(self) -> frozenset[str]:
        """Every key of the document and every section above a key."""
        return self.document.keys()

    def value(self, key: str) -> FactValue:
        """The value of a key, ``None`` where it is absent."""
        fact = self.by_key.get(key)
        return None if fact is None else fact.value

    def number(self, key: str) -> int | None:
        """The value where it is a whole number."""
        value = self.value(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, key: str) -> str:
        """The value as text in lower case; empty where it is absent."""
        value = self.value(key)
        if isinstance(value, tuple):
            return " ".join(str(item).lower() for item in value)
        return "" if value is None else str(value).lower()

    def is_on(self, key: str) -> bool:
        """Return whether a switch is on; a word for yes counts."""
        return self.text(key) in ("true", "1", "yes", "on")

    @property
    def is_recipe_named(self) -> bool:
        """Whether a line names a recipe, so that what it leaves out is the recipe's to say and not the tool's."""
        return self.is_line and any(key in self.by_key for key in RECIPE_KEYS)

    def claim(self, field: str, value: Value, *keys: str) -> Claim:
        """A claim at the place of the first key that stands in the document; a default where none does."""
        fact = next((self.by_key[key] for key in keys if key in self.by_key), None)
        if fact is None:
            return Claim(field=field, value=value, place=self.tool.default_place, strength=DEFAULT)
        return Claim(field=field, value=value, place=fact.place, strength=LINE if self.is_line else FILE)


WorkOut = Callable[[View], Iterator[Claim]]
Readers = Mapping[str, WorkOut]
"""Functions, by tool, that make claims from several keys of a document together."""


def nothing_more(_: View) -> Iterator[Claim]:
    """The reader of tools all of whose keys mean one field each."""
    return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool, as its files name things."""

    name: str
    title: str
    version: str
    """The version whose source the names and defaults were checked against; files are read as files of this version."""
    source: str
    names: tuple[Name, ...]
    work_out: WorkOut = nothing_more
    """The function that makes claims which follow from several keys together."""
    programs: tuple[str, ...] = ()
    """Parts of the names of programs that read these arguments."""

    @property
    def default_place(self) -> str:
        """Return the place that is printed for a value that no file gives."""
        return f"default of {self.title} {self.version}".rstrip()

    def theirs(self, field: str, value: Value) -> tuple[str, FactValue] | None:
        """The key and the value that say a field: the first row of the field; ``None`` where no row can."""
        name = next((name for name in self.names if name.field == field), None)
        if name is None:
            return None
        if name.is_plain:
            return name.key, value
        word = next((theirs for theirs, ours in name.values.items() if ours == value), None)
        return None if word is None else (name.key, word if word in ("no", "none") else scalar_of(word))

    def ours(self, key: str, theirs: str) -> Value:
        """:meth:`Name.ours` of the first row of a key."""
        name = self.name_of(key)
        return None if name is None else name.ours(theirs)

    def name_of(self, key: str) -> Name | None:
        """The row of a key that says something."""
        return next((name for name in self.names if name.key == key and name.field != BESIDE), None)

    def knows(self, key: str) -> bool:
        """Return whether the tool has this key, or the key stands in a section that no plan has a field for."""
        sections = {key[:index] for index, letter in enumerate(key) if letter == "."}
        if not any(name.key.startswith(f"{key}.") for name in self.names):
            sections.add(key)
        return self.name_of(key) is not None or any(name.key in sections for name in self.names if name.field == BESIDE)

    def near(self, key: str) -> str:
        """The key of the same section that a misspelled one was probably meant as; empty where none is near."""
        from difflib import get_close_matches  # noqa: PLC0415 - only a key that is not understood pays for it

        section, _, word = key.rpartition(".")
        keys = (name.key.rpartition(".") for name in self.names)
        words = [last for first, _, last in keys if first == section and last]
        return next(iter(get_close_matches(word, words, n=1, cutoff=NEAR_RATIO)), "")
