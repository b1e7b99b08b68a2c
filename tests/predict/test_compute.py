"""Kernel times against published kernel measurements, and properties of the roofline."""

import csv
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.ask.predicting import predict
from shardwise.attention_kernels import AttentionCall
from shardwise.catalog import load_gpu
from shardwise.engines.table import engine_profile
from shardwise.plan_file import read_plan
from shardwise.predict.compute import (
    DeviceAndHost,
    PhaseTimes,
    attention_fraction,
    computed_again,
    operation_time_s,
    phase_times,
)
from shardwise.predict.kernel_rates import attention_origin, kernel_rates
from shardwise.step.inventory import Operation
from shardwise.step.operation_context import SKEWED_ROUTING_RATIO

H100 = load_gpu("h100-sxm")
A100 = load_gpu("a100-sxm-80")
B200 = load_gpu("b200-sxm")


def rates_of(gpu, kernel="fa2", head_dim=128):
    return kernel_rates(gpu=gpu, profile=engine_profile("fsdp2"), head_dim=head_dim, attention=kernel)


def product(m, n, k, dtype="bf16", phase="forward"):
    return Operation(
        name="product",
        kind="matmul",
        phase=phase,
        count=1,
        flop=2.0 * m * n * k,
        num_bytes=2 * (m * k + k * n + m * n),
        dtype=dtype,
        m=m,
        n=n,
        k=k,
    )


def attention(length, phase="forward", head_dim=128):
    return Operation(
        name="core",
        kind="attention",
        phase=phase,
        count=1,
        flop=1e12,
        num_bytes=1,
        dtype="bf16",
        m=length,
        n=length,
        k=head_dim,
    )


def tflop_per_s(operation, gpu):
    return operation.flop / operation_time_s(operation, gpu=gpu, rates=rates_of(gpu)) / 1e12


def own_readings(kind):
    text = files("shardwise.catalog").joinpath("kernels", "h100-sxm.csv").read_text(encoding="utf-8")
    return [row for row in csv.DictReader(text.splitlines()) if row["kind"] == kind]


def burst(rates):
    """The same rates before power settles, as single kernels are timed."""
    return replace(rates, attention_limit_fraction=1.0)


@pytest.mark.parametrize(("gpu", "size", "best"), [(H100, 4096, 716), (H100, 8192, 795), (A100, 8192, 271)])
def test_square_products_stay_below_the_best_published_rate(gpu, size, best):
    """cuBLAS alone on a cool device: what a training step reaches lies up to a seventh below."""
    assert 0.85 * best < tflop_per_s(product(size, size, size), gpu) < best


def test_tensor_parallel_shards_are_slower_per_flop():
    whole, shard = product(8192, 8192, 8192), product(8192, 8192, 1024)
    assert tflop_per_s(shard, H100) < 0.9 * tflop_per_s(whole, H100)


@pytest.mark.parametrize(
    ("gpu", "kernel", "length", "published", "tolerance"),
    [
        (A100, "fa2", 2048, 194.0 * 2048 / (2048 + 490) * 1.114, 0.005),
        (H100, "fa2", 8192, 349.2 * 8192 / (8192 + 395), 0.02),
        (H100, "cudnn", 8192, 554.8 * 8192 / (8192 + 362), 0.15),
        (H100, "fa3", 8192, 642.7 * 8192 / (8192 + 554), 0.005),
        (B200, "fa4", 8192, 1418.1, 0.01),
    ],
)
def test_attention_is_near_the_published_fits(gpu, kernel, length, published, tolerance):
    """Ours of H100 are from a newer cuDNN; A100's forward is 1.114 times the published rate of both passes."""
    fraction = attention_fraction(attention(length), burst(rates_of(gpu, kernel)))
    assert fraction * gpu.peak_flop_per_s("bf16") / 1e12 == pytest.approx(published, rel=tolerance)


