"""The options that several commands share. Each one is named after the field of the record it sets.

Nothing has a default here: an option that is not given leaves the record's own default, and a plan file's own value.
"""

import argparse
from collections.abc import Callable
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import get_args

from shardwise.engines.table import ENGINES
from shardwise.layout import Layout
from shardwise.optimizers import DEFAULT_OPTIMIZER, OPTIMIZERS
from shardwise.recipe import (
    Adapter,
    Attention,
    Convention,
    LoraTargets,
    MomentDtype,
    Offload,
    Precision,
    Recipe,
    Recompute,
    RecomputeModule,
    ReduceDtype,
)
from shardwise.schedules.table import SCHEDULES
from shardwise.units import parse_bytes, parse_count

MODEL_HELP = "catalogue name, config.json, folder holding one, or size such as 70B"
CLUSTER_HELP = "64xh100-sxm, 8xdgx-h100, 4xp5.48xlarge, or a TOML file"
AXIS_HELP = {
    "dp-replicate": "copies of the model that only average gradients (HSDP)",
    "dp-shard": "data-parallel ranks that divide model states (see --zero-stage)",
    "tp": "tensor parallelism: each matrix divided",
    "cp": "context parallelism: each sequence divided",
    "pp": "pipeline stages: the layers divided",
    "vpp": "model chunks per stage of an interleaved pipeline",
    "ep": "expert parallelism: routed experts divided",
    "expert-tp": "tensor parallelism inside each expert",
}
SCHEDULE_HELP = (
    "pipeline schedule (default: 1f1b); gpipe, zb-h1, zbv and dualpipev with native and torchtitan, interleaved also "
    "with megatron, zb-h1, zb-h2 and zbv with its fork, 1f1b with these and deepspeed, dualpipe and zb-h1 with hai-llm"
)
DEFAULT_SEQ_LEN = 8192
"""Used when MODEL and CLUSTER are given without --seq-len, unless a table of positions is shorter; shown by --help and
in the output."""


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
    """A whole number that may be large: 8192, or 8K and 1M, which are 8,000 and 1,000,000 as in every amount."""
    try:
        return int(text)
    except ValueError:
        number = parse_count(text)
    if number is None or number != int(number):
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a whole number such as 8192, 128K or 1M")
    return int(number)


