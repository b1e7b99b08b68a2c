"""A Llama-like model and an H100 cluster written out by hand."""

from collections.abc import Callable

import pytest

from shardwise.cluster import Cluster, Gpu, Network, Node, Peak
from shardwise.layout import Layout
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, Weight
from shardwise.plan import Plan
from shardwise.recipe import Recipe


def llama(*, hidden: int, ffn: int, layers: int, heads: int, kv_heads: int, vocab: int) -> ModelSpec:
    head_dim = hidden // heads
    matrices = (
        ("self_attn.q_proj.weight", (hidden, hidden), "column"),
        ("self_attn.k_proj.weight", (kv_heads * head_dim, hidden), "column"),
        ("self_attn.v_proj.weight", (kv_heads * head_dim, hidden), "column"),
        ("self_attn.o_proj.weight", (hidden, hidden), "row"),
        ("mlp.gate_proj.weight", (ffn, hidden), "column"),
        ("mlp.up_proj.weight", (ffn, hidden), "column"),
        ("mlp.down_proj.weight", (hidden, ffn), "row"),
    )
    norms = tuple(
        Weight(name=name, shape=(hidden,), split="replicated", role="norm")
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight")
    )
    layer = LayerSpec(
        mixer=AttentionSpec(
            num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim
        ),
        feed_forward=DenseSpec(intermediate_size=ffn, hidden_act="silu", is_gated=True),
        norm="rmsnorm",
        num_norms=2,
        weights=tuple(Weight(name=n, shape=shape, split=split) for n, shape, split in matrices) + norms,
    )
    return ModelSpec(
        name="hand-made",
        model_type="llama",
        hidden_size=hidden,
        vocab_size=vocab,
        max_position_embeddings=8192,
        layers=(layer,) * layers,
        embedding_weights=(Weight(name="embed_tokens.weight", shape=(vocab, hidden), split="vocab", role="embedding"),),
        final_weights=(Weight(name="norm.weight", shape=(hidden,), split="replicated", role="norm"),),
        head_weights=(Weight(name="lm_head.weight", shape=(vocab, hidden), split="vocab", role="head"),),
    )


def cluster(*, num_nodes: int, gpus_per_node: int = 8) -> Cluster:
    gpu = Gpu(
        id="h100-sxm",
        name="H100 SXM",
        vendor="NVIDIA",
        arch="Hopper",
        memory_bytes=84_987_740_160,
        memory_is_derived=False,
        memory_bandwidth_bytes_per_s=3.35e12,
        peaks=(Peak(dtype="bf16", flop_per_s=989e12), Peak(dtype="fp32", flop_per_s=67e12)),
        sm_count=132,
        tdp_w=700,
        scale_up="NVLink",
        scale_up_bandwidth_bytes_per_s=450e9,
        peer_bandwidth_bytes_per_s=450e9,
        pcie_bandwidth_bytes_per_s=64e9,
        source="hand-made",
        date="2026-01",
        confidence="user",
    )
    network = Network(id="ib-ndr", bandwidth_bytes_per_s=50e9, latency_s=5e-6, source="hand-made", date="2026-01")
    node = Node(
        id="dgx-h100",
        name="DGX H100",
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        scale_up_domain_gpus=gpus_per_node,
        scale_up_bandwidth_bytes_per_s=450e9,
        network=network,
        host_memory_bytes=2 * 2**40,
        nvme_bytes=0,
        prices=(),
        source="hand-made",
        date="2026-01",
    )
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
