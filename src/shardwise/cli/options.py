"""The options that several commands share. Each one is named after the field of the record it sets.

Nothing has a default here: an option that is not given leaves the record's own default, and a plan file's own value.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from shardwise.fields import MAX_COUNT, NULL, Field, Value, field_named, plan_fields
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.units import parse_bytes, parse_count, parse_length

MODEL_HELP = "catalogue name, Hub repository, config.json, folder holding one, or size: 70B, 30B-A3B"
LENGTH_HELP = "128K is 131,072"
CLUSTER_HELP = "64xh100-sxm, 8xdgx-h100, 4xp5.48xlarge, or a TOML file"
SEARCHED = ("micro_batch_size", "recompute", "offload")
"""Fields of the recipe that a search varies like a layout: ``plan`` bounds them, and elsewhere they stand beside it."""
METAVARS = {"counts": "N,N,...", "choices": "LIST", "text": "NAMES"}
UNIT_METAVARS = {"fraction": "SHARE", "ratio": "RATIO"}
"""By the last word of a field's name, which is its unit."""


def count(text: str) -> float:
    """An amount such as 15e12, 1T or 500B."""
    number = parse_count(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not an amount such as 15e12, 1T or 500B")
    return number


def byte_size(text: str) -> float:
    """A size such as 64MiB or 1.5GB."""
    number = parse_bytes(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a size such as 64MiB, 1.5GB or 4096")
    return number


def positive_amount(text: str) -> float:
    """An amount above 0 that is finite, such as 0.5 or 2M."""
    number = parse_count(text)
    if number is None or number <= 0:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not an amount above 0 such as 0.5, 500K or 2M")
    return number


def finite_number(text: str) -> float:
    """A plain number such as 0.4, neither infinite nor undefined."""
    number = amount(text)
    if not isfinite(number):
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a finite number")
    return number


def positive_number(text: str) -> int:
    """A whole number of at least 1."""
    number = whole_number(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]} is less than 1")
    return number


def whole_number(text: str) -> int:
    """A whole number; which ones are possible is for the rules to say."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a whole number") from None


def whole_count(text: str) -> int:
    """A whole number that may be large: 512, or 2K and 1M, which are 2,000 and 1,000,000 as in every amount."""
    try:
        return int(text)
    except ValueError:
        number = parse_count(text)
    if number is None or number != int(number):
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a whole number such as 8192, 128K or 1M")
    return int(number)


def sequence_length(text: str) -> int:
    """Tokens of a sequence: 8192, or 8K and 1M, which are 8,192 and 1,048,576 as people say lengths."""
    number = parse_length(text)
    if number is None:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a whole number such as 8192, 128K or 1M")
    return number


def number_list(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas, also in brackets, as a file has them."""
    return tuple(whole_number(part) for part in _unbracketed(text).split(","))


def _unbracketed(text: str) -> str:
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def amount(text: str) -> float:
    """A plain number such as 0.4 or 2.5; which ones are possible is for the rules to say."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a number") from None


def list_of(*choices: str) -> Callable[[str], tuple[str, ...]]:
    """A reader of names separated by commas, also in brackets, as a file has them."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in _unbracketed(text).split(","))
        unknown = next((name for name in names if name not in choices), None)
        if unknown is not None:
            raise argparse.ArgumentTypeError(f"'{unknown[:40]}' is not one of {', '.join(choices)}")
        return names

    return read


def add_plan_source(parser: argparse.ArgumentParser, *, is_optional: bool = False, also: str = "") -> None:
    """PLAN, or MODEL and CLUSTER; or the files of another tool, with what they do not say."""
    parser.add_argument(
        "source",
        metavar="PLAN|MODEL",
        nargs="?" if is_optional else None,
        help=f"plan file or '-' for standard input; or {MODEL_HELP}",
    )
    parser.add_argument("cluster", metavar="CLUSTER", nargs="?", help=f"only after MODEL: {CLUSTER_HELP}")
    text = f"further files where PLAN is one of another tool{also}"
    parser.add_argument("others", metavar="FILE", nargs="*", help=text)
    add_foreign_options(parser)


def add_foreign_options(parser: argparse.ArgumentParser) -> None:
    """``--model`` and ``--cluster``, which the file of another tool does not say, or one of ours says otherwise."""
    text = "beside a PLAN that is a file: instead of its own, or where another tool's says none"
    parser.add_argument("--model", metavar="MODEL", dest="named_model", help=f"{text}: what is trained")
    parser.add_argument("--cluster", metavar="CLUSTER", dest="named_cluster", help=f"{text}: what it runs on")


def add_calibration_option(parser: argparse.ArgumentParser) -> None:
    """``--calibration``."""
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="predict with what calibrate or reconcile found of the machine"
    )