def test_both_passes_of_flash_attention_are_near_the_published_sweep():
    """FlashAttention-2 on H100, causal, head dim 128, forward and backward: 333.8 s / (s + 535)."""
    for length in (2048, 4096, 16384):
        rates, peak = rates_of(H100), H100.peak_flop_per_s("bf16")
        forward = 1 / attention_fraction(attention(length), rates)
        backward = 2.5 / attention_fraction(attention(length, "backward"), rates)
        both = 3.5 / (forward + backward) * peak / 1e12
        assert both == pytest.approx(333.8 * length / (length + 535), rel=0.14)


def test_attention_takes_its_measured_time():
    """Both kernels, both head dims, 1,024 to 16,384 tokens on one H100: within 7 % each."""
    for row in own_readings("attention"):
        kernel, phase = row["name"].split(".")
        rates = burst(rates_of(H100, "cudnn" if kernel == "cudnn" else "fa2", head_dim=int(row["k"])))
        operation = replace(attention(int(row["m"]), phase), flop=float(row["flop"]))
        fraction = attention_fraction(operation, rates)
        measured = float(row["flop"]) / (float(row["time_us"]) * 1e-6) / 989.5e12
        assert fraction == pytest.approx(measured, rel=0.07), row["name"]


@pytest.mark.parametrize(
    ("engine", "kernels"),
    [
        ("native", ("fa2", "cudnn", "cudnn", "efficient")),
        ("fsdp2", ("fa2", "cudnn", "cudnn", "efficient")),
        ("megatron", ("fa2", "cudnn", "cudnn", "math")),
        ("torchtitan", ("cudnn", "cudnn", "cudnn", "efficient")),
    ],
)
def test_an_engine_chooses_its_attention_by_architecture(engine, kernels):
    """A100, H100, B200 and V100: cuDNN where the engine prefers it; before Ampere what it falls back to."""
    parts = (A100, H100, B200, load_gpu("v100-sxm2-32"))
    calls = (AttentionCall(arch=gpu.arch) for gpu in parts)
    assert tuple(engine_profile(engine).default_attention_kernel(call) for call in calls) == kernels


@pytest.mark.parametrize(
    ("asked", "kernels"),
    [
        ({"head_dim": 256, "v_head_dim": 256}, ("fa2", "fa2", "fa2")),  # Gemma
        ({"head_dim": 192, "v_head_dim": 128}, ("efficient", "cudnn", "cudnn")),  # MLA
        ({"is_16_bit": False}, ("efficient", "efficient", "efficient")),
        ({"dropout_fraction": 0.1}, ("fa2", "fa2", "fa2")),
        ({"dropout_fraction": 0.125}, ("fa2", "cudnn", "cudnn")),
    ],
)
def test_torch_takes_the_first_kernel_that_computes_a_call(asked, kernels):
    """A100, H100 and B200, as ``sdp_utils.cpp`` of pytorch/pytorch@001f694 filters kernels."""
    calls = (AttentionCall(arch=gpu.arch, **asked) for gpu in (A100, H100, B200))
    assert tuple(engine_profile("fsdp2").default_attention_kernel(call) for call in calls) == kernels


def test_parts_before_ampere_borrow_the_shares_of_a100():
    """On H100 the same kernels leave half of the matrix units idle: 0.354 of the peak, 0.693 on A100."""
    v100 = load_gpu("v100-sxm2-32")
    assert rates_of(v100).attention.forward_fraction == pytest.approx(0.693)
    assert rates_of(v100, "efficient").attention.forward_fraction == pytest.approx(0.70 * 0.693)
    assert attention_origin("efficient", v100.arch).borrowed_from == "A100"
    assert attention_origin("fa2", "CDNA3").borrowed_from == "H100"


