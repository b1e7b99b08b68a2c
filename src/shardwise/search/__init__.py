"""The space of layouts, the rules that thin it, the closed forms that prune it, and the ranking of what is left."""

from shardwise.search.bounds import IntRange, SearchBounds, parse_range
from shardwise.search.clusters import at_most
from shardwise.search.records import (
    OBJECTIVES,
    ClosestPlan,
    Difference,
    Objective,
    RankedPlan,
    Rejection,
    Relief,
    SearchResult,
    SearchSpace,
)
from shardwise.search.search import assumed_global_batch_size, question_of, search
from shardwise.search.token_batch import TokenBatch, rounded_batch

__all__ = [
    "OBJECTIVES",
    "ClosestPlan",
    "Difference",
    "IntRange",
    "Objective",
    "RankedPlan",
    "Rejection",
    "Relief",
    "SearchBounds",
    "SearchResult",
    "SearchSpace",
    "TokenBatch",
    "assumed_global_batch_size",
    "at_most",
    "parse_range",
    "question_of",
    "rounded_batch",
    "search",
]
