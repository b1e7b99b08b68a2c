"""Memory of whole plans: properties that must hold, and figures derived by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shapes import llama_3_8b, llama_3_70b, plan
from shardwise.layout import Layout
from shardwise.ledger import MEMORY_COMPONENTS
from shardwise.predict.memory import most_bytes, predict_fullest_memory, predict_memory
from shardwise.step import stage_inventory as inventories
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.state_tensors import held_states
from shardwise.units import GIB

ENGINES = ("native", "torchtitan", "megatron", "deepspeed", "fsdp2", "fsdp1", "accelerate", "hai-llm")


@st.composite
def small_plans(draw):
    engine = draw(st.sampled_from(ENGINES))
    layout = Layout(
        dp_shard=draw(st.sampled_from([1, 2, 8])),
        dp_replicate=draw(st.sampled_from([1, 2])),
        tp=draw(st.sampled_from([1, 2, 4])),
        cp=draw(st.sampled_from([1, 2])),
        pp=draw(st.sampled_from([1, 2, 4])),
        zero_stage=draw(st.sampled_from([0, 1, 2, 3])),
        sequence_parallel=draw(st.booleans()),
        schedule=draw(st.sampled_from(["1f1b", "gpipe", "zb-h1", "zbv"])),
    )
    micro_batch = draw(st.sampled_from([1, 2]))
    return plan(
        llama_3_8b(num_layers=8),
        engine=engine,
        layout=layout,
        micro_batch_size=micro_batch,
        global_batch_size=micro_batch * layout.data_parallel_size * draw(st.sampled_from([4, 8])),
        recompute=draw(st.sampled_from(["none", "selective", "full"])),
        precision=draw(st.sampled_from(["fp32", "bf16-mixed", "bf16", "fp16-mixed", "fp8-mixed"])),
        optimizer=draw(st.sampled_from(["adamw", "adamw-8bit", "sgd", "adafactor", "muon", "lion"])),
        attention=draw(st.sampled_from(["flash", "eager"])),
        compile=draw(st.booleans()),
        activation_offload=draw(st.booleans()),
        offload=draw(st.sampled_from(["none", "optimizer", "parameters", "nvme"])),
        adapter=draw(st.sampled_from(["none", "lora", "qlora"])),
    )


@given(small_plans())
@settings(max_examples=150)
def test_components_sum_to_what_the_device_holds(chosen):
    for stage in predict_memory(chosen).stages:
        assert [entry.component for entry in stage.components] == list(MEMORY_COMPONENTS)
        assert all(entry.num_bytes >= 0 for entry in stage.components)
        assert sum(entry.num_bytes for entry in stage.components) == stage.device_used_bytes
        framework = stage.component_bytes("framework")
        assert stage.device_used_bytes - framework == stage.peak_allocated_bytes


@given(small_plans())
@settings(max_examples=100)
def test_allocated_never_exceeds_reserved_nor_reserved_the_device(chosen):
    for stage in predict_memory(chosen).stages:
        assert 0 < stage.peak_allocated_bytes <= stage.peak_reserved_bytes <= stage.device_used_bytes
        assert stage.peak_allocated_bytes == max(phase.allocated_bytes for phase in stage.phases)


@given(small_plans())
@settings(max_examples=100)
def test_a_larger_micro_batch_never_needs_less(chosen):
    recipe = chosen.recipe
    larger = replace(
        chosen,
        recipe=replace(
            recipe, micro_batch_size=2 * recipe.micro_batch_size, global_batch_size=2 * recipe.global_batch_size
        ),
    )
    assert predict_memory(larger).worst.peak_allocated_bytes >= predict_memory(chosen).worst.peak_allocated_bytes


@given(small_plans())
@settings(max_examples=100)
def test_recomputing_everything_keeps_fewer_activations_between_forward_and_backward(chosen):
    def forward_bytes(recompute):
        changed = replace(chosen, recipe=replace(chosen.recipe, recompute=recompute))
        return [
            phase.allocated_bytes
            for stage in predict_memory(changed).stages
            for phase in stage.phases
            if phase.phase == "forward"
        ]

    for full, selective, none in zip(
        forward_bytes("full"), forward_bytes("selective"), forward_bytes("none"), strict=True
    ):
        assert full <= selective <= none


@given(small_plans())
@settings(max_examples=100)
def test_stages_that_share_what_they_hold_are_those_listed_one_by_one(chosen):
    stages = pipeline_stages(model=chosen.model, layout=chosen.layout)
    one_by_one = [inventories.stage_inventory(chosen, stage) for stage in stages]
    assert list(inventories.stage_inventories(chosen, stages)) == one_by_one


@given(small_plans())
@settings(max_examples=150)
def test_the_fullest_stages_need_as_much_as_all_of_them(chosen):
    fullest, every = predict_fullest_memory(chosen), predict_memory(chosen)
    assert set(fullest.stages) <= set(every.stages)
    assert fullest.worst == every.worst
    assert replace(fullest, stages=every.stages) == every
    assert (fullest.needed_bytes, fullest.fits_device) == (every.needed_bytes, every.fits_device)


def test_of_sixteen_stages_three_are_listed_and_looked_at(monkeypatch):
    """126 blocks on 16 stages are 8 a stage but for the first and the last, which hold 7."""
    listed = []
    monkeypatch.setattr(
        inventories, "held_states", lambda context: listed.append(context.stage.index) or held_states(context)
    )
    layout = Layout(dp_shard=8, tp=8, pp=16, zero_stage=1, sequence_parallel=True)
    deep = plan(llama_3_70b(num_layers=126), engine="megatron", layout=layout, global_batch_size=256)
    assert [stage.stage for stage in predict_fullest_memory(deep).stages] == [0, 1, 15]
    assert listed == [0, 1, 15]
    assert len(predict_memory(deep).stages) == 16
    assert listed == [0, 1, 15] * 2


@pytest.mark.parametrize(
    ("zero_stage", "expected_bytes_per_param"), [(0, 18.0), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 18 / 8)]
)
def test_megatron_states_are_18_bytes_or_6_plus_12_over_d(zero_stage, expected_bytes_per_param):
    """Megatron-LM docs/user-guide/features/dist_optimizer.md, bf16 with fp32 main gradients."""
    spec = llama_3_8b()
    chosen = plan(spec, engine="megatron", layout=Layout(dp_shard=8, zero_stage=zero_stage), micro_batch_size=1)
    stage = predict_memory(chosen).worst
    states = sum(stage.component_bytes(name) for name in ("parameters", "gradients", "optimizer"))
    assert states / spec.num_params == pytest.approx(expected_bytes_per_param, rel=1e-6)


def test_fsdp2_states_are_sixteen_bytes_over_the_shard_group_only():
    """HSDP divides by the shard degree: 70.55e9 parameters, 16 bytes, 64 GPUs as 8 x 8, 2 x 32 and 1 x 64."""
    gigabytes = []
    for replicate, shard in ((8, 8), (2, 32), (1, 64)):
        chosen = plan(
            llama_3_70b(),
            layout=Layout(dp_replicate=replicate, dp_shard=shard),
            recompute="full",
            global_batch_size=256,
        )
        stage = predict_memory(chosen).worst
        states = sum(stage.component_bytes(name) for name in ("parameters", "gradients", "optimizer"))
        gigabytes.append(states / 1e9)
    assert gigabytes == pytest.approx([141.1, 35.3, 17.6], rel=0.005)


def test_checkpointed_layer_inputs_of_qwen3_8b_at_131072_tokens():
    """36 layers x 131,072 tokens x 4,096 x 2 bytes = 38.65 GB (accelerate pull request 4175 says about 39)."""
    spec = llama_3_8b(num_layers=36)
    chosen = plan(spec, seq_len=131_072, recompute="full", layout=Layout(dp_shard=8))
    forward = next(phase for phase in predict_memory(chosen).worst.phases if phase.phase == "forward")
    shallow = plan(llama_3_8b(num_layers=35), seq_len=131_072, recompute="full", layout=Layout(dp_shard=8))
    less = next(phase for phase in predict_memory(shallow).worst.phases if phase.phase == "forward")
    one_layer_states = 218_112_000 * 12 / 8
    one_layer = forward.allocated_bytes - less.allocated_bytes - one_layer_states
    assert 36 * one_layer / 1e9 == pytest.approx(38.65, rel=0.001)


def test_full_logits_of_a_vocabulary_parallel_head_are_an_eighth():
    """4 x 4,096 tokens x 128,000 x 2 bytes: 4.19 GB gathered, 0.52 GB per rank with tp=8 (AReaL issue 664)."""
    spec = replace(llama_3_8b(), vocab_size=128_000)
    chosen = plan(spec, engine="megatron", layout=Layout(tp=8, zero_stage=1), micro_batch_size=4)
    logits = dict(predict_memory(chosen).worst.largest_tensors)["logits and loss"]
    assert logits == 2 * 4 * 4096 * 128_000 * 2 // 8


def test_every_phase_of_the_step_is_reported_for_the_stage_with_the_head():
    stages = predict_memory(plan(llama_3_8b(), layout=Layout(pp=4), global_batch_size=8)).stages
    assert [phase.phase for phase in stages[-1].phases] == [
        "load",
        "forward",
        "loss",
        "backward",
        "optimizer",
        "save",
    ]
    assert [phase.phase for phase in stages[0].phases] == ["load", "forward", "backward", "optimizer", "save"]


def test_one_forward_one_backward_does_not_shrink_the_first_stage():
    """p in flight times L / p blocks is L blocks: pipelining keeps stage 0's activations whole."""

    def kept_gib(pp):
        layout = Layout(pp=pp, zero_stage=1)
        stage = predict_memory(plan(llama_3_8b(), engine="megatron", layout=layout, global_batch_size=32)).stages[0]
        return stage.component_bytes("activations") / GIB

    assert kept_gib(8) == pytest.approx(kept_gib(1), rel=0.1)


