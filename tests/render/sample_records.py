"""Records made by hand, so that rendering is tested without predicting anything. Sizes are distinct primes of GiB."""

from dataclasses import replace

import shapes
from shardwise.cluster import Cluster, Network, Peak, Price
from shardwise.layout import Layout
from shardwise.ledger import MEMORY_COMPONENTS, TIME_COMPONENTS, MemoryComponent
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, Weight
from shardwise.plan import Plan
from shardwise.prediction import (
    CommunicationEntry,
    CostPrediction,
    MemoryEntry,
    MemoryPrediction,
    PhaseMemory,
    Prediction,
    StageMemory,
    Throughput,
    TimeEntry,
    TimePrediction,
)
from shardwise.recipe import Recipe
from shardwise.units import GIB

MATRIX = Weight(name="mlp.up_proj.weight", shape=(11, 7), split="column")
MODEL = ModelSpec(
    name="tiny-7",
    model_type="llama",
    hidden_size=7,
    vocab_size=101,
    max_position_embeddings=64,
    layers=(
        LayerSpec(
            mixer=AttentionSpec(num_attention_heads=1, num_key_value_heads=1, head_dim=7, v_head_dim=7),
            feed_forward=DenseSpec(intermediate_size=11, hidden_act="silu", is_gated=False),
            norm="rmsnorm",
            num_norms=2,
            weights=(MATRIX,),
        ),
    )
    * 3,
    embedding_weights=(Weight(name="embed_tokens.weight", shape=(101, 7), split="vocab", role="embedding"),),
    spec_json='"tiny-7"',
    assumptions=("the vocabulary is not padded",),
)
GPU = replace(
    shapes.GPU,
    id="g100",
    name="G100 80GB",
    vendor="Acme",
    arch="Test",
    memory_bytes=79 * GIB,
    memory_bandwidth_bytes_per_s=3e12,
    peaks=(Peak(dtype="bf16", flop_per_s=1e15),),
    source="made for a test",
    date="2026-11-01",
    confidence="high",
    nominal_memory_bytes=0,
)
CLUSTER = Cluster(
    num_nodes=2,
    spec_json='{"node": "acme-8", "num_nodes": 2}',
    node=shapes.node(
        GPU,
        id="acme-8",
        name="Acme 8",
        network=Network(id="ib", bandwidth_bytes_per_s=50e9, latency_s=2e-6, source="test", date="2026-11-01"),
        prices=(Price(usd_per_gpu_hour=2.5, provider="Acme", kind="on_demand", date="2026-11-01", source="test"),),
        source="made for a test",
        date="2026-11-01",
    ),
)
PLAN = Plan(
    model=MODEL,
    cluster=CLUSTER,
    recipe=Recipe(seq_len=64, global_batch_size=32, tokens=1e12),
    layout=Layout(dp_shard=4, tp=2, pp=2),
)
DURATIONS_S = {"forward": 0.5, "backward": 1.125, "optimizer": 0.375}
COMPONENTS_GIB: dict[MemoryComponent, int] = dict(zip(MEMORY_COMPONENTS, (2, 3, 5, 7, 11, 13, 1, 4, 6), strict=True))


def stage_memory(stage: int, *, extra_gib: int = 0) -> StageMemory:
    """A stage whose nine components sum to 52 GiB, plus ``extra_gib`` of activations."""
    sizes = {**COMPONENTS_GIB, "activations": COMPONENTS_GIB["activations"] + extra_gib}
    return StageMemory(
        stage=stage,
        layers=3,
        in_flight_micro_batches=2 - stage,
        peak_phase="backward",
        peak_moment="backward of layers.2",
        peak_allocated_bytes=(43 + extra_gib) * GIB,
        peak_reserved_bytes=(47 + extra_gib) * GIB,
        device_used_bytes=(52 + extra_gib) * GIB,
        components=tuple(MemoryEntry(component=name, num_bytes=size * GIB) for name, size in sizes.items()),
        phases=(
            PhaseMemory(
                phase="backward",
                allocated_bytes=43 * GIB,
                reserved_bytes=45 * GIB,
                device_used_bytes=47 * GIB,
                moment="backward of layers.2",
            ),
        ),
        largest_tensors=(("logits", 11 * GIB),),
        host_bytes=0,
        nvme_bytes=0,
    )


MEMORY = MemoryPrediction(
    capacity_bytes=79 * GIB,
    stages=(stage_memory(0, extra_gib=17), stage_memory(1)),
    host_capacity_bytes=2048 * GIB,
    host_bytes_per_node=0,
    nvme_capacity_bytes=0,
    nvme_bytes_per_node=0,
    low_fraction=0.95,
    high_fraction=1.08,
)
PREDICTION = Prediction(
    memory=MEMORY,
    time=TimePrediction(
        step_s=2.0,
        step_low_s=1.75,
        step_high_s=2.5,
        components=tuple(TimeEntry(component=name, duration_s=DURATIONS_S.get(name, 0.0)) for name in TIME_COMPONENTS),
        communication=(
            CommunicationEntry(
                name="gather weights",
                kind="all_gather",
                axis="dp_shard",
                group_size=4,
                num_bytes=1_700_000_000,
                count=19,
                total_s=0.25,
                exposed_s=0.0625,
                algorithm="ring",
                protocol="Simple",
                bottleneck="NVLink",
                basis="measured",
            ),
        ),
    ),
    throughput=Throughput(
        tokens_per_s=1024.0,
        tokens_per_s_per_gpu=64.0,
        mfu_fraction=0.4125,
        hfu_fraction=0.5,
        mfu_convention="6N + attention",
        model_flop_per_step=6.6e15,
        attention_fraction=0.1,
        peak_flop_per_s=1e15,
    ),
    cost=CostPrediction(
        tokens=1e12,
        gpu_hours=4_340_277.8,
        low_gpu_hours=3_900_000.0,
        high_gpu_hours=6_500_000.0,
        days=11302.8,
        usd=10_850_694.4,
        usd_per_gpu_hour=2.5,
        price_source="Acme on demand, 2026-11-01",
        goodput_fraction=0.9,
        goodput_low_fraction=0.8,
        goodput_high_fraction=0.97,
        energy_mwh=3038.2,
        assumptions=("power at the device's limit",),
    ),
    assumptions=("ranks fill node after node",),
)


def too_big() -> Prediction:
    """The same prediction on a device that is too small."""
    return replace(PREDICTION, memory=replace(MEMORY, capacity_bytes=61 * GIB))
