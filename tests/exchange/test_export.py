"""A plan written for a tool reads back as the same plan, and what a tool cannot say is named."""

from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings

from rules.samples import llama_8b, make_plan
from shardwise.exchange.documents import parse_documents
from shardwise.exchange.export import TARGETS, InexpressibleError, export_plan, same_work
from shardwise.exchange.reading import planned_values, read_parsed
from shardwise.exchange.spelling import megatron_keys
from shardwise.exchange.tools.megatron import written_chunks
from shardwise.layout import Layout
from shardwise.plan_file import read_plan
from shardwise.recipe import Recipe
from shardwise.rules import apply_changes, find_errors
from strategies import plans, runnable_plans

TORCHTITAN = (
    *("dp_replicate", "dp_shard", "zero_stage", "tp", "cp", "pp", "ep", "schedule", "async_tensor_parallel"),
    *("seq_len", "micro_batch_size", "global_batch_size", "precision", "optimizer", "recompute", "offload", "compile"),
    *("vpp", "stage_layers", "expert_exchange"),
)
SAID = {
    "torchtitan": TORCHTITAN,
    "torchtitan-recipe": (*TORCHTITAN, "loss_chunks", "attention_kernel"),
    "megatron": (
        *("dp_replicate", "dp_shard", "zero_stage", "tp", "cp", "pp", "ep", "vpp", "async_tensor_parallel"),
        *("seq_len", "micro_batch_size", "global_batch_size", "optimizer", "recompute", "recompute_layers", "offload"),
        *("stage_layers", "fused_loss", "fused_loss_kernel", "attention", "attention_kernel", "expert_exchange"),
    ),
    "deepspeed": (
        *(
            "dp_shard",
            "zero_stage",
            "tp",
            "cp",
            "seq_len",
            "micro_batch_size",
            "global_batch_size",
            "optimizer",
            "offload",
        ),
        *("precision", "overlap_grad_reduce", "activation_offload", "attention", "attention_kernel"),
    ),
    "accelerate": (
        *("dp_replicate", "dp_shard", "zero_stage", "tp", "cp", "seq_len", "micro_batch_size", "global_batch_size"),
        *("offload", "adapter", "activation_offload", "attention", "attention_kernel"),
    ),
}
"""Fields that each target has words for, over all values that its engine can run; the tests hold it to them."""
SDPA_KERNELS = {"cudnn", "efficient", "math", "fa4"}
"""Kernels among which torch chooses by itself, and one that transformers 5.24 has no name for."""
UNSAID = {
    "torchtitan": {"muon", "2"},
    "torchtitan-recipe": {"muon", "2", "cudnn", "efficient", "math", "fa3"},
    "megatron": {"sgd", "lion", "muon", "fa3", "fa4", "efficient", "math", "flex", "te"},
    "deepspeed": {"sgd-momentum", "muon", "bf16", "fp8-mixed", *SDPA_KERNELS},
    "accelerate": {"sgd-momentum", "muon", "bf16", "2", *SDPA_KERNELS},
}
"""Values of these fields that a target has no word for, or that its parser refuses."""
ALWAYS = {"sequence_parallel", "reshard_after_forward", "vpp", "schedule"}


def plain(plan, target):
    """The plan with every field that the target has no words for at its default, and mended until no rule is broken."""
    said = {*SAID[target], *ALWAYS}
    defaults = {one.name: one.default for record in (Recipe, Layout) for one in fields(record) if one.name not in said}
    engine = TARGETS[target].engine
    plan = replace(
        plan,
        engine=engine,
        recipe=replace(plan.recipe, **{k: v for k, v in defaults.items() if hasattr(plan.recipe, k)}),
        layout=replace(plan.layout, **{k: v for k, v in defaults.items() if hasattr(plan.layout, k)}),
    )
    if plan.recipe.recompute != "full":
        plan = replace(plan, recipe=replace(plan.recipe, recompute_layers=None))
    if plan.layout.zero_stage == 0:
        plan = replace(plan, recipe=replace(plan.recipe, offload="none"))
    for _ in range(40):
        plan = same_work(plan)
        errors = find_errors(plan)
        if not errors:
            return plan if plan.engine == engine else None
        plan = apply_changes(plan, errors[0].neighbour)
    return None


