"""Uneven spreads of a model's blocks over the stages of a pipeline, where the head makes the last one the slowest."""

from collections.abc import Iterator

from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.rules.stages import placed_layers
from shardwise.step.layer_placement import chunks_per_stage

__all__ = ["head_blocks", "spread_ratio", "uneven_stages"]

MOST_FEWER = 4
"""Blocks that the last stage may hold fewer than the others, in chunks; a head is rarely heavier."""
LEAST_GAIN_FRACTION = 0.01
"""The heaviest stage has to lose this share for a spread to be worth predicting."""


def head_blocks(model: ModelSpec) -> float:
    """How many blocks the output projection weighs, by the weights that one token is multiplied with.

    Assumes: attention scores and norms left out, which makes the head look heavier at long sequences.
    """
    if not model.has_head or not model.num_hidden_layers:
        return 0.0
    head = model.vocab_size * model.hidden_size
    tables = model.num_embedding_params + (0 if model.tie_word_embeddings else head)
    blocks = max(1, model.num_active_params - tables)
    return head * model.num_hidden_layers / blocks


def uneven_stages(plan: Plan) -> Iterator[tuple[int, ...]]:
    """Blocks of each stage with fewer on the last one, the spread with the lightest heaviest stage first.

    Args:
        plan: a pipeline whose blocks are spread as evenly as possible.
    """
    layout, chunks = plan.layout, chunks_per_stage(plan.layout)
    groups, remainder = divmod(plan.model.num_hidden_layers, chunks)
    if layout.pp == 1 or layout.stage_layers is not None or remainder or groups <= layout.pp:
        return
    head = head_blocks(plan.model)
    now = placed_layers(plan.model, layout)
    spreads = {
        tuple(chunks * count for count in counts)
        for fewer in range(1, MOST_FEWER + 1)
        if (counts := _with_fewer_on_the_last(groups, layout.pp, fewer))[-1] >= 1
    }
    least = (1 - LEAST_GAIN_FRACTION) * _heaviest(now, head)
    yield from sorted(
        (spread for spread in spreads if spread != now and _heaviest(spread, head) < least),
        key=lambda spread: (_heaviest(spread, head), spread),
    )


def spread_ratio(plan: Plan) -> float:
    """Work of the heaviest stage under the best uneven spread of blocks, over the even one; 1 where none is better."""
    spread = next(uneven_stages(plan), None)
    if spread is None:
        return 1.0
    head = head_blocks(plan.model)
    return _heaviest(spread, head) / _heaviest(placed_layers(plan.model, plan.layout), head)


def _with_fewer_on_the_last(groups: int, pp: int, fewer: int) -> tuple[int, ...]:
    """Groups of blocks a stage, the last one with ``fewer`` than an even share of them all.

    What does not divide goes to the stages before the last, which hold fewer micro-batches at once than the first.

    >>> _with_fewer_on_the_last(32, 4, 2)
    (8, 9, 9, 6)
    """
    base, extra = divmod(groups + fewer, pp)
    return (*(base + (stage >= pp - 1 - extra) for stage in range(pp - 1)), base - fewer)


def _heaviest(spread: tuple[int, ...], head: float) -> float:
    """Blocks of the heaviest stage, with the head counted on the last."""
    return max(*spread[:-1], spread[-1] + head)
