"""The options of ``train`` as fields of a recipe: every group of the command's help is a section of the file.

A new option is a field of the recipe without a line here: its group, name, kind and range are the parser's.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.cli.number_range import NumberRange
from shardwise.errors import PlanError
from shardwise.fields import Field, Kind, Value

__all__ = ["RecipeOption", "recipe_sections"]

Sections = Mapping[str, tuple["RecipeOption", ...]]

PLAN_GROUPS = ("recipe", "layout")
"""Groups whose options are fields of the plan, which a recipe holds under ``plan``."""
UNNAMED_GROUPS = ("options", "positional arguments")
RUN = "run"
"""The section of options that stand in no group."""
NOT_OF_A_RUN = ("help", "is_json", "is_dry", "is_lint", "shows_batch", "named_model", "named_cluster")
"""Destinations of options that ask for an answer or for a look instead of a run, and of those for parts of the plan."""
SOURCE = "SOURCE"
PATHS = ("PATH", "FOLDER", "FILE", SOURCE)
"""Metavars of options that name a file or a folder."""
SUFFIXED = re.compile(r"([^:@]+)([:@][^/]*)$")
NEGATION = "no-"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOption:
    """One option of the command, and the field of a recipe that stands for it."""

    field: Field
    action: argparse.Action

    @property
    def option(self) -> str:
        """The option as it is typed."""
        return self.action.option_strings[0]

    @property
    def is_path(self) -> bool:
        """Whether it names a file or a folder."""
        return self.action.metavar in PATHS

    def converted(self, value: Value, *, place: str) -> object:
        """The value as the parser would have made it of the option.

        Raises:
            PlanError: the option does not take it.
        """
        if self.field.kind == "flag":
            is_typed = value if not self._is_negative else not value
            return self.action.const if is_typed else self.action.default
        if isinstance(value, tuple):
            return [self._read(str(one), place=f"{place}[{index}]") for index, one in enumerate(value)]
        return self._read(value, place=place) if isinstance(value, str) else value

    def from_words(self, value: object) -> object:
        """What a file says where the parser kept this of the command line, unread."""
        if self.field.kind == "flag":
            return (value == self.action.const) is not self._is_negative
        if self.field.kind == "count":
            return int(str(value))
        return float(str(value)) if self.field.kind == "amount" else value

    @property
    def _is_negative(self) -> bool:
        return self.option.startswith(f"--{NEGATION}") and self.action.nargs == 0

    def _read(self, text: str, *, place: str) -> object:
        read = self.action.type
        if not callable(read):
            return text
        try:
            return read(text)
        except (argparse.ArgumentTypeError, ValueError) as error:
            raise PlanError(
                f"{place}: {error}",
                code="plan-wrong-type",
                fix=f"write what {self.option} takes ({self.action.metavar}); `shardwise train --help` says it",
            ) from None


def recipe_sections(parser: argparse.ArgumentParser) -> Sections:
    """The sections of a recipe besides its plan, each with the options of one group, in the order of the help page."""
    found: dict[str, tuple[RecipeOption, ...]] = {}
    for group in parser._action_groups:
        title = (group.title or UNNAMED_GROUPS[0]).lower()
        if title in PLAN_GROUPS:
            continue
        named = [one for one in group._group_actions if one.option_strings and one.dest not in NOT_OF_A_RUN]
        section = RUN if title in UNNAMED_GROUPS else title.replace(" ", "_")
        if named:
            found[section] = (*found.get(section, ()), *map(_recipe_option, named))
    return found


def _recipe_option(action: argparse.Action) -> RecipeOption:
    name = action.option_strings[0].removeprefix("--")
    if action.nargs == 0:
        name = name.removeprefix(NEGATION)
    kind, limits = _kind(action), _range(action)
    field = Field(
        action.help or "",
        name=name.replace("-", "_"),
        kind=kind,
        choices=tuple(str(choice) for choice in action.choices or ()) if kind == "choice" else (),
        lowest=limits.min_value if limits else 0,
        highest=limits.max_value if limits else 0,
        example={"count": "10", "amount": "0.1"}.get(kind, str(action.metavar)),
    )
    return RecipeOption(field=field, action=action)


def _range(action: argparse.Action) -> NumberRange | None:
    """The range of a number, which the reader of the option has."""
    owner = getattr(action.type, "__self__", None)
    return owner if isinstance(owner, NumberRange) else None


def _kind(action: argparse.Action) -> Kind:
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        return "flag"
    if isinstance(action, argparse._AppendAction) or action.nargs in ("+", "*"):
        return "texts"
    if action.choices is not None:
        return "choice"
    limits = _range(action)
    if limits is None:
        return "text"
    return "count" if limits.is_whole else "amount"


def beside(folder: Path, text: str) -> str:
    """A path of a recipe: one that is found beside the file is meant there, any other in the working directory."""
    path, rest = _path_and_rest(text)
    found = folder.joinpath(path)
    return f"{found}{rest}" if found.exists() else text


def absolute(option: RecipeOption, value: object) -> object:
    """The value of an option as a file in another folder would have to say it."""
    if not option.is_path:
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_resolved(option, str(one)) for one in value]
    return _resolved(option, str(value))


def _resolved(option: RecipeOption, text: str) -> str:
    """The absolute path; a source that is no path here may be the name of one elsewhere, and stays as it is."""
    path, rest = _path_and_rest(text)
    is_path = option.action.metavar != SOURCE or Path(path).exists()
    return f"{Path(path).resolve()}{rest}" if is_path else text


def _path_and_rest(text: str) -> tuple[str, str]:
    """A path, and what a source of data may have behind it: ``:2`` or ``@train``.

    >>> _path_and_rest("data/notes.jsonl:0.5"), _path_and_rest("notes.txt")
    (('data/notes.jsonl', ':0.5'), ('notes.txt', ''))
    """
    parts = SUFFIXED.match(text)
    return (parts[1], parts[2]) if parts else (text, "")
