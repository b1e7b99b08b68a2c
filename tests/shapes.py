"""Hand-made models whose every weight is visible here, for tests of the inventory."""

from dataclasses import replace

from shardwise.cluster import Cluster, Gpu, Network, Node, Peak
from shardwise.engines.table import EngineName
from shardwise.layout import Layout
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, MoeSpec, Weight
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.units import GIB


def attention_weights(hidden_size, heads, kv_heads, head_dim):
    return (
        Weight(name="self_attn.q_proj.weight", shape=(heads * head_dim, hidden_size), split="column"),
        Weight(
            name="self_attn.k_proj.weight",
            shape=(kv_heads * head_dim, hidden_size),
            split="column",
            split_limit=kv_heads,
        ),
        Weight(
            name="self_attn.v_proj.weight",
            shape=(kv_heads * head_dim, hidden_size),
            split="column",
            split_limit=kv_heads,
        ),
        Weight(name="self_attn.o_proj.weight", shape=(hidden_size, heads * head_dim), split="row"),
    )


def norm_weights(hidden_size):
    return (
        Weight(name="input_layernorm.weight", shape=(hidden_size,), split="replicated", role="norm"),
        Weight(name="post_attention_layernorm.weight", shape=(hidden_size,), split="replicated", role="norm"),
    )


def dense_layer(*, hidden_size, intermediate_size, heads, kv_heads, is_gated=True):
    head_dim = hidden_size // heads
    weights = attention_weights(hidden_size, heads, kv_heads, head_dim)
    if is_gated:
        weights += (Weight(name="mlp.gate_proj.weight", shape=(intermediate_size, hidden_size), split="column"),)
    weights += (
        Weight(name="mlp.up_proj.weight", shape=(intermediate_size, hidden_size), split="column"),
        Weight(name="mlp.down_proj.weight", shape=(hidden_size, intermediate_size), split="row"),
    )
    return LayerSpec(
        mixer=AttentionSpec(
            num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim
        ),
        feed_forward=DenseSpec(
            intermediate_size=intermediate_size, hidden_act="silu" if is_gated else "gelu", is_gated=is_gated
        ),
        norm="rmsnorm" if is_gated else "layernorm",
        num_norms=2,
        weights=weights + norm_weights(hidden_size),
    )


def moe_layer(*, hidden_size, expert_size, heads, kv_heads, experts, per_token):
    head_dim = hidden_size // heads
    weights = attention_weights(hidden_size, heads, kv_heads, head_dim)
    weights += tuple(
        Weight(name=f"mlp.experts.{name}", shape=(experts, *shape), split=split, is_expert=True)
        for name, shape, split in (
            ("gate_proj", (expert_size, hidden_size), "column"),
            ("up_proj", (expert_size, hidden_size), "column"),
            ("down_proj", (hidden_size, expert_size), "row"),
        )
    )
    weights += (Weight(name="mlp.gate.weight", shape=(experts, hidden_size), split="replicated", role="router"),)
    return LayerSpec(
        mixer=AttentionSpec(
            num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, v_head_dim=head_dim
        ),
        feed_forward=MoeSpec(
            num_experts=experts,
            num_experts_per_tok=per_token,
            moe_intermediate_size=expert_size,
            shared_intermediate_size=0,
            hidden_act="silu",
            is_gated=True,
        ),
        norm="rmsnorm",
        num_norms=2,
        weights=weights + norm_weights(hidden_size),
    )


def model(layer, *, num_layers, hidden_size, vocab_size, dropout=0.0, tied=False):
    return ModelSpec(
        name="test",
        model_type="llama",
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_position_embeddings=8192,
        layers=(layer,) * num_layers,
        embedding_weights=(
            Weight(name="embed_tokens.weight", shape=(vocab_size, hidden_size), split="vocab", role="embedding"),
        ),
        final_weights=(Weight(name="norm.weight", shape=(hidden_size,), split="replicated", role="norm"),),
        head_weights=()
        if tied
        else (Weight(name="lm_head.weight", shape=(vocab_size, hidden_size), split="vocab", role="head"),),
        tie_word_embeddings=tied,
        attention_dropout_fraction=dropout,
        hidden_dropout_fraction=dropout,
    )


def llama_3_8b(num_layers=32):
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)
    return model(layer, num_layers=num_layers, hidden_size=4096, vocab_size=128256)


def llama_3_70b(num_layers=80):
    layer = dense_layer(hidden_size=8192, intermediate_size=28672, heads=64, kv_heads=8)
    return model(layer, num_layers=num_layers, hidden_size=8192, vocab_size=128256)


GPU = Gpu(
    id="test-gpu",
    name="test",
    vendor="test",
    arch="test",
    memory_bytes=int(79.2 * GIB),
    memory_is_derived=False,
    memory_bandwidth_bytes_per_s=3.35e12,
    peaks=(Peak(dtype="bf16", flop_per_s=989.5e12),),
    sm_count=132,
    tdp_w=700,
    scale_up="NVLink",
    scale_up_bandwidth_bytes_per_s=450e9,
    peer_bandwidth_bytes_per_s=450e9,
    pcie_bandwidth_bytes_per_s=63e9,
    source="test",
    date="2026-11-27",
    confidence="user",
    nominal_memory_bytes=80_000_000_000,
)
"""Much like an H100."""


def node(gpu, *, gpus_per_node=8, **changes):
    """A host of such GPUs on one switch."""
    made = Node(
        id="test-node",
        name="test",
        gpu=gpu,
        gpus_per_node=gpus_per_node,
        scale_up_domain_gpus=gpus_per_node,
        scale_up_bandwidth_bytes_per_s=450e9,
        network=Network(id="test-net", bandwidth_bytes_per_s=50e9, latency_s=5e-6, source="test", date="2026-11-27"),
        host_memory_bytes=2048 * GIB,
        nvme_bytes=0,
        prices=(),
        source="test",
        date="2026-11-27",
    )
    return replace(made, **changes)


def cluster(num_gpus, *, memory_gib=79.2, host_gib=2048):
    gpu, per_node = replace(GPU, memory_bytes=int(memory_gib * GIB)), min(8, num_gpus)
    host = node(gpu, gpus_per_node=per_node, host_memory_bytes=host_gib * GIB)
    return Cluster(node=host, num_nodes=num_gpus // per_node)


def plan(spec, *, engine: EngineName = "native", layout: Layout | None = None, **recipe):
    chosen = layout or Layout()
    return Plan(
        model=spec,
        cluster=cluster(chosen.world_size),
        recipe=Recipe(**{"seq_len": 4096, **recipe}),
        layout=chosen,
        engine=engine,
    )
