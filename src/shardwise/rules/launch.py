"""How many processes a launch line really starts."""


def torchrun_processes(*, num_nodes: int, tasks_per_node: int, processes_per_agent: int) -> int:
    """Processes when a scheduler starts ``tasks_per_node`` torchrun agents on every node.

    One agent per node is wanted; ``srun --ntasks-per-node 8 torchrun --nproc-per-node 8`` starts eight, each with
    eight workers.

    Source: pytorch/pytorch issue 73656.

    >>> torchrun_processes(num_nodes=2, tasks_per_node=8, processes_per_agent=8)
    128
    """
    return num_nodes * tasks_per_node * processes_per_agent