def test_kernels_without_figures_take_those_of_another_one():
    """On A100 FlexAttention reaches 90 and 85 % of FlashAttention-2, on H100 125 and 103 %; cuDNN loses on A100."""
    for gpu, forward, backward in ((A100, 0.90, 0.85), (H100, 1.25, 1.03)):
        flash, flex = rates_of(gpu).attention, rates_of(gpu, "flex").attention
        assert flex.forward_fraction == pytest.approx(forward * flash.forward_fraction)
        assert flex.backward_fraction == pytest.approx(backward * flash.backward_fraction)
    flash, cudnn = rates_of(A100).attention, rates_of(A100, "cudnn").attention
    assert cudnn.backward_fraction == pytest.approx(0.84 * flash.backward_fraction)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "published"), [(24, 2048, 16, 220 / 170), (32, 2560, 20, 225 / 175)]
)
def test_whole_steps_with_flash_attention_1_take_as_much_longer_as_published(layers, hidden, heads, published):
    """GPT-3 1.3B and 2.7B with 8,192 tokens on 8 A100, arXiv:2307.08691 table 1, of which nothing is fitted."""
    shape = {"model_type": "gpt2", "n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": 8192}
    steps = {}
    for kernel in ("fa1", "fa2"):
        recipe = {"seq_len": 8192, "micro_batch_size": 1, "global_batch_size": 128, "attention_kernel": kernel}
        recipe |= {"fused_loss": True}
        plan = {"model": {**shape, "vocab_size": 50264}, "cluster": "8xa100-sxm-80", "engine": "megatron"}
        steps[kernel] = predict(read_plan({**plan, "recipe": recipe, "layout": {"dp_shard": 8}})).time.step_s
    assert steps["fa1"] / steps["fa2"] == pytest.approx(published, rel=0.035)


def test_launches_of_selective_recomputation_hide_under_the_backward_pass():
    """Device 2 and host 5 forward, 6 and 1 backward: 3 more launched forward, then 7 and 9 backward, add 3 and 3."""
    once = PhaseTimes(forward_work=DeviceAndHost(2.0, 5.0), backward_work=DeviceAndHost(6.0, 1.0))
    again = PhaseTimes(recompute_work=DeviceAndHost(1.0, 8.0), forward_work=DeviceAndHost(0.0, 3.0))
    assert computed_again(once, again).recompute_s == 3.0 + 3.0


def test_whole_blocks_wait_for_their_own_launches_when_they_are_computed_again():
    once = PhaseTimes(forward_work=DeviceAndHost(2.0, 5.0), backward_work=DeviceAndHost(6.0, 1.0))
    again = PhaseTimes(recompute_s=5.0, recompute_work=DeviceAndHost(2.0, 5.0))
    assert computed_again(once, again) is again


def test_heads_between_two_kernels_pay_for_the_larger_one():
    """FlashAttention-2 on H100 forward: 0.293 of the peak with heads of 64, 0.354 with 128; 80 runs as 96."""
    fractions = {size: rates_of(H100, head_dim=size).attention.forward_fraction for size in (64, 80, 96, 128, 256)}
    assert fractions[64] == 0.293
    assert fractions[96] == pytest.approx(0.3235)
    assert fractions[80] == pytest.approx(0.3235 * 80 / 96)
    assert fractions[128] == fractions[256] == 0.354


def test_dropout_slows_fused_attention():
    """1.22 forward on one H100, where 1.18 to 1.32 were measured."""
    plain = attention(8192)
    slowed = operation_time_s(replace(plain, slowdown_ratio=1.22), gpu=H100, rates=rates_of(H100))
    assert slowed == pytest.approx(1.22 * operation_time_s(plain, gpu=H100, rates=rates_of(H100)))


def test_all_gpus_wait_for_the_slowest():
    """1.3 % of spread: the slowest of 8 is 1.9 % slower than the mean, of 16,384 it is 5.2 %."""
    operations = (attention(8192),)

    def forward_s(num_gpus):
        rates = kernel_rates(gpu=H100, profile=engine_profile("native"), head_dim=128, num_gpus=num_gpus)
        return phase_times(operations, gpu=H100, rates=rates).forward_s

    assert forward_s(8) == pytest.approx(1.0186 * forward_s(1), rel=1e-3)
    assert forward_s(16384) == pytest.approx(1.0516 * forward_s(1), rel=1e-3)


