"""From the bytes of a plan file to a tree of plain values, refusing whatever is not a small, well-formed document."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import NoReturn

from shardwise.errors import PlanError
from shardwise.plan_file.json_text import load_json

MAX_PLAN_BYTES = 2**20
"""A plan with a whole model config inside is a few kilobytes."""
MAX_YAML_BYTES = 2**18
"""YAML is parsed by slower code."""
MAX_DEPTH = 24
PLAN_FILE = "plan file"
YAML_SUFFIXES = (".yaml", ".yml")
NEAR_NAME_RATIO = 0.8
"""Two names of five letters that differ in one."""
MODEL_FIELDS = ".model."
"""How the path of every field of a written-out model starts."""


def is_there(path: Path) -> bool:
    """Whether a file or a folder is at a path; a text that no file system takes as one is at none."""
    try:
        return path.exists()
    except OSError:
        return False


def is_file_there(path: Path) -> bool:
    """Whether a file is at a path, as :func:`is_there` looks for it."""
    return is_there(path) and path.is_file()


def read_plan_bytes(path: Path, *, kind: str = PLAN_FILE, is_log: bool = False) -> bytes:
    """The file's bytes, never more than a plan can have; a message calls the file by its kind.

    Args:
        path: of the file.
        kind: what messages call it.
        is_log: whether a longer file is read as far as its first lines are no more than that.

    Raises:
        PlanError: it is missing, is not a file, cannot be read, or is too large.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_PLAN_BYTES + 1)
    except FileNotFoundError:
        raise PlanError(
            f"there is no {kind} {_shown(path)}", code="plan-not-found", fix=_near_file(path, kind)
        ) from None
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise PlanError(
            f"the {kind} {_shown(path)} cannot be read: {reason}",
            code="plan-unreadable",
            fix="give the path of a JSON or YAML file that you may read",
        ) from None
    if is_log and len(data) > MAX_PLAN_BYTES:
        data = data.rpartition(b"\n")[0] or data
    if len(data) > MAX_PLAN_BYTES:
        raise PlanError(
            f"{_shown(path)} is larger than {MAX_PLAN_BYTES} bytes, the most a plan file has",
            code="plan-too-large",
            fix="name the model instead of writing it out, and give many plans as JSON lines (plans.jsonl)",
        )
    return data


def key_text(key: object) -> str:
    """A key as it may stand in a sentence: itself, or quoted when it is no plain word, and never long."""
    text = str(key)[:60]
    return text if text.isprintable() and text.strip() else repr(text)


def _shown(path: Path | str) -> str:
    text = str(path)
    return repr(text if len(text) <= 120 else f"{text[:117]}...")


def _near_file(path: Path, kind: str) -> str:
    """The plan file beside the missing one that differs by a letter or an ending, or how to make one.

    Endings are left out of the comparison: any two names that end in .json would look alike.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only a missing file pays for it

    try:
        files = [entry for entry in path.parent.iterdir() if entry.suffix.lower() in (".json", *YAML_SUFFIXES)]
    except (OSError, ValueError):
        files = []
    beside = {entry.stem.lower(): entry for entry in sorted(files)}
    near = get_close_matches(path.stem.lower(), beside, n=1, cutoff=NEAR_NAME_RATIO)
    if near:
        return f"use {path.parent / beside[near[0]].name}"
    if kind != PLAN_FILE:
        return "check the path"
    return "check the path, or make a plan: shardwise plan llama-3.1-8b 8xh100-sxm --out plan.json"


def decode_plan(data: bytes, *, name: str) -> str:
    """The text of the file.

    Raises:
        PlanError: it is empty or is not UTF-8 text.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanError(
            f"{name} is not UTF-8 text (byte {error.start} is {data[error.start]:#04x})",
            code="plan-not-text",
            fix="save it as UTF-8",
        ) from None
    if "\0" in text:
        raise PlanError(f"{name} holds zero bytes, so it is not text", code="plan-not-text", fix="save it as UTF-8")
    if not text.strip():
        raise PlanError(
            f"{name} is empty",
            code="plan-empty",
            fix='write at least {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {"seq_len": 4096}}',
        )
    return text


def parse_plan_text(text: str, *, name: str, is_yaml: bool, reads_aliases: bool = False) -> Mapping[str, object]:
    """The document as a mapping with text keys, without duplicates, absurd nesting, or NaN where it is read.

    Aliases of YAML are refused, but in files of other tools, where they may repeat a few thousand values.

    Raises:
        PlanError: with the line where the text stops being a plan.
    """
    try:
        tree = _parse_yaml(text, name=name, reads_aliases=reads_aliases) if is_yaml else load_json(text, name=name)
    except RecursionError:
        _refuse_depth(name)
    if not isinstance(tree, Mapping):
        what = "a list" if isinstance(tree, list) else f"a single value ({type(tree).__name__})"
        raise PlanError(
            f"{name} holds {what}, not the named parts of a plan",
            code="plan-not-a-mapping",
            fix="write model, cluster and recipe as keys; many plans go one a line into a .jsonl file",
        )
    require_plain(tree, name=name)
    return tree


def _refuse_depth(name: str) -> NoReturn:
    raise PlanError(
        f"{name} is nested deeper than {MAX_DEPTH} levels",
        code="plan-too-deep",
        fix="flatten it: a plan has three levels",
    )


def require_plain(tree: object, *, name: str) -> None:
    """Return when the tree is shallow and every number in it is finite, but for those of a written-out model.

    A model's config holds fields that nobody here reads, and some of them are infinite in published configs
    (``time_step_limit: [0.0, Infinity]`` of Mamba 2); the family checks each number that it does read.

    Raises:
        PlanError: otherwise, with the path of the offending value.
    """
    level: list[tuple[str, object]] = [("", tree)]
    for _ in range(MAX_DEPTH):
        below: list[tuple[str, object]] = []
        for path, value in level:
            if isinstance(value, float) and not isfinite(value) and not path.startswith(MODEL_FIELDS):
                raise PlanError(
                    f"{path.removeprefix('.') or name} is {value}, which is not a finite number",
                    code="plan-not-finite",
                    fix=f"write a number, or leave {path.removeprefix('.') or 'it'} out",
                )
            if isinstance(value, Mapping):
                below.extend((f"{path}.{key_text(key)}", item) for key, item in value.items())
            elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
                below.extend((f"{path}[{index}]", item) for index, item in enumerate(value))
        if not below:
            return
        level = below
    _refuse_depth(name)


def _parse_yaml(text: str, *, name: str, reads_aliases: bool) -> object:
    if len(text) > MAX_YAML_BYTES:
        raise PlanError(
            f"{name} is larger than {MAX_YAML_BYTES} bytes, the most a YAML plan has",
            code="plan-too-large",
            fix="name the model instead of writing it out, or save the plan as JSON",
        )
    from shardwise.plan_file.yaml_text import load_yaml  # noqa: PLC0415 - yaml is slow to import and most plans are JSON

    return load_yaml(text, name=name, reads_aliases=reads_aliases)
