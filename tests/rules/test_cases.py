"""What people ran into, as reported in public issues: each case with its identifier and its exact numbers."""

import pytest

from rules.samples import llama_8b, llama_30b, make_plan, named, qwen2_7b, refusal, refused
from shapes import dense_layer, llama_3_70b
from shapes import model as sample_model
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.rules import apply_changes, find_errors, head_tp_degrees, valid_tp_degrees
from shardwise.rules.batch_arithmetic import (
    nearest_batch_settings,
)
from shardwise.rules.precision import LARGEST_FP16
from shardwise.rules.stages import placed_layers, stage_layers_for_vpp, truncated_layers
from shardwise.units import GB


def test_c02_seven_gpus_cannot_make_256():
    """OpenRLHF issue 346: micro-batch 2 on 7 GPUs computes 2 * 18 * 7 = 252."""
    found = nearest_batch_settings(global_batch_size=256, micro_batch_size=2, data_parallel_size=7)
    assert [(s.global_batch_size, s.data_parallel_size, s.num_microbatches) for s in found] == [
        (252, 7, 18),
        (266, 7, 19),
        (256, 8, 16),
        (256, 4, 32),
    ]


def test_c02_the_plan_is_refused_with_the_multiple_and_the_nearest_batch():
    plan = make_plan(layout=Layout(dp_shard=7), micro_batch_size=2, global_batch_size=256)
    found = refusal(plan, "recipe-batch-arithmetic")
    assert "256 % 14 = 4" in found.message
    assert found.fix == "set global_batch_size=252"


def test_c04_28_heads_on_tp_8():
    """THU-KEG/AdaptThink issue 1; the thread lists all divisors of 28, but 7 and 14 are no multiples of 4 kv heads."""
    heads = {"num_attention_heads": 28, "num_key_value_heads": 4}
    assert head_tp_degrees(**heads) == (1, 2, 4)
    assert head_tp_degrees(**heads, replicates_kv_heads=True) == (1, 2, 4, 28)


def test_c04_the_plan_is_refused_and_tp_4_is_offered():
    found = refusal(make_plan(qwen2_7b(), layout=Layout(tp=8)), "layout-heads-over-tp")
    assert "28 % 8 = 4" in found.message
    assert ("tp", 4) in found.neighbour


def test_c05_52_heads_on_tp_8():
    """deepspeedai/DeepSpeed issue 3634: 52 = 4 * 13."""
    assert valid_tp_degrees(llama_30b(), max_tp=8) == (1, 2, 4)
    found = refusal(make_plan(llama_30b(), layout=Layout(tp=8)), "layout-heads-over-tp")
    assert "52 % 8 = 4" in found.message


def test_c09_30_layers_on_4_stages_do_not_become_28():
    """NVIDIA/Megatron-LM issues 1304 and 823."""
    plan = make_plan(llama_8b(num_layers=30), engine="megatron", layout=Layout(pp=4, zero_stage=1))
    assert truncated_layers(num_layers=30, pp=4) == 28
    found = refusal(plan, "layout-uneven-stages")
    assert "30 % 4 = 2" in found.message
    assert "28 layers" in found.message
    assert found.neighbour == (("stage_layers", (7, 8, 8, 7)),)


@pytest.mark.parametrize("counts", [(8, 8, 7, 7), (7, 8, 8, 7)])
def test_c09_a_written_layout_of_30_layers_is_accepted(counts):
    layout = Layout(pp=4, zero_stage=1, stage_layers=counts)
    plan = make_plan(llama_8b(num_layers=30), engine="megatron", layout=layout)
    assert refused(plan) == set()
    assert sum(placed_layers(plan.model, plan.layout)) == 30


