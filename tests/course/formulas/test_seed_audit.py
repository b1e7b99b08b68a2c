"""Every figure of the seeds, line by line: what they print in their own convention, and what is exact.

The order is that of the lessons. A figure the seeds get wrong is asserted twice: as they print it, from their own
arithmetic, and as it is, from the published formula.
"""

import pytest

from shardwise.course.formulas import (
    activations,
    collective_volume,
    data_parallel_traffic,
    flop_counts,
    kernel_time,
    pipeline_bubbles,
    scaling,
)
from shardwise.course.formulas import model_states as states
from shardwise.course.formulas import pipeline_in_flight as in_flight
from shardwise.formulas import offload_time, run_cost, seed
from shardwise.units import GB, GIB, MB, MIB

LLAMA_70B = 70_553_706_496
LLAMA_405B = 405_853_388_800
A100_FRAMEWORK_BYTES = 79.1 * GIB


class TestScalingLessonTheProblem:
    def test_7b_needs_14_28_14_and_56_gb(self):
        assert seed.weight_bytes(num_params=7e9) == 14 * GB
        assert scaling.opening_adam_bytes(num_params=7e9) == 28 * GB
        assert seed.gradient_bytes(num_params=7e9) == 14 * GB
        assert scaling.opening_state_bytes(num_params=7e9) == 56 * GB

    def test_its_own_table_makes_7b_84_gb(self):
        assert seed.optimizer_bytes(num_params=7e9) == 56 * GB
        assert scaling.model_state_bytes(num_params=7e9) == 84 * GB

    def test_24_gb_are_left_of_an_80_gb_card(self):
        assert seed.GPU_BYTES - scaling.opening_state_bytes(num_params=7e9) == 24 * GB

    def test_a_layer_takes_about_64_mb(self):
        layer = seed.activation_bytes_per_layer(seq_len=2048, micro_batch_size=1, hidden_size=4096)
        assert layer == 64 * MIB
        assert layer / MB == pytest.approx(67.1, abs=0.05)

    def test_a_layer_really_takes_285_or_956_or_17_mb(self):
        shape = {"seq_len": 2048, "micro_batch_size": 1, "hidden_size": 4096}
        flash = activations.selective_recompute_activation_bytes(**shape)
        eager = activations.block_activation_bytes(**shape, num_attention_heads=32)
        full = activations.full_recompute_activation_bytes(**shape)
        assert flash / MB == pytest.approx(285, abs=0.5)
        assert eager / MB == pytest.approx(956, abs=0.5)
        assert full / MB == pytest.approx(16.8, abs=0.05)

    def test_2_gb_per_sample_16_for_eight_and_twelve_blow_up(self):
        layer = seed.activation_bytes_per_layer(seq_len=2048, micro_batch_size=1, hidden_size=4096)
        sample = 32 * layer
        assert sample == 2 * GIB
        assert sample / GB == pytest.approx(2.15, abs=0.005)
        assert 8 * sample == 16 * GIB
        assert 8 * sample / GB == pytest.approx(17.2, abs=0.05)
        assert 12 * sample == 24 * GIB
        assert 12 * sample / GB == pytest.approx(25.8, abs=0.05)
        assert 8 * sample < 24 * GB < 12 * sample

    def test_a_sample_really_takes_9_or_31_gb(self):
        shape = {"seq_len": 2048, "micro_batch_size": 1, "hidden_size": 4096}
        assert 32 * activations.selective_recompute_activation_bytes(**shape) / GB == pytest.approx(9.1, abs=0.05)
        eager = activations.block_activation_bytes(**shape, num_attention_heads=32)
        assert 32 * eager / GB == pytest.approx(30.6, abs=0.05)

    def test_70b_weights_are_140_gb_on_two_a100(self):
        assert seed.weight_bytes(num_params=70e9) == 140 * GB
        assert scaling.min_gpus(total_bytes=140 * GB) == 2

    @pytest.mark.parametrize(("bytes_per_param", "gpus"), [(8, 7), (12, 11), (16, 14), (18, 16)])
    def test_70b_states_need_more_than_the_3_gpus_claimed(self, bytes_per_param, gpus):
        assert scaling.min_gpus(total_bytes=bytes_per_param * 70e9) == gpus
        assert gpus > 3