def test_offloading_the_optimizer_moves_its_bytes_to_the_host():
    base = plan(llama_3_8b(), layout=Layout(dp_shard=8), recompute="full")
    moved = replace(base, recipe=replace(base.recipe, offload="optimizer"))
    device, host = predict_memory(base), predict_memory(moved)
    assert host.worst.component_bytes("optimizer") == 0
    assert host.host_bytes_per_node >= 8 * 8_030_261_248
    assert host.worst.peak_allocated_bytes < device.worst.peak_allocated_bytes


def test_processors_have_no_context_and_no_library_workspaces():
    chosen = plan(llama_3_8b(num_layers=2), layout=Layout(dp_shard=2), precision="fp32")
    node = chosen.cluster.node
    host = replace(chosen, cluster=replace(chosen.cluster, node=replace(node, gpu=replace(node.gpu, vendor="host"))))
    on_gpu, on_host = predict_memory(chosen).worst, predict_memory(host).worst
    assert on_gpu.peak_allocated_bytes - on_host.peak_allocated_bytes == 64 * 2**20
    assert on_host.device_used_bytes == on_host.peak_reserved_bytes


def test_each_component_is_highest_at_its_own_moment():
    """Logits are gone where this plan's peak lies, in backward."""
    chosen = plan(llama_3_8b(), layout=Layout(dp_shard=8), recompute="full")
    worst = predict_memory(chosen).worst
    assert worst.peak_phase == "backward"
    assert worst.component_bytes("logits") == 0 < most_bytes(chosen, "logits")
    for name in MEMORY_COMPONENTS:
        assert name == "framework" or most_bytes(chosen, name) >= worst.component_bytes(name)


def test_the_multi_tensor_optimizer_makes_one_copy_of_the_shard_it_updates():
    """torch's ``_multi_tensor_adamw``: the denominators of 8,030,261,248 fp32 parameters over 8 ranks at once."""
    sharded = plan(llama_3_8b(), layout=Layout(dp_shard=8, zero_stage=3), engine="torchtitan")

    def temporaries_bytes(fused_optimizer):
        recipe = replace(sharded.recipe, fused_optimizer=fused_optimizer)
        changed = replace(sharded, recipe=recipe)
        stage = inventories.stage_inventory(changed, pipeline_stages(model=changed.model, layout=changed.layout)[0])
        return sum(tensor.num_bytes for tensor in stage.tensors if tensor.name.endswith("optimizer temporaries"))

    assert temporaries_bytes(False) == pytest.approx(4 * 8_030_261_248 / 8, rel=1e-3)
    assert temporaries_bytes(True) == temporaries_bytes(None) == 0
