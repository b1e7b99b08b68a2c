"""Copies to and from the host beside the passes of a stage."""

from dataclasses import replace

import pytest

import shapes
import shardwise as sw
from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.assumptions import plan_assumptions
from shardwise.predict.offload_time import (
    gpus_per_uplink,
    host_adam_bytes_per_s,
    host_copies,
    host_copy_bytes_per_s,
    host_copy_sentence,
    host_memory_bytes_per_s,
    host_update_s,
    offload_time,
)
from shardwise.predict.stage_time import StageClock
from shardwise.predict.stage_work import stage_work
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext


def context_of(*, link_ratio=1.0, engine="deepspeed", **recipe):
    cluster = read_cluster("8xh100-sxm")
    slower = cluster.gpu.pcie_bandwidth_bytes_per_s * link_ratio
    plan = Plan(
        model=shapes.llama_3_8b(),
        cluster=replace(
            cluster, node=replace(cluster.node, gpu=replace(cluster.gpu, pcie_bandwidth_bytes_per_s=slower))
        ),
        recipe=Recipe(**({"seq_len": 8192} | recipe)),
        layout=Layout(dp_shard=8),
        engine=engine,
    )
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    return StageContext(plan=plan, stage=stage)


def copies_s(context):
    clock = StageClock(context.plan)
    work = stage_work(context, clock.work_book(context), clock.timed_calls(context))
    return offload_time(context, work).copies_s


def link_s(context, num_bytes):
    """Eight GPUs share the memory of their host; a slower link decides by itself."""
    return num_bytes / host_copy_bytes_per_s(context.plan.cluster.node)


def test_nothing_moves_when_nothing_is_offloaded():
    assert copies_s(context_of()) == 0.0


def test_streamed_parameters_hide_but_for_the_first_block_and_the_last_gradients():
    """Of 32 blocks' copies the first (partly hidden under embedding or head) and the last gradients are waited for."""
    context = context_of(offload="parameters")
    copies = host_copies(context)
    edges_s = 2 * link_s(context, copies.parameter_bytes) / 32 + link_s(context, copies.gradient_bytes) / 32
    assert 0.3 * edges_s < copies_s(context) <= edges_s * 1.0001


@pytest.mark.parametrize(("adapter", "bytes_per_element"), [("lora", 2), ("qlora", 0.5 + (1 + 4 / 256) / 64)])
def test_every_pass_reads_the_frozen_weights_beside_adapters(adapter, bytes_per_element):
    """Of 8B on 8 ranks each streams an eighth; the tables stay in 16 bits beside a base of 4."""
    copies = host_copies(context_of(offload="parameters", adapter=adapter, engine="fsdp2"))
    tables = 2 * 128256 * 4096
    blocks = 8030261248 - tables
    expected = (bytes_per_element * blocks + 2 * tables) / 8
    assert expected < copies.parameter_bytes < 1.02 * expected
    assert copies.gradient_bytes < 0.01 * copies.parameter_bytes


@pytest.mark.parametrize(("engine", "bytes_per_element"), [("native", 4), ("fsdp2", 4), ("deepspeed", 2)])
def test_fsdp_copies_parameters_as_they_are_kept_and_casts_them_on_the_device(engine, bytes_per_element):
    """torch 2.13 _fsdp_param.py, all_gather_inputs; half of it was predicted. DeepSpeed keeps 16 bits on the host."""
    copies = host_copies(context_of(offload="parameters", engine=engine))
    assert copies.parameter_bytes == pytest.approx(bytes_per_element * 8030261248 / 8, rel=0.001)


@pytest.mark.parametrize(("gpus", "waits"), [(1, True), (8, False)])
def test_one_rank_waits_for_each_block_that_it_copies(gpus, waits):
    """FSDP2 over one rank has nothing to gather ahead (wait_for_unshard): it copies when the block is needed."""
    asked = {"offload": "parameters", "seq_len": 4096, "micro_batch_size": 1, "zero_stage": 3}
    plan = sw.predict("llama-3.1-8b", f"{gpus}xh100-sxm", **asked).plan
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    copies = host_copies(StageContext(plan=plan, stage=stage))
    assert (copies.between_bytes, copies.ahead_bytes)[waits] == 0 < (copies.ahead_bytes, copies.between_bytes)[waits]


def test_one_rank_with_its_parameters_on_the_host_holds_a_few_blocks_of_them():
    """The 15 GiB of 8B in bf16 stayed on the device: its last block, its head and its norm do (0.41 and 0.98 GiB)."""
    answer = sw.predict("llama-3.1-8b", "1xh100-sxm", offload="parameters", seq_len=2048, zero_stage=3)
    gathered = answer.memory.worst.component_bytes("gathered_parameters")
    assert gathered / 2**30 == pytest.approx(1.38, abs=0.02)


def test_a_slow_link_is_waited_for():
    """A thousandth of the bandwidth: hardly anything of the copies hides under computation."""
    context = context_of(offload="parameters", link_ratio=0.001)
    copies = host_copies(context)
    # Parameters in both passes; gradients leave beside the parameters of the backward, on the other direction's stream.
    alone_s = 2 * link_s(context, copies.parameter_bytes)
    assert 0.95 * alone_s < copies_s(context)


def test_updated_weights_come_back_under_nothing():
    context = context_of(offload="optimizer")
    assert copies_s(context) >= link_s(context, host_copies(context).weight_bytes)


def test_offloaded_activations_take_twice_the_time_for_twice_the_micro_batches():
    slow = {"activation_offload": True, "recompute": "full", "link_ratio": 0.05}
    one, two = (copies_s(context_of(global_batch_size=8 * count, **slow)) for count in (1, 2))
    assert two == pytest.approx(2 * one)
    assert one > 0


