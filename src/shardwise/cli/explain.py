"""Say why a plan fits or not, what dominates its memory and time, and which changes help.

With a PLAN, or MODEL and CLUSTER with a layout, the plan that `plan` recommends for the same question comes first, and
then the change that gains most; every change is predicted again before it is shown. The exit code is 3 when the plan
does not fit. `explain strategy MODEL CLUSTER`, or MODEL and CLUSTER without a layout, compare strategies: a practical
checklist answered with this model's numbers, when data parallelism is enough, when to shard states, when to add tensor
or pipeline parallelism, and common sentences about sharding, each tested by predictions.

--oom and --allocation-bytes name the tensor behind an out-of-memory error; the plan that was running makes the answer
sharper but may be left out. --record reads what was recorded instead: a run folder, the record of `trace`, or a memory
snapshot, whose refused requests are explained; beside a plan, what was not predicted.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.command import EXIT_DOES_NOT_FIT, EXIT_OK
from shardwise.cli.next_commands import typed_command
from shardwise.cli.options import (
    add_engine_option,
    add_json_option,
    add_layout_options,
    add_plan_source,
    add_recipe_options,
    given_layout,
    given_recipe,
)
from shardwise.cli.output import stdout_style, write_line
from shardwise.cli.plan_source import plan_from, read_log
from shardwise.errors import UsageError

if TYPE_CHECKING:
    from shardwise.explain import Finding
    from shardwise.plan import Plan

SETTLING = ("micro_batch_size", "recompute", "recompute_layers", "recompute_modules")
"""Fields that a plan is made of where there is one layout."""
STRATEGY = "strategy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PLAN, or MODEL and CLUSTER; or an out-of-memory text."""
    add_plan_source(parser, is_optional=True, also="; or CLUSTER after `strategy` MODEL")
    add_json_option(parser)
    parser.add_argument("--oom", metavar="TEXT", help="an out-of-memory message, as the framework printed it")
    parser.add_argument("--oom-log", type=Path, metavar="FILE", help="a log that holds the message; '-' reads a pipe")
    parser.add_argument("--allocation-bytes", metavar="SIZE", help="a failed allocation: bytes, or such as '32.00 GiB'")
    parser.add_argument("--record", type=Path, metavar="FILE", help="a run, a record of `trace`, a memory snapshot")
    parser.add_argument("--strategies", action="store_true", dest="is_strategies", help="compare strategies for a PLAN")
    add_engine_option(parser)
    add_recipe_options(parser)
    add_layout_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the findings."""
    _take_strategy(arguments)
    texts = [arguments.oom, arguments.oom_log, arguments.allocation_bytes, arguments.record]
    num_texts = sum(text is not None for text in texts)
    if num_texts > 1:
        names = "--oom, --oom-log, --allocation-bytes and --record"
        raise UsageError(f"{names} exclude each other", code="cli-usage", fix="give one")
    if num_texts:
        return _print_findings(_out_of_memory(arguments), arguments)
    if arguments.source is None:
        raise UsageError(
            "there is nothing to explain", code="cli-usage", fix="name a plan: `shardwise explain plan.json`"
        )
    from shardwise.ask.plans import foreign_files

    plan = plan_from(arguments)
    is_question = arguments.cluster is not None and not foreign_files(
        arguments.source, arguments.cluster, arguments.others
    )
    is_open = is_question and not given_layout(arguments) and not _is_settled(plan, arguments)
    if arguments.is_strategies or is_open:
        return _print_strategies(plan, arguments)
    return _print_explanation(plan, arguments)


def _is_settled(plan: "Plan", arguments: argparse.Namespace) -> bool:
    """Whether one GPU, which has one layout, is asked about with the micro-batch or the recomputation of a plan."""
    return plan.cluster.num_gpus == 1 and any(name in given_recipe(arguments) for name in SETTLING)


def _take_strategy(arguments: argparse.Namespace) -> None:
    """``strategy MODEL CLUSTER`` as MODEL and CLUSTER with the wish to compare, ``strategy PLAN`` alike."""
    if arguments.source == STRATEGY:
        if arguments.cluster is None:
            raise UsageError(
                "explain strategy needs a plan, or a model and a cluster",
                code="cli-usage",
                fix="shardwise explain strategy llama-3.1-8b 16xh100-sxm",
            )
        arguments.source = arguments.cluster
        arguments.cluster, *arguments.others = arguments.others or [None]
        arguments.is_strategies = True


def _out_of_memory(arguments: argparse.Namespace) -> "tuple[Finding, ...]":
    from shardwise.explain import explain_allocation, explain_out_of_memory
    from shardwise.explain.recorded_memory import explain_recorded_memory, recorded_memory

    plan = None if arguments.source is None else plan_from(arguments)
    if arguments.record is not None:
        return explain_recorded_memory(recorded_memory(arguments.record), plan=plan)
    if arguments.allocation_bytes is not None:
        return explain_allocation(arguments.allocation_bytes, plan=plan)
    text = arguments.oom if arguments.oom is not None else read_log(arguments.oom_log)
    return explain_out_of_memory(text, plan=plan)


def _print_strategies(plan: "Plan", arguments: argparse.Namespace) -> int:
    from shardwise.cli.plan_answer import assumed_fields
    from shardwise.cli.progress import waiting
    from shardwise.explain import advise
    from shardwise.search import question_of

    question = question_of(model=plan.model, cluster=plan.cluster, recipe=plan.recipe, engine=plan.engine)
    with waiting("trying strategies"):
        findings = advise(model=plan.model, cluster=plan.cluster, recipe=plan.recipe, engine=plan.engine)
    if arguments.is_json:
        return _print_json(findings, question=question)
    from shardwise.render.text_explanation import strategies_text

    assumed = assumed_fields(arguments, plan)
    write_line(strategies_text(findings, question=question, assumed=assumed, style=stdout_style()))
    return EXIT_OK


def _print_findings(findings: "tuple[Finding, ...]", arguments: argparse.Namespace) -> int:
    if arguments.is_json:
        return _print_json(findings)
    from shardwise.render.text_explanation import findings_text

    write_line(findings_text(findings, style=stdout_style()))
    return EXIT_OK


def _print_json(findings: "tuple[Finding, ...]", question: "Plan | None" = None) -> int:
    from shardwise.render.json_answers import findings_object
    from shardwise.render.json_text import json_text

    write_line(json_text(findings_object(findings, question=question)))
    return EXIT_OK


def _print_explanation(plan: "Plan", arguments: argparse.Namespace) -> int:
    from shardwise.explain import explain

    explanation = explain(plan)
    if arguments.is_json:
        from shardwise.render.json_answers import explanation_object
        from shardwise.render.json_text import json_text

        write_line(json_text(explanation_object(explanation)))
    else:
        from shardwise.cli.plan_answer import assumed_fields
        from shardwise.render.text_explanation import explanation_text

        assumed, command = assumed_fields(arguments, plan), typed_command(arguments)
        write_line(explanation_text(explanation, command=command, assumed=assumed, style=stdout_style()))
    return EXIT_OK if explanation.prediction.fits else EXIT_DOES_NOT_FIT
