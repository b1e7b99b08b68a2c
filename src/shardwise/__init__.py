"""Shardwise: plan a distributed training run, know why it fits, run it, and compare prediction with truth."""

__version__ = "0.1.0"
