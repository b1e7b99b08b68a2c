"""What the files of other tools say about a run, the mistakes in these files, and plans written for other tools."""

from shardwise.exchange.reading import Reading, read_files

__all__ = ["Reading", "read_files"]
