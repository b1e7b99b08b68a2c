"""Rows that our own trainer runs with a spread vocabulary or exchanged gradients, as ``step/own_runtime.py`` says.

Both depend on degrees that the arrays otherwise ask the inventory about one at a time; a probed layout is told.
"""

import numpy as np

from shardwise.plan import Plan
from shardwise.search.candidates import Candidates, IntColumn, Mask
from shardwise.step.own_runtime import MAX_EXCHANGING_RANKS, has_own_vocabulary, is_own_runtime

__all__ = ["exchanges_gradients", "vocabulary_ranks"]


def vocabulary_ranks(rows: Candidates, question: Plan) -> IntColumn:
    """Ranks that divide the vocabulary of every row; 1 where each gathers it."""
    model, recipe = question.model, question.recipe
    ranks = rows.dp_shard
    if not (is_own_runtime(question) and has_own_vocabulary(model)):
        return np.ones_like(ranks)
    others = rows.tp * rows.pp * rows.cp * rows.ep * rows.dp_replicate
    tokens = ranks * rows.micro_batch_size * recipe.seq_len
    is_small = (tokens <= model.vocab_size) & (ranks > 1) & _are_near(rows, question)
    spreads = is_small & (others == 1) & (rows.zero_stage == 3) & (rows.offload == 0) & (model.vocab_size % ranks == 0)
    found: IntColumn = np.where(spreads, ranks, 1)
    return found


def exchanges_gradients(rows: Candidates, question: Plan) -> Mask:
    """Rows whose gradients travel as they were made."""
    recipe = question.recipe
    is_halved = recipe.precision in ("bf16-mixed", "fp8-mixed") and (recipe.reduce_dtype or "fp32") == "fp32"
    if not (is_own_runtime(question) and is_halved):
        return np.zeros(len(rows), dtype=np.bool_)
    divides = (rows.zero_stage >= 2) & (rows.ep == 1) & (rows.pp == 1) & (rows.state_shard_size > 1)
    exchanges: Mask = divides & _are_near(rows, question)
    return exchanges


def _are_near(rows: Candidates, question: Plan) -> Mask:
    """As ``is_in_one_domain`` says."""
    is_within = rows.tp * rows.state_shard_size <= question.cluster.node.scale_up_domain_gpus
    near: Mask = (rows.state_shard_size <= MAX_EXCHANGING_RANKS) & is_within
    return near
