"""How ``plan`` answers: the first screen, then what would change it, then the details that were asked for; or JSON."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.options import given_recipe
from shardwise.cli.output import stdout_style, write_line, write_note
from shardwise.cli.progress import waiting
from shardwise.errors import UsageError
from shardwise.recipe import ASKED

if TYPE_CHECKING:
    from shardwise.plan import Plan
    from shardwise.render.first_screen import ScreenContext
    from shardwise.search import Relief, SearchBounds, SearchResult, Sensitivity, TargetChange


def write_search(
    result: "SearchResult", question: "Plan", bounds: "SearchBounds", arguments: argparse.Namespace
) -> "Sensitivity | None":
    """Print the answer, and return what would change it.

    The screen is printed before the what-ifs are searched, so that nobody waits for them.
    """
    if arguments.is_json:
        from shardwise.render.json_answers import search_object
        from shardwise.render.json_short import answer_text

        sensitivity = _sensitivity(result, bounds, arguments)
        document = search_object(result, sensitivity=sensitivity, has_clock=arguments.has_timings)
        write_line(answer_text(document, is_full=arguments.is_full))
        return sensitivity
    _write_screen(result, screen_context(arguments, question, assumptions=result.assumptions))
    sensitivity = _sensitivity(result, bounds, arguments)
    style = stdout_style()
    if sensitivity is not None:
        from shardwise.render.first_screen import what_if_screen

        now = result.plans[0].prediction
        write_line(what_if_screen(sensitivity, now=now, style=style))
    if arguments.has_details:
        from shardwise.render.text_search import search_text

        has_clock = arguments.has_timings or sys.stdout.isatty()
        write_line("\n" + search_text(result, sensitivity=sensitivity, style=style, has_clock=has_clock))
    elif arguments.has_timings:
        from shardwise.render.terminal import page_text
        from shardwise.render.text_search import space_text

        write_line(page_text([space_text(result.space, has_clock=True)], style=style))
    return sensitivity


def picked_plan(result: "SearchResult", name: str | None) -> "Plan":
    """The recommended plan, or the one that ``--pick`` names.

    Raises:
        UsageError: the screen has fewer alternatives.
    """
    from shardwise.search.shortlist import shortlist

    chosen = None if name is None else shortlist(result)
    if chosen is None or name is None:
        return result.plans[0].plan
    if name not in chosen.named:
        count, named = len(chosen.alternatives), " or ".join(f"--pick {one}" for one in chosen.named)
        has = f"the screen has {count} alternative{'s' * (count != 1)}"
        raise UsageError(f"--pick {name}, but {has}", code="cli-usage", fix=f"give {named}")
    return chosen.named[name]


def _write_screen(result: "SearchResult", context: "ScreenContext") -> None:
    from shardwise.search.shortlist import shortlist

    chosen, style = shortlist(result), stdout_style()
    if chosen is not None:
        from shardwise.render.first_screen import plan_screen

        write_line(plan_screen(chosen, context, style=style))
    else:
        from shardwise.render.no_plan_screen import no_plan_screen

        write_line(no_plan_screen(result, context, style=style))
    sys.stdout.flush()


def _sensitivity(result: "SearchResult", bounds: "SearchBounds", arguments: argparse.Namespace) -> "Sensitivity | None":
    from shardwise.search import what_if

    if not arguments.what_if:
        return None
    with waiting("trying what would change it"):
        return what_if(result, limits=bounds)


def screen_context(
    arguments: argparse.Namespace, question: "Plan", *, assumptions: Sequence[str] = ()
) -> "ScreenContext":
    """What was assumed, the command as it was typed, and where the plan was written."""
    from shardwise.render.first_screen import CHANGE_LINES, ScreenContext

    words = [word for word in arguments.typed_words if word != "--details"]
    return ScreenContext(
        assumed=assumed_fields(arguments, question, assumptions),
        command=shlex.join(("shardwise", *words)),
        plan_file=None if arguments.out is None else shlex.quote(str(arguments.out)),
        num_kept_lines=CHANGE_LINES if arguments.what_if else 0,
        asked_tokens=arguments.global_batch_tokens,
    )


def assumed_fields(arguments: argparse.Namespace, question: "Plan", assumptions: Sequence[str] = ()) -> frozenset[str]:
    """Fields of the question that neither an option nor a plan file gave."""
    from shardwise.ask.plans import QUESTION, stands_alone

    said = {sentence.partition("=")[0] for sentence in assumptions}
    names = {name for name in ASKED if name in said}
    is_model = arguments.cluster is not None or vars(arguments).get("gpu_types") is not None
    if is_model and not stands_alone(arguments.source, arguments.cluster, vars(arguments).get("others", ())):
        names.update(QUESTION.difference(given_recipe(arguments), ["engine"] if arguments.engine else []))
    is_given = arguments.global_batch_size is not None or vars(arguments).get("global_batch_tokens") is not None
    if is_given:
        names.discard("global_batch_size")
    elif is_model or question.recipe.global_batch_size is None:
        names.add("global_batch_size")
    return frozenset(names)


def say_nothing_is_written(path: Path, because: str, changes: "Sequence[TargetChange | Relief]") -> None:
    """Say on standard error that ``--out`` wrote no plan, and with which change it would."""
    nearest = f"; with {changes[0].change} there is one" if changes else ""
    write_note(f"wrote nothing to {path}: there is no plan, because {because.rstrip('.')}{nearest}")