def idle_fields(plan):
    """Fields that change nothing in this plan."""
    return {
        *(["zero_stage"] if plan.layout.state_shard_size == 1 else []),
        *(["schedule", "stage_layers"] if plan.layout.pp == 1 else []),
    }


def read_back(files):
    return read_parsed([document for file in files for document in parse_documents(file.text, name=file.name)])


@pytest.mark.parametrize("target", sorted(TARGETS))
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(drawn=plans() | runnable_plans())
def test_every_plan_within_the_words_of_a_target_comes_back(target, drawn):
    plan = plain(drawn, target)
    if plan is None:
        return
    try:
        files = export_plan(plan, to=target)
    except InexpressibleError as error:
        unsaid = error.message.rpartition("cannot say ")[2]
        files = ()
    if not files:
        name, _, value = unsaid.partition("=")
        if target == "accelerate" and name == "offload" and plan.layout.state_shard_size == 1:
            return  # FSDP has no axis to shard over: test_accelerate_shards_nothing_over_replicas_alone
        assert name not in SAID[target] or value in UNSAID[target], unsaid
        return
    reading = read_back(files)
    assert reading.contradictions == ()
    for name in SAID[target]:
        record = plan.layout if hasattr(plan.layout, name) else plan.recipe
        stated = getattr(record, name)
        if stated is not None and name not in idle_fields(plan) and stated != "none":
            said = planned_values(reading).get(name)
            assert said == stated or (said is None and stated is False), name


def text_of(plan_words, target):
    """The exported files of a plan given as model, cluster, recipe and layout."""
    model, cluster, recipe, layout = plan_words
    engine = TARGETS[target].engine
    plan = read_plan({"model": model, "cluster": cluster, "recipe": recipe, "layout": layout, "engine": engine})
    return "\n".join(file.text for file in export_plan(plan, to=target))


def test_megatron_arguments_hold_what_its_checks_ask_for():
    """``validate_args`` of d98e8a64 refuses each of these exports without the words looked for here."""
    recipe = {"seq_len": 4096, "global_batch_size": 64}
    sharded = text_of(("llama-3.1-8b", "8xh100-sxm", recipe, {"dp_shard": 8, "zero_stage": 3}), "megatron")
    assert "--ckpt-format fsdp_dtensor" in sharded
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in sharded
    assert "--save-interval 1000" in sharded
    assert "--kv-channels" not in sharded
    wide = text_of(("qwen3-30b-a3b", "8xh100-sxm", recipe, {"tp": 2, "dp_shard": 4, "zero_stage": 1}), "megatron")
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1\ntorchrun" in wide
    assert "--ckpt-format" not in wide
    # 32 heads of 128 beside a hidden size of 2048; its experts have a gate.
    assert "--kv-channels 128" in wide
    assert "--swiglu" in wide
    assert "--untie-embeddings-and-output-weights" in wide
    # 126 layers with the table and the head counted as two more are 128, over 16 stages of 8 chunks.
    layout = {"tp": 8, "pp": 16, "vpp": 8, "dp_shard": 2, "zero_stage": 1}
    uneven = text_of(("llama-3.1-405b", "256xh100-sxm", {**recipe, "offload": "optimizer"}, layout), "megatron")
    assert "--account-for-embedding-in-pipeline-split" in uneven
    assert "--account-for-loss-in-pipeline-split" in uneven
    assert "--use-precision-aware-optimizer" in uneven
    assert "--account-for" not in wide


