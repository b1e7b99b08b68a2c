"""Predictions against published measurements: which rows can be repeated, and how far off we are on them."""

from shardwise.validate.accuracy import AccuracyReport, ErrorSummary, FitSummary, RowAccuracy, memory_accuracy
from shardwise.validate.records import MeasuredRun, SetupFact, UnusedRow
from shardwise.validate.setups import setup_facts

__all__ = [
    "AccuracyReport",
    "ErrorSummary",
    "FitSummary",
    "MeasuredRun",
    "RowAccuracy",
    "SetupFact",
    "UnusedRow",
    "memory_accuracy",
    "setup_facts",
]