def test_memory_bound_work_follows_the_bandwidth():
    copy = Operation(name="copy", kind="memory", phase="forward", count=1, flop=0.0, num_bytes=10**9, dtype="bf16")
    gigabytes_per_s = 1 / operation_time_s(copy, gpu=H100, rates=rates_of(H100))
    assert gigabytes_per_s == pytest.approx(2520, rel=0.02)


def test_the_fused_optimizer_takes_its_measured_time():
    """470M fp32 parameters: 5.05 ms fused, 14.2 ms with torch's multi-tensor kernels."""
    readings = {row["name"]: row for row in own_readings("optimizer")}
    for engine, name in (("native", "adamw fused"), ("fsdp1", "adamw foreach")):
        update = Operation(
            name="update",
            kind="optimizer",
            phase="optimizer",
            count=1,
            flop=0.0,
            num_bytes=int(readings[name]["num_bytes"]),
            dtype="bf16",
        )
        rates = kernel_rates(gpu=H100, profile=engine_profile(engine), head_dim=128)
        predicted = operation_time_s(update, gpu=H100, rates=rates)
        assert predicted == pytest.approx(float(readings[name]["time_us"]) * 1e-6, rel=0.02)


def test_nothing_is_shorter_than_a_kernel():
    tiny = Operation(name="add", kind="memory", phase="forward", count=1, flop=0.0, num_bytes=8, dtype="bf16")
    assert operation_time_s(tiny, gpu=H100, rates=rates_of(H100)) == 1e-6
    assert operation_time_s(replace(tiny, num_kernels=8), gpu=H100, rates=rates_of(H100)) == 8e-6


def test_a_phase_takes_as_long_as_the_host_needs_to_issue_it():
    """23 kernels forward and 46 backward: 0.65 and 1.19 ms measured for such a block, 0.76 and 1.84 modelled."""
    tiny = Operation(name="add", kind="memory", phase="forward", count=1, flop=0.0, num_bytes=8, dtype="bf16")
    block = [replace(tiny, num_kernels=23), replace(tiny, phase="backward", num_kernels=46)]
    eager = kernel_rates(gpu=H100, profile=engine_profile("native"), head_dim=128, is_compiled=False)
    times = phase_times(block, gpu=H100, rates=eager)
    assert times.forward_s == pytest.approx(0.759e-3)
    assert times.backward_s == pytest.approx(1.84e-3)
    rates = kernel_rates(gpu=H100, profile=engine_profile("native"), head_dim=128, is_compiled=True)
    compiled = phase_times(block, gpu=H100, rates=rates)
    assert compiled.forward_s == pytest.approx(1.38e-3)


def test_a_busy_device_hides_the_host():
    work = product(8192, 8192, 8192)
    eager = kernel_rates(gpu=H100, profile=engine_profile("native"), head_dim=128, is_compiled=False)
    alone = phase_times([work], gpu=H100, rates=eager).forward_s
    assert phase_times([replace(work, num_kernels=40)], gpu=H100, rates=eager).forward_s == alone


def test_host_work_without_kernels_takes_no_device_time():
    calls = Operation(name="calls", kind="memory", phase="forward", count=1, flop=0.0, num_bytes=0, dtype="bf16")
    assert operation_time_s(calls, gpu=H100, rates=rates_of(H100)) == 0.0


