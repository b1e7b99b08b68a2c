"""Read files of other tools as one description of a run: known, open, contradicted, not understood, and wrong."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.engines.table import ENGINES
from shardwise.errors import PlanError
from shardwise.exchange.claims import Unread, claims_of
from shardwise.exchange.documents import read_documents
from shardwise.exchange.facts import Document, names_a_file
from shardwise.exchange.join import Joined, join
from shardwise.exchange.names import OPTION, RECOMPUTE_EVERY, Claim, View
from shardwise.exchange.recognise import views_of
from shardwise.fields import Value, field_named
from shardwise.layout import Layout
from shardwise.recipe import Recipe
from shardwise.rules.changes import LAYOUT_FIELDS, RECIPE_FIELDS

MAX_FILES = 32
NO_FILE = "no file says it"
ASKED = (
    *("engine", "world_size", "dp_replicate", "dp_shard", "zero_stage", "tp", "pp", "cp", "ep", "vpp"),
    *("micro_batch_size", "global_batch_size", "num_microbatches", "seq_len", "precision", "optimizer", "recompute"),
    "offload",
)
"""Fields without which a plan says too little: each is known, or listed as open."""
FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "dp_replicate": ("world_size", "zero_stage"),
    "dp_shard": ("world_size", "zero_stage"),
    "global_batch_size": ("micro_batch_size", "world_size"),
    "num_microbatches": ("global_batch_size", "micro_batch_size", "world_size"),
}
"""Open fields that the answer to another question fills, so that nobody is asked twice."""
BEYOND_A_PLAN = ("sp",)
"""Degrees of parallelism that count in the world and that a plan cannot say."""
GATHERING_ENGINES = ("torchtitan", "accelerate", "fsdp2", "fsdp1")
"""Engines on torch's FSDP, where ZeRO 2 is ``reshard_after_forward`` off or ``SHARD_GRAD_OP``."""
CONFIG = "config"
"""The option, and the fact of a Python file, that holds the name of a recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAs:
    """One file, and the tool whose format it was read as."""

    file: str
    tool: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A field that the files do not say."""

    field: str
    follows_from: tuple[str, ...] = ()
    """Other open fields whose answers fill this one; empty where it has to be asked for."""
    why: str = NO_FILE
    """The reason: no file says it, or one says what cannot be."""

    @property
    def option(self) -> str:
        """The option that answers it."""
        return "--cluster" if self.field == "world_size" else f"--set {self.field}=..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Two places that say different things about one field."""

    first: Claim
    second: Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A reading joins the claims that files of other tools make about one run."""

    read_as: tuple[ReadAs, ...]
    known: tuple[Claim, ...]
    """Claims about the run in the order of a plan's fields, each with the place it came from."""
    open: tuple[Open, ...]
    contradictions: tuple[Contradiction, ...]
    not_understood: tuple[Unread, ...]
    named_files: tuple[str, ...]
    """Files that these name and that were not given."""
    views: tuple[View, ...]
    """The documents themselves, for rules about mistakes and for whoever wants the rest."""

    def claim(self, field: str) -> Claim | None:
        """Return the value of a field with its place; ``None`` where it is open or no file asks for it."""
        return next((claim for claim in self.known if claim.field == field), None)

    def value(self, field: str) -> Value:
        """The value of a known field."""
        claim = self.claim(field)
        return None if claim is None else claim.value

    def number(self, field: str) -> int | None:
        """The value of a field that is a whole number."""
        value = self.value(field)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def questions(self) -> tuple[Open, ...]:
        """Open fields that have to be asked for."""
        return tuple(one for one in self.open if not one.follows_from)


def read_files(paths: Sequence[Path], *, settings: Iterable[Claim] = ()) -> Reading:
    """The reading of several files together.

    Args:
        paths: of the files, which may be of several tools.
        settings: what the user says beside them; it wins over every file.

    Raises:
        PlanError: a file cannot be read, or none is a file of a tool that is known here.
    """
    if len(paths) > MAX_FILES:
        raise PlanError(
            f"{len(paths)} files are more than {MAX_FILES}", code="import-too-large", fix="give fewer files"
        )
    documents = [document for path in paths for document in read_documents(path)]
    reading = read_parsed(documents, settings=settings)
    if not reading.read_as:
        names = ", ".join(path.name for path in paths)[:200]
        raise PlanError(
            f"{names} is of no training tool that is known here",
            code="import-unknown-file",
            fix="give a DeepSpeed JSON, an Accelerate, TRL, NeMo, GPT-NeoX, nanotron, axolotl or LLaMA-Factory YAML, "
            "a torchtitan TOML, or the script that starts the run",
        )
    return reading


def read_parsed(documents: Sequence[Document], *, settings: Iterable[Claim] = ()) -> Reading:
    """The reading of documents."""
    documents = _chosen_recipes(documents)
    views = views_of(documents)
    claims: list[Claim] = list(settings)
    unread: list[Unread] = []
    for view in views:
        said, left = claims_of(view)
        claims.extend(said)
        unread.extend(left)
    seen = {view.document.file + view.document.program for view in views}
    unread.extend(
        Unread(place=fact.place, value=str(fact.value)[:60])
        for document in documents
        if document.file + document.program not in seen
        for fact in document.facts
        if not names_a_file(fact)
    )
    joined = join(claims, unread=frozenset(one.field for one in unread))
    unread.extend(
        Unread(place=joined.values[name].place, value=str(joined.values[name].value))
        for name in BEYOND_A_PLAN
        if (joined.number(name) or 1) > 1
    )
    contradictions = tuple(Contradiction(first=first, second=second) for first, second in joined.against)
    return Reading(
        read_as=tuple(dict.fromkeys(_read_as(view) for view in views)),
        known=tuple(joined.values.values()),
        open=_open_fields(joined, unread),
        contradictions=contradictions,
        not_understood=tuple(dict.fromkeys(unread)),
        named_files=_named_files(documents),
        views=views,
    )


