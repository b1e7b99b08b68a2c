"""The space of layouts, the rules that thin it, the closed forms that prune it, and the ranking of what is left."""

from shardwise.rules.token_batch import TokenBatch, assumed_batch, rounded_batch, suiting_tokens
from shardwise.search.bounds import IntRange, SearchBounds, parse_counts, parse_range
from shardwise.search.cluster_sizes import common_batch, parse_gpu_type, sizes_in, typed_cluster
from shardwise.search.clusters import at_most, resized
from shardwise.search.records import (
    OBJECTIVES,
    ClosestPlan,
    Difference,
    MissedTargets,
    Objective,
    RankedPlan,
    Rejection,
    Relief,
    SearchResult,
    SearchSpace,
    TargetChange,
)
from shardwise.search.search import question_of, search
from shardwise.search.sweep import SweepResult, SweepRow, sweep, sweep_objective
from shardwise.search.what_if import Sensitivity, WhatIf, what_if

__all__ = [
    "OBJECTIVES",
    "ClosestPlan",
    "Difference",
    "IntRange",
    "MissedTargets",
    "Objective",
    "RankedPlan",
    "Rejection",
    "Relief",
    "SearchBounds",
    "SearchResult",
    "SearchSpace",
    "Sensitivity",
    "SweepResult",
    "SweepRow",
    "TargetChange",
    "TokenBatch",
    "WhatIf",
    "assumed_batch",
    "at_most",
    "common_batch",
    "parse_counts",
    "parse_gpu_type",
    "parse_range",
    "question_of",
    "resized",
    "rounded_batch",
    "search",
    "sizes_in",
    "suiting_tokens",
    "sweep",
    "sweep_objective",
    "typed_cluster",
    "what_if",
]
