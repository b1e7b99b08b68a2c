"""Reads files somebody has as documents of facts: JSON, YAML, TOML, scripts and the header of Megatron's log."""

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from shardwise.errors import PlanError
from shardwise.exchange.facts import FILE_SUFFIXES, MAX_FACTS, TREE_SUFFIXES, Document, Fact, facts_of, scalar_of
from shardwise.exchange.python_file import read_recipes
from shardwise.exchange.shell import read_script
from shardwise.exchange.torchtitan_log import is_torchtitan_log, read_torchtitan_log
from shardwise.plan_file.text import decode_plan, parse_plan_text, read_plan_bytes

LOG_LINE = re.compile(r"^(?:\S*\d+:\s)?\s*([a-z][\w]*) \.{3,} (.*)$", flags=re.MULTILINE)
"""Megatron prints ``  tensor_model_parallel_size ...................... 8``, launchers put the rank before it."""
ENUM = re.compile(r"^[A-Z]\w+\.(?=[a-z_]+$)")
"""The class before a choice, as in ``AttnBackend.auto``."""
MANY_LOG_LINES = 5


def read_documents(path: Path) -> tuple[Document, ...]:
    """The documents of one file.

    Raises:
        PlanError: it cannot be read, or is not the kind of text that its ending says.
    """
    is_log = path.suffix.lower() not in FILE_SUFFIXES
    return parse_documents(
        decode_plan(read_plan_bytes(path, kind="file", is_log=is_log), name=path.name), name=path.name
    )


def parse_documents(text: str, *, name: str) -> tuple[Document, ...]:
    """The documents in a text, whose kind the ending of the name says."""
    suffix = Path(name).suffix.lower()
    if suffix in TREE_SUFFIXES or text.lstrip().startswith("{"):
        documents = _trees(text, name=name, suffix=suffix)
    elif suffix == ".py":
        documents = read_recipes(text, file=name)
    elif is_torchtitan_log(text):
        documents = (read_torchtitan_log(text, file=name),)
    elif len(lines := LOG_LINE.findall(text)) >= MANY_LOG_LINES:
        facts = (
            Fact(key=key, value=scalar_of(ENUM.sub("", value.strip())), place=f"{name}:{key}") for key, value in lines
        )
        documents = (Document(file=name, facts=tuple(facts), program="log"),)
    else:
        documents = read_script(text, file=name, read_text=parse_documents)
    num_facts = sum(len(document.facts) for document in documents)
    if num_facts > MAX_FACTS:
        raise PlanError(
            f"{name} has {num_facts} keys, more than any file of a training tool",
            code="import-too-large",
            fix="give the file that the tool reads, not one that it wrote",
        )
    return documents


def _trees(text: str, *, name: str, suffix: str) -> tuple[Document, ...]:
    trees: tuple[Mapping[str, object], ...]
    if suffix == ".toml":
        trees = (_toml(text, name=name),)
    elif suffix in (".yaml", ".yml"):
        parts = [part for part in re.split(r"(?m)^---\s*$", text) if re.sub(r"(?m)^\s*#.*$", "", part).strip()]
        trees = tuple(parse_plan_text(part, name=name, is_yaml=True, reads_aliases=True) for part in parts or [text])
    else:
        trees = (parse_plan_text(text, name=name, is_yaml=False),)
    found = []
    for tree in trees:
        found.append(Document(file=name, facts=facts_of(tree, file=name)))
        found.extend(_inner_documents(tree, name=name))
    return tuple(found)


def _toml(text: str, *, name: str) -> Mapping[str, object]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PlanError(f"{name} is not TOML: {str(error)[:120]}", code="plan-syntax", fix="mend that line") from None


def _inner_documents(tree: Mapping[str, object], *, name: str) -> list[Document]:
    """Scripts and files inside a file: SkyPilot's ``run``, the commands of Kubernetes jobs, and ConfigMaps."""
    run, data = tree.get("run"), tree.get("data")
    found: list[Document] = []
    if isinstance(run, str) and ("resources" in tree or "num_nodes" in tree):
        found.extend(read_script(_assignments(_skypilot_variables(tree)) + run, file=name))
    if tree.get("kind") == "ConfigMap" and isinstance(data, Mapping):
        for key, text in data.items():
            if isinstance(text, str) and str(key).endswith((*TREE_SUFFIXES, ".sh", ".py")):
                found.extend(parse_documents(text, name=str(key)))
    elif str(tree.get("kind", "")).endswith("Job") or tree.get("kind") == "JobSet":
        for command in dict.fromkeys(_commands(tree)):
            found.extend(read_script(command, file=name))
    return found


def _commands(tree: object) -> Iterator[str]:
    """The commands of a job's containers, as lines of a script."""
    if isinstance(tree, Mapping):
        words = [*_words(tree.get("command")), *_words(tree.get("args"))]
        variables = {
            str(one.get("name")): one.get("value") for one in _list(tree.get("env")) if isinstance(one, Mapping)
        }
        if words:
            line = re.sub(r"\$\((\w+)\)", r"${\1}", shlex.join(words)) if variables else shlex.join(words)
            yield _assignments(variables) + line
        for value in tree.values():
            yield from _commands(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _commands(value)


def _words(value: object) -> list[str]:
    return [str(word) for word in _list(value)]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _skypilot_variables(tree: Mapping[str, object]) -> dict[str, object]:
    """Variables that SkyPilot sets for ``run``: the task's own and its numbers of nodes and GPUs."""
    own, resources = tree.get("envs"), tree.get("resources")
    cards = resources.get("accelerators") if isinstance(resources, Mapping) else None
    sizes = {
        "SKYPILOT_NUM_NODES": tree.get("num_nodes") or 1,
        "SKYPILOT_NUM_GPUS_PER_NODE": str(cards).partition(":")[2] or 1 if isinstance(cards, str) else None,
    }
    return {**(own if isinstance(own, Mapping) else {}), **sizes}


def _assignments(variables: Mapping[str, object]) -> str:
    """Variables with a value of their own as the lines of a script that set them."""
    plain = {key: value for key, value in variables.items() if isinstance(value, str | int | float)}
    return "".join(f"{key}={shlex.quote(str(value))}\n" for key, value in plain.items() if str(key).isidentifier())