class TestScalingLessonMemoryTable:
    @pytest.mark.parametrize(
        ("num_params", "weights_gb", "adam_gb", "gradients_gb", "total_gb"),
        [
            (124e6, 0.248, 0.992, 0.248, 1.488),
            (8e9, 16, 64, 16, 96),
            (70e9, 140, 560, 140, 840),
            (405e9, 810, 3240, 810, 4860),
        ],
    )
    def test_every_row(self, num_params, weights_gb, adam_gb, gradients_gb, total_gb):
        assert seed.weight_bytes(num_params=num_params) / GB == pytest.approx(weights_gb, rel=1e-12)
        assert seed.optimizer_bytes(num_params=num_params) / GB == pytest.approx(adam_gb, rel=1e-12)
        assert seed.gradient_bytes(num_params=num_params) / GB == pytest.approx(gradients_gb, rel=1e-12)
        assert scaling.model_state_bytes(num_params=num_params) / GB == pytest.approx(total_gb, rel=1e-12)

    def test_gpt2_total_prints_1_5_gb(self):
        assert f"{scaling.model_state_bytes(num_params=124e6) / GB:.1f}" == "1.5"
        assert scaling.model_state_bytes(num_params=124_439_808) / GB == pytest.approx(1.493, abs=0.0005)

    @pytest.mark.parametrize(
        ("exact_params", "exact_gb"), [(8_030_261_248, 96.4), (LLAMA_70B, 846.6), (LLAMA_405B, 4870.2)]
    )
    def test_totals_with_exact_parameter_counts(self, exact_params, exact_gb):
        assert scaling.model_state_bytes(num_params=exact_params) / GB == pytest.approx(exact_gb, abs=0.06)

    @pytest.mark.parametrize(("num_params", "total_gb"), [(8e9, 128), (70e9, 1120), (405e9, 6480)])
    def test_totals_with_a_master_copy(self, num_params, total_gb):
        assert states.zero_model_state_bytes(num_params=num_params) == total_gb * GB

    def test_the_optimizer_of_70b_alone_needs_seven_a100(self):
        assert seed.optimizer_bytes(num_params=70e9) == 560 * GB
        assert seed.optimizer_bytes(num_params=70e9) / seed.GPU_BYTES == 7.0
        assert scaling.min_gpus(total_bytes=560 * GB) == 7

    def test_405b_needs_at_least_61_h100(self):
        total = scaling.model_state_bytes(num_params=405e9)
        assert total / seed.GPU_BYTES == 60.75
        assert scaling.min_gpus(total_bytes=total) == 61
        exact = scaling.model_state_bytes(num_params=LLAMA_405B)
        assert exact / seed.GPU_BYTES == pytest.approx(60.88, abs=0.005)
        assert scaling.min_gpus(total_bytes=exact) == 61

    def test_405b_needs_81_or_92_with_a_master_copy_and_58_of_the_real_cards(self):
        assert scaling.min_gpus(total_bytes=states.zero_model_state_bytes(num_params=405e9)) == 81
        assert scaling.min_gpus(total_bytes=states.zero_model_state_bytes(num_params=LLAMA_405B)) == 82
        assert scaling.min_gpus(total_bytes=states.megatron_bytes_per_param() * 405e9) == 92
        assert scaling.min_gpus(total_bytes=4860 * GB, gpu_bytes=A100_FRAMEWORK_BYTES) == 58

    def test_405b_states_fit_on_92_gpus_but_would_train_33_years(self):
        hours = run_cost.gpu_hours(total_flop=3.8e25, peak_flop_per_s=400e12, mfu_fraction=1.0)
        assert run_cost.run_days(gpu_hours=hours, num_gpus=92) / 365.25 == pytest.approx(33, abs=0.5)


