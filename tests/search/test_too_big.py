"""What a plan that does not fit is told to change: something that was tried, or how much further to divide it."""

from dataclasses import replace

from shardwise.layout import Layout
from shardwise.predict.memory import predict_memory
from shardwise.search.too_big import _changed, way_out


def asked(question, **recipe):
    return replace(question, layout=Layout(dp_shard=8), recipe=replace(question.recipe, **recipe))


def told(plan):
    return way_out(plan, predict_memory(plan))


def test_half_the_micro_batch_where_that_fits(make_question):
    assert told(asked(make_question(seq_len=8192), micro_batch_size=4)) == "set micro_batch_size=2"


def test_recomputation_where_no_smaller_batch_is_left(make_question):
    assert told(asked(make_question(seq_len=32768), micro_batch_size=1)) == "set recompute=full"


def test_several_changes_where_only_together_they_fit(make_question):
    plan = asked(make_question(model="llama-3.1-8b", cluster="8xa100-sxm-40", seq_len=32768), micro_batch_size=4)
    assert told(plan) == "set micro_batch_size=1 recompute=full"


def test_the_change_that_is_named_makes_it_fit(make_question):
    plan = asked(make_question(seq_len=8192), micro_batch_size=4)
    assert not predict_memory(plan).fits_device
    assert predict_memory(replace(plan, recipe=replace(plan.recipe, micro_batch_size=2))).fits_device


def test_seventy_billion_parameters_on_one_t4_have_to_be_divided(make_question):
    """1,052 GiB of states on 14.56: neither recomputation nor a smaller batch helps."""
    plan = replace(make_question(model="llama-3.1-70b", cluster="1xt4", precision="fp16-mixed"), layout=Layout())
    words = told(plan)
    assert words.startswith("no smaller batch, recomputation or offload is enough: divide it ")
    assert int(words.split("divide it ")[1].split()[0]) > 1052 / 14.56
    assert "recompute=full" not in words


def test_gpus_that_context_parallelism_divides_states_over_count_once(make_question):
    """Twice as many GPUs as cp = 2 and dp_shard = 1 use, times how much further states have to be divided."""
    question = make_question(model="llama-3.1-70b", cluster="2xh100-sxm")
    plan = replace(question, layout=Layout(cp=2))
    words = told(plan)
    further = int(words.split("divide it ")[1].split()[0])
    assert f"which takes some {2 * further} GPUs" in words


def test_what_moves_to_the_host_gets_the_zero_stage_that_it_needs(make_question):
    """7B on one GPU: its states, whole, are 104 GiB; those of the optimizer may move from stage 1 on."""
    question = make_question(model="llama-2-7b", cluster="1xh100-sxm", seq_len=8192)
    plan = replace(question, layout=Layout(zero_stage=0))
    assert told(plan) == "set recompute=full offload=optimizer zero_stage=1"
    moved = replace(plan.recipe, recompute="full", offload="optimizer")
    assert predict_memory(replace(plan, layout=Layout(zero_stage=1), recipe=moved)).fits_device


def test_the_memory_that_hosts_lack_is_named(make_question):
    """Both GPUs of a server that has 128 GiB keep their parts of all states there."""
    question = make_question(model="llama-3.1-8b", cluster="2xrtx-4090", seq_len=8192)
    plan = replace(question, layout=Layout(dp_shard=2), recipe=replace(question.recipe, recompute="full"))
    assert told(plan) == "set offload=parameters, on hosts with 149.58 GiB of memory"


def test_a_number_of_recomputed_layers_is_taken_back(make_question):
    plan = asked(make_question(seq_len=32768), micro_batch_size=1, recompute="full", recompute_layers=4)
    assert told(plan) == "set recompute_layers=null"


def test_nothing_is_tried_where_nothing_changes(make_question):
    """A plan that was fully recomputed already was predicted twice with a ZeRO stage that divides nothing."""
    question = make_question(model="llama-3.1-70b", cluster="8xh100-sxm")
    recipe = replace(question.recipe, micro_batch_size=1, recompute="full")
    plan = replace(question, layout=Layout(dp_replicate=8, zero_stage=0), recipe=recipe)
    assert [words for words, _ in _changed(plan) if "offload" not in words] == []
    words = [words for words, _ in _changed(replace(plan, recipe=replace(recipe, recompute="none")))]
    assert words.count("recompute=full") == 1
