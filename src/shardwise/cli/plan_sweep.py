"""``plan --gpus``: the same question on many clusters, to see how many GPUs, and which, it takes."""

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.ask.idle_options import ANSWER_ROWS, require_read
from shardwise.cli.command import EXIT_DOES_NOT_FIT, EXIT_OK
from shardwise.cli.output import stdout_style, write_line
from shardwise.cli.plan_source import calibrated_plan_from
from shardwise.cli.progress import waiting
from shardwise.errors import UsageError
from shardwise.plan_file.text import is_there

if TYPE_CHECKING:
    from shardwise.plan import Plan
    from shardwise.render.first_screen import ScreenContext
    from shardwise.search import SearchBounds, SweepResult


SWEEP_OPTIONS = ("--gpus", "--gpu-types")


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """Sizes and types of the clusters."""
    clusters = parser.add_argument_group("many clusters")
    clusters.add_argument(
        "--gpus", metavar="N..N", help="try every doubling from 8..512, or a list such as 8,24,64: how many are needed?"
    )
    clusters.add_argument(
        "--gpu-types",
        metavar="LIST",
        help="GPUs or servers to try instead of CLUSTER, with a price where the catalogue's is not yours: "
        "h100-sxm=2.10,a100-sxm-80",
    )


def answer_sweep(arguments: argparse.Namespace, bounds: "SearchBounds") -> "SweepResult":
    """The best layout on every cluster that was asked for."""
    from shardwise.search import common_batch, suiting_tokens, sweep, sweep_objective

    questions, skipped = _questions(arguments)
    sentences = [*skipped]
    if questions and questions[0].recipe.global_batch_size is None:
        sizes, recipe = [question.cluster.num_gpus for question in questions], questions[0].recipe
        suiting = suiting_tokens(model=questions[0].model, recipe=recipe, num_gpus=max(sizes))
        tokens = arguments.global_batch_tokens
        batch = common_batch(
            sizes,
            seq_len=recipe.seq_len,
            tokens=suiting if tokens is None else tokens,
            is_given=tokens is not None,
        )
        sentences.append(batch.sentence)
        questions = [_with_batch(question, batch.num_sequences) for question in questions]
    with waiting(f"searching layouts on {len(questions)} clusters"):
        return sweep(
            questions,
            bounds=bounds,
            objective=arguments.objective or sweep_objective(bounds),
            assumptions=tuple(dict.fromkeys([*sentences, *(s for q in questions for s in _stated(q))])),
        )


def write_sweep(result: "SweepResult", context: "ScreenContext", arguments: argparse.Namespace) -> int:
    """Print the answer; exit code 3 when no cluster is recommended."""
    if arguments.is_json:
        from shardwise.render.json_answers import sweep_object
        from shardwise.render.json_short import answer_text

        write_line(answer_text(sweep_object(result), is_full=arguments.is_full))
    else:
        from shardwise.render.sweep_screen import sweep_screen
        from shardwise.render.text_sweep import sweep_text

        style = stdout_style()
        if result.recommended is not None and "=" not in (arguments.gpu_types or "="):
            context = replace(context, command=_command_of(result.recommended.question, arguments))
        write_line(sweep_screen(result, context, style=style))
        if arguments.has_details:
            write_line("\n" + sweep_text(result, style=style))
    return EXIT_OK if result.recommended is not None else EXIT_DOES_NOT_FIT


def _command_of(question: "Plan", arguments: argparse.Namespace) -> str:
    """The command that asks on one of the clusters alone what was asked on GPUs of several types."""
    words, left = list[str](), [word for word in arguments.typed_words if word != "--details"]
    while left:
        word = left.pop(0)
        option, has_value, _ = word.partition("=")
        if option in SWEEP_OPTIONS:
            left = left if has_value else left[1:]
        else:
            words.append(word)
    words.insert(words.index(arguments.source) + 1, f"{question.cluster.num_gpus}x{question.cluster.gpu.id}")
    if arguments.global_batch_size is None and arguments.global_batch_tokens is None:
        words += ["--global-batch-size", str(question.global_batch_size)]
    return shlex.join(("shardwise", *words))


def _with_batch(question: "Plan", size: int) -> "Plan":
    return replace(question, recipe=replace(question.recipe, global_batch_size=size))


def _stated(question: "Plan") -> tuple[str, ...]:
    from shardwise.plan_file import recipe_assumptions

    return (*recipe_assumptions(question), *question.model.assumptions, *question.cluster.assumptions)


def _questions(arguments: argparse.Namespace) -> tuple[list["Plan"], list[str]]:
    """A question for every cluster, and why some sizes are left out."""
    from shardwise.search import parse_gpu_type, parse_range, resized, sizes_in, typed_cluster

    if arguments.gpus is None:
        raise UsageError("--gpu-types needs --gpus", code="cli-usage", fix="add --gpus 8..512")
    if arguments.gpu_types is None and arguments.cluster is None and not is_there(Path(arguments.source)):
        raise UsageError("--gpus counts GPUs of no type", code="cli-usage", fix="add --gpu-types h100-sxm,h200-sxm")
    if arguments.gpu_types is not None and arguments.cluster is not None:
        raise UsageError(
            "CLUSTER and --gpu-types exclude each other", code="cli-usage", fix=f"leave out {arguments.cluster}"
        )
    if arguments.gpu_types is not None and arguments.price is not None:
        priced = ",".join(f"{name.partition('=')[0]}={arguments.price:g}" for name in arguments.gpu_types.split(","))
        raise UsageError(
            "--price is one price, and --gpu-types may name several types",
            code="cli-usage",
            fix=f"write --gpu-types {priced}, and leave out --price",
        )
    if arguments.bound_max_gpus is not None:
        raise UsageError(
            "--gpus names the sizes to try, so --max-gpus says nothing more",
            code="cli-usage",
            fix="leave out --max-gpus, and end --gpus where it should",
        )
    sizes = sizes_in(parse_range(arguments.gpus, axis="gpus"))
    if arguments.gpu_types is None:
        base = calibrated_plan_from(arguments)
        found = [(base, resized(base.cluster, size)) for size in sizes]
    else:
        types = [parse_gpu_type(text) for text in arguments.gpu_types.split(",")]
        bases = [_on_type(arguments, gpu_type.name) for gpu_type in types]
        found = [
            (base, typed_cluster(gpu_type, size)) for base, gpu_type in zip(bases, types, strict=True) for size in sizes
        ]
    for base, _ in found:
        require_read(ANSWER_ROWS, arguments, base)
    questions = [replace(base, cluster=cluster) for base, cluster in found if not isinstance(cluster, str)]
    return questions, [cluster for _, cluster in found if isinstance(cluster, str)]


def _on_type(arguments: argparse.Namespace, name: str) -> "Plan":
    """The question on one GPU or server of a type, which decides the precision where none is given."""
    return calibrated_plan_from(argparse.Namespace(**{**vars(arguments), "cluster": name}))
