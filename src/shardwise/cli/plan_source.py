"""The plan a command is about: a plan file, standard input, or MODEL and CLUSTER with options."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from shardwise.cli.command import UsageError
from shardwise.cli.idle_options import RECIPE_ROWS, require_read
from shardwise.cli.options import given_layout, given_recipe
from shardwise.errors import ShardwiseError
from shardwise.plan import Plan
from shardwise.recipe import DEFAULT_SEQ_LEN

STANDARD_INPUT = "-"
MAX_LOG_BYTES = 1_000_000
"""An out-of-memory message stands near the end of a log."""
YAML_SUFFIXES = (".yaml", ".yml")
PLAN_SUFFIXES = (".json", *YAML_SUFFIXES)
JSONL_SUFFIX = ".jsonl"
MODEL_ALONE_FIX = "name the cluster as well: {name} 8xh100-sxm"
CLUSTER_ALONE_FIX = "name the model as well: llama-3.1-8b {name}"


def plan_from(arguments: argparse.Namespace) -> Plan:
    """The plan that PLAN, or MODEL and CLUSTER, and the options describe; options win over the file."""
    foreign = plan_from_foreign(arguments)
    if foreign is not None:
        plan = foreign
    elif arguments.cluster is not None:
        from shardwise.plan_file import read_plan

        require_model(arguments.source, beside=arguments.cluster)
        named = {"model": arguments.source, "cluster": arguments.cluster, "recipe": {}}
        plan = read_plan(named, overrides=given_parts(arguments), fallback_seq_len=DEFAULT_SEQ_LEN)
    else:
        plan = read_source(arguments.source, given_parts(arguments))
    require_read(RECIPE_ROWS, arguments, plan)
    return plan


def calibrated_plan_from(arguments: argparse.Namespace) -> Plan:
    """The plan of the arguments, with the price of ``--price`` and the rates of ``--calibration`` in its cluster."""
    return calibrated(_priced(plan_from(arguments), vars(arguments).get("price")), arguments.calibration)


def _priced(plan: Plan, usd_per_gpu_hour: float | None) -> Plan:
    """The plan on its cluster at the user's price; as it is without one."""
    if usd_per_gpu_hour is None:
        return plan
    from shardwise.catalog import read_cluster

    described = json.loads(plan.cluster.spec_json)
    written = {"node": described} if isinstance(described, str) else described
    return replace(plan, cluster=read_cluster({**written, "usd_per_gpu_hour": usd_per_gpu_hour}))


def calibrated(plan: Plan, path: Path | None) -> Plan:
    """The plan on its cluster as a calibration file describes it; as it is without one."""
    if path is None:
        return plan
    from shardwise.calibration_file import read_calibration
    from shardwise.predict.calibrated_cluster import calibrated_cluster

    return replace(plan, cluster=calibrated_cluster(plan.cluster, read_calibration(path)))


def plan_from_foreign(arguments: argparse.Namespace) -> Plan | None:
    """The plan of files of other tools that stand where PLAN stands; ``None`` where PLAN is one of ours."""
    given = [word for word in (arguments.source, arguments.cluster) if word is not None and word != STANDARD_INPUT]
    paths = [Path(word) for word in given]
    if not paths or not all(path.is_file() for path in paths):
        return None
    if arguments.cluster is not None and _is_cluster(arguments.cluster):
        return None  # a model's config.json beside a cluster of ours
    from shardwise.cli.foreign_plan import is_foreign, read_foreign

    if not all(map(is_foreign, paths)):
        return None
    beside = vars(arguments)
    parts = given_parts(arguments)
    settings = {
        **given_recipe(arguments),
        **given_layout(arguments),
        **({"engine": parts["engine"]} if "engine" in parts else {}),
    }
    run = read_foreign(paths, model=beside.get("named_model"), cluster=beside.get("named_cluster"), settings=settings)
    return run.plan()


def read_source(source: str, options: Mapping[str, object]) -> Plan:
    """The plan in a file or on standard input, with the options."""
    from shardwise.plan_file import read_plan

    if source == STANDARD_INPUT:
        return plan_from_mapping(parse_standard_input(standard_input_lines()), options)
    path = Path(source)
    _require_plan_file(path)
    return read_plan(path, overrides=options)