def test_c12_a_released_recipe_with_60_layers_and_pp_8():
    """NVIDIA-NeMo/Megatron-Bridge pull 5884: 4 first, 8 in the middle, 8 last, all multiples of 4 chunks."""
    assert stage_layers_for_vpp(num_layers=60, pp=8, vpp=4) == (4, 8, 8, 8, 8, 8, 8, 8)
    layout = Layout(pp=8, vpp=4, schedule="interleaved", zero_stage=1)
    plan = make_plan(llama_8b(num_layers=60), engine="megatron", layout=layout)
    assert find_errors(plan) == ()
    found = refusal(plan, "layout-uneven-stages")
    assert "60 % 32 = 28" in found.message
    assert find_errors(apply_changes(plan, found.neighbour)) == ()
    released = apply_changes(plan, (("stage_layers", (4, 8, 8, 8, 8, 8, 8, 8)),))
    assert refused(released) == set()


@pytest.mark.parametrize(("num_layers", "pp"), [(60, 8), (61, 16)])
def test_layers_that_megatron_takes_from_a_written_layout_are_not_refused(num_layers, pp):
    plan = make_plan(llama_8b(num_layers=num_layers), engine="megatron", layout=Layout(pp=pp, zero_stage=1))
    assert find_errors(plan) == ()
    assert refused(plan) == {"layout-uneven-stages"}


def test_c12_a_stage_that_vpp_does_not_divide_is_named():
    counts = (7, 8, 8, 8, 8, 7, 7, 7)
    layout = Layout(pp=8, vpp=4, schedule="interleaved", zero_stage=1, stage_layers=counts)
    plan = make_plan(llama_8b(num_layers=60), engine="megatron", layout=layout)
    assert "7 layers is not a multiple of vpp=4" in refusal(plan, "engine-megatron-stage-layers-over-vpp").message


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_c13_deepspeed_refuses_zero_2_and_3_with_a_pipeline(zero_stage):
    """deepspeedai/DeepSpeed issues 823, 1629, 3589: a rule of the framework, not a law."""
    layout = Layout(pp=2, zero_stage=zero_stage)
    found = refusal(make_plan(engine="deepspeed", layout=layout), "engine-deepspeed-zero-with-pipeline")
    assert found.neighbour == (("zero_stage", 1),)
    assert "FSDP2 inside pipeline stages" in found.fix
    assert "whole gradients" in found.message


def test_c13_torch_runs_fsdp2_inside_pipeline_stages():
    plan = make_plan(layout=Layout(pp=2, dp_shard=2, zero_stage=3, reshard_after_forward=False))
    assert find_errors(plan) == ()


def test_c15_lora_under_fsdp1_mixes_requires_grad():
    """huggingface/peft issue 1702; reproduced on torch 2.13."""
    plan = make_plan(engine="fsdp1", layout=Layout(dp_shard=2), adapter="lora")
    found = refusal(plan, "engine-fsdp1-mixed-requires-grad")
    assert "Must flatten tensors with uniform requires_grad" in found.message
    assert "use_orig_params=True" in found.fix
    assert "wrap the trainable leaf modules separately" in found.fix
    assert found.neighbour == (("engine", "native"),)
    assert find_errors(make_plan(layout=Layout(dp_shard=2), adapter="lora")) == ()


def test_c17_a_quantised_base_under_fsdp1_has_integer_storage():
    """axolotl-ai-cloud/axolotl issue 2250, huggingface/trl issue 1175; reproduced on torch 2.13."""
    plan = make_plan(engine="fsdp1", layout=Layout(dp_shard=2), adapter="qlora")
    found = refusal(plan, "engine-fsdp1-integer-storage")
    assert "Cannot flatten integer dtype tensors" in found.message
    assert "(bf16)" in found.message
    assert "int8 is not supported" in found.fix


@pytest.mark.parametrize(("dp_replicate", "dp_shard", "states_gb"), [(8, 8, 141.1), (2, 32, 35.3), (1, 64, 17.6)])
def test_c20_hsdp_divides_by_the_shard_degree_only(dp_replicate, dp_shard, states_gb):
    """pytorch/torchtitan pull 518: 16 bytes times 70.55e9 over the shard group, not over the world."""
    layout = Layout(dp_replicate=dp_replicate, dp_shard=dp_shard)
    assert layout.world_size == 64
    assert 16 * llama_3_70b().num_params / layout.state_shard_size / GB == pytest.approx(states_gb, rel=0.005)


