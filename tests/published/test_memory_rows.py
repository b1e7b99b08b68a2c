"""Every shipped row is a run with a plan or is listed with a reason; literal rows become the plans they state."""

import pytest
from benchmarks.published.memory_rows import converted_memory
from benchmarks.published.rows import read_rows

GIB = 1_073_741_824


@pytest.fixture(scope="module")
def runs():
    return {run.id: run for run in converted_memory().runs}


def test_every_shipped_row_is_used_or_listed_with_a_reason():
    shipped = {row.id for table in ("memory", "runs") for row in read_rows(table)}
    used = {run.id.partition("/")[0] for run in converted_memory().runs}
    left_out = {row.id for row in converted_memory().unused}
    assert used | left_out == shipped
    assert not used & left_out
    assert all(row.reason and row.reason != "no conversion for this family" for row in converted_memory().unused)


def test_every_further_reading_belongs_to_a_used_run():
    used = {run.id.partition("/")[0] for run in converted_memory().runs}
    left_out = {row.id for row in converted_memory().unused}
    assert {row.id for row in read_rows("readings")} <= used | left_out


def test_ids_are_unique(runs):
    assert len(runs) == len(converted_memory().runs)


def test_every_plan_fills_its_cluster():
    for run in converted_memory().runs:
        assert run.plan.layout.world_size == run.plan.cluster.num_gpus, run.id


def test_every_plan_runs_whole_micro_batches():
    for run in converted_memory().runs:
        recipe, layout = run.plan.recipe, run.plan.layout
        assert recipe.global_batch_size is not None
        assert recipe.global_batch_size % (recipe.micro_batch_size * layout.data_parallel_size) == 0, run.id
        assert run.plan.num_microbatches >= 1


def test_every_run_names_source_and_date():
    for run in converted_memory().runs:
        assert run.source, run.id
        assert run.date, run.id


def test_a_run_counts_once_for_its_outcome():
    for run in converted_memory().runs:
        assert not (run.decides_outcome and "/" in run.id)


def test_pipelined_layers_add_up_to_the_model():
    for run in converted_memory().runs:
        if run.plan.layout.stage_layers is not None:
            assert sum(run.plan.layout.stage_layers) == run.plan.model.num_hidden_layers, run.id


def test_printed_parameter_counts_are_met_exactly_where_they_are_exact():
    """llm-foundry prints the unique parameters of every model, learned positions included."""
    rows = {row.id: row for row in read_rows("runs") if row.family == "RUNMPT"}
    for run in converted_memory().runs:
        if run.id in rows:
            assert run.plan.model.num_params == rows[run.id].integer("params"), run.id


def test_llama_3_rows_have_the_published_parameter_count(runs):
    assert runs["TTITAN-001"].plan.model.num_params == 8_030_261_248
    assert runs["TTITAN-011"].plan.model.num_params == 70_553_706_496
    assert runs["TTITAN-013"].plan.model.num_params == 405_853_388_800


def test_a_truncated_llama_on_b200(runs):
    """SIMUB200-003: 12 of 80 blocks, tensor parallel 4 with sequence parallelism, distributed optimizer over 2."""
    run = runs["SIMUB200-003"]
    plan = run.plan
    assert plan.model.num_hidden_layers == 12
    assert plan.model.hidden_size == 8192
    assert plan.model.vocab_size == 128_257
    assert (plan.layout.tp, plan.layout.dp_shard, plan.layout.pp, plan.layout.cp) == (4, 2, 1, 1)
    assert plan.layout.sequence_parallel
    assert plan.layout.zero_stage == 1
    assert plan.num_microbatches == 4
    assert plan.engine == "megatron"
    assert plan.cluster.gpu.id == "b200-sxm"
    assert run.measured_low_bytes == run.measured_high_bytes == 41_951_093_064
    assert run.scope == "allocated"


def test_the_405b_of_simumax_has_sixteen_key_value_heads(runs):
    attention = runs["SIMUB200-027"].plan.model.attention
    assert attention is not None
    assert attention.num_key_value_heads == 16


def test_reserved_memory_of_the_same_run_is_a_reading_of_its_own(runs):
    reserved = runs["SIMUB200-001/reserved"]
    assert reserved.scope == "reserved"
    assert reserved.plan == runs["SIMUB200-001"].plan
    assert reserved.measured_low_bytes / GIB == pytest.approx(70.88, abs=0.005)