def plan_from_mapping(document: Mapping[str, object], options: Mapping[str, object]) -> Plan:
    """The plan in a parsed document, with the options."""
    from shardwise.plan_file import read_plan

    return read_plan(document, overrides=options)


def given_parts(arguments: argparse.Namespace) -> dict[str, object]:
    """What the options say, as a partial plan."""
    parts: dict[str, object] = {"recipe": given_recipe(arguments), "layout": given_layout(arguments)}
    if arguments.engine:
        parts["engine"] = arguments.engine
    beside = vars(arguments)
    parts["model"], parts["cluster"] = (_placed(beside.get(name)) for name in ("named_model", "named_cluster"))
    return {name: value for name, value in parts.items() if value}


def _placed(name: str | None) -> str | None:
    """A path that was typed is meant from the working directory, not from beside the plan file; a name is a name."""
    if name is None or not ("/" in name or name.endswith((".json", ".toml"))) or not Path(name).exists():
        return name
    return str(Path(name).resolve())


def require_model(source: str, *, beside: str) -> None:
    """Return when what stands before a cluster or a GPU may be a model.

    Raises:
        UsageError: it is a plan, which names its own cluster.
    """
    if source == STANDARD_INPUT or source.lower().endswith((*YAML_SUFFIXES, JSONL_SUFFIX)) or _is_plan_file(source):
        name = "a plan on standard input" if source == STANDARD_INPUT else f"the plan '{source}'"
        raise UsageError(
            f"{name} names its own cluster, but {beside} was given beside it",
            code="cli-usage",
            fix=f"leave out {beside}, or write it as the cluster of the plan",
        )


def _is_plan_file(source: str) -> bool:
    """Whether a JSON file has the parts of a plan; the config of a model has none of them."""
    path = Path(source)
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    from shardwise.plan_file.text import decode_plan, parse_plan_text, read_plan_bytes

    try:
        parts = parse_plan_text(decode_plan(read_plan_bytes(path), name=source), name=source, is_yaml=False)
    except ShardwiseError:  # what is wrong with the file is for its reader to say
        return False
    return "model" in parts and ("cluster" in parts or "recipe" in parts)


def standard_input_lines() -> Iterator[bytes]:
    """The lines of standard input; a person who forgot the pipe is told so.

    Raises:
        UsageError: standard input is a terminal.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "'-' reads a plan from standard input, but nothing is piped into it",
            code="cli-usage",
            fix="pipe a plan file: `shardwise predict - < plan.json`",
        )
    from shardwise.plan_file.text import MAX_PLAN_BYTES

    while line := sys.stdin.buffer.readline(MAX_PLAN_BYTES + 1):
        yield line


def parse_standard_input(lines: Iterable[bytes]) -> Mapping[str, object]:
    """The one plan, in JSON or YAML, that the lines make."""
    from shardwise.plan_file.text import decode_plan, parse_plan_text

    name = "standard input"
    text = decode_plan(b"".join(lines), name=name)
    return parse_plan_text(text, name=name, is_yaml=not text.lstrip().startswith(("{", "[")))


def read_log(path: Path) -> str:
    """The text of a log file, or of standard input, whatever its encoding; the end of a very long one."""
    if str(path) == STANDARD_INPUT:
        content = b"".join(standard_input_lines())
    else:
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
                content = file.read(MAX_LOG_BYTES)
        except OSError as error:
            raise UsageError(
                f"cannot read '{path}': {error.strerror}", code="oom-log", fix="give the path of a text file"
            ) from None
    return content[-MAX_LOG_BYTES:].decode("utf-8", errors="replace")


def _require_plan_file(path: Path) -> None:
    """Return when the path may be a plan file.

    Raises:
        UsageError: it is a model's name, or a folder, so that a cluster is missing.
    """
    is_name = not path.exists() and path.suffix.lower() not in PLAN_SUFFIXES
    if is_name or path.is_dir():
        raise UsageError(
            f"'{path}' is no plan file; a model needs a cluster beside it",
            code="cli-usage",
            fix=(CLUSTER_ALONE_FIX if is_name and _is_cluster(str(path)) else MODEL_ALONE_FIX).format(name=path),
        )


def _is_cluster(name: str) -> bool:
    from shardwise.catalog import read_cluster

    try:
        read_cluster(name)
    except ShardwiseError:
        return False
    return True
