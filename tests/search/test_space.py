"""What a search looks at: the pipelines of models whose layers no number of stages divides."""

from dataclasses import replace

import pytest

from shardwise.errors import LayoutError
from shardwise.layout import Layout
from shardwise.predict import predict
from shardwise.schedules.table import SCHEDULES
from shardwise.search.bounds import IntRange, SearchBounds
from shardwise.search.candidates import OFFLOADS
from shardwise.search.space import Space
from shardwise.search.validity import valid_candidates


def test_stages_that_count_the_embedding_as_a_layer_are_interleaved(make_question):
    """Llama 3 405B: 126 layers on 16 stages; with embedding and loss 128, eight layers a stage (arXiv:2407.21783)."""
    question = make_question(
        model="llama-3.1-405b", cluster="16384xh100-sxm", engine="megatron", global_batch_size=2048
    )
    space = Space(question=question, bounds=SearchBounds())
    interleaved = SCHEDULES.index("interleaved")
    chunks = {vpp for schedule, vpp in space._pipeline_options((16,)) if schedule == interleaved}
    assert {2, 4, 8} <= chunks


@pytest.mark.parametrize(
    ("bounds", "least"),
    [
        ({"vpp": IntRange(low=4, high=4)}, 2),
        ({"vpp": IntRange(low=1, high=4)}, 1),
        ({"schedule": ("zbv",)}, 2),
        ({"schedule": ("interleaved", "zb-h1")}, 2),
        ({"schedule": ("1f1b", "interleaved")}, 1),
        ({"schedule": ("gpipe",)}, 1),
    ],
)
def test_chunks_and_schedules_of_pipelines_leave_out_layouts_of_one_stage(make_question, bounds, least):
    space = Space(question=make_question(), bounds=SearchBounds(**bounds))
    assert space.degrees().pp.min() == least


def test_chunks_that_no_allowed_schedule_has_are_refused_by_the_rule_about_them(make_question):
    bounds = SearchBounds(vpp=IntRange(low=2, high=2), schedule=("1f1b",))
    found = valid_candidates(Space(question=make_question(), bounds=bounds))
    assert [group.rule for group in found.rejected] == ["layout-vpp-needs-interleaving"]


@pytest.mark.parametrize("limit", [IntRange(low=2, high=2), IntRange(low=2, high=4)])
def test_a_tensor_degree_inside_experts_is_refused_for_a_dense_model(make_question, limit):
    found = valid_candidates(Space(question=make_question(), bounds=SearchBounds(expert_tp=limit)))
    assert (len(found.rows), found.rejected[0].rule) == (0, "layout-experts-without-moe")
    assert found.rejected[0].fix == "set expert_tp=1"


def test_one_rank_divides_nothing_and_has_the_stages_that_offload_needs(make_question):
    space = Space(question=make_question(cluster="1xh100-sxm"), bounds=SearchBounds())
    rows = valid_candidates(space).rows
    ways = {
        (int(stage), OFFLOADS[mode])
        for stage, choices in zip(rows.zero_stage, rows.offload_choices, strict=True)
        for mode in range(len(OFFLOADS))
        if choices & (1 << mode)
    }
    assert ways == {(0, "none"), (1, "optimizer"), (2, "optimizer"), (3, "optimizer"), (3, "parameters")}


@pytest.mark.parametrize(
    ("bounds", "recipe", "states", "activations"),
    [
        ({}, {}, ("none",), (False,)),
        ({"offload": ("none", "optimizer")}, {}, ("none", "optimizer"), (False,)),
        ({"activation_offload": True}, {}, ("none",), (True,)),
        ({}, {"offload": "optimizer", "activation_offload": True}, ("optimizer",), (True,)),
    ],
)
def test_processors_move_nothing_to_their_own_memory_unless_it_is_asked(
    make_question, bounds, recipe, states, activations
):
    question = make_question(model="gpt2", cluster="2xcpu", seq_len=64, global_batch_size=8, **recipe)
    space = Space(question=question, bounds=SearchBounds(**bounds))
    assert (space.offloads, space.activation_offloads) == (states, activations)


def stages_of_pipelines(question, **bounds):
    """ZeRO stages of rows with a pipeline whose data-parallel ranks divide something."""
    rows = valid_candidates(Space(question=question, bounds=SearchBounds(**bounds))).rows
    return set(rows.zero_stage[(rows.pp > 1) & (rows.state_shard_size > 1)].tolist())


def test_pipelines_of_our_trainer_are_listed_once_for_zero_stages_that_are_the_same_to_it(make_question):
    question = make_question(engine="native")
    assert stages_of_pipelines(question) == {0, 3}
    assert stages_of_pipelines(question, zero_stage=(1,)) == {1}
    assert stages_of_pipelines(question, zero_stage=(1, 2)) == {2}
    assert stages_of_pipelines(make_question(engine="megatron")) == {0, 1}
    assert stages_of_pipelines(make_question(engine="megatron"), zero_stage=(0, 1, 2, 3)) == {0, 1, 2, 3}


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_to_our_trainer_zero_stages_of_a_pipeline_are_the_same(make_question, model, schedule):
    question = make_question(model=model, cluster="2xdgx-h100")
    recipe = replace(question.recipe, micro_batch_size=1)
    vpp = 2 if schedule == "interleaved" else 1
    layouts = [Layout(pp=2, vpp=vpp, schedule=schedule, dp_shard=8, zero_stage=stage) for stage in (1, 2, 3)]
    found = [predict(replace(question, layout=layout, recipe=recipe)) for layout in layouts]
    assert len({one.memory.needed_bytes for one in found}) == len({one.time.step_s for one in found}) == 1


@pytest.mark.parametrize(
    ("engine", "stage", "message", "fix"),
    [
        ("torchtitan", 2, "torchtitan has no zero_stage 2, only 0, 3", "zero_stage=3 and reshard_after_forward=false"),
        ("fsdp2", 2, "fsdp2 has no zero_stage 2, only 0, 1, 3", "zero_stage=3 and reshard_after_forward=false"),
        ("nanotron", 3, "nanotron has no zero_stage 3, only 0, 1", "zero_stage=1"),
    ],
)
def test_a_stage_that_the_engine_does_not_have_is_refused_before_anything_is_searched(
    make_question, engine, stage, message, fix
):
    space = Space(question=make_question(engine=engine), bounds=SearchBounds(zero_stage=(stage,)))
    with pytest.raises(LayoutError) as refusal:
        space.degrees()
    assert (refusal.value.code, refusal.value.message) == ("engine-zero-stage", message)
    assert refusal.value.fix == f"set {fix}"
