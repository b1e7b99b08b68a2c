"""Step time of whole plans: parts add up, properties hold, published runs lie near."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shapes
from shardwise.catalog import load_gpu, read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.ledger import TIME_COMPONENTS
from shardwise.plan import Plan
from shardwise.predict.model_flop import mfu_convention
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe

LLAMA = shapes.llama_3_8b()
ENGINES = ("native", "torchtitan", "megatron", "deepspeed", "fsdp1", "accelerate", "hai-llm")


def plan_of(layout, *, model=LLAMA, engine="native", node="dgx-h100", **recipe):
    settings_ = {"seq_len": 8192} | recipe
    nodes = max(1, -(-layout.world_size // 8))
    return Plan(
        model=model,
        cluster=read_cluster(f"{nodes} x {node}"),
        recipe=Recipe(**settings_),
        layout=layout,
        engine=engine,
    )


def step_s(plan):
    return predict_time(plan)[0].step_s


def parts(plan):
    return {entry.component: entry.duration_s for entry in predict_time(plan)[0].components}


LAYOUTS = st.builds(
    lambda tp, cp, pp, shard, replicate, zero, sequence, schedule: Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        dp_shard=shard,
        dp_replicate=replicate,
        zero_stage=zero,
        sequence_parallel=sequence and tp > 1,
        schedule=schedule if pp > 1 else "1f1b",
        vpp=2 if schedule == "interleaved" and pp > 1 else 1,
    ),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from([0, 1, 2, 3]),
    st.booleans(),
    st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipev"]),
)


@settings(max_examples=60)
@given(
    layout=LAYOUTS,
    engine=st.sampled_from(ENGINES),
    micro_batches=st.sampled_from([1, 4, 9]),
    recipe=st.fixed_dictionaries(
        {
            "recompute": st.sampled_from(["none", "selective", "full"]),
            "offload": st.sampled_from(["none", "optimizer", "parameters", "nvme"]),
            "adapter": st.sampled_from(["none", "lora", "qlora"]),
            "precision": st.sampled_from(["fp32", "bf16-mixed", "fp16-mixed", "bf16", "fp8-mixed"]),
            "optimizer": st.sampled_from(["adamw", "sgd", "muon", "adafactor"]),
            "activation_offload": st.booleans(),
            "compile": st.booleans(),
        }
    ),
)
def test_every_plan_has_a_finite_time_whose_parts_add_up(layout, engine, micro_batches, recipe):
    plan = plan_of(layout, engine=engine, global_batch_size=micro_batches * layout.data_parallel_size, **recipe)
    time, throughput = predict_time(plan)
    durations = [entry.duration_s for entry in time.components]
    assert [entry.component for entry in time.components] == list(TIME_COMPONENTS)
    assert all(math.isfinite(duration) and duration >= 0 for duration in durations)
    assert sum(durations) == time.step_s > 0
    assert time.step_low_s < time.step_s < time.step_high_s
    exposed = sum(entry.exposed_s for entry in time.communication)
    assert exposed == pytest.approx(dict(parts(plan))["exposed_communication"], rel=1e-9)
    assert all(entry.total_s > 0 and entry.exposed_s <= entry.total_s * 1.0000001 for entry in time.communication)
    assert 0 < throughput.mfu_fraction <= throughput.hfu_fraction < 1
    assert throughput.tokens_per_s == pytest.approx(plan.tokens_per_step / time.step_s)


def test_utilisation_is_unknown_where_no_source_states_the_peak():
    asked = plan_of(Layout(), precision="fp32")
    gpu = replace(asked.cluster.gpu, peaks=tuple(peak for peak in asked.cluster.gpu.peaks if peak.dtype == "bf16"))
    cluster = replace(asked.cluster, node=replace(asked.cluster.node, gpu=gpu))
    _, throughput = predict_time(replace(asked, cluster=cluster))
    assert (throughput.peak_flop_per_s, throughput.mfu_fraction, throughput.hfu_fraction) == (0.0, None, None)
    assert throughput.tokens_per_s > 0


@settings(max_examples=30)
@given(layout=LAYOUTS, engine=st.sampled_from(ENGINES))
def test_better_links_and_memory_are_never_slower(layout, engine):
    plan = plan_of(layout, engine=engine, global_batch_size=4 * layout.data_parallel_size, offload="optimizer")
    node = plan.cluster.node
    gpu = replace(
        node.gpu,
        memory_bandwidth_bytes_per_s=2 * node.gpu.memory_bandwidth_bytes_per_s,
        pcie_bandwidth_bytes_per_s=2 * node.gpu.pcie_bandwidth_bytes_per_s,
    )
    better = replace(
        node,
        gpu=gpu,
        scale_up_bandwidth_bytes_per_s=2 * node.scale_up_bandwidth_bytes_per_s,
        network=replace(node.network, bandwidth_bytes_per_s=2 * node.network.bandwidth_bytes_per_s),
    )
    faster = replace(plan, cluster=replace(plan.cluster, node=better))
    assert step_s(faster) <= step_s(plan) * (1 + 1e-9)


UNREAD = 1 - 14336 * 4096 * 32 / 7.5e9
"""Share of a forward pass of Llama-3-8B that is not the last product of a block."""


def test_recomputation_costs_about_a_forward():
    none, full = parts(plan_of(Layout(dp_shard=8))), parts(plan_of(Layout(dp_shard=8), recompute="full"))
    assert none["recompute"] == 0
    assert 0.85 * UNREAD * none["forward"] < full["recompute"] < UNREAD * none["forward"]
    assert full["forward"] == none["forward"]


def test_twice_the_micro_batches_take_twice_the_compute():
    one = parts(plan_of(Layout(dp_shard=8), global_batch_size=8))
    two = parts(plan_of(Layout(dp_shard=8), global_batch_size=16))
    assert two["forward"] == pytest.approx(2 * one["forward"], rel=1e-4)  # the first launches of a step are waited for
    assert two["optimizer"] == one["optimizer"]


def test_more_micro_batches_shrink_the_share_of_the_bubble():
    def share(num_microbatches):
        found = parts(plan_of(Layout(pp=4, zero_stage=0), engine="megatron", global_batch_size=num_microbatches))
        return found["pipeline_bubble"] / sum(found.values())

    shares = [share(m) for m in (4, 8, 16, 64)]
    assert shares == sorted(shares, reverse=True)
    assert share(1) > 0.6


def test_zero_bubble_schedules_wait_less_than_1f1b():
    def bubble(schedule, vpp=1):
        layout = Layout(pp=4, vpp=vpp, schedule=schedule, zero_stage=0)
        return parts(plan_of(layout, engine="megatron", global_batch_size=16))["pipeline_bubble"]

    assert bubble("zbv") < bubble("zb-h2") <= bubble("zb-h1") < bubble("1f1b")
    assert bubble("interleaved", vpp=4) < bubble("interleaved", vpp=2) < bubble("1f1b")


def test_the_head_makes_the_last_stage_the_slowest():
    """2.41 blocks' worth of FLOP for Llama-3-8B: 8 equal stages wait for it, uneven ones less."""
    even = plan_of(Layout(pp=8, zero_stage=0), engine="megatron", global_batch_size=64)
    uneven = replace(even, layout=replace(even.layout, stage_layers=(5, 4, 4, 4, 4, 4, 4, 3)))
    assert step_s(uneven) < step_s(even)


