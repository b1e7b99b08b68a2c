"""What Calculon's and SimuMax's best plans need by our count: ``python benchmarks/winners_of_peers.py [--write]``.

GPT-3 175B, 1,536 sequences of 2,048 tokens, 1,024 A100 of 80 GB. Both tools were run at their public state of November
2026 (Calculon caa4b11 over its complete space without a second memory tier, SimuMax over tp, pp and recomputation); by
each the other's best plan does not fit. Both plans are predicted here with their margin, and once more under the
assumption that decides: fused attention or not, and the bytes of a gradient.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.units import format_gib, format_seconds

RESULTS = Path(__file__).parent / "results"
MODEL, CLUSTER = "gpt3-175b", "128xdgx-a100-80"
RECIPE = Recipe(seq_len=2048, global_batch_size=1536, micro_batch_size=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """A plan that one tool ranks first, and what both say of it."""

    tool: str
    layout: Layout
    recipe: Recipe
    own_words: str
    other_words: str


WINNERS = (
    Winner(
        tool="Calculon",
        layout=Layout(tp=2, pp=16, vpp=6, schedule="interleaved", dp_shard=32, zero_stage=1, sequence_parallel=True),
        recipe=replace(RECIPE, recompute="selective", attention="eager"),
        own_words="17.0 s, 57.1 GiB: fits",
        other_words="SimuMax: 21.2 s, 90.3 GB: does not fit",
    ),
    Winner(
        tool="SimuMax",
        layout=Layout(tp=4, pp=16, dp_shard=16, zero_stage=1, sequence_parallel=True),
        recipe=replace(RECIPE, attention="eager"),
        own_words="23.0 s, 63.6 GB: fits",
        other_words="Calculon: 82.9 GiB: does not fit",
    ),
)


def variants(winner: Winner) -> Iterator[tuple[str, Plan]]:
    """The plan as both tools mean it, then with each assumption changed."""
    plan = Plan(
        model=read_model(MODEL),
        cluster=read_cluster(CLUSTER),
        recipe=winner.recipe,
        layout=winner.layout,
        engine="megatron",
    )
    yield "16-bit weights, fp32 gradients and states; attention scores kept (unfused)", plan
    yield "the same with fused attention", replace(plan, recipe=replace(plan.recipe, attention="flash"))
    yield (
        "the same with fused attention and 16-bit gradients",
        replace(plan, recipe=replace(plan.recipe, attention="flash", reduce_dtype="bf16")),
    )


def report() -> str:
    """Both winners, a table each."""
    lines = [
        "# Best plans of Calculon and SimuMax, counted again",
        "",
        f"`python benchmarks/winners_of_peers.py --write`, {datetime.now(UTC):%Y-%m-%d}. {MODEL}, 1,536 sequences of "
        "2,048, 1,024 A100.",
    ]
    for winner in WINNERS:
        layout = winner.layout
        lines += [
            "",
            f"## {winner.tool}: tp {layout.tp}, pp {layout.pp}, dp {layout.dp_shard}, vpp {layout.vpp}, recompute "
            f"{winner.recipe.recompute}",
            "",
            f"{winner.tool}: {winner.own_words}. {winner.other_words}.",
            "",
            "| assumption | step | needed | band | of | margin |",
            "| --- | ---: | ---: | --- | ---: | ---: |",
        ]
        for words, plan in variants(winner):
            prediction = predict(plan)
            memory = prediction.memory
            low, high = (
                format_gib(memory.needed_bytes * ratio) for ratio in (memory.low_fraction, memory.high_fraction)
            )
            margin = f"{(memory.capacity_bytes - memory.needed_bytes) / 2**30:+.1f} GiB"
            lines.append(
                f"| {words} | {format_seconds(prediction.time.step_s)} | {format_gib(memory.needed_bytes)} | "
                f"{low} to {high} | {format_gib(memory.capacity_bytes)} | {margin} |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the tables, and write them when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    text = report()
    print(text)
    if arguments.write:
        path = RESULTS / f"winners_of_peers-{datetime.now(UTC):%Y-%m-%d}.md"
        path.write_text(text)
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
