"""Read plan files: one document, or many as JSON lines."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NoReturn

from shardwise.cluster import Cluster
from shardwise.engines.table import OWN_ENGINE, EngineName
from shardwise.errors import PlanError, ShardwiseError
from shardwise.fields import Field, plan_fields
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import PLAN_SCHEMA, Plan
from shardwise.plan_file.recipe import is_recipe, naming, plan_of_recipe
from shardwise.plan_file.text import (
    MAX_PLAN_BYTES,
    YAML_SUFFIXES,
    decode_plan,
    is_there,
    key_text,
    parse_plan_text,
    read_plan_bytes,
    require_plain,
)
from shardwise.plan_file.values import check_fields, refuse_unknown_key, shown
from shardwise.recipe import Recipe
from shardwise.rules.defaults import fill_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """A file that was read already, as by a command that looks at more of it than the plan."""

    path: Path
    tree: Mapping[str, object]


PlanSource = str | Path | Mapping[str, object]
PARTS = (Field("the form of the file", name="schema"), *plan_fields(Plan))


def read_plan(
    source: PlanSource | ReadFile, *, overrides: Mapping[str, object] | None = None, fallback_seq_len: int | None = None
) -> Plan:
    """The plan in a JSON or YAML file, in JSON or YAML text, or in a mapping; of a recipe, its plan.

    Args:
        source: a path; or text that starts with ``{`` or has several lines; or the parsed document.
        overrides: a partial plan whose values win over the source's, before anything left open is filled.
        fallback_seq_len: taken when no sequence length is given, as far as a table of positions allows; a plan file has
            to give one.

    Raises:
        PlanError, RecipeError, LayoutError, ModelError, ClusterError: one sentence, a code and a fix. Rules of validity
            are not checked here; see :func:`shardwise.rules.require_valid`.
    """
    tree, folder = read_tree(source)
    readers = Readers(model=_read_model, cluster=_read_cluster)
    if not is_recipe(tree):
        return _build_plan(_with_overrides(tree, overrides or {}), folder, readers, fallback_seq_len)
    name = "the recipe" if isinstance(source, Mapping) or is_plan_text(source) else str(source)
    name = str(source.path) if isinstance(source, ReadFile) else name
    with naming(name):
        part = plan_of_recipe(tree, folder)
    with naming(f"{name}, under plan"):
        tree, folder = (part, folder) if isinstance(part, Mapping) else read_tree(part)
        return _build_plan(_with_overrides(tree, overrides or {}), folder, readers, fallback_seq_len)


def is_plan_text(source: object) -> bool:
    """Whether a source is the text of a plan, not its path: it starts with ``{`` or has several lines."""
    return isinstance(source, str) and (source.lstrip().startswith("{") or "\n" in source.strip())


def read_numbered_plans(path: str | Path) -> Iterator[tuple[int, Plan | ShardwiseError]]:
    """The plans of a JSONL file with the numbers of their lines, as :func:`numbered_plan_lines` answers them.

    Raises:
        PlanError: the file itself cannot be read.
    """
    path = Path(path)
    try:
        stream = path.open("rb")
    except (OSError, ValueError) as error:
        raise PlanError(
            f"the file of plans {str(path)[:120]!r} cannot be read: {getattr(error, 'strerror', None) or error}",
            code="plan-not-found" if isinstance(error, FileNotFoundError) else "plan-unreadable",
            fix="give the path of a .jsonl file with one plan a line",
        ) from None
    with stream:
        yield from numbered_plan_lines(bounded_lines(stream), folder=path.parent)


def bounded_lines(stream: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, each cut where it becomes longer than a plan can be."""
    while line := stream.readline(MAX_PLAN_BYTES + 1):
        yield line
        while len(line) > MAX_PLAN_BYTES and not line.endswith(b"\n"):
            line = stream.readline(MAX_PLAN_BYTES + 1)


def numbered_plan_lines(
    lines: Iterable[bytes | str], *, folder: Path | None = None
) -> Iterator[tuple[int, Plan | ShardwiseError]]:
    """The plans of JSON lines in order, each behind the number of its line, the first being 1.

    A line that is no plan is answered by its error; blank lines are skipped. Equal models and clusters are read once.
    """
    readers = Readers(model=lru_cache(maxsize=64)(_read_model), cluster=lru_cache(maxsize=64)(_read_cluster))
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, _read_line(line, f"line {number}", folder, readers)


def _read_line(line: bytes | str, name: str, folder: Path | None, readers: "Readers") -> Plan | ShardwiseError:
    try:
        if len(line) > MAX_PLAN_BYTES:
            raise PlanError(
                f"{name} is longer than {MAX_PLAN_BYTES} bytes, the most a plan has",
                code="plan-too-large",
                fix="name the model instead of writing it out",
            )
        text = decode_plan(line, name=name) if isinstance(line, bytes) else line
        return _build_plan(parse_plan_text(text, name=name, is_yaml=False), folder, readers)
    except ShardwiseError as error:
        return error


def read_tree(source: PlanSource | ReadFile) -> tuple[Mapping[str, object], Path | None]:
    """The document of a plan or a recipe, and the folder it lies in, if it is a file.

    Raises:
        PlanError: it cannot be read or is no document with named parts.
    """
    if isinstance(source, ReadFile):
        return source.tree, source.path.parent
    if isinstance(source, Mapping):
        require_plain(source, name="the plan")
        return source, None
    if isinstance(source, str) and is_plan_text(source):
        is_yaml = not source.lstrip().startswith("{")
        return parse_plan_text(source, name="the plan text", is_yaml=is_yaml), None
    if not isinstance(source, str | Path):
        raise PlanError(
            f"a plan is a path, a text or a mapping, not {shown(source)}", code="plan-wrong-type", fix="give a path"
        )
    path = Path(source)
    name = key_text(path.name or path)
    text = decode_plan(read_plan_bytes(path), name=name)
    is_yaml = path.suffix.lower() in YAML_SUFFIXES or not (
        path.suffix.lower() == ".json" or text.lstrip().startswith(("{", "["))
    )
    return parse_plan_text(text, name=name, is_yaml=is_yaml), path.parent


def _with_overrides(tree: Mapping[str, object], overrides: Mapping[str, object]) -> Mapping[str, object]:
    merged = dict(tree)
    for part, value in overrides.items():
        existing = merged.get(part)
        both_groups = isinstance(value, Mapping) and isinstance(existing, Mapping) and part in ("recipe", "layout")
        merged[part] = {**existing, **value} if both_groups else value  # type: ignore[dict-item]
    return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """How models and clusters are read: from canonical JSON, so that equal sources can be shared."""

    model: Callable[[str], ModelSpec]
    cluster: Callable[[str], Cluster]


def _read_model(source_json: str) -> ModelSpec:
    from shardwise.families import read_model  # noqa: PLC0415 - writing a plan needs no model reader

    return read_model(json.loads(source_json))


def _read_cluster(source_json: str) -> Cluster:
    from shardwise.catalog import read_cluster  # noqa: PLC0415 - writing a plan needs no catalogue

    return read_cluster(json.loads(source_json))


def _build_plan(
    tree: Mapping[str, object], folder: Path | None, readers: Readers, fallback_seq_len: int | None = None
) -> Plan:
    _check_parts(tree)
    recipe_values = check_fields("recipe", tree.get("recipe"), plan_fields(Recipe))
    if "seq_len" not in recipe_values and fallback_seq_len is None:
        _refuse_missing("recipe.seq_len", 'write recipe: {"seq_len": 4096}')
    layout_values = check_fields("layout", tree.get("layout"), plan_fields(Layout))
    engine = _engine(tree.get("engine"))
    model = readers.model(_source_json("model", tree["model"], folder))
    cluster = readers.cluster(_source_json("cluster", tree["cluster"], folder))
    return fill_plan(
        recipe_values,
        layout_values,
        model=model,
        cluster=cluster,
        engine=engine,
        fallback_seq_len=fallback_seq_len,
    )


def _check_parts(tree: Mapping[str, object]) -> None:
    """Return when the document has the parts of a plan and no others."""
    for key in tree:
        if key not in {part.name for part in PARTS}:
            refuse_unknown_key("", key, PARTS)
    schema = tree.get("schema", PLAN_SCHEMA)
    if schema != PLAN_SCHEMA:
        raise PlanError(
            f"the schema is {shown(schema)}, but this program reads {PLAN_SCHEMA}",
            code="plan-schema",
            fix=f'write schema: "{PLAN_SCHEMA}", or leave it out',
        )
    if tree.get("model") is None:
        _refuse_missing("model", 'write model: "llama-3.1-8b", the path of a config.json, or a size such as "70B"')
    if tree.get("cluster") is None:
        _refuse_missing("cluster", 'write cluster: "8xh100-sxm", or {"node": "dgx-h100", "num_nodes": 2}')
    if tree.get("recipe") is None:
        _refuse_missing("recipe.seq_len", 'write recipe: {"seq_len": 4096}')


def _refuse_missing(path: str, fix: str) -> NoReturn:
    raise PlanError(f"the plan has no {path}", code="plan-missing-key", fix=fix)


def _engine(value: object) -> EngineName:
    if value is None:
        return OWN_ENGINE
    return check_fields("", {"engine": value}, PARTS)["engine"]  # type: ignore[return-value]


def _source_json(part: str, value: object, folder: Path | None) -> str:
    """What names the model or the cluster, as canonical JSON; a path beside the plan file is found from there."""
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str | Mapping):
        is_size = part == "model" and isinstance(value, int | float) and not isinstance(value, bool)
        names = "models" if part == "model" else "nodes"
        raise PlanError(
            f"{part} is {shown(value)}, neither a name nor a mapping",
            code="plan-wrong-type",
            fix=f'write model: {{"num_parameters": {shown(value)}}}'
            if is_size
            else f"write a name of shardwise catalog {names}, or the fields as a mapping",
        )
    if isinstance(value, str) and folder is not None and _looks_like_path(value):
        beside = folder / value
        value = str(beside) if is_there(beside) else value
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        raise PlanError(
            f"{part} holds values that no plan file can hold", code="plan-wrong-type", fix="use text, numbers and lists"
        ) from None


def _looks_like_path(text: str) -> bool:
    has_separator = "/" in text or text.lower().endswith((".json", ".toml"))
    return has_separator and len(text) < 1024 and "\0" not in text and not Path(text).is_absolute()
