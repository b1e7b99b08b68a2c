"""Mistakes in the files of other tools, those that the tool itself passes over in silence first.

A kind of mistake is a row of ``kinds.csv``, which says what it is, what the tool does with it and which source shows
it, and a condition in one of the files here, which yields the place, the sentence and the fix in the tool's own words.
"""

from csv import DictReader
from functools import cache
from importlib.resources import files

from shardwise.cluster import Cluster
from shardwise.exchange.mistakes import batch, divisions, processes, sharding, values
from shardwise.exchange.mistakes.rule import SEVERITY, Case, Mistake, MistakeKind
from shardwise.exchange.reading import Reading
from shardwise.model import ModelSpec

__all__ = ["CONDITIONS", "Mistake", "find_mistakes", "load_kinds"]

CONDITIONS = (
    *sharding.CONDITIONS,
    *processes.CONDITIONS,
    *divisions.CONDITIONS,
    *values.CONDITIONS,
    *batch.CONDITIONS,
)

OF_ALL_DEGREES = (
    *("batch-not-whole", "microbatches-below-stages", "interleaved-rounds", "experts-by-data-ranks"),
    *("experts-without-sequence-parallel", "world-by-model-parallel"),
)
"""Kinds that follow from degrees which a recipe of Megatron-Bridge sets in Python, so that no file says them all."""


@cache
def load_kinds() -> tuple[MistakeKind, ...]:
    """Every kind of mistake."""
    text = files("shardwise").joinpath("exchange/mistakes/kinds.csv").read_text(encoding="utf-8")
    by_word = {word: word for word in SEVERITY}
    return tuple(
        MistakeKind(code=row["code"], tool_says=by_word[row["tool_says"]], what=row["what"], source=row["source"])  # type: ignore[index]
        for row in DictReader(text.splitlines())
    )


def find_mistakes(
    reading: Reading, *, model: ModelSpec | None = None, cluster: Cluster | None = None
) -> tuple[Mistake, ...]:
    """Every mistake of a known kind, worst first: what the tool says nothing about comes before what it refuses."""
    case = Case(reading=reading, model=model, cluster=cluster)
    unsure = OF_ALL_DEGREES if case.fact("recipe", "megatron-bridge") else ()
    kinds = {kind.code: kind for kind in load_kinds()}
    found = [
        Mistake(kind=kinds[code], place=one.place, what=one.what, fix=one.fix)
        for code, find in CONDITIONS
        if code not in unsure
        for one in find(case)
    ]
    return tuple(sorted(dict.fromkeys(found), key=lambda mistake: SEVERITY.index(mistake.tool_says)))
