"""The plan a question is about: a plan, its file, a file of another tool, or a model and a cluster with fields."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from pathlib import Path

from shardwise.ask.idle_options import ANSWER_ROWS, RECIPE_ROWS, require_read
from shardwise.calibration_file import read_calibration
from shardwise.catalog import priced_cluster, read_cluster
from shardwise.errors import PlanError, ShardwiseError, UsageError
from shardwise.fields import field_named, plan_fields
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.plan_file import PlanSource, ReadFile, plan_to_json, read_plan
from shardwise.plan_file.read import is_plan_text
from shardwise.plan_file.text import (
    YAML_SUFFIXES,
    decode_plan,
    is_file_there,
    is_there,
    parse_plan_text,
    read_plan_bytes,
)
from shardwise.plan_file.values import is_number, refuse_unknown_key, shown
from shardwise.predict import predict
from shardwise.predict.calibrated_cluster import calibrated_cluster
from shardwise.prediction import Prediction
from shardwise.recipe import ASKED, DEFAULT_SEQ_LEN, Recipe
from shardwise.render.json_text import json_text
from shardwise.rules import require_valid

ClusterSource = str | Path | Mapping[str, object]
Fields = Mapping[str, object]
"""Values by the names that fields of a recipe and a layout have, and ``engine``."""
QUESTION = frozenset((*ASKED, "global_batch_size", "engine"))
"""Fields of a question about a model on a cluster that may be left open."""
PLAN_SUFFIXES = (".json", *YAML_SUFFIXES)
TEXT_SUFFIXES = (*PLAN_SUFFIXES, ".toml", ".py", ".sh", ".sbatch", ".slurm", ".md", ".txt", ".log")
"""Endings that a file has and no model."""
NO_MODEL_SUFFIXES = (*YAML_SUFFIXES, ".jsonl")
STANDARD_INPUT = "-"
MODEL_ALONE_FIX = "name the cluster as well: {name} 8xh100-sxm"
CLUSTER_ALONE_FIX = "name the model as well: llama-3.1-8b {name}"


def plan_of(
    source: Plan | PlanSource | ReadFile,
    cluster: ClusterSource | None,
    fields: Fields,
    *,
    others: Sequence[Path] = (),
    named_model: str | None = None,
    named_cluster: str | None = None,
) -> Plan:
    """The plan that a source describes, or a model on a cluster; the fields win over what the source says.

    Args:
        source: a plan, its file, text or mapping, or one of another tool; or a model, with a cluster.
        cluster: what the model runs on; a second file where the source is a file of another tool.
        fields: fields of the recipe and the layout, and the engine.
        others: further files of the other tool.
        named_model: the model to take instead of the plan's own, or where files of another tool name none.
        named_cluster: the cluster to take instead of the plan's own, or where files of another tool name none.

    Raises:
        ShardwiseError: one of them cannot be used. Rules are not checked here, but by
            :func:`shardwise.rules.require_valid`.
    """
    parts = parts_of(fields)
    foreign = require_foreign_files(source, cluster, others, named_model=named_model, named_cluster=named_cluster)
    if foreign:
        from shardwise.ask.foreign_plan import read_foreign

        return read_foreign(foreign, model=named_model, cluster=named_cluster, settings=fields).plan()
    named_apart = {"model": _placed(named_model), "cluster": _placed(named_cluster)}
    parts |= {part: name for part, name in named_apart.items() if name is not None}
    if isinstance(source, ReadFile):
        return read_plan(source, overrides=parts)
    if cluster is not None:
        model = require_model(source, beside=str(cluster))
        named = {"model": model, "cluster": cluster, "recipe": {}}
        return read_plan(named, overrides=parts, fallback_seq_len=DEFAULT_SEQ_LEN)
    if isinstance(source, Plan):
        return (
            source if not parts else replace(read_plan(plan_to_json(source), overrides=parts), cluster=source.cluster)
        )
    if isinstance(source, Mapping) or is_plan_text(source):
        return read_plan(source, overrides=parts)
    path = Path(source)
    _require_plan_file(path)
    return read_plan(path, overrides=parts)


def _placed(name: str | None) -> str | None:
    """A path that was typed is meant from the working directory, not from beside the plan file; a name is a name."""
    if name is None or not ("/" in name or name.endswith((".json", ".toml"))) or not is_there(Path(name)):
        return name
    return str(Path(name).resolve())


def require_foreign_files(
    source: object,
    cluster: object,
    others: Sequence[Path | str],
    *,
    named_model: str | None,
    named_cluster: str | None,
) -> list[Path]:
    """:func:`foreign_files`, where nothing stands beside a plan or a model of ours that has no place there.

    Raises:
        UsageError: something does.
    """
    foreign = foreign_files(source, cluster, others)
    if not foreign:
        _refuse_no_plan(source, [word for word in (cluster, *others) if word is not None])
    if others and not foreign:
        raise UsageError(
            f"there is no place for '{str(others[0])[:40]}'",
            code="cli-usage",
            fix="leave it out, or give files that are all of another tool",
        )
    name = named_model or named_cluster
    if cluster is not None and name is not None and not foreign:
        raise UsageError(
            f"'{name[:40]}' is named beside MODEL and CLUSTER",
            code="cli-usage",
            fix="leave out --model and --cluster, which go with a file",
        )
    return foreign


def foreign_files(source: object, cluster: object, others: Sequence[Path | str] = ()) -> list[Path]:
    """The files of other tools that stand where a plan stands; none where a plan or a model of ours does."""
    words = [word for word in (source, cluster, *others) if word is not None]
    if not all(isinstance(word, str | Path) and not is_plan_text(word) for word in words):
        return []
    paths = [Path(str(word)) for word in words if str(word) != STANDARD_INPUT]
    if not paths or not all(map(is_file_there, paths)) or (cluster is not None and is_cluster(str(cluster))):
        return []  # among them a model's config.json beside a cluster of ours
    from shardwise.ask.foreign_plan import is_foreign

    return paths if all(map(is_foreign, paths)) else []


def _refuse_no_plan(source: object, beside: Sequence[object]) -> None:
    """Return when no file is missing beside one of another tool, and the source is no log of a run out of memory.

    Raises:
        PlanError: a file is missing.
        UsageError: the source is such a log.
    """
    from shardwise.ask.foreign_plan import is_foreign

    if not isinstance(source, str | Path) or is_plan_text(source):
        return
    path, missing = Path(source), [str(word) for word in beside if _is_missing_file(str(word))]
    if missing and is_foreign(path):
        raise PlanError(f"there is no file '{missing[0][:120]}'", code="plan-not-found", fix="check the path")
    if path.suffix.lower() not in PLAN_SUFFIXES and is_file_there(path) and _holds_oom(path):
        raise UsageError(
            f"'{path}' holds an out-of-memory message, which is no plan",
            code="cli-usage",
            fix=f"give it beside the plan that was running: shardwise explain plan.json --oom-log {path}",
        )


def _is_missing_file(word: str) -> bool:
    """Whether a word can only be meant as a path, and there is none."""
    is_path = word.lower().endswith(TEXT_SUFFIXES) or word.startswith((".", "/", "~"))
    return is_path and not is_there(Path(word))


def _holds_oom(path: Path) -> bool:
    """Whether a text holds an out-of-memory message, and nothing of a plan."""
    from shardwise.explain.oom_text import parse_oom

    try:
        parse_oom(read_plan_bytes(path, is_log=True).decode(errors="replace"))
    except ShardwiseError:
        return False
    return True


def asked_plan(source: Plan | PlanSource, cluster: ClusterSource | None, fields: Fields) -> Plan:
    """:func:`plan_of` for a caller in Python, whose fields have to do something, as options have to.

    Raises:
        UsageError: a field would be ignored.
    """
    plan = plan_of(source, cluster, fields)
    require_read((*RECIPE_ROWS, *ANSWER_ROWS), argparse.Namespace(**fields), plan, is_python=True)
    return plan


def assumed_fields(source: object, cluster: object, given: Iterable[str], plan: Plan) -> frozenset[str]:
    """Fields of the question that nobody gave: of a model on a cluster all of them, of a plan its batch alone."""
    names = {"global_batch_size"} if plan.recipe.global_batch_size is None else set[str]()
    if cluster is not None and not foreign_files(source, cluster):
        names |= QUESTION
    return frozenset(names.difference(given))


def parts_of(fields: Fields) -> dict[str, object]:
    """The fields as a partial plan; ``None`` takes back what the source says.

    Raises:
        PlanError: a plan has no field of that name.
    """
    sections = {"recipe": plan_fields(Recipe), "layout": plan_fields(Layout)}
    parts: dict[str, object] = {
        section: {field.name: fields[field.name] for field in known if field.name in fields}
        for section, known in sections.items()
    }
    if fields.get("engine"):
        parts["engine"] = fields["engine"]
    known = (*sections["recipe"], *sections["layout"], field_named(Plan, "engine"))
    names = {field.name for field in known}
    for name in fields:
        if name not in names:
            refuse_unknown_key("", name, known)
    return {name: value for name, value in parts.items() if value}


def checked_prediction(plan: Plan) -> Prediction:
    """The prediction of a plan that breaks no rule.

    Raises:
        LayoutError: the layout breaks a rule, such as 15 ranks on 8 GPUs.
        RecipeError: the recipe breaks one.
    """
    require_valid(plan)
    return predict(plan)


def plain_numbers(**figures: object) -> tuple[float | None, ...]:
    """The figures as numbers of Python, whichever library made them; ``None`` for those that are not given.

    Raises:
        UsageError: one is a text, such as "1T", or a yes or no.
    """
    return tuple(None if value is None else _number(name, value) for name, value in figures.items())


def finite_numbers(**figures: object) -> tuple[float | None, ...]:
    """:func:`plain_numbers`, none of which may be infinite or no number."""
    numbers = plain_numbers(**figures)
    for name, number in zip(figures, numbers, strict=True):
        if number is not None and not isfinite(number):
            raise UsageError(
                f"{name} is {number}, not a finite number",
                code="plan-wrong-type",
                fix=f"write {name} as a finite number, or leave it out",
            )
    return numbers


def plain_counts(**figures: object) -> tuple[int | None, ...]:
    """:func:`plain_numbers`, which have to be whole."""
    for name, value in figures.items():
        if value is not None and _number(name, value) % 1:
            raise UsageError(
                f"{name} is {value}, not a whole number", code="plan-wrong-type", fix=f"write {name} without a fraction"
            )
    return tuple(None if value is None else int(value) for value in plain_numbers(**figures))


def _number(name: str, value: object) -> float:
    if not is_number(value):
        raise UsageError(
            f"{name} is {shown(value)}, not a number",
            code="plan-wrong-type",
            fix=f"write {name} as a number without quotes, such as 1e12",
        )
    try:
        return float(value)
    except OverflowError:
        return inf


def priced(plan: Plan, usd_per_gpu_hour: float | None) -> Plan:
    """The plan, its cluster at the user's price in dollars per GPU and hour; as it is for ``None``."""
    return replace(plan, cluster=priced_cluster(plan.cluster, usd_per_gpu_hour))


