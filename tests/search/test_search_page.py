"""The worked example of docs/search.md is what the program answers."""

from pathlib import Path

import pytest

from shardwise.recipe import Recipe
from shardwise.search import SearchBounds, search
from shardwise.search.space import Space

PAGE = Path(__file__).parents[2] / "docs" / "search.md"


@pytest.fixture(scope="module")
def example():
    """The table of the section, and the answer to its question."""
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index("## An example") : text.index("## The space")]


def test_the_example_is_the_answer(example, make_question):
    question = make_question(seq_len=8192)
    result = search(model=question.model, cluster=question.cluster, recipe=Recipe(seq_len=8192, global_batch_size=64))
    space, rejected = result.space, {group.rule: group.count for group in result.rejected}
    degrees = Space(question=question, bounds=SearchBounds()).degrees()
    layouts = {tuple(map(int, row)) for row in zip(*(degrees.column(name) for name in degrees.names[:5]), strict=True)}
    best = result.plans[0]
    fastest_s = min(ranked.prediction.time.step_s for ranked in result.pareto)
    told = [
        f"{space.layouts_considered:,} | {len(layouts)} ways to write 8 GPUs",
        f"{space.layouts_invalid:,} leave | {rejected['engine-torch-zero-bubble-compile']:,} of them",
        f"{space.layouts_evaluated:,} computed",
        f"{space.layouts_too_big:,} are too big",
        f"{space.layouts_slower:,} leave | they are slower",
        f"{space.layouts_predicted} fit | the fastest takes {fastest_s:.2f} s",
        f"`dp_shard={best.plan.layout.dp_shard} zero_stage={best.plan.layout.zero_stage}`",
        f"micro-batches of {best.plan.recipe.micro_batch_size} takes {best.prediction.time.step_s:.2f} s",
    ]
    assert [words for words in told if words not in example] == []
