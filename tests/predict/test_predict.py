"""The whole prediction of a plan: memory, time, cost and what is assumed."""

from dataclasses import replace

import pytest

import shapes
from shardwise.catalog import load_gpu, read_cluster
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.predict.memory import predict_memory
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe


def plan_of(**changes):
    plan = Plan(
        model=shapes.llama_3_8b(),
        cluster=read_cluster("1 x dgx-h100"),
        recipe=Recipe(seq_len=8192, tokens=1e12),
        layout=Layout(dp_shard=8),
    )
    return replace(plan, **changes)


def test_a_prediction_is_its_three_views():
    plan = plan_of()
    prediction = predict(plan)
    assert prediction.memory == predict_memory(plan)
    assert (prediction.time, prediction.throughput) == predict_time(plan)
    assert prediction.cost is not None
    assert prediction.cost.tokens == 1e12


def test_predicting_twice_gives_the_same():
    assert predict(plan_of()) == predict(plan_of())


def test_no_tokens_no_cost():
    assert predict(plan_of(recipe=Recipe(seq_len=8192))).cost is None


def sentences(plan):
    return " ".join(predict(plan).assumptions)


def test_assumptions_of_model_and_cluster_travel_along():
    plan = plan_of()
    model = replace(plan.model, assumptions=("a typical shape was assumed",))
    cluster = replace(plan.cluster, assumptions=("a modest network was assumed",))
    prediction = predict(replace(plan, model=model, cluster=cluster))
    assert prediction.assumptions[:2] == ("a typical shape was assumed", "a modest network was assumed")


def test_what_the_step_time_takes_for_granted_is_said():
    layer = shapes.moe_layer(hidden_size=2048, expert_size=768, heads=32, kv_heads=4, experts=8, per_token=2)
    experts = shapes.model(layer, num_layers=2, hidden_size=2048, vocab_size=1024)
    assert "every rank holds all experts" in sentences(plan_of(model=experts))
    divided = plan_of(model=experts, layout=Layout(dp_shard=8, ep=4))
    assert "new routers begin with 1.1 times the mean on the fullest of 4 ranks" in sentences(divided)
    beside = replace(divided, recipe=replace(divided.recipe, adapter="lora"))
    assert "the fullest of 4 ranks of experts has 1.10 times the mean" in sentences(beside)
    even = replace(divided, recipe=replace(divided.recipe, routing_imbalance_ratio=1.0))
    assert "evenly over experts" in sentences(even)
    assert "--overlap-grad-reduce" in sentences(plan_of(engine="megatron", layout=Layout(dp_shard=8, zero_stage=1)))
    offloaded = sentences(plan_of(recipe=Recipe(seq_len=512, offload="nvme")))
    assert "CPU Adam" in offloaded
    assert "NVMe drives" in offloaded
    plain = predict(plan_of())
    assert plain.assumptions == plan_of().cluster.assumptions


@pytest.mark.parametrize(
    ("engine", "recipe", "sentence"),
    [
        ("megatron", {"precision": "bf16"}, "precision=bf16 means bf16-mixed to megatron"),
        ("deepspeed", {"precision": "bf16"}, "precision=bf16 means bf16-mixed to deepspeed"),
        ("deepspeed", {"precision": "fp8-mixed"}, "deepspeed keeps 16-bit weights"),
        ("megatron", {"compile": True}, "megatron has no such switch"),
        ("native", {"recompute": "selective"}, "every second matrix product are kept"),
        ("megatron", {"recompute": "selective"}, "scores and softmax of attention are recomputed"),
        ("deepspeed", {"offload": "parameters"}, "optimizer states to the host as well"),
        ("deepspeed", {"offload": "nvme"}, "optimizer states to drives, parameters and gradients to the host"),
    ],
)
def test_what_an_engine_takes_a_field_for_is_said(engine, recipe, sentence):
    plan = plan_of(engine=engine, recipe=Recipe(seq_len=512, **recipe))
    assert sentence in sentences(plan)
    assert sentence not in sentences(replace(plan, recipe=replace(plan.recipe, convention="seed")))


@pytest.mark.parametrize("engine", ["native", "torchtitan", "fsdp1", "accelerate"])
def test_pure_bf16_is_what_it_says_where_torch_holds_the_weights(engine):
    plan = plan_of(engine=engine, recipe=Recipe(seq_len=512, precision="bf16"))
    assert "means bf16-mixed" not in sentences(plan)


def test_an_unmeasured_or_older_device_is_named():
    cluster = read_cluster("1 x dgx-h100")
    older = replace(cluster, node=replace(cluster.node, gpu=load_gpu("v100-sxm2-32")))
    found = sentences(plan_of(cluster=older))
    assert "v100-sxm2-32" in found
    assert "no bf16 matrix units" in found
    eight_bit = replace(plan_of(), recipe=Recipe(seq_len=8192, precision="fp8-mixed"))
    a100 = replace(cluster, node=replace(cluster.node, gpu=load_gpu("a100-sxm-80")))
    assert "no fp8 matrix units" in sentences(replace(eight_bit, cluster=a100))


@pytest.mark.parametrize(
    ("gpu_id", "said"),
    [
        ("h100-96-hbm2e", "scaled from those timed on h100-sxm, held at 73% of the peak"),
        ("v100-sxm2-32", "the band of 0.81 to 1.66 of the step time is that of runs never reported: no products of"),
        ("mi300x", "only the best shape is known, of which real layers are taken to hold 86%"),
        ("v100-sxm2-32", "no matrix-product measurement is known"),
    ],
)
def test_borrowed_kernels_are_said(gpu_id, said):
    plan = plan_of()
    node = replace(plan.cluster.node, gpu=load_gpu(gpu_id))
    assert sentences(replace(plan, cluster=replace(plan.cluster, node=node))).count(said) == 1