def _chosen_recipes(documents: Sequence[Document]) -> Sequence[Document]:
    """The documents without the recipes of a Python file that no line names.

    Raises:
        PlanError: the file holds several, and no line names one.
    """
    named = {fact.value for document in documents if document.program for fact in document.facts if fact.key == CONFIG}
    names = [_recipe_name(one) for one in documents if _is_recipe(one)]
    if len(names) <= 1:
        return documents
    if named.intersection(names):
        return [one for one in documents if not _is_recipe(one) or _recipe_name(one) in named]
    raise PlanError(
        f"{len(names)} recipes stand in the file, among them {', '.join(names[:5])}, and no line names one",
        code="import-open",
        fix="give the script whose line names one as well, or a file with that recipe alone",
    )


def _is_recipe(document: Document) -> bool:
    return document.file.endswith(".py") and not document.program


def _recipe_name(document: Document) -> str:
    return next((str(fact.value) for fact in document.facts if fact.key == CONFIG), "")


def _read_as(view: View) -> ReadAs:
    return ReadAs(file=view.document.file, tool=view.tool.title, version=view.tool.version)


def _open_fields(joined: Joined, unread: Sequence[Unread]) -> tuple[Open, ...]:
    said = {one.field: f"{one.place} says {one.value}{_allowed(one.field)}" for one in unread if one.field}
    missing = [name for name in ASKED if name not in joined.values]
    if "engine" in joined.values and joined.values["engine"].value not in ENGINES:
        missing.insert(0, "engine")
    return tuple(
        Open(
            field=name,
            follows_from=tuple(other for other in FOLLOWS.get(name, ()) if other in missing),
            why=said.get(name, NO_FILE),
        )
        for name in missing
    )


def _allowed(name: str) -> str:
    """The end of a sentence: the values that a field of a plan takes; empty for a name that is no field."""
    record = Layout if name in LAYOUT_FIELDS else Recipe if name in RECIPE_FIELDS else None
    if record is None:
        return ""
    about = field_named(record, name)
    return f", and a plan takes {', '.join(about.choices) or about.range_text}"


def _named_files(documents: Sequence[Document]) -> tuple[str, ...]:
    given = {document.file for document in documents}
    named = [str(fact.value) for document in documents for fact in document.facts if names_a_file(fact)]
    return tuple(dict.fromkeys(name for name in named if Path(name).name not in given))


def planned_values(reading: Reading, *, num_layers: int | None = None) -> dict[str, Value]:
    """The known fields as a plan says them.

    Selective recomputation of every n-th block is full recomputation of so many blocks of a stage. FSDP that keeps
    parameters gathered from the forward to the backward pass is ZeRO 2 in the words of its tools; they are divided
    again after the backward pass, so that a plan calls it stage 3 without resharding.
    """
    values: dict[str, Value] = {claim.field: claim.value for claim in reading.known if claim.value is not None}
    stage = reading.claim("zero_stage")
    is_gathered = stage is not None and stage.value == 2 and stage.strength < OPTION
    if is_gathered and values.get("engine") in GATHERING_ENGINES:
        values |= {"zero_stage": 3, "reshard_after_forward": False}
    every = reading.number(RECOMPUTE_EVERY)
    if every is not None and values.get("recompute") == "selective" and num_layers is not None:
        blocks = num_layers // (reading.number("pp") or 1) // every
        values |= {"recompute": "full", "recompute_layers": blocks} if blocks else {"recompute": "none"}
    return values


def plan_document(
    reading: Reading, *, model: object, cluster: object, num_layers: int | None = None
) -> dict[str, object]:
    """The plan file that a reading without open questions comes to, of a model with so many blocks.

    Raises:
        PlanError: something is open, or contradicts itself.
    """
    settled = [claim for claim in reading.known if claim.strength == OPTION]
    disputed = [one for one in reading.contradictions if one.first.field not in {claim.field for claim in settled}]
    if disputed:
        first, second = disputed[0].first, disputed[0].second
        raise PlanError(
            f"{first.field} is {first.value} by {first.place} and {second.value} by {second.place}",
            code="import-contradiction",
            fix=f"mend one of both, or say which: to import with --set {first.field}={second.value}, elsewhere with "
            "the option of that field"
            if first.field in (*ASKED, *RECIPE_FIELDS, *LAYOUT_FIELDS)
            else "mend the files, or name the model that they describe with --model",
        )
    questions = [one for one in reading.questions if one.field != "world_size"]
    if questions:
        said = [f"; {one.why}" for one in questions if one.why != NO_FILE]
        raise PlanError(
            f"the files do not say {', '.join(one.field for one in questions)}{''.join(said)}",
            code="import-open",
            fix="give each with the option of that field, such as --seq-len 4096, or to import with --set seq_len=4096",
        )
    values = planned_values(reading, num_layers=num_layers)
    return {
        "model": model,
        "cluster": cluster,
        "engine": values["engine"],
        "recipe": {name: value for name, value in values.items() if name in RECIPE_FIELDS},
        "layout": {name: value for name, value in values.items() if name in LAYOUT_FIELDS},
    }
