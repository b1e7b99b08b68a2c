"""Where known production layouts rank, and why they are not first: ``python benchmarks/known_layouts.py [--write]``.

Each published layout is predicted as it is and compared with what a search of its model, cluster, batch and engine
finds. Its rank counts the layouts (degrees, not variants) whose estimate is faster than its own.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from shardwise.catalog import read_cluster
from shardwise.engines.table import EngineName
from shardwise.errors import ShardwiseError
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.ledger import TIME_COMPONENTS
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import Prediction
from shardwise.recipe import Recipe
from shardwise.rules import find_errors
from shardwise.search import SearchBounds, search
from shardwise.search.candidates import Candidates
from shardwise.search.evaluation import FAMILY
from shardwise.search.refinement import Cutoffs
from shardwise.search.screening import screen
from shardwise.search.simplicity import short_variant
from shardwise.units import format_gib, format_seconds
from shardwise.validate.shipped_runs import timed_runs

RESULTS = Path(__file__).parent / "results"
SHOWN_DIFFERENCES = 3
HOUR_S = 3600.0
MEGATRON_ROWS = {
    "KORTH-004": "Megatron 175B, 64 A100: tp 8, pp 8, vpp 3",
    "KORTH-006": "Megatron 530B, 280 A100: tp 8, pp 35, vpp 3",
    "KORTH-008": "Megatron 1T, 512 A100: tp 8, pp 64",
    "MLM21-007": "Megatron 145B, 1,536 A100: tp 8, pp 8, vpp 2, dp 24",
    "MLM21-010": "Megatron 1T, 3,072 A100: tp 8, pp 64, dp 6",
    "MTNLG-001": "MT-NLG 530B, 2,240 A100: tp 8, pp 35, dp 8",
}
"""Rows of the shipped throughput table that are Megatron's published layouts."""
DEEPSEEK_RECIPE = Recipe(
    seq_len=4096,
    precision="fp8-mixed",
    recompute="selective",
    recompute_modules=("mla_up_proj", "layernorm", "moe_act"),
    activation_func_fp8_input_store=True,
    moment_dtype="bf16",
)
COUNTED_RATIO = 1.3
"""Layouts are counted up to so many times the fastest estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A layout somebody trained with."""

    name: str
    source: str
    plan: Plan
    measured_flop_per_s: float = 0.0
    """Per GPU, as its source states; 0 where it does not."""
    measured_gpu_s_per_token: float = 0.0
    """The same as GPU time."""
    reading: str = ""
    """How its source is read where it says what a plan has other words for."""


def known() -> Iterator[Known]:
    """Published layouts with what their sources state; micro-batches where stated, 1 otherwise."""
    yield Known(
        name="Llama 3 405B, 16,384 H100: tp 8, pp 16, dp 128",
        source=(
            "arXiv:2407.21783, table 4; interleaved, which we read as chunks of one block: the first holds the "
            "embedding alone and the last the head alone (section 3.3.2)"
        ),
        plan=_plan(
            "llama-3.1-405b",
            "2048xdgx-h100",
            Layout(tp=8, pp=16, vpp=8, dp_shard=128, zero_stage=2, schedule="interleaved", sequence_parallel=True),
            batch=(8192, 2048, 1),
        ),
        measured_flop_per_s=400e12,
    )
    for run in timed_runs().runs:
        if run.id in MEGATRON_ROWS:
            yield Known(name=MEGATRON_ROWS[run.id], source=run.source, plan=run.plan)
    yield Known(
        name="DeepSeek-V3, 2,048 H800: pp 16, ep 64, ZeRO-1",
        source="arXiv:2412.19437, section 3.2",
        plan=_plan(
            "deepseek-v3-671b",
            "256xhgx-h800",
            Layout(pp=16, ep=64, dp_shard=128, zero_stage=1, schedule="dualpipe"),
            batch=(4096, 15360, 1),
            recipe=DEEPSEEK_RECIPE,
            engine="hai-llm",
        ),
        measured_gpu_s_per_token=180e3 * HOUR_S / 1e12,
        reading=(
            "norms and MLA's up-projections run again, SwiGLU's output too (sections 3.2.3 and 3.3.3); inputs of "
            "linear layers and of SwiGLU wait in 8 bits, the attention output in 16 where they kept 12; moments in "
            "bf16; 180,000 GPU hours per 10^12 tokens, with the prediction of a second token, which a plan cannot say"
        ),
    )


def _plan(
    model: str,
    cluster: str,
    layout: Layout,
    *,
    batch: tuple[int, int, int],
    recipe: Recipe = Recipe(seq_len=1),  # noqa: B008 - a frozen record
    engine: EngineName = "megatron",
) -> Plan:
    seq_len, sequences, size = batch
    recipe = replace(recipe, seq_len=seq_len, global_batch_size=sequences, micro_batch_size=size)
    return Plan(model=read_model(model), cluster=read_cluster(cluster), recipe=recipe, layout=layout, engine=engine)