def test_tensor_parallelism_across_slow_nodes_is_slower_than_inside():
    """A100 nodes with 400 Gb/s each: sixteen ranks share what one NVLink port carries six times over."""

    def tensor_s(tp):
        layout = Layout(tp=tp, sequence_parallel=True, zero_stage=0)
        time, _ = predict_time(plan_of(layout, engine="megatron", node="aws-p4de.24xlarge"))
        return sum(entry.total_s for entry in time.communication if entry.axis == "tp")

    assert tensor_s(16) > 3 * tensor_s(8)


def test_hybrid_sharding_wins_where_latency_counts():
    """A small model on 1,024 H100: gathers over 128 nodes pay for every hop, an all-reduce for a few.

    The host, which issues every kernel of either, leaves a quarter of the step to win.
    """
    layer = shapes.dense_layer(hidden_size=1024, intermediate_size=4096, heads=16, kv_heads=16, is_gated=False)
    model = shapes.model(layer, num_layers=24, hidden_size=1024, vocab_size=50304)
    everywhere = step_s(plan_of(Layout(dp_shard=1024), model=model, seq_len=2048))
    hybrid = step_s(plan_of(Layout(dp_replicate=128, dp_shard=8), model=model, seq_len=2048))
    assert hybrid < 0.8 * everywhere


def test_an_offloaded_optimizer_takes_seconds():
    """70B on 8 GPUs of a host: 28 bytes per parameter at 154 GB/s are 12.9 s; 4 bytes come back at its 307 GB/s."""
    model = shapes.llama_3_70b()
    on_host = parts(plan_of(Layout(dp_shard=8), model=model, offload="optimizer"))
    on_gpu = parts(plan_of(Layout(dp_shard=8), model=model))
    assert on_host["offload"] == pytest.approx(12.87 + 0.92, abs=0.02)
    assert on_gpu["offload"] == 0
    assert on_gpu["optimizer"] < 0.15


def test_drives_are_slower_than_host_memory():
    model = shapes.llama_3_70b()
    host = parts(plan_of(Layout(dp_shard=8), model=model, offload="parameters"))
    drives = parts(plan_of(Layout(dp_shard=8), model=model, offload="nvme"))
    assert drives["offload"] > 3 * host["offload"]


