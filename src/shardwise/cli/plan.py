"""Recommend a layout of a model on a cluster, on one screen; --details says why each of the others lost.

Every layout that breaks no rule and may fit is a candidate. An axis is pinned or bounded with --tp 8, --pp 1..8,
--dp-shard ..64 or --tp 1,2,4; what is not bounded is searched. When nothing fits, the closest plan is shown
with the changes that would make it fit; when none ends by a deadline or within a budget, the nearest that is met. The
exit code is then 3. With --gpus the question is asked on many clusters: how many GPUs, and which, does it take?
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.ask.bounded_fields import BOUNDED
from shardwise.cli.command import EXIT_DOES_NOT_FIT, EXIT_OK
from shardwise.cli.options import (
    add_bound_option,
    add_calibration_option,
    add_engine_option,
    add_json_option,
    add_plan_source,
    add_recipe_options,
    count,
    finite_number,
    positive_amount,
    positive_number,
)
from shardwise.cli.output import OutputError, require_apart, require_free, write_file
from shardwise.cli.plan_source import calibrated_plan_from, plan_words
from shardwise.cli.plan_sweep import add_sweep_options, answer_sweep, write_sweep
from shardwise.cli.progress import waiting
from shardwise.collector import paused_collector
from shardwise.errors import UsageError
from shardwise.fields import plan_fields
from shardwise.layout import Layout
from shardwise.recipe import Recipe

if TYPE_CHECKING:
    from shardwise.plan import Plan
    from shardwise.search import SearchBounds

NAMES = ("fastest", "1", "2", "3")
"""Plans of the first screen beside the recommended one."""
OBJECTIVES = ("step_time", "cost", "cost_and_time", "memory", "fewest_gpus")
OTHER_FORMATS = frozenset((".toml", ".html", ".htm", ".xml", ".csv", ".ini"))
"""Endings that promise what a plan file is not."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL and CLUSTER, the recipe, and the bounds of the search."""
    add_plan_source(parser)
    add_calibration_option(parser)
    add_json_option(parser)
    add_engine_option(parser)
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        help="to make small (default: step_time; with --gpus cost_and_time, cost by a deadline, step_time in a budget)",
    )
    parser.add_argument("--top", type=positive_number, default=10, metavar="N", help="plans to show (default: 10)")
    _add_files(parser)
    parser.add_argument(
        "--details",
        action="store_true",
        dest="has_details",
        help="print the ranking, why the others lost, the front, the rules and all assumptions below the answer",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        dest="is_full",
        help="with --json: leave nothing out, where the answer would else be kept below 40 kB",
    )
    parser.add_argument(
        "--what-if",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="say which constraint binds and what more memory or the next GPU would change (default: on)",
    )
    parser.add_argument(
        "--timings",
        action="store_true",
        dest="has_timings",
        help="say how long the search took, the one figure in which equal answers differ",
    )
    parser.add_argument(
        "--deadline-days", type=finite_number, metavar="DAYS", help="the run has to end within so many days"
    )
    parser.add_argument(
        "--budget-usd", type=positive_amount, metavar="USD", help="the run may cost so many dollars, such as 2M"
    )
    parser.add_argument(
        "--price", type=finite_number, metavar="USD", help="dollars per GPU and hour (default: the catalogue's)"
    )
    add_recipe_options(parser, has_many_precisions=True)
    parser.add_argument(
        "--global-batch-tokens",
        type=count,
        metavar="N",
        help="tokens per optimizer step, such as 4M (said how rounded)",
    )
    add_sweep_options(parser)
    _add_bounds(parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the files ``plan`` writes."""
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the recommended plan as a plan file, YAML when it ends in .yaml"
    )
    parser.add_argument(
        "--pick",
        choices=NAMES,
        help="with --out: write the fastest plan, or the alternative with this number, instead of the recommended one",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the front as a picture")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite an existing file")


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    """What is pinned or limited, axis by axis."""
    bounds = parser.add_argument_group("bounds of the search")
    bounds.add_argument(
        "--max-gpus", dest="bound_max_gpus", type=positive_number, metavar="N", help="use at most N GPUs, whole nodes"
    )
    fields = {field.name: field for field in (*plan_fields(Layout), *plan_fields(Recipe))}
    for name in BOUNDED:
        add_bound_option(bounds, fields[name])


def run(arguments: argparse.Namespace) -> int:
    """Search one cluster or many, print the answer, and write the recommended plan and the page when asked."""
    for path, example in ((arguments.out, "plan.json"), (arguments.html, "page.html")):
        if path is not None:
            _require_file(path, is_forced=arguments.is_forced, example=example)
    _require_plan_and_page_apart(arguments.out, arguments.html)
    written = {"--out": arguments.out, "--html": arguments.html}
    require_apart(written, (*plan_words(arguments), arguments.calibration))
    arguments = _with_first_precision(arguments)
    is_sweep = arguments.gpus is not None or arguments.gpu_types is not None
    with paused_collector():
        return _run_sweep(arguments) if is_sweep else _run_search(arguments)


def _run_sweep(arguments: argparse.Namespace) -> int:
    """Many clusters."""
    from shardwise.ask.plans import plan_text
    from shardwise.cli.plan_answer import say_nothing_is_written, screen_context

    result = answer_sweep(arguments, bounds_from(arguments))
    row = result.recommended
    if arguments.out is not None:
        if row is not None and row.best is not None:
            write_file(arguments.out, plan_text(row.best.plan, arguments.out), is_forced=arguments.is_forced)
        else:
            say_nothing_is_written(arguments.out, result.why, result.changes)
    if arguments.html is not None:
        from shardwise.render.html_search import sweep_html

        write_file(arguments.html, sweep_html(result), is_forced=arguments.is_forced, example="page.html")
    return write_sweep(result, screen_context(arguments, result.rows[0].question), arguments)


def _run_search(arguments: argparse.Namespace) -> int:
    """One cluster."""
    from shardwise.ask.found import what_is_missing
    from shardwise.ask.plans import plan_text
    from shardwise.ask.searching import search_plan
    from shardwise.cli.plan_answer import picked_plan, say_nothing_is_written, write_search

    question, bounds = _question(arguments), bounds_from(arguments)
    with waiting("searching layouts"):
        result = search_plan(
            question,
            bounds,
            arguments.objective or "step_time",
            global_batch_tokens=arguments.global_batch_tokens,
        )
    if arguments.out is not None:
        if result.plans:
            plan = picked_plan(result, arguments.pick)
            write_file(arguments.out, plan_text(plan, arguments.out), is_forced=arguments.is_forced)
        else:
            say_nothing_is_written(arguments.out, *what_is_missing(result))
    sensitivity = write_search(result, question, bounds, arguments)
    if arguments.html is not None:
        from shardwise.render.html_search import search_html

        page = search_html(result, sensitivity=sensitivity)
        write_file(arguments.html, page, is_forced=arguments.is_forced, example="page.html")
    return EXIT_OK if result.plans else EXIT_DOES_NOT_FIT


def _with_first_precision(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments with the first precision of the list as the recipe's own, and one way to give the batch.

    Raises:
        UsageError: the batch is given twice.
    """
    if arguments.global_batch_tokens is not None and arguments.global_batch_size is not None:
        raise UsageError(
            "--global-batch-size and --global-batch-tokens exclude each other",
            code="cli-usage",
            fix="leave out one of them",
        )
    precisions = arguments.bound_precision
    return argparse.Namespace(**vars(arguments), precision=precisions[0]) if precisions else arguments


def _question(arguments: argparse.Namespace) -> "Plan":
    """The plan whose layout is asked for."""
    from shardwise.ask.idle_options import ANSWER_ROWS, require_read

    question = calibrated_plan_from(arguments)
    require_read(ANSWER_ROWS, arguments, question)
    return question


def _require_file(path: Path, *, is_forced: bool, example: str) -> None:
    """Return when a plan or page may be written there. Standard output holds the ranking, so ``-`` is no place for it.

    Raises:
        OutputError: it is ``-``, or a file that must not or cannot be written.
    """
    if str(path) == "-":
        raise OutputError(
            "a file called - would mix with the ranking on standard output",
            code="output-path",
            fix=f"write {example} instead, or read recommended.plan of the answer to --json",
        )
    require_free(path, is_forced=is_forced, example=example)


def _require_plan_and_page_apart(out: Path | None, html: Path | None) -> None:
    """Return when the plan gets an ending that plan files have, and a file of its own.

    Raises:
        OutputError: the plan would be JSON under the name of another format, or the page would replace it.
    """
    if out is not None and out.suffix.lower() in OTHER_FORMATS:
        raise OutputError(
            f"a plan is written as JSON or YAML, and '{out}' ends in {out.suffix}",
            code="output-path",
            fix=f"write --out {out.with_suffix('.json')}",
        )
    if out is not None and html is not None and out.resolve() == html.resolve():
        raise OutputError(
            f"--out and --html name the same file '{out}', and the page would replace the plan",
            code="output-path",
            fix=f"write --html {html.with_suffix('.html')}",
        )


def bounds_from(arguments: argparse.Namespace) -> "SearchBounds":
    """The bounds as the record that the search reads."""
    from shardwise.ask.searching import bounds_of
    from shardwise.search import SearchBounds

    precisions = arguments.bound_precision
    return bounds_of(
        {
            **{name: getattr(arguments, f"bound_{name}") for name in BOUNDED},
            "activation_offload": arguments.activation_offload,
            "precision": precisions if len(precisions or ()) > 1 else None,
        },
        SearchBounds(
            max_gpus=arguments.bound_max_gpus,
            deadline_days=arguments.deadline_days,
            budget_usd=arguments.budget_usd,
            max_plans=arguments.top,
        ),
    )