def report(one: Known) -> Iterator[str]:
    """What a search says beside a known layout."""
    plan = one.plan
    prediction = predict(plan)
    broken = ", ".join(refusal.rule for refusal in find_errors(plan))
    yield f"## {one.name}"
    yield ""
    yield f"{one.source}. {short_variant(plan)}, ZeRO {plan.layout.zero_stage}, {plan.layout.schedule}."
    if one.reading:
        yield f"Read so: {one.reading}."
    yield ""
    fits = "fits" if prediction.memory.fits_device else "does not fit"
    yield (
        f"- itself: {format_seconds(prediction.time.step_s)} a step, needs "
        f"{format_gib(prediction.memory.needed_bytes)} of {format_gib(prediction.memory.capacity_bytes)} ({fits})"
        + (f"; outside the space by {broken}" if broken else "")
    )
    yield from _beside_measured(one, prediction)
    yield from _beside_gpu_time(one, prediction)
    if not prediction.memory.fits_device:
        yield from _why_too_big(one, prediction)
    recipe = replace(plan.recipe, micro_batch_size=1, recompute="none")
    kept = SearchBounds(offload=("none",), activation_offload=False)
    asked = {"model": plan.model, "cluster": plan.cluster, "recipe": recipe, "engine": plan.engine}
    result = search(**asked, bounds=kept)
    if not result.plans:
        yield "- a search finds nothing that fits"
        return
    fastest = result.pareto[0]
    for word, ranked in (("recommended", result.plans[0]), ("fastest", fastest)):
        ratio = prediction.time.step_s / ranked.prediction.time.step_s
        step = format_seconds(ranked.prediction.time.step_s)
        yield f"- {word}: {short_variant(ranked.plan)}, {step}, {ratio:.2f} times as fast"
    question = replace(plan, recipe=recipe, layout=Layout())
    found = screen(question, kept, cutoffs=Cutoffs(within_ratio=COUNTED_RATIO, front_ratio=COUNTED_RATIO))
    faster = found.pool.rows.take(found.step_s < prediction.time.step_s)
    limit = COUNTED_RATIO * found.step_s.min()
    more = " or more" if prediction.time.step_s > limit else ""
    yield f"- layouts estimated to be faster: {_num_layouts(faster):,}{more}"
    yield f"- against the fastest: {_differences(prediction, fastest.prediction)}"


def _beside_measured(one: Known, prediction: Prediction) -> Iterator[str]:
    """The step that its source measured."""
    if one.measured_flop_per_s:
        whole = prediction.throughput.model_flop_per_step
        step_s = whole / one.plan.layout.world_size / one.measured_flop_per_s
        yield (
            f"- measured: {one.measured_flop_per_s / 1e12:.0f} TFLOP/s per GPU, {format_seconds(step_s)} a step by our "
            f"count of FLOP: predicted {prediction.time.step_s / step_s - 1:+.1%}"
        )


def _beside_gpu_time(one: Known, prediction: Prediction) -> Iterator[str]:
    """The step that GPU time for so many tokens makes, with whatever its trainers did beside training."""
    if one.measured_gpu_s_per_token:
        recipe = one.plan.recipe
        tokens = recipe.seq_len * (recipe.global_batch_size or 1)
        step_s = tokens * one.measured_gpu_s_per_token / one.plan.layout.world_size
        yield (
            f"- measured: {format_seconds(step_s)} a step over the whole run: "
            f"predicted {prediction.time.step_s / step_s - 1:+.1%}"
        )


def _why_too_big(one: Known, prediction: Prediction) -> Iterator[str]:
    """What fills the worst stage, and the least recomputation that fits."""
    worst = prediction.memory.worst
    kept = worst.component_bytes("activations")
    yield (
        f"- fills it: activations {format_gib(kept)}, {worst.layers} blocks for {worst.in_flight_micro_batches:g} "
        f"micro-batches in flight; everything else {format_gib(worst.device_used_bytes - kept)}"
    )
    for layers in range(1, worst.layers + 1):
        plan = replace(one.plan, recipe=replace(one.plan.recipe, recompute="full", recompute_layers=layers))
        again = predict(plan)
        if again.memory.fits_device:
            yield (
                f"- with recompute=full of {layers} of {worst.layers} blocks it fits: "
                f"{format_gib(again.memory.needed_bytes)}, {format_seconds(again.time.step_s)} a step"
            )
            break


def _num_layouts(rows: Candidates) -> int:
    return len({tuple(int(rows.column(name)[row]) for name in FAMILY) for row in range(len(rows))})


def _differences(prediction: Prediction, other: Prediction) -> str:
    mine = {entry.component: entry.duration_s for entry in prediction.time.components}
    theirs = {entry.component: entry.duration_s for entry in other.time.components}
    slower = {name: mine.get(name, 0.0) - theirs.get(name, 0.0) for name in TIME_COMPONENTS}
    largest = sorted(slower, key=lambda name: -abs(slower[name]))[:SHOWN_DIFFERENCES]
    return ", ".join(f"{name.replace('_', ' ')} {slower[name]:+.2f} s" for name in largest)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report, and write it when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args(arguments)
    lines = [
        "# Known production layouts",
        "",
        f"`python benchmarks/known_layouts.py --write`, {datetime.now(UTC):%Y-%m-%d}.",
    ]
    for one in known():
        try:
            lines += ["", *report(one)]
        except ShardwiseError as error:
            lines += [f"- refused: {error}"]
    text = "\n".join(lines) + "\n"
    print(text)
    if chosen.write:
        path = RESULTS / f"known_layouts-{datetime.now(UTC):%Y-%m-%d}.md"
        path.write_text(text)
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
