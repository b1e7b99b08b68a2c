"""A Llama-like model and an H100 cluster written out by hand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

import shapes
from shardwise.cluster import Cluster, Peak
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.recipe import Recipe

GPU = replace(
    shapes.GPU,
    id="h100-sxm",
    name="H100 SXM",
    memory_bytes=84_987_740_160,
    peaks=(Peak(dtype="bf16", flop_per_s=989e12), Peak(dtype="fp32", flop_per_s=67e12)),
    pcie_bandwidth_bytes_per_s=64e9,
    nominal_memory_bytes=0,
)


def llama(*, hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int) -> ModelSpec:
    layer = shapes.dense_layer(hidden_size=hidden, intermediate_size=ffn, heads=heads, kv_heads=kv_heads)
    return replace(shapes.model(layer, num_layers=layers, hidden_size=hidden, vocab_size=vocab), name="hand-made")


def cluster(*, num_nodes: int, gpus_per_node: int = 8) -> Cluster:
    node = shapes.node(GPU, gpus_per_node=gpus_per_node, id="dgx-h100", name="DGX H100")
    return Cluster(node=node, num_nodes=num_nodes)


@pytest.fixture
def llama_7b() -> ModelSpec:
    """Llama-2-7B: 6,738,415,616 parameters."""
    return llama(hidden=4096, ffn=11008, layers=32, heads=32, kv_heads=32, vocab=32000)


@pytest.fixture
def llama_8b() -> ModelSpec:
    """Llama-3-8B: 8,030,261,248 parameters."""
    return llama(hidden=4096, ffn=14336, layers=32, heads=32, kv_heads=8, vocab=128256)


@pytest.fixture
def make_cluster() -> Callable[..., Cluster]:
    return cluster


@pytest.fixture
def make_plan(llama_8b: ModelSpec) -> Callable[..., Plan]:
    """A plan of the hand-made Llama-3-8B; keywords go to the layout, or to the recipe by ``recipe=Recipe(...)``."""

    def build(*, recipe: Recipe, layout: Layout | None = None, model: ModelSpec | None = None, nodes: int = 1) -> Plan:
        return Plan(
            model=model or llama_8b,
            cluster=cluster(num_nodes=nodes),
            recipe=recipe,
            layout=layout or Layout(dp_shard=8 * nodes),
        )

    return build
