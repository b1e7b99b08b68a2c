"""Predictions against published measurements: which rows can be repeated, and how far off we are on them."""

from shardwise.validate.accuracy import AccuracyReport, ErrorSummary, FitSummary, RowAccuracy, memory_accuracy
from shardwise.validate.records import MeasuredRun, TimedRun, UnusedRow
from shardwise.validate.time_accuracy import TimeAccuracyReport, TimedRowAccuracy, TimeSummary, time_accuracy

__all__ = [
    "AccuracyReport",
    "ErrorSummary",
    "FitSummary",
    "MeasuredRun",
    "RowAccuracy",
    "TimeAccuracyReport",
    "TimeSummary",
    "TimedRowAccuracy",
    "TimedRun",
    "UnusedRow",
    "memory_accuracy",
    "time_accuracy",
]
