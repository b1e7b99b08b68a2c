"""The head of a script that starts the processes of one node, whether a person or a launcher runs it there."""

__all__ = ["RENDEZVOUS_PORT", "script_head"]

RENDEZVOUS_PORT = 29500


def script_head(*, num_nodes: int) -> str:
    """The first lines of the script of a node: on many nodes it refuses to start without what all have to know alike.

    >>> print(script_head(num_nodes=1), end="")
    #!/usr/bin/env bash
    """
    if num_nodes == 1:
        return "#!/usr/bin/env bash\n"
    return (
        "#!/usr/bin/env bash\n# Run on every node with HEAD_NODE and RUN_ID set alike.\n"
        ': "${HEAD_NODE:?set it to the name of the first node}"\n'
        ': "${RUN_ID:?set it to a name of this start, alike on every node}"\n'
    )
