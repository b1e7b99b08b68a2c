"""Recomputation by module: what Megatron's names drop, repeat and communicate again."""

from dataclasses import replace
from itertools import pairwise
from typing import get_args

import pytest

from shapes import dense_layer, model
from shardwise.catalog import read_cluster
from shardwise.errors import RecipeError
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.plan_file import plan_to_json, read_plan
from shardwise.predict import predict
from shardwise.recipe import Recipe, RecomputeModule
from shardwise.search import SearchBounds, search
from shardwise.step.collectives import stage_collectives
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operations import stage_operations
from shardwise.step.saved_activations import saved_tensors
from shardwise.step.stage_context import StageContext

GIB = 2**30
MODULES = get_args(RecomputeModule)
PIPELINE = Layout(pp=4, dp_shard=64, ep=64, zero_stage=1)
CHEAP = ("layernorm", "mla_up_proj", "moe_act")


def deepseek(layout=PIPELINE, *, nodes=32, name="deepseek-v3-671b", **recipe):
    settings = {"seq_len": 4096, "global_batch_size": 1024, "recompute": "selective", **recipe}
    return Plan(
        model=read_model(name),
        cluster=read_cluster(f"{nodes}xdgx-h100"),
        recipe=Recipe(**settings),
        layout=layout,
        engine="megatron",
    )


def lite(*modules, **recipe):
    layout = Layout(tp=2, ep=8, dp_shard=4, zero_stage=1, sequence_parallel=True)
    return deepseek(
        layout, nodes=1, name="deepseek-v2-lite", global_batch_size=8, recompute_modules=modules or None, **recipe
    )


def context_of(plan, stage=0):
    return StageContext(plan=plan, stage=pipeline_stages(model=plan.model, layout=plan.layout)[stage])


def kept(**recipe):
    """Bytes one MoE block of the second stage keeps for a micro-batch."""
    return context_of(deepseek(**recipe), 1).kept_bytes(0)


def test_saves_what_megatron_publishes_for_deepseek_v3():
    """NVIDIA 2026, arXiv:2603.07685, table 4: recomputing MLA's up-projections saves 30.4 GB of a rank, norms 8.2 and
    the activation 3.8; 8-bit inputs of linear layers save about 16. One of the figures says how many blocks it holds.
    """
    eight_bits = {"precision": "fp8-mixed"}
    whole = kept(recompute_modules=(), **eight_bits)
    saved = {module: (whole - kept(recompute_modules=(module,), **eight_bits)) / GIB for module in CHEAP}
    blocks = 30.4 / saved["mla_up_proj"]
    assert blocks * saved["layernorm"] == pytest.approx(8.2, abs=0.05)
    assert blocks * saved["moe_act"] == pytest.approx(3.8, abs=0.1)
    inputs = (kept(recompute_modules=(), precision="bf16-mixed") - whole) / GIB
    assert blocks * inputs == pytest.approx(16, abs=0.5)


def test_router_weights_before_the_last_product_save_what_megatron_publishes():
    """The same: memory-efficient permutation keeps no outputs of experts, 26.3 GB of a rank of DeepSeek-V3."""
    context = context_of(deepseek(), 1)
    (layer, _), *_ = context.layer_runs
    outputs, up_projections = (
        sum(tensor.num_bytes for tensor in saved_tensors(layer, block) if choose(tensor))
        for block, choose in (
            (replace(context.block_context, keeps_expert_outputs=True), lambda one: one.name == "experts.output"),
            (replace(context.block_context, has_fp8_inputs=True), lambda one: "mla_up_proj" in one.modules),
        )
    )
    assert outputs * 30.4 / up_projections == pytest.approx(26.3, abs=0.2)
    assert all(tensor.name != "experts.output" for tensor in saved_tensors(layer, context.block_context))


def test_core_attention_leaves_34_bytes_of_a_gpt_block():
    """Korthikanti et al. 2022, arXiv:2205.05198, equation 6: (s b h / t) 34, beside 4 bytes a head of statistics."""
    layer = dense_layer(hidden_size=4096, intermediate_size=16384, heads=32, kv_heads=32, is_gated=False)
    spec = model(layer, num_layers=2, hidden_size=4096, vocab_size=50304)
    spec = replace(spec, hidden_dropout_fraction=0.1, attention_dropout_fraction=0.1)
    recipe = Recipe(seq_len=512, attention="eager", recompute="selective", recompute_modules=("core_attn",))
    plan = Plan(model=spec, cluster=read_cluster("1xdgx-h100"), recipe=recipe, layout=Layout(), engine="megatron")
    context = context_of(plan)
    saved = saved_tensors(layer, context.block_context)
    statistics = sum(tensor.num_bytes for tensor in saved if tensor.name == "norm_statistics")
    assert context.kept_bytes(0) - statistics == 34 * 512 * 4096