@pytest.mark.parametrize(("heads", "measured_share"), [(4, 0.433), (8, 0.66), (16, 0.832), (32, 0.953)])
def test_few_heads_leave_multiprocessors_idle(heads, measured_share):
    """A100 PCIe, one sequence of 4,096 tokens: forward rate over that of 64 heads (SimuMax)."""
    part = load_gpu("a100-pcie-80")

    def share(count):
        return attention_fraction(replace(attention(4096), flop=2.0 * count * 4096**2 * 128), rates_of(part))

    assert share(heads) / share(64) == pytest.approx(measured_share, rel=0.15)


def test_attention_holds_less_than_it_bursts():
    """cuDNN at 8,192 tokens on H100: 538 TFLOP/s held for a second at 681 W, 614 in a short run."""
    held = attention_fraction(attention(8192), rates_of(H100, "cudnn")) * 989.5
    assert held == pytest.approx(538, rel=0.01)


def test_phases_are_kept_apart_and_counts_multiply():
    operations = [
        replace(product(4096, 4096, 4096), count=3),
        replace(product(4096, 4096, 4096, phase="backward"), name="x.dgrad"),
        replace(product(4096, 4096, 4096, phase="backward"), name="x.wgrad"),
        replace(attention(4096, "recompute"), count=2),
    ]
    times = phase_times(operations, gpu=H100, rates=rates_of(H100))
    one = operation_time_s(operations[0], gpu=H100, rates=rates_of(H100))
    assert times.forward_s == pytest.approx(3 * one)
    assert times.backward_s == pytest.approx(2 * one)
    assert times.weight_backward_s == pytest.approx(one)
    assert times.recompute_s == times.attention_backward_s > 0
    doubled = times.plus(times, times=1)
    assert doubled.forward_s == 2 * times.forward_s
    assert doubled.attention_backward_s == 2 * times.attention_backward_s


@given(
    m=st.integers(1, 200_000),
    n=st.integers(1, 200_000),
    k=st.integers(1, 200_000),
    gpu=st.sampled_from(["h100-sxm", "a100-sxm-80", "mi300x", "v100-sxm2-32", "cpu", "tpu-v5p"]),
)
def test_no_product_beats_the_peak_or_takes_forever(m, n, k, gpu):
    part = load_gpu(gpu)
    dtype = "bf16" if part.peak_flop_per_s("bf16") else "fp16"
    seconds = operation_time_s(product(m, n, k, dtype), gpu=part, rates=rates_of(part))
    assert 2 * m * n * k / part.peak_flop_per_s(dtype) < seconds < float("inf")


@given(scale=st.floats(1.0, 100.0), m=st.integers(1, 20_000))
def test_a_faster_device_is_never_slower(scale, m):
    faster = replace(
        H100,
        peaks=tuple(replace(peak, flop_per_s=scale * peak.flop_per_s) for peak in H100.peaks),
        memory_bandwidth_bytes_per_s=scale * H100.memory_bandwidth_bytes_per_s,
    )
    operation = product(m, 4096, 4096)
    rates = rates_of(H100)
    assert operation_time_s(operation, gpu=faster, rates=rates) <= operation_time_s(operation, gpu=H100, rates=rates)


def test_an_unmeasured_part_says_so():
    assert rates_of(H100).is_measured
    assert rates_of(load_gpu("h100-nvl")).is_measured
    assert not rates_of(load_gpu("v100-sxm2-32")).is_measured


def test_uneven_routing_slows_experts_only():
    """64 experts of 512 tokens: 429 us even, 569 us with shares from 52 to 972 tokens; the median kernel loses 9 %."""
    experts = replace(product(512, 2048, 2048), kind="grouped_matmul", flop=64 * 2.0 * 512 * 2048 * 2048)
    skewed = replace(experts, slowdown_ratio=SKEWED_ROUTING_RATIO)
    even_s = operation_time_s(experts, gpu=H100, rates=rates_of(H100))
    assert even_s * 1e6 == pytest.approx(428.6, rel=0.02)
    assert operation_time_s(skewed, gpu=H100, rates=rates_of(H100)) == pytest.approx(1.09 * even_s)
