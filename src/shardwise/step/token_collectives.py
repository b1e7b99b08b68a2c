"""Collectives of a vocabulary that data-parallel ranks divide by row: token ids, hidden states and their gradients.

Every rank looks up, or multiplies with, its own rows for the tokens of all ranks.
"""

from collections.abc import Iterator

from shardwise.step.collective_calls import Call, Groups
from shardwise.step.inventory import Collective, CollectiveKind, OperationPhase
from shardwise.step.stage_context import StageContext
from shardwise.units import Bytes

ID_BYTES = 8
"""Token ids and labels are int64."""
SUM_BYTES = 4
LOSS_REDUCTIONS = 3
"""All-reduces of one number per token: the largest logit, the sum of exponentials and the logit of the label
(``train/loss.py``)."""
NAMES = ("embedding", "head", "vocabulary-parallel")


def token_collectives(context: StageContext) -> Iterator[Collective]:
    """Collectives of one step for the divided vocabulary; none where the table and the head are gathered.

    Source: ``train/spread_vocabulary.py``.
    """
    ranks, block = context.vocabulary_ranks, context.block_context
    if ranks == 1:
        return
    tokens = ranks * context.tokens
    ids, hidden = tokens * ID_BYTES, tokens * block.hidden_size * block.element_bytes
    if context.stage.has_embedding:
        yield from _call(context, "embedding token ids", "all_gather", ids, "forward")
        yield from _call(context, "embedding rows", "reduce_scatter", hidden, "forward")
        yield from _call(context, "embedding gradients", "all_gather", hidden, "backward")
    if context.stage.has_head:
        yield from _call(context, "head labels", "all_gather", ids, "forward")
        yield from _call(context, "head tokens", "all_gather", hidden, "forward")
        yield from _call(context, "head gradients", "all_to_all", hidden, "backward")
        sums = tokens * SUM_BYTES
        yield from _call(context, "vocabulary-parallel loss", "all_reduce", sums, "forward", LOSS_REDUCTIONS)


def _call(
    context: StageContext, name: str, kind: CollectiveKind, num_bytes: Bytes, phase: OperationPhase, times: int = 1
) -> Iterator[Collective]:
    group = Groups(layout=context.plan.layout).shards
    call = Call(name=name, kind=kind, group=group, num_bytes=num_bytes, phase=phase)
    yield from call.exposed(units=times, rounds=context.rounds)


def is_for_tokens(call: Collective) -> bool:
    """Whether a call is one of these: every micro-batch waits for it inside a table, as for tensor parallelism's."""
    return call.axis == "dp_shard" and call.name.startswith(NAMES)
