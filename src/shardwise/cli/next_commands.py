"""The first remedy of a plan that may not fit, and the commands to type next."""

import argparse
import shlex
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwise.plan import Plan
    from shardwise.prediction import Prediction
    from shardwise.render.next_lines import Following


def typed_command(arguments: argparse.Namespace) -> str:
    """The command as it was typed."""
    return shlex.join(("shardwise", *arguments.typed_words))


def following(
    command: str, plan: "Plan", prediction: "Prediction", assumed: AbstractSet[str], *, ready: Sequence[str]
) -> "Following":
    """The commands for a plan that fits safely (``ready``), or the first remedy and how it is typed; no commands where
    what was typed cannot be typed again and is empty."""
    from shardwise.render.next_lines import Following

    if prediction.fit == "fits":
        return Following(commands=ready if command else (), typed=command)
    from shardwise.explain.changes import first_remedy
    from shardwise.render.retyped import mending_commands

    remedy = first_remedy(plan, prediction)
    commands = mending_commands(command, plan, remedy, assumed=assumed) if command else ()
    return Following(remedy=remedy, commands=commands, typed=command)
