"""The options of ``train`` that watch how well a model does on data that it never learns from."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.ask.idle_options import IdleOption
from shardwise.cli.data_options import has_made_up_data
from shardwise.cli.number_range import MANY_STEPS, NumberRange, add_number
from shardwise.plan import Plan

if TYPE_CHECKING:
    from shardwise.train.job import ValidationSpec

__all__ = ["VALIDATION_NUMBERS", "VALIDATION_ROWS", "add_validation_options", "validation_spec"]

NUM_GENERATED = 32
"""Tokens after each prompt without --generate-tokens."""
VALIDATION_NUMBERS = {
    "--validation-fraction": NumberRange(min_value=0.0001, max_value=0.5, is_whole=False),
    "--validate-every": NumberRange(min_value=1, max_value=MANY_STEPS),
    "--patience": NumberRange(min_value=1, max_value=MANY_STEPS),
    "--generate-tokens": NumberRange(min_value=1, max_value=1_000_000),
}
_EVERY_HELP = "loss and perplexity of the validation data every N steps and at the end; the best checkpoint is kept"
_PATIENCE_HELP = "end the run after N validations in a row without a lower loss; --export then writes the best"


def _has_no_data(arguments: argparse.Namespace, _: Plan) -> bool:
    return arguments.validation is None and arguments.validation_fraction is None


def _never_validates(arguments: argparse.Namespace, _: Plan) -> bool:
    return arguments.validate_every is None


def _of_validating(option: str) -> IdleOption:
    return IdleOption(
        option=option, is_idle=_never_validates, beside="without --validate-every", missing="--validate-every 100"
    )


VALIDATION_ROWS = (
    IdleOption(
        option="--validate-every",
        is_idle=_has_no_data,
        beside="without validation data",
        missing="--validation PATH or --validation-fraction 0.01",
    ),
    *map(_of_validating, ("--validation", "--validation-fraction", "--patience", "--generate")),
    IdleOption(
        option="--validation-fraction",
        is_idle=lambda arguments, _: arguments.validation is not None,
        beside="beside --validation",
    ),
    IdleOption(
        option="--validation-fraction",
        is_idle=has_made_up_data,
        beside="without --data",
        missing="--data PATH",
    ),
    IdleOption(
        option="--generate-tokens",
        is_idle=lambda arguments, _: arguments.generate is None,
        beside="without --generate",
        missing="--generate FILE",
    ),
)
"""Options that nothing reads where nothing is validated."""


def add_validation_options(group: "argparse._ArgumentGroup") -> None:
    """Add the options that say by which data a run is validated, how often, and what follows."""
    numbers = VALIDATION_NUMBERS
    group.add_argument("--validation", metavar="SOURCE", help="validation data, read as --data is")
    add_number(
        group,
        numbers,
        "--validation-fraction",
        default=None,
        metavar="SHARE",
        text="keep this share of the samples of --data out of training, for validation",
    )
    add_number(group, numbers, "--validate-every", default=None, metavar="N", text=_EVERY_HELP)
    add_number(group, numbers, "--patience", default=None, metavar="N", text=_PATIENCE_HELP)
    group.add_argument(
        "--generate",
        type=Path,
        metavar="FILE",
        help="continue the prompts of a file at every validation, greedily, into generations.jsonl",
    )
    add_number(
        group, numbers, "--generate-tokens", default=None, metavar="N", text="tokens after each prompt (default: 32)"
    )


def validation_spec(arguments: argparse.Namespace) -> "ValidationSpec":
    """How the run is validated; paths are absolute, since workers may run in another folder."""
    from shardwise.train.data.sources import parse_source
    from shardwise.train.job import ValidationSpec

    return ValidationSpec(
        source=None if arguments.validation is None else parse_source(arguments.validation).text,
        every_steps=arguments.validate_every or 0,
        num_patience=arguments.patience or 0,
        prompts=None if arguments.generate is None else str(arguments.generate.resolve()),
        max_new_tokens=arguments.generate_tokens or NUM_GENERATED,
    )