@pytest.mark.parametrize(
    ("cluster", "gb_per_s"),
    [
        ("8xa100-sxm-80", 0.85 * 31.5 / 2),
        ("16xv100-sxm2-32", 0.85 * 15.75 / 2),
        ("8xh100-sxm", 0.5 * 614.4 / 8),
        ("8xa100-pcie-80", 0.5 * 409.6 / 8),
        ("4xgb300", 0.85 * 450),
    ],
)
def test_gpus_share_a_link_to_the_host_or_its_memory(cluster, gb_per_s):
    """Pairs of A100 and V100 hang behind one switch; one of them alone reaches 25 GB/s (NVIDIA/nvbandwidth#11)."""
    assert host_copy_bytes_per_s(read_cluster(cluster).node) / 1e9 == pytest.approx(gb_per_s)


def test_the_pair_of_a_switch_gets_what_one_alone_does():
    """25 to 26 GB/s were measured for one A100, one direction (NVIDIA/nvbandwidth#11)."""
    node = read_cluster("8xa100-sxm-80").node
    assert gpus_per_uplink(node) == 2
    assert 24e9 < 2 * host_copy_bytes_per_s(node) < 27e9


def test_what_an_offloaded_plan_says_of_its_copies():
    sentence = (
        "copies between a GPU and its host reach 13.4 GB/s a direction while all GPUs copy: 2 GPUs share one PCIe"
    )
    assert host_copy_sentence(read_cluster("8xa100-sxm-80").node).startswith(sentence)
    offloaded = context_of(offload="optimizer").plan
    assert host_copy_sentence(offloaded.cluster.node) in plan_assumptions(offloaded)
    assert not any("copies between" in said for said in plan_assumptions(context_of().plan))


@pytest.mark.parametrize(
    ("cluster", "gb_per_s"),
    [
        ("16xv100-sxm2-32", 256),
        ("8xa100-sxm-80", 410),
        ("8xh100-sxm", 614),
        ("8xb200-sxm", 614),
        ("4xgb300", 1024),
        ("1xgh200-96", 512),
    ],
)
def test_the_memory_of_a_host_is_that_of_its_generation(cluster, gb_per_s):
    """Two sockets of 6 channels of DDR4-2666, of 8 of DDR4-3200, of 8 of DDR5-4800; one Grace CPU for two GPUs."""
    node = read_cluster(cluster).node
    assert host_memory_bytes_per_s(node) / 1e9 == pytest.approx(gb_per_s, abs=1)
    assert host_adam_bytes_per_s(node) == 0.25 * host_memory_bytes_per_s(node)


@pytest.mark.parametrize(
    ("engine", "precision", "bytes_per_param"),
    [
        ("deepspeed", "bf16-mixed", 30),
        ("megatron", "bf16-mixed", 30),
        ("fsdp2", "bf16-mixed", 28),
        ("fsdp2", "bf16", 14),
    ],
)
def test_the_update_on_the_host_moves_what_the_engine_keeps_there(engine, precision, bytes_per_param):
    """Weights and two moments read and written, the gradient read, and a 16-bit copy written beside an fp32 master."""
    context = context_of(engine=engine, precision=precision, offload="optimizer")
    rate = host_adam_bytes_per_s(context.plan.cluster.node)
    assert host_update_s(context, 1000) == pytest.approx(8 * 1000 * bytes_per_param / rate)


def test_405b_with_everything_on_the_hosts():
    """Llama 3.1 405B on 64 H100 in pure bf16, FSDP2 with CPU offload, torch 2.5.1 and FlashAttention-2: about 30 s a
    step, 7 forward, 19 backward and 4 in the update (LambdaLabsML/distributed-training-guide
    05-training-llama-405b/README.md, 2024-11). Nothing is fitted on it."""
    plan = Plan(
        model=read_model("llama-3.1-405b"),
        cluster=read_cluster("64xh100-sxm"),
        recipe=Recipe(
            seq_len=4096,
            global_batch_size=64,
            precision="bf16",
            recompute="full",
            offload="parameters",
            attention_kernel="fa2",
            compile=True,
            clip_gradients=False,
        ),
        layout=Layout(dp_shard=64, zero_stage=3),
        engine="fsdp2",
    )
    time, _ = predict_time(plan)
    (offload,) = (entry.duration_s for entry in time.components if entry.component == "offload")
    assert time.step_s == pytest.approx(30, rel=0.05)
    assert offload == pytest.approx(4, rel=0.2)


@pytest.mark.parametrize(
    ("engine", "waits"), [("native", True), ("fsdp1", True), ("fsdp2", False), ("megatron", False)]
)
def test_activations_that_are_copied_between_blocks_hide_under_nothing(engine, waits):
    """Of one micro-batch they go there and back, in full where the engine copies on the stream that computes."""
    context = context_of(engine=engine, activation_offload=True, micro_batch_size=2)
    both_ways_s = 2 * link_s(context, host_copies(context).activation_bytes)
    assert (copies_s(context) >= both_ways_s) is waits


@pytest.mark.usefixtures("in_units")
def test_a_measured_run_waits_for_all_copies():
    """Our trainer on one H200, compiled blocks, 1B with a head of its own: 204 ms a step
    (benchmarks/results/2026-11-29-h200-written-over.jsonl, "1b offload activations"; 119 ms were predicted)."""
    model = replace(read_model("llama-3.2-1b"), tie_word_embeddings=False)
    recipe = Recipe(seq_len=4096, compile=True, activation_offload=True, global_batch_size=1)
    plan = Plan(
        model=model, cluster=read_cluster("1xh200-sxm"), recipe=recipe, layout=Layout(dp_shard=1), engine="native"
    )
    assert predict_time(plan)[0].step_s == pytest.approx(0.204, rel=0.05)