def test_a_torchtitan_pipeline_runs_as_many_micro_batches_as_stages(runs):
    """TTITAN-013: local batch 32 over 8 stages is 8 micro-batches of 4; 126 blocks split 15, 16 x 6, 15."""
    plan = runs["TTITAN-013"].plan
    assert plan.recipe.micro_batch_size == 4
    assert plan.num_microbatches == 8
    assert plan.layout.stage_layers == (15, 16, 16, 16, 16, 16, 16, 15)
    assert not plan.layout.reshard_after_forward
    assert plan.recipe.precision == "fp8-mixed"


def test_context_parallel_ranks_share_torchtitans_fsdp_axis(runs):
    plan = runs["TTITAN-005"].plan
    assert (plan.layout.dp_shard, plan.layout.cp) == (4, 2)
    assert plan.layout.state_shard_size == 8


def test_a_zero_bubble_run(runs):
    """ZBPP-001: GPT 1.5B on 8 stages, ZB-2p; "59 GB" may be GB or GiB."""
    run = runs["ZBPP-001"]
    assert run.plan.layout.schedule == "zb-h2"
    assert run.plan.recipe.precision == "fp16-mixed"
    assert run.plan.recipe.attention == "eager"
    assert run.plan.num_microbatches == 24
    assert (run.measured_low_bytes, run.measured_high_bytes) == (59_000_000_000, 63_350_767_616)
    assert run.num_repeats == 3


def test_interleaved_zero_bubble_runs_put_one_block_in_a_virtual_stage(runs):
    plan = runs["ZBPP-040"].plan
    assert (plan.layout.pp, plan.layout.vpp, plan.model.num_hidden_layers) == (8, 4, 30)


def test_a_bloom_sweep_row(runs):
    """BLOOMT-137: 70 blocks and two tables over 12 stages, BF16 optimizer; nvidia-smi on the first node."""
    run = runs["BLOOMT-137"]
    assert run.scope == "device"
    assert run.plan.engine == "deepspeed"
    assert run.plan.recipe.precision == "bf16-mixed"
    assert run.plan.layout.stage_layers == (5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5)


def test_a_bloom_depth_is_read_from_the_printed_size(runs):
    assert runs["BLOOMT-016"].plan.model.num_hidden_layers == 78
    assert runs["BLOOMT-022"].plan.model.num_hidden_layers == 72


def test_a_full_fine_tune_under_fsdp_with_bf16_keeps_fp32_weights(runs):
    plan = runs["R601"].plan
    assert plan.engine == "fsdp1"
    assert plan.recipe.precision == "bf16-mixed"
    assert plan.layout.dp_shard == 2


def test_a_full_fine_tune_on_one_gpu_is_pure_bf16(runs):
    plan = runs["R569"].plan
    assert plan.engine == "accelerate"
    assert plan.recipe.precision == "bf16"


def test_a_four_bit_run_is_a_qlora_run(runs):
    run = runs["R588"]
    assert run.plan.recipe.adapter == "qlora"
    assert run.plan.recipe.lora_rank == 16
    assert run.measured_low_bytes == 74_372_000_000
    assert runs["R588/device"].scope == "device"


def test_out_of_memory_rows_have_no_reading(runs):
    run = runs["R474"]
    assert run.outcome == "oom"
    assert run.measured_low_bytes is None


def test_a_run_two_sources_publish_is_used_once(runs):
    reasons = {row.id: row.reason for row in converted_memory().unused}
    assert "R001" not in runs
    assert reasons["R001"] == "the same run as TTITAN-001, published by another source"
    assert reasons["TTPAPER-002"] == "the same run as TTITAN-002, published by another source"
    assert "R732" not in runs


def test_a_reading_under_expandable_segments_says_so(runs):
    """TORCHAO-006 to 008 print what is reserved, which that allocator setting changes."""
    rows = {name: run.plan.recipe.expandable_segments for name, run in runs.items() if name.startswith("TORCHAO")}
    assert sorted(name for name, is_set in rows.items() if is_set) == ["TORCHAO-006", "TORCHAO-007", "TORCHAO-008"]
