"""Say what the files of other training tools mean: what run this is, what is open, what is wrong, what is unknown.

FILE is a DeepSpeed JSON, the YAML of Accelerate, TrainingArguments, TRL, axolotl, LLaMA-Factory, NeMo, Megatron-Bridge,
GPT-NeoX or nanotron, a TOML of torchtitan, a script or a command line with torchrun, srun, accelerate or deepspeed,
arguments or a log of Megatron, adapter_config.json or Meta's params.json. Files of one run are given together.

What they leave open is listed with the option that answers it and is never filled in. --out writes a plan when nothing
is open. The same files may stand where PLAN stands in predict and explain.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import CLUSTER_HELP, MODEL_HELP, add_json_option
from shardwise.cli.output import require_apart, stdout_style, write_file, write_line
from shardwise.errors import ShardwiseError, UsageError

if TYPE_CHECKING:
    from shardwise.ask.foreign_plan import ForeignRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The files, and what stands in none of them."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="files of one run, of one tool or several")
    parser.add_argument("--model", metavar="MODEL", help=f"what is trained: {MODEL_HELP}")
    parser.add_argument("--cluster", metavar="CLUSTER", help=f"what it runs on: {CLUSTER_HELP}")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a field of the plan that wins over the files"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the plan, when nothing is open")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite an existing file")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the reading, and write the plan where that is asked for."""
    from shardwise.ask.foreign_plan import read_foreign
    from shardwise.exchange.mistakes import find_mistakes

    require_apart({"--out": arguments.out}, arguments.files)
    settings = dict(_setting(text) for text in arguments.set)
    run_files = read_foreign(arguments.files, model=arguments.model, cluster=arguments.cluster, settings=settings)
    mistakes = find_mistakes(run_files.reading, model=run_files.model, cluster=run_files.cluster)
    plan = run_files.plan() if arguments.out is not None else None
    if arguments.is_json:
        from shardwise.render.json_reading import reading_object
        from shardwise.render.json_text import json_text

        reading = reading_object(run_files.reading, mistakes, model_name=run_files.model_name)
        write_line(json_text({**reading, "plan": _plan_object(run_files)}))
    else:
        from shardwise.render.text_reading import reading_text

        style = stdout_style()
        write_line(reading_text(run_files.reading, mistakes, model_name=run_files.model_name, style=style))
    if plan is not None:
        from shardwise.plan_file import plan_to_json
        from shardwise.render.json_text import json_text

        write_file(arguments.out, json_text(plan_to_json(plan)), is_forced=arguments.is_forced)
    return EXIT_OK


def _plan_object(run_files: "ForeignRun") -> dict[str, object]:
    """The plan file that the files come to, or the error that says what keeps them from being one."""
    from shardwise.plan_file import plan_to_json
    from shardwise.render.errors import error_object

    try:
        return plan_to_json(run_files.plan())
    except ShardwiseError as error:
        return error_object(message=error.message, code=error.code, fix=error.fix)


def _setting(text: str) -> tuple[str, str]:
    name, has_value, value = text.partition("=")
    if not has_value:
        raise UsageError(
            f"--set takes a field and a value, not '{text[:40]}'", code="cli-usage", fix="write --set seq_len=4096"
        )
    return name.replace("-", "_"), value
