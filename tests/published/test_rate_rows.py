"""Published rates as plans: what is used, what is left out and why, and facts of single conversions."""

from dataclasses import replace

import pytest
from benchmarks.published.rate_rows import NOT_TIMED, converted_rates, without_repeats
from benchmarks.published.rows import read_rows


def run(run_id):
    return next(run for run in converted_rates().runs if run.id == run_id)


def reason(row_id):
    return next(row.reason for row in converted_rates().unused if row.id == row_id)


def test_every_published_rate_is_used_or_left_out_with_a_reason():
    used, unused = converted_rates().runs, converted_rates().unused
    ids = [row.id for row in (*used, *unused)]
    assert sorted(ids) == sorted(row.id for row in read_rows("throughput"))
    assert all(row.reason for row in unused)


def test_families_of_the_megatron_papers_come_first():
    assert list(dict.fromkeys(run.family for run in converted_rates().runs))[:4] == [
        "KORTH",
        "MLM21",
        "MLM21T2",
        "MTNLG",
    ]


def test_no_family_is_both_used_and_declared_unusable():
    assert not set(NOT_TIMED) & {run.family for run in converted_rates().runs}


def test_korthikanti_175b_selective_is_the_plan_of_its_table():
    plan = run("KORTH-004").plan
    assert (plan.layout.tp, plan.layout.pp, plan.layout.vpp, plan.layout.schedule) == (8, 8, 3, "interleaved")
    assert (plan.recipe.micro_batch_size, plan.num_microbatches, plan.recipe.recompute) == (1, 64, "selective")
    assert plan.layout.sequence_parallel
    assert plan.cluster.node.network.bandwidth_bytes_per_s == 25e9
    assert run("KORTH-004").measured_s == 13.75


def test_a_token_rate_becomes_the_time_of_the_plans_own_step():
    """TTITAN-002: 6,667 tokens/s on each of 8 GPUs, 16 sequences of 8,192."""
    assert run("TTITAN-002").measured_s == pytest.approx(16 * 8192 / (6667 * 8))


def test_a_batch_that_micro_batches_do_not_divide_keeps_its_rate():
    """llm-foundry accumulates 48 sequences as 11, 11, 11, 11 and 4; the plan has four micro-batches of 11."""
    rows = {row.id: row for row in read_rows("throughput")}
    for timed in converted_rates().runs:
        if timed.family == "LLMF":
            rate = timed.plan.tokens_per_step / timed.measured_s
            assert rate == pytest.approx(rows[timed.id].number("tokens_per_s")), timed.id


def test_hardware_tflops_of_the_2021_paper_become_seconds_by_its_equation_3():
    """MLM21-010: 1T on 3,072 GPUs at 163 TFLOP/s each, 96 B s L h^2 (1 + s/6h + V/16Lh) FLOP a step."""
    flop = 96 * 3072 * 2048 * 128 * 25600**2 * (1 + 2048 / (6 * 25600) + 51200 / (16 * 128 * 25600))
    assert run("MLM21-010").measured_s == pytest.approx(flop / (163e12 * 3072))


def test_rows_say_whether_tensor_parallel_collectives_ran_under_products():
    assert run("TTASYNC-002").plan.layout.async_tensor_parallel
    assert not run("TTASYNC-001").plan.layout.async_tensor_parallel


def test_a_row_that_does_what_a_plan_cannot_say_is_marked():
    assert run("TTASYNC-001").is_faithful
    assert not run("NEM15-001").is_faithful


def test_llm_foundry_ran_version_2_of_flash_attention_only_in_part_of_its_last_table():
    faithful = [timed for timed in converted_rates().runs if timed.family == "LLMF" and timed.is_faithful]
    kernels = [timed.plan.recipe.attention_kernel for timed in faithful]
    assert {*kernels} == {"fa1", "fa2"}
    sizes = {timed.plan.layout.world_size for timed, kernel in zip(faithful, kernels, strict=True) if kernel == "fa2"}
    assert sizes == {128, 256, 512}


def test_racks_are_filled_in_equal_segments():
    """256 GB300 are 64 trays: 16 trays of each 18-tray rack, so that groups of 32 or 64 stay inside one."""
    assert run("MBRIDGE-001").plan.cluster.node.scale_up_domain_gpus == 64