@pytest.mark.parametrize(
    ("target", "word"),
    [
        ("megatron", "--moe-token-dispatcher-type flex"),
        ("torchtitan", 'expert_parallel_comm_backend = "standard"'),
        ("torchtitan-recipe", "moe_comm_backend='standard'"),
    ],
)
def test_experts_travel_as_the_plan_of_their_engine_is_predicted(target, word):
    stage = 1 if target == "megatron" else 3
    layout = {"dp_shard": 8, "zero_stage": stage, "ep": 8}
    assert word in text_of(("qwen3-30b-a3b", "8xh100-sxm", {"seq_len": 4096}, layout), target)


def test_accelerate_shards_nothing_over_replicas_alone():
    """FSDP 2 of Accelerate 1.15 asks for an axis to shard over; the plan that offloads over replicas has none."""
    plan = ("llama-3.1-8b", "8xh100-sxm", {"seq_len": 4096, "offload": "parameters"})
    with pytest.raises(InexpressibleError, match="offload=parameters"):
        text_of((*plan, {"dp_replicate": 8, "zero_stage": 3}), "accelerate")
    assert "FSDP" in text_of((*plan, {"dp_shard": 8, "zero_stage": 3}), "accelerate")


@pytest.mark.parametrize(
    ("model", "name", "flavor"),
    [
        ("qwen3-30b-a3b", "qwen3", "30B-A3B"),
        ("llama-3.1-8b", "llama3", "8B"),
        ("mixtral-8x7b", "MODEL", "mixtral-8x7b"),
    ],
)
def test_torchtitan_is_told_its_own_name_of_a_model_or_a_placeholder(model, name, flavor):
    text = text_of((model, "8xh100-sxm", {"seq_len": 4096}, {"dp_shard": 8}), "torchtitan")
    assert f'name = "{name}"\nflavor = "{flavor}"' in text


@pytest.mark.parametrize("target", ["torchtitan", "torchtitan-recipe"])
@pytest.mark.parametrize("vpp", [1, 2])
def test_a_v_shaped_pipeline_is_written_whether_or_not_its_two_chunks_are_said(target, vpp):
    layout = Layout(pp=4, vpp=vpp, schedule="zbv", reshard_after_forward=False)
    asked = make_plan(llama_8b(), engine="torchtitan", num_gpus=4, layout=layout, global_batch_size=16, compile=False)
    assert planned_values(read_back(export_plan(asked, to=target)))["vpp"] == 2


@pytest.mark.parametrize(
    ("num_layers", "pp", "vpp", "is_written"),
    [
        (96, 16, 4, True),
        (96, 16, 3, False),
        (94, 16, 3, False),
        (126, 16, 1, False),
        (61, 16, 1, True),
        (30, 4, 1, False),
    ],
)
def test_megatron_is_told_the_layers_of_stages_that_its_flags_cannot_say(num_layers, pp, vpp, is_written):
    """Qwen3-235B (94 on 48 chunks) and Llama-3.1-405B (126) are released with flags; DeepSeek-V3 (61) is not."""
    layout = Layout(pp=pp, vpp=vpp, schedule="interleaved" if vpp > 1 else "1f1b", zero_stage=1)
    keys = megatron_keys(make_plan(llama_8b(num_layers=num_layers), engine="megatron", layout=layout))
    assert ("pipeline_model_parallel_layout" in keys) is is_written
    if is_written:
        chunks = written_chunks(str(keys["pipeline_model_parallel_layout"]))
        assert (len(chunks), sum(chunks), min(chunks)) == (pp * vpp, num_layers, num_layers // (pp * vpp))


@pytest.mark.parametrize(("stages", "text"), [((7, 8, 8, 7), None), ((7, 7, 8, 8), "Et*7|t*7|t*8|t*8L")])
def test_stages_between_the_ends_that_differ_are_written_out(stages, text):
    layout = Layout(pp=4, zero_stage=1, stage_layers=stages)
    keys = megatron_keys(make_plan(llama_8b(num_layers=30), engine="megatron", layout=layout))
    assert keys.get("pipeline_model_parallel_layout") == text
