"""Judge a reported rate: tokens/s, TFLOP/s, MFU or seconds of a step, with the model, the GPU and how many.

The answer says which convention makes the figure what (dense or sparse peak, attention counted once or as the whole
square, recomputation counted), how far it is from the prediction and from the best published run of a comparable model,
and which settings would explain it, each predicted alone. Without a layout the recommended plan is compared. A GPU
alone, such as h200-sxm, is enough for --tflops and --mfu.
"""

import argparse

from shardwise.cli.command import EXIT_OK
from shardwise.cli.next_commands import following, typed_command
from shardwise.cli.options import (
    add_engine_option,
    add_json_option,
    add_layout_options,
    add_plan_source,
    add_recipe_options,
    given_layout,
    positive_amount,
)
from shardwise.cli.output import stdout_style, write_line
from shardwise.cli.plan_source import asked_source, given_fields
from shardwise.cli.progress import waiting

FIGURES = (
    ("--tokens-per-s", "tokens per second of all GPUs"),
    ("--tokens-per-s-per-gpu", "tokens per second of one GPU"),
    ("--tflops", "TFLOP/s of one GPU, whatever was counted"),
    ("--mfu", "a share, or per cent from 1.5 on"),
    ("--step-s", "seconds of an optimizer step"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add PLAN, or MODEL and CLUSTER, or a GPU; the figures, of which one is given; and the options of a plan."""
    add_plan_source(parser)
    add_json_option(parser)
    for option, text in FIGURES:
        parser.add_argument(option, type=positive_amount, metavar="N", help=text)
    add_engine_option(parser)
    add_recipe_options(parser)
    add_layout_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the judgement."""
    from shardwise.ask.judging import judge

    with waiting("comparing"):
        source, cluster = asked_source(arguments)
        answer = judge(
            source,
            cluster,
            tokens_per_s=arguments.tokens_per_s,
            tokens_per_s_per_gpu=arguments.tokens_per_s_per_gpu,
            tflops=arguments.tflops,
            mfu=arguments.mfu,
            step_s=arguments.step_s,
            **given_fields(arguments),
        )
    if arguments.is_json:
        from shardwise.render.json_text import json_text

        write_line(json_text(answer.to_dict()))
    else:
        from shardwise.cli.plan_answer import assumed_fields
        from shardwise.render.next_lines import as_command
        from shardwise.render.retyped import without_options
        from shardwise.render.text_judgement import judgement_text

        judgement, plan = answer.judgement, answer.judgement.plan
        if plan is None or judgement.prediction is None:
            write_line(judgement_text(judgement, style=stdout_style()))
            return EXIT_OK
        assumed = assumed_fields(arguments, plan)
        command = as_command(without_options(typed_command(arguments), [name for name, _ in FIGURES]), "predict")
        name = "explain" if arguments.cluster is None or given_layout(arguments) else "plan"
        after = following(command, plan, judgement.prediction, assumed, ready=(as_command(command, name),))
        write_line(judgement_text(judgement, following=after, assumed=assumed, style=stdout_style()))
    return EXIT_OK