@pytest.mark.parametrize("attention", ["flash", "eager"])
def test_core_attention_alone_is_what_megatron_means_by_selective(attention):
    named, unnamed = (predict(lite(*modules, attention=attention)) for modules in (("core_attn",), ()))
    assert named.memory == unnamed.memory
    assert named.time == unnamed.time


def test_every_further_module_keeps_no_more_and_takes_no_less_time():
    sets = [MODULES[:number] for number in range(len(MODULES) + 1)]
    for precision in ("bf16-mixed", "fp8-mixed"):
        predictions = [predict(lite(*chosen, precision=precision)) for chosen in sets[1:]]
        for fewer, more in pairwise(predictions):
            assert more.memory.needed_bytes <= fewer.memory.needed_bytes
            assert more.time.step_s >= fewer.time.step_s


def test_all_modules_keep_more_and_repeat_less_than_whole_blocks():
    every = deepseek(recompute_modules=MODULES)
    full = replace(every, recipe=replace(every.recipe, recompute="full", recompute_modules=None))
    modules, whole = predict(every), predict(full)
    assert whole.memory.needed_bytes < modules.memory.needed_bytes
    assert modules.time.step_s < whole.time.step_s


def repeated(plan, stage=0):
    return {one.name: one for one in stage_operations(context_of(plan, stage)) if one.phase == "recompute"}


def test_mla_up_projections_repeat_two_products_and_rotary():
    """DeepSeek-V3: 1,536 and 512 to 128 heads of 192, and of 128 + 128 elements: 2 T (1536 * 24576 + 512 * 32768)."""
    again = repeated(deepseek(recompute_modules=("mla_up_proj",)), 1)
    assert sorted(again) == ["attention.rotary", "self_attn.kv_b_proj", "self_attn.q_b_proj"]
    flop = sum(operation.flop for operation in again.values())
    assert flop == 2 * 4096 * (1536 * 24576 + 512 * 32768)


def test_modules_repeat_their_own_operations():
    assert sorted(repeated(deepseek(recompute_modules=("layernorm", "moe_act")), 1)) == ["experts.activation", "norms"]
    shared = repeated(deepseek(recompute_modules=("shared_experts",)), 1)
    assert sorted(shared) == [
        "mlp.shared_experts.down_proj",
        "mlp.shared_experts.gate_proj+up_proj",
        "shared_experts.activation",
    ]
    dense = repeated(deepseek(recompute_modules=("mlp",)))
    assert sorted(dense) == ["mlp.activation", "mlp.down_proj", "mlp.gate_proj+up_proj", "norms"]
    routed = repeated(deepseek(recompute_modules=("moe",)), 1)
    assert set(shared) < set(routed)
    assert {"mlp.experts.down_proj", "mlp.gate", "experts.permute", "router.scores"} < set(routed)