def test_c21_fewer_microbatches_than_stages():
    """pytorch/torchtitan issue 775: GPipe runs, 1F1B raises in torch 2.13; (4 - 1) / (2 + 3) = 60 % idle."""
    gpipe = make_plan(layout=Layout(pp=4, schedule="gpipe"), global_batch_size=2)
    assert find_errors(gpipe) == ()
    assert "60.0 %" in refusal(gpipe, "layout-microbatches-below-stages").message
    onef1b = make_plan(layout=Layout(pp=4, schedule="1f1b"), global_batch_size=2)
    found = refusal(onef1b, "engine-torch-microbatches")
    assert "2 micro-batches are fewer than the 4 stages" in found.message
    assert found.neighbour == (("global_batch_size", 4),)


def test_c25_t5_overflows_fp16():
    """huggingface/transformers issue 5651: an activation of 66246.39."""
    assert LARGEST_FP16 == 65504
    layer = dense_layer(hidden_size=768, intermediate_size=3072, heads=12, kv_heads=12)
    t5 = named(sample_model(layer, num_layers=12, hidden_size=768, vocab_size=32128), "t5-base", "t5")
    found = refusal(make_plan(t5, precision="fp16-mixed"), "recipe-fp16-family")
    assert "65504" in found.message
    assert found.neighbour == (("precision", "bf16-mixed"),)
    assert refused(make_plan(llama_8b(), layout=Layout(dp_shard=2), precision="fp16-mixed")).isdisjoint(
        {"recipe-fp16-family"}
    )


@pytest.mark.parametrize(("dp", "tp", "sequences"), [(2, 1, 32), (1, 2, 16)])
def test_c40_changing_tp_changes_the_global_batch(dp, tp, sequences):
    """Oneflow-Inc/libai issue 345: two GPUs, micro-batch 16."""
    plan = make_plan(layout=Layout(dp_shard=dp, tp=tp), micro_batch_size=16)
    assert plan.global_batch_size == sequences


@pytest.mark.parametrize(("bytes_per_param", "total_gb"), [(16, 1128.9), (8, 564.4), (4, 282.2)])
def test_c42_a_70b_model_needs_more_than_published_tables_say(bytes_per_param, total_gb):
    """huggingface/blog issue 2245 claims 300 GB: that is weights and gradients only."""
    assert bytes_per_param * llama_3_70b().num_params / GB == pytest.approx(total_gb, rel=0.005)


def test_c44_megatron_with_fsdp2_needs_untied_embeddings():
    """NVIDIA/Megatron-LM issue 1447: untying would add V * h parameters."""
    plan = make_plan(llama_8b(tied=True), engine="megatron", layout=Layout(dp_shard=2, zero_stage=3))
    found = refusal(plan, "engine-megatron-fsdp-tied-embeddings")
    assert "525336576 parameters" in found.message
    assert found.neighbour == (("zero_stage", 1),)
    assert "untie" in found.fix
    untied = make_plan(llama_8b(), engine="megatron", layout=Layout(dp_shard=2, zero_stage=3))
    assert find_errors(untied) == ()


@pytest.mark.parametrize(("name", "degrees"), [("smollm-135m", (1, 3)), ("smollm-360m", (1, 5))])
def test_i21_odd_head_counts_leave_odd_degrees(name, degrees):
    """SmolLM: 9 heads with 3 key-value heads, and 15 with 5."""
    assert valid_tp_degrees(read_model(name)) == degrees


def test_s36_ulysses_stops_at_the_key_value_heads_and_a_ring_does_not():
    """Ulysses exchanges heads: 8 key-value heads carry cp=8 alone, or a multiple of it with replicated heads."""
    ulysses = make_plan(llama_3_70b(), engine="deepspeed", layout=Layout(cp=12), seq_len=8184)
    assert "12" in refusal(ulysses, "layout-heads-over-cp").message
    assert "layout-heads-over-cp" not in refused(make_plan(llama_3_70b(), engine="deepspeed", layout=Layout(cp=8)))
    assert "layout-heads-over-cp" not in refused(make_plan(llama_3_70b(), layout=Layout(cp=16), seq_len=8192))
