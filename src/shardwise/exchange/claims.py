"""Documents become claims about fields of a plan, in our words; keys that could not be read are kept beside them."""

from dataclasses import dataclass, replace
from dataclasses import field as record_field
from math import isfinite

from shardwise.exchange.facts import Fact, FactValue, names_a_file
from shardwise.exchange.names import BESIDE, CLUSTER_PLACE, DEFAULT, OPTION, TOGETHER, Claim, Name, View
from shardwise.fields import Value

TEXTS = frozenset(("model", "wrap_class"))
"""Fields whose value is a name, not a number."""
MAY_BE_ZERO = frozenset(("zero_stage", "dp_shard", "lora_dropout_fraction"))
LEFT_TO_OTHERS = ("auto", "", "none")
"""Values with which a file leaves a key to another one, or to the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A key, or the value of a known key, that nobody here understands."""

    place: str
    value: str
    field: str = record_field(default="", compare=False)
    """Our field that the key is about, which is then open; empty where the key itself is unknown."""
    near: str = record_field(default="", compare=False)
    """The key of the tool that was probably meant; empty where none is spelled so."""


def claims_of(view: View) -> tuple[list[Claim], list[Unread]]:
    """Yield the claims of single keys by the tool's table, then the claims that follow from several keys together."""
    claims: list[Claim] = []
    unread: list[Unread] = []
    for name in view.tool.names:
        fact = view.by_key.get(name.key)
        if fact is None:
            if name.default is not None:
                claims.append(view.claim(name.field, name.default))
            continue
        if name.field == BESIDE:
            continue
        value = None if name.field == TOGETHER else _in_our_words(name, fact)
        claim = view.claim(name.field, value, name.key)
        if _is_possible(claim):
            claims.append(claim)
        elif name.leaves_open(str(fact.value)):
            continue
        elif str(fact.value).lower() not in LEFT_TO_OTHERS and (name.field != TOGETHER or _is_unset(fact)):
            unread.append(_unread(fact, name.field))
    unread.extend(
        replace(_unread(fact), near=view.tool.near(fact.key))
        for fact in view.by_key.values()
        if not _says_nothing(view, fact) and not view.tool.knows(fact.key) and not names_a_file(fact)
    )
    claims.extend(view.tool.work_out(view))
    left = {one.field for one in unread}
    return [claim for claim in claims if _is_possible(claim) and (claim.strength or claim.field not in left)], unread


def _says_nothing(view: View, fact: Fact) -> bool:
    """Whether a value is null; or a switch that is off in a log, which prints all that the tool has."""
    return fact.value is None or (view.document.program == "log" and fact.value is False)


def _is_unset(fact: Fact) -> bool:
    """Whether a value is a variable that only who runs the file knows."""
    return isinstance(fact.value, str) and "$" in fact.value and "\n" not in fact.value


LORA_TARGETS = "lora_targets"
TARGETS = {
    "all-linear": "all-linear",
    "all": "all-linear",
    "q_proj v_proj": "qv",
    "k_proj o_proj q_proj v_proj": "attention",
    "down_proj gate_proj k_proj o_proj q_proj up_proj v_proj": "all-linear",
}
"""Matrices that get an adapter, by the sorted names that files list."""


def _matrices(value: FactValue) -> str | None:
    """Matrices that get an adapter, in our words; ``None`` for a regular expression, which a plan has no word for."""
    names = [str(name) for name in value] if isinstance(value, tuple) else str(value or "").replace(",", " ").split()
    words = " ".join(sorted(names))
    if words in TARGETS:
        return TARGETS[words]
    return ",".join(names) if names and all(name.replace(".", "").isidentifier() for name in names) else None


def _in_our_words(name: Name, fact: Fact) -> Value:
    if name.field == LORA_TARGETS and not name.values:
        return _matrices(fact.value)
    if not name.is_plain:
        return name.ours(str(fact.value))
    if name.field in TEXTS:
        first = fact.value[0] if isinstance(fact.value, tuple) and fact.value else fact.value
        return str(first) if isinstance(first, str) and "$" not in first else None
    if isinstance(fact.value, bool) or not isinstance(fact.value, int | float) or not isfinite(fact.value):
        return None
    return int(fact.value) if fact.value == int(fact.value) else fact.value


def _is_possible(claim: Claim) -> bool:
    """Return whether a claim has a usable value: degrees and counts begin at 1, and ZeRO ends at stage 3."""
    if claim.field == "zero_stage" and claim.value not in (*range(4), None):
        return False
    if isinstance(claim.value, int) and not isinstance(claim.value, bool) and claim.field not in MAY_BE_ZERO:
        return claim.value >= 1
    return claim.value is not None


def _unread(fact: Fact, field: str = "") -> Unread:
    return Unread(place=fact.place, value=str(fact.value)[:60], field=field)


def strongest(claims: list[Claim]) -> tuple[dict[str, Claim], list[tuple[Claim, Claim]]]:
    """The strongest claim of every field, and pairs of claims that contradict each other.

    A line overrules files and anything overrules a default; an option of ours settles every contradiction.
    """
    found: dict[str, Claim] = {}
    against: list[tuple[Claim, Claim]] = []
    for claim in sorted(claims, key=lambda one: -one.strength):
        before = found.setdefault(claim.field, claim)
        is_equal = claim.strength == before.strength or CLUSTER_PLACE in (claim.place, before.place)
        is_said_twice = is_equal and claim.strength > DEFAULT and before.strength < OPTION
        if is_said_twice and before.value != claim.value:
            against.append((before, claim))
    return found, against
