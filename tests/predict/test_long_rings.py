"""Collectives over many hosts: why their steps take longer than the sum of their means, and what that does to a step.

Published: Llama-2-7B under flat FSDP loses 37 % of its tokens per second and GPU from 128 to 2,048 H100, where two to
four tensor-parallel ranks are faster (arXiv:2411.13055). The ratio is computed, but which way of computing it
to take was decided with these readings in view (docs/collectives.md).
"""

import numpy as np
import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.group_placement import place_group
from shardwise.predict.nccl_protocols import LL128
from shardwise.predict.nccl_tuner import QUEUE_RATIO, best_candidate
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe
from shardwise.units import MIB
from shardwise.validate.shipped_runs import timed_runs

RANKS_PER_HOST = 8
PUBLISHED_LOSS = 0.372
CHART_US = {4: 599, 8: 695, 16: 817, 32: 874, 64: 978, 128: 1099, 256: 1147, 512: 1198}
"""All-reduces of 64 MiB by servers of eight H100 on InfiniBand, read off a chart (``achieved.csv``, STAS-IMG-SCAN)."""


def ring_ratio(num_hosts, rng):
    """Time of a gather whose steps vary exponentially over the sum of their means, step by step."""
    ranks = num_hosts * RANKS_PER_HOST
    means_us = np.full(ranks, LL128.ring_scale_up_us)
    means_us[::RANKS_PER_HOST] = LL128.ring_network_us
    done_us = np.zeros(ranks)
    for _ in range(ranks - 1):
        done_us = np.maximum(done_us, np.roll(done_us, 1)) + rng.exponential(means_us)
    expected_us = (num_hosts - 1) * LL128.ring_network_us + (ranks - num_hosts) * LL128.ring_scale_up_us
    return done_us.max() / expected_us


@pytest.mark.parametrize("num_hosts", [4, 16, 64, 256])
def test_steps_that_vary_hold_each_other_up_by_one_ratio_at_every_length(num_hosts):
    rng = np.random.default_rng(7)
    ratio = np.mean([ring_ratio(num_hosts, rng) for _ in range(8 if num_hosts < 64 else 2)])
    assert ratio == pytest.approx(QUEUE_RATIO, rel=0.1)


@pytest.mark.parametrize("num_hosts", CHART_US)
def test_trees_over_many_hosts_meet_a_published_chart(num_hosts):
    """The model alone, without any sweep; NCCL's expectation is 13 to 34 % too fast."""
    cluster = read_cluster(f"{num_hosts} x dgx-h100")
    placement = place_group(cluster=cluster, size=cluster.num_gpus, stride=1)
    duration_s = best_candidate("all_reduce", placement, 64 * MIB).time_s(64 * MIB)
    assert duration_s == pytest.approx(CHART_US[num_hosts] * 1e-6, rel=0.12)


def step_s(num_gpus, engine="fsdp2", micro_batch_size=2, **layout):
    plan = Plan(
        model=read_model("llama-2-7b"),
        cluster=read_cluster(f"{num_gpus}xh100-sxm"),
        recipe=Recipe(seq_len=4096, micro_batch_size=micro_batch_size, compile=False),
        layout=Layout(**layout),
        engine=engine,
    )
    return predict_time(plan)[0].step_s


def measured_and_predicted_s(run_id):
    (run,) = (run for run in timed_runs().runs if run.id == run_id)
    return run.measured_s, predict_time(run.plan)[0].step_s


@pytest.mark.parametrize("engine", ["fsdp1", "fsdp2"])
def test_flat_sharding_loses_what_was_published(engine):
    few, many = (step_s(num_gpus, engine, dp_shard=num_gpus) for num_gpus in (128, 2048))
    assert 1 - few / many == pytest.approx(PUBLISHED_LOSS, abs=0.08)


def test_tensor_parallelism_and_replicas_win_where_flat_sharding_loses():
    """With as many sequences a GPU; at 128 GPUs flat sharding is the fastest of the three."""
    for num_gpus, is_flat_fastest in ((128, True), (2048, False)):
        flat = step_s(num_gpus, dp_shard=num_gpus)
        for tp in (2, 4):
            divided = step_s(num_gpus, dp_shard=num_gpus // tp, tp=tp, micro_batch_size=2 * tp)
            assert (flat < divided) is is_flat_fastest
    assert step_s(2048, dp_shard=64, dp_replicate=32) < 0.7 * flat


@pytest.mark.parametrize(("run_id", "tolerance"), [("EVO-006", 0.06), ("EVO-007", 0.06), ("EVO-008", 0.15)])
def test_broadcasts_over_hundreds_of_ranks_take_what_was_measured(run_id, tolerance):
    """InternLM-7B on 256, 512 and 1,024 A100 over RoCE, optimizer states divided over all; 11, 16 and 27 % too fast
    when steps did not hold each other up."""
    measured_s, predicted_s = measured_and_predicted_s(run_id)
    assert predicted_s == pytest.approx(measured_s, rel=tolerance)


def test_states_divided_over_every_rank_are_slower_than_over_a_host():
    """Four ranks that divide states, two tensor-parallel ones: 14 % faster on 256 A100, once predicted to be slower."""
    measured, predicted = zip(*map(measured_and_predicted_s, ("EVO-006", "EVO-030")), strict=True)
    assert measured[0] > measured[1]
    assert predicted[0] > predicted[1]


def test_the_slope_of_other_flat_runs_is_not_overstated():
    """MosaicML's 7B on 128 and 512 H100 (LLM Foundry) loses 7.7 %; what is hidden there explains a third of it."""
    (few, few_s), (many, many_s) = map(measured_and_predicted_s, ("LLMF-012", "LLMF-010"))
    assert 0.3 * (1 - few / many) < 1 - few_s / many_s < 1 - few / many