def number_list(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    return tuple(whole_number(part) for part in text.split(","))


def amount(text: str) -> float:
    """A plain number such as 0.4 or 2.5; which ones are possible is for the rules to say."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a number") from None


def list_of(*choices: str) -> Callable[[str], tuple[str, ...]]:
    """A reader of names separated by commas."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(","))
        unknown = next((name for name in names if name not in choices), None)
        if unknown is not None:
            raise argparse.ArgumentTypeError(f"'{unknown[:40]}' is not one of {', '.join(choices)}")
        return names

    return read


def add_plan_source(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """PLAN, or MODEL and CLUSTER."""
    parser.add_argument(
        "source",
        metavar="PLAN|MODEL",
        nargs="?" if is_optional else None,
        help=f"plan file or '-' for standard input; or {MODEL_HELP}",
    )
    parser.add_argument("cluster", metavar="CLUSTER", nargs="?", help=f"only after MODEL: {CLUSTER_HELP}")


def add_calibration_option(parser: argparse.ArgumentParser) -> None:
    """``--calibration``."""
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="predict with what calibrate or reconcile found of the machine"
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", dest="is_json", help="answer in JSON, errors included")


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    """``--engine``."""
    parser.add_argument("--engine", choices=tuple(ENGINES), help="who implements the step (default: native)")


def add_recipe_options(parser: argparse.ArgumentParser, *, has_many_precisions: bool = False) -> None:
    """What a step consists of: every field of Recipe but the three that a search may vary.

    Args:
        parser: of the command.
        has_many_precisions: whether ``--precision`` is a list of those that may be used, read as ``bound_precision``.
    """
    recipe = parser.add_argument_group("recipe")
    recipe.add_argument(
        "--seq-len",
        type=whole_count,
        metavar="N",
        help="tokens per sequence (default: 8192, or a table of positions' fewer)",
    )
    recipe.add_argument("--global-batch-size", type=whole_count, metavar="N", help="sequences per optimizer step")
    _add_precision_option(recipe, is_list=has_many_precisions)
    recipe.add_argument("--optimizer", choices=tuple(OPTIMIZERS), help=f"(default: {DEFAULT_OPTIMIZER})")
    recipe.add_argument("--attention", choices=get_args(Attention), help="attention kernel (default: flash)")
    _add_recompute_options(recipe)
    recipe.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="fuse elementwise kernels (default: the engine's; on for native)",
    )
    recipe.add_argument(
        "--activation-offload", action=argparse.BooleanOptionalAction, help="keep saved activations on the host"
    )
    recipe.add_argument("--tokens", type=count, metavar="N", help="tokens of the whole run, such as 15T: adds the cost")
    recipe.add_argument("--adapter", choices=get_args(Adapter), help="train low-rank adapters (default: none)")
    recipe.add_argument("--lora-rank", type=whole_number, metavar="N", help="rank of the adapters (default: 16)")
    recipe.add_argument(
        "--lora-dropout-fraction", type=amount, metavar="SHARE", help="dropout before the adapters (default: 0)"
    )
    recipe.add_argument("--lora-targets", choices=get_args(LoraTargets), help="(default: attention)")
    recipe.add_argument("--loss-chunks", type=whole_number, metavar="N", help="pieces of the loss (default: 1)")
    recipe.add_argument(
        "--fused-loss", action=argparse.BooleanOptionalAction, help="never store fp32 logits (default: the engine's)"
    )
    recipe.add_argument(
        "--fused-optimizer",
        action=argparse.BooleanOptionalAction,
        help="AdamW in one kernel (torchtitan, fsdp2, fsdp1, accelerate; default: the engine's)",
    )
    _add_gradient_options(recipe)
    recipe.add_argument(
        "--mean-document-len",
        type=whole_count,
        metavar="N",
        help="tokens of the documents packed into a sequence (default: one document)",
    )
    recipe.add_argument(
        "--routing-imbalance-ratio",
        type=amount,
        metavar="RATIO",
        help="tokens of the fullest rank of experts over the mean (default: 1, even)",
    )
    recipe.add_argument(
        "--convention",
        choices=get_args(Convention),
        help="'seed' counts the textbook 2+2+8 bytes per parameter (default: engine)",
    )


def _add_recompute_options(recipe: argparse._ArgumentGroup) -> None:
    modules = get_args(RecomputeModule)
    recipe.add_argument(
        "--recompute-layers", type=whole_number, metavar="N", help="recompute only N layers of each stage"
    )
    recipe.add_argument(
        "--recompute-modules",
        type=list_of(*modules),
        metavar="LIST",
        help=f"what selective recomputation repeats, out of {','.join(modules)} (megatron; default: the engine's)",
    )
    recipe.add_argument(
        "--activation-func-fp8-input-store",
        action=argparse.BooleanOptionalAction,
        help="keep what SwiGLU reads in 8 bits (megatron; default: off)",
    )


def _add_gradient_options(recipe: argparse._ArgumentGroup) -> None:
    recipe.add_argument(
        "--overlap-grad-reduce",
        action=argparse.BooleanOptionalAction,
        help="reduce buckets of gradients under backward (default: the engine's)",
    )
    recipe.add_argument(
        "--blocking-launches",
        action=argparse.BooleanOptionalAction,
        help="host and device take turns, as with CUDA_LAUNCH_BLOCKING=1 (default: off)",
    )
    recipe.add_argument(
        "--clip-gradients",
        action=argparse.BooleanOptionalAction,
        help="wait for the norm of all gradients before the update (default: on)",
    )
    recipe.add_argument(
        "--broadcast-weights",
        action=argparse.BooleanOptionalAction,
        help="send updated tensors from owner after owner, as InternEvo does (deepspeed; default: gather them)",
    )
    recipe.add_argument(
        "--reduce-dtype", choices=get_args(ReduceDtype), help="what gradients are reduced in (default: the engine's)"
    )
    recipe.add_argument(
        "--moment-dtype",
        choices=get_args(MomentDtype),
        help="the optimizer's moments (megatron; default: the engine's)",
    )


def _add_precision_option(recipe: argparse._ArgumentGroup, *, is_list: bool) -> None:
    names = get_args(Precision)
    if not is_list:
        recipe.add_argument("--precision", choices=names, help="number formats (default: bf16-mixed)")
        return
    recipe.add_argument(
        "--precision",
        dest="bound_precision",
        metavar="LIST",
        type=list_of(*names),
        help=f"number formats that may be used, out of {','.join(names)} (default: bf16-mixed)",
    )


def add_layout_options(parser: argparse.ArgumentParser) -> None:
    """How the work is divided: every field of Layout, and the three of Recipe that a search would vary."""
    layout = parser.add_argument_group("layout")
    for axis, meaning in AXIS_HELP.items():
        layout.add_argument(f"--{axis}", type=whole_number, metavar="N", help=meaning)
    layout.add_argument(
        "--zero-stage", type=whole_number, choices=(0, 1, 2, 3), help="what dp_shard divides (default: 3)"
    )
    layout.add_argument("--schedule", choices=SCHEDULES, help=SCHEDULE_HELP)
    layout.add_argument(
        "--sequence-parallel", action=argparse.BooleanOptionalAction, help="divide norms over tp (default: off)"
    )
    layout.add_argument(
        "--stage-layers", type=number_list, metavar="N,N,...", help="layers of each stage (default: even)"
    )
    layout.add_argument(
        "--reshard-after-forward",
        action=argparse.BooleanOptionalAction,
        help="free gathered parameters after forward (default: on)",
    )
    layout.add_argument(
        "--reshard-size", type=whole_number, metavar="N", help="ranks that hold the parameters between (default: all)"
    )
    layout.add_argument(
        "--prefetch-units", type=whole_number, metavar="N", help="FSDP2 units gathered ahead, 0 for none (default: 1)"
    )
    layout.add_argument(
        "--async-tensor-parallel",
        action=argparse.BooleanOptionalAction,
        help="tensor-parallel collectives under their products (default: off)",
    )
    layout.add_argument(
        "--defer-grad-reduce",
        action=argparse.BooleanOptionalAction,
        help="reduce in the last micro-batch only (default: the engine's)",
    )
    layout.add_argument(
        "--spread-vocabulary",
        action=argparse.BooleanOptionalAction,
        help="divide token table and head over dp_shard, so that tokens travel (native; default: the engine's)",
    )
    layout.add_argument(
        "--exchange-gradients",
        action=argparse.BooleanOptionalAction,
        help="gradients travel in bf16 and add up in fp32 (native; default: the engine's)",
    )
    layout.add_argument("--micro-batch-size", type=whole_number, metavar="N", help="sequences at once (default: 1)")
    layout.add_argument("--recompute", choices=get_args(Recompute), help="activation checkpointing (default: none)")
    layout.add_argument("--offload", choices=get_args(Offload), help="states kept on the host (default: none)")


def given_recipe(arguments: argparse.Namespace) -> dict[str, object]:
    """The recipe fields that were given, as a plan file spells them."""
    return _given(arguments, [field.name for field in fields(Recipe)])


def given_layout(arguments: argparse.Namespace) -> dict[str, object]:
    """The layout fields that were given, as a plan file spells them."""
    return _given(arguments, [field.name for field in fields(Layout)])


def _given(arguments: argparse.Namespace, names: list[str]) -> dict[str, object]:
    values = vars(arguments)
    return {name: values[name] for name in names if values.get(name) is not None}
