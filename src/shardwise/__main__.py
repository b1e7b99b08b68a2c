"""``python -m shardwise``: the same program as the ``shardwise`` command."""

from shardwise.cli.main import program

if __name__ == "__main__":
    raise SystemExit(program())