def calibrated(plan: Plan, path: str | Path | None) -> Plan:
    """The plan on its cluster as a calibration file describes it; as it is without one."""
    if path is None:
        return plan
    return replace(plan, cluster=calibrated_cluster(plan.cluster, read_calibration(Path(path))))


def require_model(source: Plan | PlanSource, *, beside: str) -> PlanSource:
    """What stands before a cluster or a GPU, where it may be a model.

    Raises:
        UsageError: it is a plan, which names its own cluster.
    """
    if isinstance(source, Mapping):
        return source
    if isinstance(source, Plan):
        raise _named_twice(f"the plan of {source.model.name}", beside)
    name = str(source)
    if name == STANDARD_INPUT or name.lower().endswith(NO_MODEL_SUFFIXES) or _is_plan_file(name):
        raise _named_twice("a plan on standard input" if name == STANDARD_INPUT else f"the plan '{name}'", beside)
    if is_cluster(name) and not is_cluster(beside):
        raise UsageError(
            f"the cluster {name[:80]} stands before the model {beside[:80]}: the order is swapped",
            code="cli-usage",
            fix=f"write {beside[:80]} {name[:80]}",
        )
    return source


def _named_twice(plan: str, cluster: str) -> UsageError:
    """The error of a plan beside which a cluster is named."""
    return UsageError(
        f"{plan} names its own cluster, but {cluster} was given beside it",
        code="cli-usage",
        fix=f"leave out {cluster}, or write it as the cluster of the plan",
    )


