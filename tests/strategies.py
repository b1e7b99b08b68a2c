"""Hypothesis strategies for whole plans and their parts, good and bad, for every test that needs many of them."""

from dataclasses import fields, replace
from typing import get_args

from hypothesis import strategies as st

from shapes import cluster as sample_cluster
from shapes import dense_layer, moe_layer
from shapes import model as sample_model
from shardwise.cluster import Cluster, Peak
from shardwise.engines.table import EngineName
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.optimizers import OPTIMIZERS
from shardwise.plan import Plan
from shardwise.recipe import Adapter, Offload, Precision, Recipe, ReduceDtype
from shardwise.rules import apply_changes, find_errors
from shardwise.schedules.table import SCHEDULES

WRITTEN = '{"model_type": "test"}'
DEGREES = st.sampled_from((1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 12, 16))
"""Degrees as people write them: mostly powers of two, sometimes not."""

ENGINES = st.sampled_from(get_args(EngineName))
NEWER_PEAKS = (Peak(dtype="bf16", flop_per_s=989.5e12), Peak(dtype="fp16", flop_per_s=989.5e12))
PEAKS = st.sampled_from(
    (
        (),
        NEWER_PEAKS,
        (*NEWER_PEAKS, Peak(dtype="fp8", flop_per_s=1979e12)),
        (Peak(dtype="fp16", flop_per_s=125e12),),
        (Peak(dtype="bf16", flop_per_s=275e12),),
    )
)


