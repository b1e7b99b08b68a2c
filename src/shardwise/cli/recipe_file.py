"""Recipes of ``train``: one file that holds the plan and every option of a run; what is typed wins over it.

Every run folder keeps its own as ``recipe.json``, and ``--resume`` without a PLAN reads that one.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.ask.idle_options import IdleOption
from shardwise.cli.output import write_note
from shardwise.cli.recipe_options import RecipeOption, Sections, absolute, beside, recipe_sections
from shardwise.errors import PlanError, ShardwiseError, UsageError
from shardwise.fields import Field, Value
from shardwise.plan import Plan
from shardwise.plan_file import PLAN_PART, ReadFile, is_recipe, naming, read_tree
from shardwise.plan_file.text import is_file_there

__all__ = ["KEPT_RECIPE", "keep_recipe", "read_with_recipe", "without_idle"]

KEPT_RECIPE = "recipe.json"
"""The recipe that a run folder keeps: the plan and the options that the run was started with."""
TOP_FIELDS = (Field("the form of the file", name="schema"), Field("the plan, or its path", name="plan"))

ABOUT_ONE_LIFE = ("out", "resume")
"""Options that a run keeps of no start: its folder is known, and starting it again is not going on from elsewhere."""

ParserMaker = Callable[[], argparse.ArgumentParser]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFile:
    """A recipe as its file has it, checked."""

    path: Path
    values: Mapping[str, Mapping[str, Value]]
    """The fields of every section but the plan."""
    plan: Mapping[str, object]
    """What stands under ``plan``; empty where that is a path."""


def read_with_recipe(make: ParserMaker, words: Sequence[str], typed: argparse.Namespace) -> argparse.Namespace:
    """The arguments of the words, with those of the recipe that PLAN names, or that the run of ``--resume`` kept.

    Raises:
        UsageError: the command line cannot be understood, or names nothing to train.
        PlanError: a recipe cannot be used, with its file, the key and what to write.
    """
    parser = make()
    arguments = parser.parse_args(words, argparse.Namespace(**vars(typed)))
    sections, given = recipe_sections(parser), _given(make(), words)
    file = _recipe_file(arguments)
    recipe = _checked(file, sections) if file is not None else None
    found: dict[str, object] = {}
    if recipe is not None:
        found = _untyped(recipe, sections, given)
        _say_overrides(recipe, sections, given)
        arguments = parser.parse_args(words, argparse.Namespace(**{**vars(typed), **found, "source": None}))
        arguments.source = str(recipe.path)
    arguments.recipe_options = _kept(sections, recipe, given)
    arguments.recipe_file = file
    arguments.from_recipe = frozenset(found) if arguments.resume is not None else frozenset()
    return arguments


def _untyped(recipe: RecipeFile, sections: Sections, given: Mapping[str, object]) -> dict[str, object]:
    """The arguments that a recipe has and that were not typed, by destination, as the parser would have made them."""
    found: dict[str, object] = {}
    for section, option in _each(sections):
        name, held = option.field.name, recipe.values[section]
        if name in held and option.action.dest not in given:
            with naming(str(recipe.path)):
                found[option.action.dest] = option.converted(held[name], place=f"{section}.{name}")
    return found


def keep_recipe(folder: Path, options: Mapping[str, Mapping[str, object]], plan: Mapping[str, object]) -> None:
    """Write what a run is started with into its folder, as the recipe that starts it again."""
    from shardwise.plan_file import RECIPE_SCHEMA
    from shardwise.train.failure.full_disk import writing

    run = {**options.get("run", {}), "out": str(folder.resolve())}
    document = {"schema": RECIPE_SCHEMA, "plan": plan, **options, "run": run}
    path = folder.joinpath(KEPT_RECIPE)
    with writing(path):
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def without_idle(rows: Sequence[IdleOption], arguments: argparse.Namespace, plan: Plan) -> argparse.Namespace:
    """The arguments without options of a kept recipe that nothing reads any more, such as the weights it began with."""
    values = vars(arguments)
    idle = {row.name for row in rows if row.name in arguments.from_recipe and row.is_idle(arguments, plan)}
    defaults = {row.name: row.default for row in rows}
    return argparse.Namespace(**{name: defaults[name] if name in idle else value for name, value in values.items()})


def _recipe_file(arguments: argparse.Namespace) -> ReadFile | None:
    """The recipe of the command line; ``None`` where it names a plan, or a model and a cluster.

    A file with none of the parts of a recipe, or that cannot be read, is left to the reader of plans to speak of.
    """
    if arguments.cluster is not None:
        return None
    if arguments.source is None:
        path = _kept_by(arguments.resume)
        return ReadFile(path=path, tree=read_tree(path)[0])
    path = Path(arguments.source)
    if not is_file_there(path):
        return None
    try:
        tree, _ = read_tree(path)
    except ShardwiseError:
        return None
    return ReadFile(path=path, tree=tree) if is_recipe(tree) else None


def _kept_by(resumed: Path | None) -> Path:
    """The recipe that the run of a checkpoint kept.

    Raises:
        UsageError: nothing says what is trained.
    """
    if resumed is None:
        raise UsageError(
            "the following arguments are required: PLAN|MODEL",
            code="cli-usage",
            fix="name a plan, a recipe, or a model and a cluster: shardwise train llama-3.1-8b 8xh100-sxm",
        )
    places = [folder.joinpath(KEPT_RECIPE) for folder in (resumed, *resumed.resolve().parents[:2])]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise UsageError(
            f"no {KEPT_RECIPE} lies in {resumed} or above it, so that nothing says what is trained",
            code="cli-usage",
            fix=f"name the plan as well: shardwise train plan.json --resume {resumed}",
        )
    return found


def _checked(file: ReadFile, sections: Sections) -> RecipeFile:
    from shardwise.plan_file.values import check_fields, refuse_unknown_key

    path, tree = file.path, file.tree
    parts = (*TOP_FIELDS, *(Field("", name=name) for name in sections))
    with naming(str(path)):
        for key in tree:
            if key not in {part.name for part in parts}:
                refuse_unknown_key("", key, parts, whole="a recipe")
        values: dict[str, dict[str, Value]] = {}
        for name, options in sections.items():
            _require_own_section(name, tree.get(name), sections)
            fields = {option.field.name: option for option in options}
            given = check_fields(name, tree.get(name), tuple(one.field for one in options), whole="a recipe")
            values[name] = {key: _beside(path.parent, fields[key], value) for key, value in given.items()}
    plan = tree.get(PLAN_PART)
    return RecipeFile(path=path, values=values, plan=plan if isinstance(plan, Mapping) else {})


def _require_own_section(section: str, given: object, sections: Sections) -> None:
    """Return when no key of a section is one of another section.

    Raises:
        PlanError: it names the section where the key belongs.
    """
    own = {option.field.name for option in sections[section]}
    for key in given if isinstance(given, Mapping) else ():
        home = next((part for part, one in _each(sections) if one.field.name == key), section)
        if key not in own and home != section:
            raise PlanError(
                f"{section}.{key} is not a field of a recipe", code="plan-unknown-key", fix=f"write it under {home}"
            )


def _beside(folder: Path, option: RecipeOption, value: Value) -> Value:
    if not option.is_path:
        return value
    if isinstance(value, tuple):
        return tuple(beside(folder, str(one)) for one in value)
    return beside(folder, str(value))


def _given(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, object]:
    """What was typed, by destination: texts as they are, of which ``parser`` has not made anything."""
    for action in parser._actions:
        action.default, action.type = argparse.SUPPRESS, None
    return vars(parser.parse_args(words))


def _each(sections: Sections) -> Iterator[tuple[str, RecipeOption]]:
    return ((section, option) for section, options in sections.items() for option in options)


def _kept(sections: Sections, recipe: RecipeFile | None, given: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """The options of a run by section, as another folder would have to say them."""
    kept: dict[str, dict[str, object]] = {}
    for section, option in _each(sections):
        name, dest = option.field.name, option.action.dest
        if name in ABOUT_ONE_LIFE:
            continue
        held = {} if recipe is None else recipe.values[section]
        if dest in given:
            kept.setdefault(section, {})[name] = absolute(option, option.from_words(given[dest]))
        elif name in held:
            kept.setdefault(section, {})[name] = absolute(option, held[name])
    return kept


def _say_overrides(recipe: RecipeFile, sections: Sections, given: Mapping[str, object]) -> None:
    """Name on standard error what was typed instead of what the file says."""
    for section, option in _each(sections):
        name, dest = option.field.name, option.action.dest
        held = recipe.values[section].get(name)
        if held is not None and dest in given and option.from_words(given[dest]) != held:
            _say(recipe, option.option, f"{section}.{name}", held)
    for section in ("recipe", "layout"):
        part = recipe.plan.get(section)
        for name, held in part.items() if isinstance(part, Mapping) else ():
            if given.get(name) is not None and str(given[name]) != str(held):
                _say(recipe, f"--{name.replace('_', '-')}", f"plan.{section}.{name}", held)
    for dest, name in (("named_model", "model"), ("named_cluster", "cluster")):
        if dest in given:
            _say(recipe, f"--{name}", f"plan.{name}", recipe.plan.get(name))


def _say(recipe: RecipeFile, option: str, path: str, held: object) -> None:
    written = json.dumps(held) if not isinstance(held, Mapping) else "what is written out"
    write_note(f"{option} is taken instead of {path} in {recipe.path.name} ({written})")