def add_launcher_option(parser: argparse.ArgumentParser) -> None:
    """What starts the processes on every node."""
    parser.add_argument(
        "--launcher",
        choices=("torchrun", "slurm", "kubernetes"),
        help="start nothing, and write what starts it on every node: the torchrun script alone, with an sbatch file, "
        "or with manifests for JobSet and Kubeflow",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", dest="is_json", help="answer in JSON, errors included")


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    """``--engine``."""
    add_field_option(parser, field_named(Plan, "engine"))


def add_recipe_options(parser: argparse.ArgumentParser, *, has_many_precisions: bool = False) -> None:
    """What a step consists of: every field of Recipe but the three that a search may vary.

    Args:
        parser: of the command.
        has_many_precisions: whether ``--precision`` is a list of those that may be used, read as ``bound_precision``.
    """
    recipe = parser.add_argument_group("recipe")
    for field in plan_fields(Recipe):
        if field.name == "precision" and has_many_precisions:
            add_bound_option(recipe, field)
        elif field.name not in SEARCHED:
            add_field_option(recipe, field)


def add_layout_options(parser: argparse.ArgumentParser) -> None:
    """How the work is divided: every field of Layout, and the three of Recipe that a search would vary."""
    layout = parser.add_argument_group("layout")
    for field in (*plan_fields(Layout), *(field for field in plan_fields(Recipe) if field.name in SEARCHED)):
        add_field_option(layout, field)


def add_field_option(group: argparse._ActionsContainer, field: Field) -> None:
    """The option that sets a field; whether a number is in range is for the reader of the plan to say."""
    listed = f", out of {','.join(field.choices)}" if field.kind == "choices" else ""
    length = f"; {LENGTH_HELP}" if field.is_length else ""
    text = f"{field.help}{listed}{length}{_in_brackets(field)}"
    if field.kind == "flag":
        group.add_argument(field.option, action=argparse.BooleanOptionalAction, help=text)
    elif field.kind == "choice":
        choices = field.choices if field.default is not None else (*field.choices, NULL)
        group.add_argument(field.option, choices=choices, metavar="|".join(field.choices), help=text)
    elif field.kind == "count" and field.choices:
        stages = tuple(int(choice) for choice in field.choices)
        group.add_argument(field.option, type=whole_number, choices=stages, help=text)
    else:
        read = _reader(field)
        read = read if field.default is not None or field.is_required else OrNull(read)
        group.add_argument(field.option, type=read, metavar=_metavar(field), help=text)


def add_bound_option(group: argparse._ActionsContainer, field: Field) -> None:
    """The option of a search that limits a field, read as ``bound_`` and the field's name."""
    dest = f"bound_{field.name}"
    if field.kind == "flag":
        group.add_argument(field.option, dest=dest, action=argparse.BooleanOptionalAction, help=field.help)
    elif field.choices:
        text = f"{field.help}, out of {','.join(field.choices)}"
        group.add_argument(field.option, dest=dest, type=list_of(*field.choices), metavar="LIST", help=text)
    else:
        examples = "" if field.kind == "counts" else "; 8, 1..8, ..8 or 1,2,4"
        group.add_argument(field.option, dest=dest, metavar=_metavar(field), help=f"{field.help}{examples}")


def _in_brackets(field: Field) -> str:
    """The engines that read a field, and what a plan has that leaves it out."""
    left_out = field.left_out.format(_spelled(field.default))
    words = (field.offered_by, f"default: {left_out}" if left_out else "")
    return f" ({'; '.join(filter(None, words))})" if any(words) else ""


def _spelled(value: Value) -> str:
    if value is None or isinstance(value, bool):
        return {None: "", True: "on", False: "off"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _metavar(field: Field) -> str:
    return METAVARS.get(field.kind) or UNIT_METAVARS.get(field.name.rpartition("_")[2], "N")


def _reader(field: Field) -> Callable[[str], object]:
    """Reads a number or a list; numbers beyond a million are written as amounts are, such as 15T, and lengths 8K."""
    if field.kind == "choices":
        return list_of(*field.choices)
    if field.kind == "counts":
        return number_list
    if field.kind == "text":
        return str
    if field.is_length:
        return sequence_length
    is_large = field.highest > MAX_COUNT
    if field.kind == "amount":
        return count if is_large else amount
    return whole_count if is_large else whole_number


@dataclass(frozen=True, slots=True)
class OrNull:
    """A reader that leaves ``null`` as it is, of what may be taken back."""

    read: Callable[[str], object]

    def __call__(self, text: str) -> object:
        """The value that the text is."""
        return text if text == NULL else self.read(text)


def given_recipe(arguments: argparse.Namespace) -> dict[str, object]:
    """The recipe fields that were given, as a plan file spells them."""
    return _given(arguments, [field.name for field in plan_fields(Recipe)])


def given_layout(arguments: argparse.Namespace) -> dict[str, object]:
    """The layout fields that were given, as a plan file spells them."""
    return _given(arguments, [field.name for field in plan_fields(Layout)])


def _given(arguments: argparse.Namespace, names: list[str]) -> dict[str, object]:
    values = vars(arguments)
    given = {name: values[name] for name in names if values.get(name) is not None}
    return {name: None if value == NULL else value for name, value in given.items()}
