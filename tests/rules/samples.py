"""Plans the rule tests start from, with published shapes."""

from dataclasses import replace

from shapes import cluster, dense_layer, moe_layer
from shapes import model as sample_model
from shardwise.cluster import Peak
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.rules import find_refusals


def named(spec, name, model_type="llama"):
    return replace(spec, name=name, model_type=model_type)


def qwen2_7b():
    """DeepSeek-R1-Distill-Qwen-7B: 28 heads, 4 key-value heads."""
    layer = dense_layer(hidden_size=3584, intermediate_size=18944, heads=28, kv_heads=4)
    return named(sample_model(layer, num_layers=28, hidden_size=3584, vocab_size=152064), "qwen2-7b", "qwen2")


def llama_30b():
    """The first Llama's third size: 52 heads."""
    layer = dense_layer(hidden_size=6656, intermediate_size=17920, heads=52, kv_heads=52)
    return named(sample_model(layer, num_layers=60, hidden_size=6656, vocab_size=32000), "llama-30b")


def llama_8b(num_layers=32, *, tied=False):
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)
    spec = sample_model(layer, num_layers=num_layers, hidden_size=4096, vocab_size=128256, tied=tied)
    return named(spec, "llama-3.1-8b")


def mixtral():
    layer = moe_layer(hidden_size=4096, expert_size=14336, heads=32, kv_heads=8, experts=8, per_token=2)
    return named(sample_model(layer, num_layers=32, hidden_size=4096, vocab_size=32000), "mixtral-8x7b", "mixtral")


def narrow(width: int) -> object:
    layer = dense_layer(hidden_size=4096, intermediate_size=width, heads=32, kv_heads=8)
    return named(sample_model(layer, num_layers=32, hidden_size=4096, vocab_size=32000), "narrow")


def pcie_only(num_gpus: int) -> object:
    machine = cluster(num_gpus)
    bandwidth = machine.gpu.pcie_bandwidth_bytes_per_s
    return replace(machine, node=replace(machine.node, scale_up_bandwidth_bytes_per_s=bandwidth))


def with_peaks(machine, *peaks):
    """The cluster with other matrix peaks, given as ``(dtype, tflop_per_s)``."""
    gpu = replace(
        machine.node.gpu, peaks=tuple(Peak(dtype=dtype, flop_per_s=tera * 1e12) for dtype, tera in peaks), arch="Volta"
    )
    return replace(machine, node=replace(machine.node, gpu=gpu))


def make_plan(spec=None, *, engine="native", num_gpus=None, machine=None, layout=None, **recipe):
    """A plan on as many GPUs as the layout places unless ``num_gpus`` or ``machine`` says otherwise."""
    layout = layout or Layout()
    return Plan(
        model=spec or llama_8b(),
        cluster=machine or cluster(num_gpus or layout.world_size),
        recipe=Recipe(**{"seq_len": 4096, **recipe}),
        layout=layout,
        engine=engine,
    )


def refusal(plan, rule):
    """The refusal of one rule; fails when the rule holds."""
    found = {item.rule: item for item in find_refusals(plan)}
    assert rule in found, sorted(found)
    return found[rule]


def refused(plan):
    """Names of all broken rules."""
    return {item.rule for item in find_refusals(plan)}
