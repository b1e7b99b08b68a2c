"""The worked example of docs/memory.md is what is predicted."""

import re
from dataclasses import replace
from pathlib import Path

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.memory import predict_memory
from shardwise.recipe import Recipe
from shardwise.units import GIB

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"
EXAMPLE = Plan(
    model=read_model("llama-3.1-8b"),
    cluster=read_cluster("8xh100-sxm"),
    recipe=Recipe(seq_len=4096, micro_batch_size=1, global_batch_size=16, compile=False),
    layout=Layout(dp_shard=8, zero_stage=3),
    engine="fsdp2",
)


def said():
    """The components of the page's table, in GiB."""
    table = PAGE.read_text(encoding="utf-8").partition("| component | rule | GiB |")[2].partition("\n\n")[0]
    return {name.replace(" ", "_"): float(gib) for name, gib in re.findall(r"\| ([\w ]+) \|.*\| ([\d.]+) \|", table)}


def predicted(plan):
    worst = predict_memory(plan).worst
    found = {entry.component: round(entry.num_bytes / GIB, 2) for entry in worst.components}
    return {name: gib for name, gib in found.items() if gib and name != "framework"}


def test_the_worked_example_is_what_is_predicted():
    assert said() == predicted(EXAMPLE)
    assert f"{predict_memory(EXAMPLE).worst.peak_allocated_bytes / GIB:.2f} GiB" in PAGE.read_text(encoding="utf-8")


def test_another_layout_is_another_example():
    assert said() != predicted(replace(EXAMPLE, layout=Layout(dp_shard=4, tp=2, zero_stage=3)))