def test_a_run_published_twice_is_used_once():
    assert reason("TTPAPER-002") == "the same run as TTITAN-002, published by another source"


def test_two_sources_that_disagree_are_both_kept():
    """8 GPUs without compile: 5,762 tokens/s per GPU in the repository, 6,258 in the paper."""
    assert run("TTITAN-001").plan == run("TTPAPER-001").plan
    assert run("TTITAN-001").measured_s > 1.08 * run("TTPAPER-001").measured_s


def test_a_later_reading_of_the_same_plan_replaces_an_earlier_one():
    first = replace(run("TTITAN-001"), id="A", date="2024-01")
    second = replace(first, id="B", date="2025-01", measured_s=first.measured_s * 1.5)
    kept, repeats = without_repeats([first, second])
    assert [timed.id for timed in kept] == ["B"]
    assert [row.reason for row in repeats] == ["the plan of B, a later reading"]


def test_what_a_source_does_not_state_is_written_down():
    for timed in converted_rates().runs:
        assert timed.assumptions or timed.gaps, timed.id
        assert timed.source


def test_runs_of_megatron_bridge_recompute_the_modules_of_their_recipe_files():
    found = [
        timed for timed in converted_rates().runs if timed.family == "MBRIDGE" and timed.plan.recipe.recompute_modules
    ]
    assert len(found) >= 14
    assert {timed.plan.recipe.recompute for timed in found} == {"selective"}
    assert run("MBRIDGE-002").plan.recipe.recompute_modules == ("mla_up_proj",)


def test_user_buffers_are_read_from_recipe_files_and_from_nemos_scripts_of_pretraining():
    plans = {timed.id: timed.plan for timed in converted_rates().runs}
    hidden = {name for name, plan in plans.items() if plan.layout.async_tensor_parallel}
    assert {"MBRIDGE-034", "MBRIDGE-289", "NEMO-003", "NEMO-024"} <= hidden
    assert "MBRIDGE-068" not in hidden
    assert all(plans[name].layout.tp > 1 for name in hidden)


def test_large_jobs_of_bloom_waited_for_every_launch():
    """Its script exports CUDA_LAUNCH_BLOCKING=1; the best-rate runs before the hangs were met did not."""
    assert [run(f"BLOOMT-{number}").plan.recipe.blocking_launches for number in ("001", "006", "014", "143")] == [
        False,
        False,
        True,
        True,
    ]


def test_interns_owners_broadcast_what_they_updated():
    assert all(run.plan.recipe.broadcast_weights for run in converted_rates().runs if run.family == "EVO")


def test_gradients_of_megatron_bridge_travel_in_16_bits_as_its_recipes_say():
    dtypes = {timed.plan.recipe.reduce_dtype for timed in converted_rates().runs if timed.family in ("MBRIDGE", "NEMO")}
    assert dtypes == {"bf16"}


def test_torchtitan_of_2024_neither_fuses_adamw_nor_compiles_the_loss_and_that_of_2025_does():
    """pytorch/torchtitan@6e49885 of 2025-02-24, @bbb1b61 of 2025-04-02; readings of 2024-12, 2025-03 and 2025-06."""
    recipes = [run(run_id).plan.recipe for run_id in ("TTITAN-002", "TORCHAO-001", "TTH200-001")]
    said = [(recipe.fused_optimizer, recipe.fused_loss) for recipe in recipes]
    assert said == [(False, False), (None, False), (None, None)]


def test_nemotron_of_the_nemo_table_has_its_published_size():
    """NVIDIA's Nemotron-4-340B: 9.4B embedding and 331.6B other parameters (arXiv:2406.11704, table 1)."""
    assert run("NEMO-010").plan.model.num_params / 1e9 == pytest.approx(9.4 + 331.6, abs=0.2)


def test_a_node_of_fms_shares_the_printed_network():
    """400 Gb/s a node of eight A100: 6.25 GB/s for each."""
    assert run("FMSFSDP-001").plan.cluster.node.network.bandwidth_bytes_per_s == 6.25e9


def test_fine_tuning_over_stages_whose_chunks_are_not_printed_is_left_out():
    assert reason("NEMO-014") == "virtual stages not stated"
