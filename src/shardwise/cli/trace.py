"""Trace the step of a plan with the real runtime on fake tensors: exact memory, every collective, FLOP per operator.

No GPU is needed and nothing is computed: tensors have shapes and no values, and the other ranks do not exist. Memory
is what torch's allocator would hold of tensors, by component and phase; `shardwise reconcile` takes what --out writes.
Deep models are traced with few blocks and micro-batches, since the others are alike. A module of your own is called
with token ids of the plan's micro-batch and returns logits or a loss; FSDP2 divides it by its longest ModuleList.
"""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import (
    add_engine_option,
    add_json_option,
    add_layout_options,
    add_plan_source,
    add_recipe_options,
)
from shardwise.cli.output import require_free, stdout_style, write_file, write_line
from shardwise.cli.plan_source import plan_from
from shardwise.cli.progress import waiting
from shardwise.errors import UsageError

if TYPE_CHECKING:
    from shardwise.measure.traced_step import TracedStep
    from shardwise.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PLAN, or MODEL and CLUSTER with the options of a recipe and a layout; or a module beside them."""
    add_plan_source(parser)
    add_json_option(parser)
    parser.add_argument(
        "--module", metavar="PACKAGE:FACTORY", help="your own torch.nn.Module in place of the plan's model"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the measurement record (measurement.json)")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite an existing file")
    add_engine_option(parser)
    add_recipe_options(parser)
    add_layout_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Trace every rank kind and print what was seen."""
    from shardwise.render.json_profile import traced_step_object
    from shardwise.render.json_text import json_text
    from shardwise.render.text_traced_step import traced_step_text

    if arguments.out is not None:
        require_free(arguments.out, is_forced=arguments.is_forced, example="trace.json")
    plan = plan_from(arguments)
    traced = _trace(plan, arguments.module)
    record = json_text(traced_step_object(plan, traced, module=arguments.module))
    if arguments.out is not None:
        write_file(arguments.out, record, is_forced=arguments.is_forced, example="trace.json")
    if arguments.is_json:
        write_line(record)
    else:
        write_line(traced_step_text(plan, traced, module=arguments.module, style=stdout_style()))
    return EXIT_OK


def _trace(plan: "Plan", module: str | None) -> "TracedStep":
    from shardwise.launch.request import TrainRequest, make_job, require_native
    from shardwise.launch.support import require_supported
    from shardwise.rules import require_valid

    require_native(plan)
    require_supported(plan)
    require_valid(plan)
    if find_spec("torch") is None:
        raise UsageError(
            "torch is not installed, and the trace runs the real model on it",
            code="trace-torch",
            fix="pip install 'shardwise[train]'",
        )
    with waiting("tracing"):
        from shardwise.train.tracing.step_record import traced_step
        from shardwise.train.tracing.user_module import module_factory

        factory = module_factory(module) if module is not None else None
        request = TrainRequest(device="cpu" if plan.cluster.runs_on_cpu else "auto")
        return traced_step(make_job(plan, request, prediction=None, run_folder=""), factory)