def test_throughput_names_its_convention_and_counts_causal_attention():
    _, throughput = predict_time(plan_of(Layout(dp_shard=8)))
    assert throughput.mfu_convention == "6(N - input embedding) + causal attention; dense bf16 peak"
    per_token = throughput.model_flop_per_step / (8 * 8192)
    assert per_token / 1e9 == pytest.approx(51.5, abs=0.05)
    assert throughput.peak_flop_per_s == 989.5e12


@pytest.mark.parametrize(
    ("model", "adapter", "convention"),
    [
        ("llama-3.1-8b", "none", "6(N - input embedding) + causal attention"),
        ("llama-3.1-8b", "lora", "4(N - input embedding) + causal attention"),
        ("llama-3.2-1b", "none", "6 N + causal attention"),
        ("mixtral-8x7b", "none", "6(N active - input embedding) + causal attention"),
        ("bert-large", "none", "6 N + attention"),
    ],
)
def test_the_convention_names_what_was_counted(model, adapter, convention):
    """Frozen weights have no gradients of their own (4, not 6); a tied table is the head and counts."""
    assert mfu_convention(read_model(model), is_base_frozen=adapter != "none") == convention


def test_hfu_exceeds_mfu_by_what_is_recomputed():
    _, none = predict_time(plan_of(Layout(dp_shard=8)))
    _, full = predict_time(plan_of(Layout(dp_shard=8), recompute="full"))
    assert none.hfu_fraction == none.mfu_fraction
    assert full.hfu_fraction / full.mfu_fraction == pytest.approx(1 + UNREAD / 3, abs=0.03)


def test_frozen_weights_count_two_thirds():
    _, full = predict_time(plan_of(Layout(dp_shard=8), seq_len=512))
    _, lora = predict_time(plan_of(Layout(dp_shard=8), seq_len=512, adapter="lora"))
    assert lora.model_flop_per_step / full.model_flop_per_step == pytest.approx(2 / 3, abs=0.01)


@pytest.mark.parametrize(
    ("plan", "measured_s"),
    [
        # TorchTitan, Llama-3.1-8B, compiled, selective recomputation, 2 sequences a GPU (H100 of 500 W): 6,667 tok/s.
        (
            plan_of(
                Layout(dp_shard=8),
                engine="torchtitan",
                micro_batch_size=2,
                recompute="selective",
                attention_kernel="fa2",  # of 2024
            ),
            16384 / 6667,
        ),
        # Korthikanti et al. 2022, table 5: 175B on 64 A100, t = 8, p = 8, v = 3, sequence parallel, selective: 13.75 s.
        (
            plan_of(
                Layout(tp=8, pp=8, vpp=3, schedule="interleaved", sequence_parallel=True, zero_stage=0),
                model=shapes.model(
                    shapes.dense_layer(
                        hidden_size=12288, intermediate_size=49152, heads=96, kv_heads=96, is_gated=False
                    ),
                    num_layers=96,
                    hidden_size=12288,
                    vocab_size=51200,
                    tied=True,
                ),
                engine="megatron",
                node="dgx-a100-640",
                seq_len=2048,
                global_batch_size=64,
                recompute="selective",
                precision="fp16-mixed",
            ),
            13.75,
        ),
    ],
    ids=["torchtitan-8b", "korthikanti-175b"],
)
def test_published_runs_lie_inside_the_band(plan, measured_s):
    if plan.engine == "torchtitan":  # on H100 of 96 GB and 500 W
        node = replace(plan.cluster.node, gpu=load_gpu("h100-96-hbm2e"))
        plan = replace(plan, cluster=replace(plan.cluster, node=node))
    time, _ = predict_time(plan)
    assert time.step_low_s <= measured_s <= time.step_high_s


def test_the_band_of_a_part_with_a_table_is_that_of_runs_never_reported():
    time, _ = predict_time(plan_of(Layout(dp_shard=8)))
    assert time.step_low_s == pytest.approx(0.92 * time.step_s, rel=1e-4)
    assert time.step_high_s == pytest.approx(1.13 * time.step_s, rel=1e-3)


def test_the_pace_of_the_host_widens_the_band_of_steps_that_wait_for_it():
    """Small blocks wait for kernels to be issued: hosts took 0.44 to 1.45 times the typical time for one."""
    time, _ = predict_time(plan_of(Layout(zero_stage=0, tp=8), seq_len=128, compile=False))
    low, high = time.step_low_s / time.step_s, time.step_high_s / time.step_s
    assert 0.92 * 0.44 < low < 0.92 * 0.95
    assert 1.13 * 1.1 < high < 1.13 * 1.45


def test_equal_calls_are_one_entry():
    time, _ = predict_time(plan_of(Layout(dp_shard=8)))
    names = [entry.name for entry in time.communication]
    assert names.count("all-gather blocks[0]") == 1
    blocks = next(entry for entry in time.communication if entry.name == "all-gather blocks[0]")
    assert blocks.count == 63  # the last of 32 blocks stays gathered for backward
    assert 0 < blocks.exposed_s < blocks.total_s