def stands_alone(source: str, cluster: str | None, others: Sequence[Path | str]) -> bool:
    """Whether files say what is asked, and not a model beside a cluster."""
    is_plan = source == STANDARD_INPUT or source.lower().endswith(NO_MODEL_SUFFIXES) or _is_plan_file(source)
    return is_plan or bool(foreign_files(source, cluster, others))


def is_cluster(name: str) -> bool:
    """Whether a word names a cluster."""
    try:
        read_cluster(name)
    except ShardwiseError:
        return False
    return True


def _is_plan_file(source: str) -> bool:
    """Whether a JSON file has the parts of a plan; the config of a model has none of them."""
    path = Path(source)
    if path.suffix.lower() != ".json" or not is_file_there(path):
        return False
    try:
        parts = parse_plan_text(decode_plan(read_plan_bytes(path), name=source), name=source, is_yaml=False)
    except ShardwiseError:  # what is wrong with the file is for its reader to say
        return False
    return "model" in parts and ("cluster" in parts or "recipe" in parts)


def _require_plan_file(path: Path) -> None:
    """Return when the path may be a plan file.

    Raises:
        UsageError: it is a model's name, or a folder, so that a cluster is missing.
    """
    name = str(path)[:80]
    is_name = not is_there(path) and not _is_missing_file(str(path))
    if is_name or path.is_dir():
        raise UsageError(
            f"'{name}' is no plan file; a model needs a cluster beside it",
            code="cli-usage",
            fix=(CLUSTER_ALONE_FIX if is_name and is_cluster(str(path)) else MODEL_ALONE_FIX).format(name=name),
        )


def save_plan(plan: Plan, path: str | Path, *, force: bool = False) -> Path:
    """Write a plan file, YAML when its name ends so, and return its path.

    Raises:
        PlanError: a file of that name is there and ``force`` is not, or it cannot be written; or no plan is given.
    """
    if not isinstance(plan, Plan):
        raise PlanError(
            f"a {type(plan).__name__} is no plan",
            code="plan-wrong-type",
            fix="give the plan of an answer, answer.plan, or sw.load_plan(PATH)",
        )
    path = Path(path)
    if path.exists() and not force:
        raise PlanError(f"'{path}' exists already", code="output-path", fix="write save_plan(plan, path, force=True)")
    try:
        path.write_text(plan_text(plan, path), encoding="utf-8")
    except OSError as error:
        raise PlanError(
            f"'{path}' cannot be written: {error.strerror}", code="output-path", fix="name a folder that exists"
        ) from None
    return path


def plan_text(plan: Plan, path: Path) -> str:
    """The text of a plan file: YAML where its name ends so, JSON otherwise."""
    written = plan_to_json(plan)
    if path.suffix.lower() in YAML_SUFFIXES:
        import yaml

        return str(yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=120))
    return json_text(written)
