"""The plan a command is about: a plan file, standard input, or MODEL and CLUSTER with options."""

import argparse
import sys

from shardwise.cli.command import UsageError
from shardwise.cli.options import DEFAULT_SEQ_LEN, given_layout, given_recipe
from shardwise.plan import Plan

STANDARD_INPUT = "-"


def plan_from(arguments: argparse.Namespace) -> Plan:
    """The plan that PLAN, or MODEL and CLUSTER, and the options describe; options win over the file."""
    from shardwise.plan_file import plan_to_json, read_plan

    recipe, layout = given_recipe(arguments), given_layout(arguments)
    if arguments.cluster is not None:
        return read_plan(model_and_cluster(arguments, recipe=recipe, layout=layout))
    plan = read_plan(_plan_source(arguments.source))
    if not (recipe or layout or arguments.engine):
        return plan
    written = plan_to_json(plan)
    return read_plan(
        {
            **written,
            "recipe": {**_section(written, "recipe"), **recipe},
            "layout": {**_section(written, "layout"), **layout},
            "engine": arguments.engine or plan.engine,
        }
    )


def model_and_cluster(
    arguments: argparse.Namespace, *, recipe: dict[str, object], layout: dict[str, object]
) -> dict[str, object]:
    """MODEL, CLUSTER and options as a plan file would say them."""
    return {
        "model": arguments.source,
        "cluster": arguments.cluster,
        "recipe": {"seq_len": DEFAULT_SEQ_LEN, **recipe},
        "layout": layout,
        **({"engine": arguments.engine} if arguments.engine else {}),
    }


def read_standard_input() -> str:
    """All of standard input; a person who forgot the pipe is told so."""
    if sys.stdin.isatty():
        raise UsageError(
            "'-' reads a plan from standard input, but nothing is piped into it",
            code="cli-usage",
            fix="pipe a plan file: shardwise predict - < plan.json",
        )
    return sys.stdin.read()