def test_a_norm_inside_its_product_is_not_recomputed():
    """Both norms of an MoE block with MLA are modules; of a dense block with MLA only the first is."""
    first = repeated(deepseek(recompute_modules=("layernorm",)))
    norms = [one for one in stage_operations(context_of(deepseek())) if one.name == "norms"]
    dense_norms = next(one for one in norms if one.phase == "forward")
    dense_again = [
        one.num_bytes
        for one in stage_operations(context_of(deepseek(recompute_modules=("layernorm",))))
        if one.name == "norms" and one.phase == "recompute"
    ]
    assert first["norms"].num_bytes == dense_norms.num_bytes
    assert sorted(dense_again) == [dense_norms.num_bytes // 2, dense_norms.num_bytes]


def test_recomputed_products_in_8_bits_cast_their_inputs_again():
    sixteen, eight = (
        repeated(deepseek(recompute_modules=CHEAP, precision=precision), 1) for precision in ("bf16-mixed", "fp8-mixed")
    )
    assert set(eight) - set(sixteen) == {"fp8 casts"}
    assert {one.dtype for name, one in eight.items() if name.endswith("proj")} == {"fp8"}


@pytest.mark.parametrize(("name", "casts"), [("deepseek-v3-671b", {2, 3}), ("mixtral-8x7b", set())])
def test_norms_alone_cast_the_inputs_of_latents_and_of_the_shared_expert_again(name, casts):
    """Two products of DeepSeek read latents behind norms, one more a shared expert's input; Mixtral has none of them.

    Each cast moves 3 bytes of each of 7,168 elements of 4,096 tokens.
    """
    plan = deepseek(Layout(), name=name, recompute_modules=("layernorm",), precision="fp8-mixed")
    again = [one for one in stage_operations(context_of(plan)) if (one.name, one.phase) == ("fp8 casts", "recompute")]
    assert {(one.num_kernels, one.num_bytes) for one in again} == {(cast, 88_080_384 * cast) for cast in casts}


def exchanges(plan, axis):
    return {
        (call.name, call.phase): call.count
        for call in stage_collectives(context_of(plan))
        if call.axis == axis and call.phase in ("forward", "recompute")
    }


def test_only_whole_experts_exchange_tokens_again():
    for modules in (("layernorm", "mla_up_proj", "moe_act"), ("shared_experts",)):
        assert {phase for _, phase in exchanges(lite(*modules), "ep")} == {"forward"}
    found = exchanges(lite("moe"), "ep")
    assert found["expert dispatch", "recompute"] == found["expert dispatch", "forward"] == 26 * 2
    assert found["expert combine", "recompute"] == found["expert combine", "forward"]


def test_a_recomputed_feed_forward_gathers_its_sequence_again():
    """One dense block and 26 with experts, two micro-batches, one pair of calls each."""
    name = "sequence parallel all_gather"
    assert exchanges(lite("mlp"), "tp")[name, "recompute"] == 2
    assert exchanges(lite("shared_experts"), "tp")[name, "recompute"] == 26 * 2
    assert (name, "recompute") not in exchanges(lite("mla_up_proj"), "tp")


def test_waiting_again_for_experts_takes_longer_than_computing_them_again():
    without, computed = predict(lite("moe_act")), predict(lite("moe"))
    waited = [{one.component: one.duration_s for one in found.time.components} for found in (without, computed)]
    assert waited[1]["exposed_communication"] > waited[0]["exposed_communication"]
    assert waited[1]["recompute"] > waited[0]["recompute"]


def test_activation_inputs_and_moments_in_fewer_bits():
    """Of DeepSeek-V3's experts: 2 * 2,048 elements of 8 experts and a shared one, a byte less each; moments half."""
    plain, stored = kept(recompute_modules=()), kept(recompute_modules=(), activation_func_fp8_input_store=True)
    assert plain - stored == 4096 * 9 * 2 * 2048
    components = [predict(lite("core_attn", moment_dtype=dtype)).memory.worst for dtype in (None, "fp32", "bf16")]
    engine, wide, narrow = (worst.component_bytes("optimizer") for worst in components)
    assert engine == wide
    assert narrow == pytest.approx(wide * 2 / 3, rel=1e-6)  # 4 + 2 + 2 bytes after 4 + 4 + 4


def test_deepseeks_own_engine_keeps_both_in_fewer_bits_in_8_bit_training_alone():
    """arXiv:2412.19437, section 3.3.3, against what is said of Megatron."""
    plans = {
        (engine, precision, asked): replace(deepseek(precision=precision, **said), engine=engine)
        for engine in ("megatron", "hai-llm")
        for precision in ("bf16-mixed", "fp8-mixed")
        for asked, said in (("", {}), ("said", {"activation_func_fp8_input_store": True, "moment_dtype": "bf16"}))
    }
    contexts = {name: context_of(plan, 1) for name, plan in plans.items()}
    found = {name: (context.kept_bytes(0), context.states.moment_bytes) for name, context in contexts.items()}
    assert found["hai-llm", "fp8-mixed", ""] == found["hai-llm", "fp8-mixed", "said"]
    for others in (("megatron", "bf16-mixed"), ("megatron", "fp8-mixed"), ("hai-llm", "bf16-mixed")):
        assert found[*others, ""] > found[*others, "said"]


def test_a_plan_file_keeps_the_modules_in_one_order():
    plan = lite("core_attn", "moe_act", activation_func_fp8_input_store=True, moment_dtype="bf16")
    document = plan_to_json(plan)
    assert document["recipe"]["recompute_modules"] == ["core_attn", "moe_act"]
    document["recipe"]["recompute_modules"] = ["moe_act", "core_attn", "moe_act"]
    assert read_plan(document).recipe == plan.recipe


def test_a_prediction_says_which_modules_are_recomputed():
    sentences = predict(lite("layernorm", precision="fp8-mixed")).assumptions
    assert "recompute_modules=layernorm are recomputed, the rest is kept" in sentences
    assert any("delayed scaling" in sentence for sentence in sentences)


def test_a_plan_that_says_nothing_of_it_is_written_as_ever():
    written = plan_to_json(lite())["recipe"]
    assert not {"recompute_modules", "activation_func_fp8_input_store", "moment_dtype"} & set(written)


@pytest.mark.parametrize(
    ("given", "code"), [(["norms"], "plan-unknown-choice"), ([], "plan-wrong-type"), (7, "plan-wrong-type")]
)
def test_modules_that_megatron_does_not_know_are_refused(given, code):
    document = plan_to_json(lite("core_attn"))
    document["recipe"]["recompute_modules"] = given
    with pytest.raises(RecipeError) as refused:
        read_plan(document)
    assert refused.value.code == code


def test_a_search_keeps_the_modules_it_was_asked_for():
    asked = lite("mla_up_proj", "moe_act")
    found = search(
        model=asked.model,
        cluster=asked.cluster,
        recipe=asked.recipe,
        engine="megatron",
        bounds=SearchBounds(recompute=("none", "selective"), offload=("none",), activation_offload=False),
    )
    modules = {(ranked.plan.recipe.recompute, ranked.plan.recipe.recompute_modules) for ranked in found.plans}
    assert modules <= {("none", None), ("selective", ("mla_up_proj", "moe_act"))}
