"""What is known about hardware, as data files with a source and a date for every row, and the functions that read them.

Model configurations and measured runs live beside it in their own folders.
"""

from shardwise.catalog.hardware.gpus import load_gpu, load_gpus
from shardwise.catalog.hardware.networks import Link, load_networks
from shardwise.catalog.hardware.nodes import load_node, load_nodes
from shardwise.catalog.hardware.prices import load_prices
from shardwise.catalog.hardware.read import priced_cluster, read_cluster

__all__ = [
    "Link",
    "load_gpu",
    "load_gpus",
    "load_networks",
    "load_node",
    "load_nodes",
    "load_prices",
    "priced_cluster",
    "read_cluster",
]