@st.composite
def models(draw: st.DrawFn) -> ModelSpec:
    """Small dense and mixture-of-experts models with odd and even head counts, tied or not."""
    heads = draw(st.sampled_from((8, 9, 12, 16, 28, 32)))
    kv_heads = draw(st.sampled_from([count for count in (1, 2, 3, 4, 8, heads) if heads % count == 0]))
    hidden_size = heads * draw(st.sampled_from((64, 128)))
    if draw(st.booleans()):
        experts = draw(st.sampled_from((6, 8, 60)))
        expert_size = draw(st.sampled_from((512, 768, 1407)))
        layer = moe_layer(
            hidden_size=hidden_size,
            expert_size=expert_size,
            heads=heads,
            kv_heads=kv_heads,
            experts=experts,
            per_token=2,
        )
    else:
        width = draw(st.sampled_from((2 * hidden_size, 4 * hidden_size, 11008)))
        layer = dense_layer(hidden_size=hidden_size, intermediate_size=width, heads=heads, kv_heads=kv_heads)
    spec = sample_model(
        layer,
        num_layers=draw(st.integers(1, 40)),
        hidden_size=hidden_size,
        vocab_size=draw(st.sampled_from((32000, 50257))),
        tied=draw(st.booleans()),
    )
    return replace(spec, model_type=draw(st.sampled_from(("llama", "gemma2", "t5"))), spec_json=WRITTEN)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """One node or several, with fast links, PCIe only, or a domain that spans nodes."""
    per_node = draw(st.sampled_from((1, 2, 4, 6, 8)))
    drawn = sample_cluster(per_node)
    gpu = replace(drawn.node.gpu, peaks=draw(PEAKS))
    node = replace(
        drawn.node,
        gpu=gpu,
        scale_up_domain_gpus=draw(st.sampled_from((1, per_node, 72))),
        scale_up_bandwidth_bytes_per_s=draw(st.sampled_from((gpu.pcie_bandwidth_bytes_per_s, 450e9))),
    )
    return replace(drawn, node=node, num_nodes=draw(st.sampled_from((1, 2, 3, 8, 16))), spec_json='"test"')


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Recipes over the whole vocabulary of the plan file."""
    return Recipe(
        seq_len=draw(st.sampled_from((1, 100, 1023, 2048, 4096, 12288, 131072))),
        micro_batch_size=draw(st.integers(1, 6)),
        global_batch_size=draw(st.none() | st.integers(1, 600)),
        precision=draw(st.sampled_from(get_args(Precision))),
        optimizer=draw(st.sampled_from(tuple(OPTIMIZERS))),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        recompute_layers=draw(st.none() | st.integers(1, 50)),
        offload=draw(st.sampled_from(get_args(Offload))),
        attention=draw(st.sampled_from(("flash", "eager"))),
        compile=draw(st.booleans()),
        activation_offload=draw(st.booleans()),
        tokens=draw(st.none() | st.floats(1e6, 1e14)),
        adapter=draw(st.sampled_from(get_args(Adapter))),
        lora_rank=draw(st.integers(1, 64)),
        lora_targets=draw(st.sampled_from(("attention", "all-linear", "qv"))),
        loss_chunks=draw(st.integers(1, 16)),
        wrap_ends=draw(st.sampled_from((None, True, False))),
        fused_loss=draw(st.sampled_from((None, True, False))),
        fused_loss_kernel=draw(st.sampled_from((None, None, "te", "native"))),
        fused_optimizer=draw(st.sampled_from((None, None, True, False))),
        blocking_launches=draw(st.sampled_from((False, False, False, True))),
        clip_gradients=draw(st.booleans()),
        overlap_grad_reduce=draw(st.sampled_from((None, True, False))),
        reduce_dtype=draw(st.sampled_from((None, *get_args(ReduceDtype)))),
        mean_document_len=draw(st.sampled_from((None, None, 1, 100, 8192))),
        routing_imbalance_ratio=draw(st.sampled_from((None, 1.0, 1.3, 8.0))),
        convention=draw(st.sampled_from(("engine", "seed"))),
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Layouts whose degrees are drawn independently, so that most of them break some rule."""
    pp = draw(DEGREES)
    return Layout(
        dp_replicate=draw(DEGREES),
        dp_shard=draw(DEGREES),
        zero_stage=draw(st.sampled_from((0, 1, 2, 3))),
        tp=draw(DEGREES),
        cp=draw(st.sampled_from((1, 1, 1, 2, 3, 8))),
        pp=pp,
        vpp=draw(st.sampled_from((1, 1, 1, 2, 3, 4))),
        ep=draw(st.sampled_from((1, 1, 2, 3, 4, 8))),
        schedule=draw(st.sampled_from(SCHEDULES)),
        sequence_parallel=draw(st.booleans()),
        expert_tp=draw(st.sampled_from((1, 1, 1, 2, 5))),
        stage_layers=draw(st.none() | st.lists(st.integers(0, 12), min_size=pp, max_size=pp).map(tuple)),
        reshard_after_forward=draw(st.booleans()),
        reshard_size=draw(st.sampled_from((None, None, 1, 2, 3, 8))),
        prefetch_units=draw(st.sampled_from((1, 1, 2, 5))),
        async_tensor_parallel=draw(st.booleans()),
        defer_grad_reduce=draw(st.sampled_from((None, True, False))),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Whole plans; half of them at least place as many ranks as the cluster has GPUs."""
    cluster, layout = draw(clusters()), draw(layouts())
    others = layout.world_size // layout.dp_shard
    if draw(st.booleans()) and cluster.num_gpus % others == 0:
        layout = replace(layout, dp_shard=cluster.num_gpus // others)
    return Plan(model=draw(models()), cluster=cluster, recipe=draw(recipes()), layout=layout, engine=draw(ENGINES))


@st.composite
def runnable_plans(draw: st.DrawFn) -> Plan:
    """Plans that keep most rules: degrees that divide what they divide, one odd choice at most."""
    heads, pp, tp = 32, draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2, 4, 8)))
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=heads, kv_heads=8)
    spec = sample_model(layer, num_layers=draw(st.sampled_from((30, 32))), hidden_size=4096, vocab_size=128256)
    dp_shard, engine = draw(st.sampled_from((1, 2, 3, 8))), draw(st.sampled_from(("native", "torchtitan", "megatron")))
    micro_batch_size, num_microbatches = draw(st.integers(1, 4)), draw(st.sampled_from((pp, 2 * pp, 4 * pp)))
    layout = Layout(
        dp_shard=dp_shard,
        tp=tp,
        pp=pp,
        zero_stage=1 if engine == "megatron" else 3,
        sequence_parallel=tp > 1,
    )
    recipe = Recipe(
        seq_len=draw(st.sampled_from((2048, 4096, 8192))),
        micro_batch_size=micro_batch_size,
        global_batch_size=num_microbatches * micro_batch_size * dp_shard,
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
    )
    per_node = 8 if layout.world_size % 8 == 0 else layout.world_size
    drawn = sample_cluster(1)
    gpu = replace(drawn.node.gpu, peaks=NEWER_PEAKS)
    node = replace(drawn.node, gpu=gpu, gpus_per_node=per_node, scale_up_domain_gpus=per_node)
    cluster = replace(drawn, node=node, num_nodes=layout.world_size // per_node, spec_json='"test"')
    spec = replace(spec, spec_json=WRITTEN)
    return Plan(model=spec, cluster=cluster, recipe=recipe, layout=layout, engine=engine)


@st.composite
def valid_plans(draw: st.DrawFn) -> Plan:
    """Plans that break no rule: random ones whose fixes were followed to the end, so that every corner is visited."""
    plan = draw(plans() | runnable_plans())
    while errors := find_errors(plan):
        plan = apply_changes(plan, errors[0].neighbour)
    return plan


ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**40), 10**40),
    st.floats(),
    st.text(max_size=12),
    st.lists(st.integers(-2, 90), max_size=4),
    st.dictionaries(st.text(max_size=6), st.integers(), max_size=2),
)
"""Whatever somebody may write where a plan field belongs."""

PLAIN_VALUES = st.one_of(
    st.integers(1, 64),
    st.sampled_from((*get_args(Precision), *OPTIMIZERS, *get_args(Offload), *SCHEDULES)),
    st.booleans(),
)


def _sections(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, object]]:
    keys = st.sampled_from(names) | st.text(max_size=10)
    return st.dictionaries(keys, PLAIN_VALUES | ODD_VALUES, max_size=5)


@st.composite
def plan_documents(draw: st.DrawFn) -> dict[str, object]:
    """Documents shaped like plan files, with sound and unsound values: what a fuzz test feeds to ``read_plan``."""
    models = st.sampled_from(("llama-3.1-8b", "mixtral-8x7b", "gpt2", "70B", {"num_parameters": 7e9}))
    gpus = st.sampled_from(("8xh100-sxm", "16xa100-sxm-80", {"node": "dgx-h100", "num_nodes": 2}, "h100-sxm"))
    document: dict[str, object] = {
        "model": draw(models | ODD_VALUES),
        "cluster": draw(gpus | ODD_VALUES),
        "recipe": {"seq_len": draw(st.sampled_from((1, 128, 4096, 131072)))}
        | draw(_sections(tuple(field.name for field in fields(Recipe)))),
        "layout": draw(_sections(tuple(field.name for field in fields(Layout)))),
        "engine": draw(ENGINES),
    }
    if draw(st.booleans()):
        # Most documents are nearly right, so that the fuzz reaches the rules behind the reader.
        document["model"], document["cluster"] = draw(models), draw(gpus)
        document["layout"] = {
            name: draw(DEGREES) for name in draw(st.sets(st.sampled_from(("tp", "pp", "cp", "ep", "vpp")), max_size=3))
        }
        document["recipe"] = {"seq_len": 4096, "global_batch_size": draw(st.integers(1, 64))}
    if draw(st.integers(0, 9)) == 0:
        document[draw(st.text(max_size=8))] = draw(ODD_VALUES)
    for name in draw(st.sets(st.sampled_from(sorted(document)), max_size=1)):
        if draw(st.integers(0, 4)) == 0:
            del document[name]
    return document
