"""Structured findings: why a plan fits or not, what dominates, what to change, which strategy when."""

from shardwise.explain.conventions import seed_differences
from shardwise.explain.explanation import explain
from shardwise.explain.out_of_memory import explain_allocation, explain_out_of_memory
from shardwise.explain.records import Explanation, Finding, Quantity, VerifiedChange
from shardwise.explain.strategy import advise
from shardwise.explain.utilisation import explain_utilisation

__all__ = [
    "Explanation",
    "Finding",
    "Quantity",
    "VerifiedChange",
    "advise",
    "explain",
    "explain_allocation",
    "explain_out_of_memory",
    "explain_utilisation",
    "seed_differences",
]
