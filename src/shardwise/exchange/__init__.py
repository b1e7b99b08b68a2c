"""In and out: what the files of other tools say about a run, the mistakes in them, and a plan written for a tool."""

from shardwise.exchange.reading import Reading, read_files

__all__ = ["Reading", "read_files"]