class TestScalingLessonStrategies:
    def test_64_gpus_with_16_samples_make_1024(self):
        assert 64 * 16 == 1024
        assert 1024 // 4 == 256

    def test_llama_3_steps_are_16_million_tokens(self):
        """arXiv:2407.21783 table 4: 2,048 sequences of 8,192 tokens in the late run."""
        assert pytest.approx(16.8, abs=0.1) == 2048 * 8192 / 1e6

    def test_a_square_matrix_over_four_ranks(self):
        assert (8192, 8192 // 4) == (8192, 2048)

    def test_70b_over_eight_is_8_75b(self):
        assert 70e9 / 8 == 8.75e9

    def test_nvlink_is_nine_times_infiniband_one_way(self):
        """900 GB/s is both directions, 50 GB/s is one: 450 / 50."""
        both_ways, one_way_network = 900e9, 400e9 / 8
        assert one_way_network == 50e9
        assert both_ways / one_way_network == 18
        assert both_ways / 2 / one_way_network == 9

    def test_naive_pipelining_keeps_one_in_n_busy(self):
        assert pipeline_bubbles.idle_fraction(pp=4, num_microbatches=1) == 1 - 1 / 4 == 0.75

    def test_three_sixteenths_of_the_ideal_time(self):
        assert (4 - 1) / 16 == 0.1875
        assert pipeline_bubbles.bubble_over_ideal(pp=4, num_microbatches=16) == 0.1875

    def test_70b_fully_sharded_over_eight_is_105_gb(self):
        shard = seed.per_gpu_memory(num_params=70e9, num_gpus=8, zero_stage=3, activation_bytes=0)
        assert shard.weight_bytes == 17.5 * GB
        assert shard.optimizer_bytes == 70 * GB
        assert shard.gradient_bytes == 17.5 * GB
        assert shard.total_bytes == 105 * GB
        assert not shard.fits

    def test_70b_without_fsdp_is_840_gb_per_gpu(self):
        whole = seed.per_gpu_memory(num_params=70e9, num_gpus=8, zero_stage=0, activation_bytes=0)
        assert whole.total_bytes == 840 * GB

    def test_with_a_master_copy_it_is_140_gb(self):
        assert states.zero_model_state_bytes(num_params=70e9, dp_shard=8, zero_stage=3) == 140 * GB

    @pytest.mark.parametrize(("gpus", "gb"), [(11, 76.4), (16, 52.5)])
    def test_11_gpus_already_hold_what_16_are_said_to_need(self, gpus, gb):
        shard = seed.per_gpu_memory(num_params=70e9, num_gpus=gpus, zero_stage=3, activation_bytes=0)
        assert shard.total_bytes / GB == pytest.approx(gb, abs=0.05)
        assert shard.fits

    def test_10_gpus_do_not_hold_it_and_15_hold_it_with_a_master_copy(self):
        ten = seed.per_gpu_memory(num_params=70e9, num_gpus=10, zero_stage=3, activation_bytes=0)
        assert not ten.fits
        fifteen = states.zero_model_state_bytes(num_params=70e9, dp_shard=15, zero_stage=3)
        assert fifteen / GB == pytest.approx(74.7, abs=0.05)

    @pytest.mark.parametrize(
        ("stage", "limit", "at_8", "at_64"), [(1, 4, 2.9, 3.8), (2, 8, 4.3, 7.2), (3, None, 8, 64)]
    )
    def test_zero_reduces_4_8_and_n_times(self, stage, limit, at_8, at_64):
        """The limits hold for 16 bytes per parameter and many ranks."""
        assert states.zero_reduction_ratio(dp_shard=8, zero_stage=stage) == pytest.approx(at_8, abs=0.05)
        assert states.zero_reduction_ratio(dp_shard=64, zero_stage=stage) == pytest.approx(at_64, abs=0.05)
        if limit:
            assert states.zero_reduction_ratio(dp_shard=10**9, zero_stage=stage) == pytest.approx(limit, rel=1e-6)

    @pytest.mark.parametrize(("stage", "limit"), [(1, 3), (2, 6)])
    def test_in_the_seeds_own_bytes_the_limits_are_3_and_6(self, stage, limit):
        whole = scaling.model_state_bytes(num_params=1e9)
        shard = seed.per_gpu_memory(num_params=1e9, num_gpus=10**9, zero_stage=stage, activation_bytes=0)
        assert whole / shard.total_bytes == pytest.approx(limit, rel=1e-6)

    def test_zero_3_moves_one_and_a_half_times_ddp_or_twice_with_fp32_reduction(self):
        ddp = data_parallel_traffic.ddp_bytes(num_params=7e9, dp_shard=8)
        half = data_parallel_traffic.fsdp_bytes(num_params=7e9, dp_shard=8, reduce_bytes=2)
        full = data_parallel_traffic.fsdp_bytes(num_params=7e9, dp_shard=8)
        assert half / ddp == 1.5
        assert full / ddp == 2.0

    def test_zero_2_moves_what_ddp_moves_without_accumulation(self):
        same = data_parallel_traffic.zero1_bytes(num_params=7e9, dp_shard=8, gradient_bytes=2)
        assert same == data_parallel_traffic.ddp_bytes(num_params=7e9, dp_shard=8)


class TestScalingLessonPrecisionAnd3d:
    def test_7b_is_112_gb_in_fp32_and_84_mixed_saving_28(self):
        comparison = scaling.mixed_precision_comparison(num_params=7e9)
        assert comparison.fp32_bytes == 112 * GB
        assert comparison.mixed_bytes == 84 * GB
        assert comparison.saved_bytes == 28 * GB
        assert comparison.saved_fraction == 0.25

    def test_with_the_master_copy_it_names_nothing_is_saved(self):
        comparison = scaling.mixed_precision_comparison(num_params=7e9)
        assert comparison.mixed_with_master_bytes == comparison.fp32_bytes

    @pytest.mark.parametrize(
        ("num_params", "fp32_gb", "mixed_gb"),
        [(7e9, "112", "84"), (13e9, "208", "156"), (70e9, "1120", "840"), (405e9, "6480", "4860")],
    )
    def test_the_printed_comparison(self, num_params, fp32_gb, mixed_gb):
        comparison = scaling.mixed_precision_comparison(num_params=num_params)
        assert f"{comparison.fp32_bytes / GB:.0f}" == fp32_gb
        assert f"{comparison.mixed_bytes / GB:.0f}" == mixed_gb
        assert f"{comparison.saved_fraction:.0%}" == "25%"

    def test_the_table_of_parts(self):
        assert 28 * GB == 4 * 7e9
        assert seed.weight_bytes(num_params=7e9, precision_bytes=4) == 28 * GB
        assert seed.optimizer_bytes(num_params=7e9) == 56 * GB

    def test_3d_parallelism_of_llama_405b(self):
        assert 8 * 16 * 128 == 16_384

    def test_deepseek_used_an_eighth_of_metas_gpus_not_less(self):
        assert 16_384 / 2_048 == 8


class TestScalingLessonPrograms:
    def test_a_ring_moves_24_5_gb_for_7b_on_eight_and_takes_14_steps(self):
        assert collective_volume.all_reduce_bytes(payload_bytes=14e9, group_size=8) == 24.5 * GB
        assert collective_volume.ring_all_reduce_steps(group_size=8) == 14

    @pytest.mark.parametrize(
        ("num_microbatches", "total_time", "printed"),
        [(1, 64, "75.0%"), (4, 112, "42.9%"), (8, 176, "27.3%"), (16, 304, "15.8%"), (32, 560, "8.6%")],
    )
    def test_the_pipeline_program_prints(self, num_microbatches, total_time, printed):
        result = scaling.simulated_pipeline(num_layers=32, num_stages=4, num_microbatches=num_microbatches)
        assert result.total_time == total_time
        assert f"{result.idle_fraction:.1%}" == printed

    def test_the_closed_form_is_the_lessons_event_simulation(self):
        """Two roads: the dependency rules of the lesson, replayed."""
        for num_layers, num_stages, num_microbatches in ((32, 4, 16), (15, 5, 7), (6, 1, 3), (11, 11, 2)):
            unit = num_layers // num_stages
            forward = [[0] * num_microbatches for _ in range(num_stages)]
            for micro_batch in range(num_microbatches):
                for stage in range(num_stages):
                    own = forward[stage][micro_batch - 1] if micro_batch else 0
                    previous = forward[stage - 1][micro_batch] if stage else 0
                    forward[stage][micro_batch] = max(own, previous) + unit
            start = max(max(row) for row in forward)
            backward = [[start] * num_microbatches for _ in range(num_stages)]
            for micro_batch in reversed(range(num_microbatches)):
                for stage in reversed(range(num_stages)):
                    own = backward[stage][micro_batch + 1] if micro_batch < num_microbatches - 1 else start
                    following = backward[stage + 1][micro_batch] if stage < num_stages - 1 else start
                    backward[stage][micro_batch] = max(own, following) + unit
            replayed = max(max(row) for row in backward)
            closed = scaling.simulated_pipeline(
                num_layers=num_layers, num_stages=num_stages, num_microbatches=num_microbatches
            )
            assert closed.total_time == replayed

    @pytest.mark.parametrize(
        ("billions", "sharded", "gpus", "printed", "fits"),
        [
            (7, False, 1, "91.0", False),
            (7, True, 8, "17.5", True),
            (70, False, 1, "910.0", False),
            (70, True, 8, "175.0", False),
            (70, True, 16, "122.5", False),
            (405, True, 64, "480.9", False),
            (405, True, 128, "443.0", False),
        ],
    )
    def test_the_calculator_table(self, billions, sharded, gpus, printed, fits):
        memory = seed.per_gpu_memory(num_params=billions * 1e9, num_gpus=gpus, zero_stage=3 if sharded else 0)
        assert f"{memory.total_bytes / GB:.1f}" == printed
        assert memory.fits is fits

    @pytest.mark.parametrize(
        ("billions", "gpus", "states_gb"), [(7, 8, 10.5), (70, 16, 52.5), (405, 64, 75.9), (405, 128, 38.0)]
    )
    def test_the_calculators_states_alone_agree_with_its_prose(self, billions, gpus, states_gb):
        memory = seed.per_gpu_memory(num_params=billions * 1e9, num_gpus=gpus, zero_stage=3)
        assert memory.state_bytes / GB == pytest.approx(states_gb, abs=0.05)
        assert memory.activation_bytes == seed.fallback_activation_bytes(num_params=billions * 1e9)

    def test_zero_1_and_zero_2_divide_what_they_say(self):
        one = seed.per_gpu_memory(num_params=70e9, num_gpus=8, zero_stage=1, activation_bytes=0)
        two = seed.per_gpu_memory(num_params=70e9, num_gpus=8, zero_stage=2, activation_bytes=0)
        assert one.total_bytes == (140 + 140 + 70) * GB
        assert two.total_bytes == (140 + 17.5 + 70) * GB

    def test_sgd_counts_four_bytes(self):
        memory = seed.per_gpu_memory(num_params=7e9, optimizer="sgd", activation_bytes=0)
        assert memory.optimizer_bytes == 28 * GB
        assert memory.total_bytes == 56 * GB


class TestScalingLessonExercises:
    def test_full_checkpointing_costs_a_third_more(self):
        assert flop_counts.recompute_flop_ratio() - 1 == pytest.approx(0.333, abs=0.0005)

    def test_1f1b_and_gpipe_have_one_bubble_but_not_one_peak(self):
        assert pipeline_bubbles.idle_fraction(pp=4, num_microbatches=8) == pytest.approx(0.273, abs=0.0005)
        assert in_flight.one_f_one_b_in_flight(pp=4, stage=0, num_microbatches=8) == 4
        assert in_flight.gpipe_in_flight(num_microbatches=8) == 8

    def test_llama_405b_costs_100m_at_3_24_an_hour(self):
        assert run_cost.run_usd(gpu_hours=30.84e6, usd_per_gpu_hour=3.5) == pytest.approx(107.94e6)
        assert run_cost.run_usd(gpu_hours=30.84e6, usd_per_gpu_hour=2.0) == pytest.approx(61.68e6)
        assert pytest.approx(3.24, abs=0.005) == 100e6 / 30.84e6

    def test_deepseek_v3_costs_5_6m_at_2_an_hour(self):
        usd = run_cost.run_usd(gpu_hours=2.788e6, usd_per_gpu_hour=2.0)
        assert usd == 5.576e6
        assert f"{usd / 1e6:.1f}" == "5.6"

    def test_offloading_70b_needs_more_host_memory_than_512_gb(self):
        host = seed.optimizer_bytes(num_params=70e9)
        assert host == 560 * GB
        assert host > 512 * GB
        assert 840 * GB == 12 * 70e9
        assert 840 * GB < 2000 * GB

    def test_offloading_leaves_70_or_35_gb_on_four_gpus(self):
        assert scaling.offloaded_gpu_bytes(num_params=70e9, num_gpus=4) == 70 * GB
        assert scaling.offloaded_gpu_bytes(num_params=70e9, num_gpus=4, offloads_gradients=True) == 35 * GB

    def test_an_offloaded_optimizer_is_not_30_to_50_percent_but_30_to_120_times_slower(self):
        on_gpus = kernel_time.gpu_adam_s(num_params=17.5e9, memory_bandwidth_bytes_per_s=3.35e12)
        slow = offload_time.cpu_adam_s(num_params=70e9, host_bandwidth_bytes_per_s=100e9)
        fast = offload_time.cpu_adam_s(num_params=70e9, host_bandwidth_bytes_per_s=400e9)
        assert fast / on_gpus == pytest.approx(30, abs=1)
        assert slow / on_gpus == pytest.approx(122, abs=2)


class TestOtherSeeds:
    def test_70b_is_140_gb_and_its_optimizer_four_times_that(self):
        """The journey page: "Optimizer states multiply this by 4x"."""
        assert seed.optimizer_bytes(num_params=70e9) / seed.weight_bytes(num_params=70e9) == 4
        with_master = 12 * 70e9
        assert with_master / seed.weight_bytes(num_params=70e9) == 6

    def test_a_1b_model_does_not_run_out_of_memory_under_ddp(self):
        """The week-14 lab's "DDP-OOM baseline": 16 GB of states fit on a 24 GB card."""
        assert states.zero_model_state_bytes(num_params=1e9) == 16 * GB

    def test_adam_is_8_bytes_per_parameter_not_8_times_the_model(self):
        adam = seed.optimizer_bytes(num_params=1e9)
        assert adam == 8 * GB
        assert adam / seed.weight_bytes(num_params=1e9) == 4
        assert adam / seed.weight_bytes(num_params=1e9, precision_bytes=4) == 2

    def test_checkpointing_saves_17_or_57_times_not_3(self):
        assert 34 / 2 == 17
        shape = {"seq_len": 2048, "micro_batch_size": 1, "hidden_size": 4096}
        eager = activations.block_activation_bytes(**shape, num_attention_heads=32)
        assert eager / activations.full_recompute_activation_bytes(**shape) == pytest.approx(57, abs=0.1)

    def test_pipeline_stages_do_not_cut_the_first_stages_activations(self):
        held = in_flight.one_f_one_b_in_flight(pp=8, stage=0, num_microbatches=64)
        assert held * (80 // 8) == 80

    def test_chinchilla_tokens_of_70b(self):
        assert 20 * 70e9 == 1.4e12
