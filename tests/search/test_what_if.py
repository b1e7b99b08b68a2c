"""What limits the fastest plan, and what more memory or the next GPU would change."""

from dataclasses import replace
from importlib import import_module
from time import process_time

import pytest

import shardwise as sw
from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.predict.memory import predict_memory
from shardwise.recipe import Recipe
from shardwise.search import IntRange, SearchBounds, search, what_if
from shardwise.search.offers import better_shared_batches, free_offers, size_offers

ONE = IntRange(low=1, high=1)
BOUNDS = SearchBounds(cp=ONE, pp=ONE, activation_offload=False, offload=("none",))


@pytest.fixture(scope="module")
def answer(make_question):
    question = make_question(model="llama-3.1-8b", cluster="8xa100-sxm-40", seq_len=4096, global_batch_size=64)
    return search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=BOUNDS)


def test_more_memory_and_the_next_gpu_are_tried(answer):
    found = what_if(answer, limits=BOUNDS)
    assert [change.change for change in found.changes] == [
        "a100-sxm-80 instead of a100-sxm-40",
        "one dead GPU of 8, global_batch_size=63",
        "8.00 GiB more on every GPU",
    ]


def test_more_memory_never_makes_the_fastest_plan_slower(answer):
    part, _, memory = what_if(answer, limits=BOUNDS).changes
    assert memory.step_ratio <= 1
    assert part.step_ratio < 1
    assert memory.plan.cluster.gpu.memory_bytes - answer.plans[0].plan.cluster.gpu.memory_bytes == 8 * 2**30


def test_memory_binds_exactly_where_more_of_it_helps(answer):
    found = what_if(answer, limits=BOUNDS)
    binds = found.changes[-1].step_ratio < 0.99
    assert found.binding.startswith("Memory binds: with 8.00 GiB more" if binds else "Memory does not bind the")


def test_what_is_tried_fits_as_safely_and_moves_no_more_to_the_host(make_question):
    question = make_question(model="llama-3.1-8b", cluster="8xa100-sxm-40", seq_len=4096, global_batch_size=64)
    free = SearchBounds(cp=ONE, pp=ONE, tp=ONE)
    answer = search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=free)
    best = answer.plans[0].plan.recipe
    assert (best.offload, best.activation_offload) == ("none", False)
    for change in what_if(answer, limits=free).changes:
        assert (change.plan.recipe.offload, change.plan.recipe.activation_offload) == ("none", False)
        assert not predict_memory(change.plan).is_borderline


def test_memory_binds_a_recommended_plan_that_recomputes_for_want_of_it(make_question):
    """8 GiB more on 40 are worth a few blocks less of recomputation."""
    question = make_question(model="llama-3.1-8b", cluster="8xa100-sxm-40", seq_len=8192, global_batch_size=64)
    bounds = SearchBounds(cp=ONE, pp=ONE, tp=ONE)
    answer = search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=bounds)
    assert answer.plans[0].plan.recipe.recompute != "none"
    assert what_if(answer, limits=bounds).binding.startswith("Memory binds: with 8.00 GiB more")


def test_what_is_tried_stays_inside_the_bounds(answer):
    assert all(change.plan.layout.pp == change.plan.layout.cp == 1 for change in what_if(answer, limits=BOUNDS).changes)


def test_without_a_plan_there_is_nothing_to_ask(answer):
    assert what_if(replace(answer, plans=()), limits=BOUNDS) is None


@pytest.mark.parametrize(
    ("cluster", "engine", "asked", "change"),
    [
        ("16xh100-sxm", "torchtitan", {"seq_len": 8192, "global_batch_size": 128, "compile": False}, {"compile": True}),
        ("32xh100-sxm", "native", {"seq_len": 8192, "global_batch_size": 255}, {"global_batch_size": 256}),
    ],
)
def test_a_free_change_is_offered_as_the_changed_question_is_answered(cluster, engine, asked, change):
    question = {"model": read_model("llama-3.1-8b"), "cluster": read_cluster(cluster), "engine": engine}
    result = search(**question, recipe=Recipe(**asked))
    found = what_if(result, limits=SearchBounds()).changes[0]
    changed = search(**question, recipe=Recipe(**{**asked, **change})).plans[0]
    [(name, value)] = change.items()
    assert found.change == f"{name}={str(value).lower()}"
    assert (found.plan, found.step_s) == (changed.plan, changed.prediction.time.step_s)
    assert found.step_ratio == pytest.approx(found.step_s / result.plans[0].prediction.time.step_s)
    assert found.step_ratio < 0.97


@pytest.mark.parametrize(
    ("num_copies", "batch", "better"),
    [(15, 255, (256,)), (16, 240, ()), (16, 256, ())],
)
def test_another_batch_is_offered_where_fewer_gpus_share_this_one_than_could(make_question, num_copies, batch, better):
    """Of 32 GPUs in pairs no number but one divides 255 sequences; 16 of them share 240, as many as there are pairs."""
    question = make_question(cluster="32xh100-sxm", global_batch_size=batch)
    assert better_shared_batches(replace(question, layout=Layout(dp_shard=num_copies, tp=2))) == better


@pytest.mark.parametrize(("asked", "size", "offered"), [(None, 488, 480), (2e6, 512, 488)])
def test_what_61_sequences_a_rank_cost_is_said_both_ways(asked, size, offered):
    """No micro-batch between 1 and 61 divides them: a batch near it is offered, and what the tokens asked for cost."""
    batch = {"global_batch_size": size} if asked is None else {"global_batch_tokens": asked}
    result = sw.plan("qwen3-0.6b", "8xh100-sxm", seq_len=4096, **batch, **PLAIN).result
    assert result.plans[0].plan.global_batch_size == size
    first = what_if(result, limits=SearchBounds(cp=ONE, pp=ONE, tp=ONE)).changes[0]
    assert first.change == f"global_batch_size={offered}"
    assert first.is_as_asked == (asked is not None)
    assert first.rate_ratio < 0.97 if asked else first.rate_ratio > 1.03


@pytest.mark.parametrize(("batch", "better"), [(40, (32, 64)), (24, ())])
def test_where_no_near_batch_is_shared_better_those_that_all_gpus_share_are_named(make_question, batch, better):
    """No batch within 10 % of 40 is shared by more than 8 of 32 GPUs; 24 are fewer than there are GPUs."""
    question = make_question(cluster="32xh100-sxm", global_batch_size=batch)
    assert better_shared_batches(replace(question, layout=Layout(dp_shard=8, pp=4))) == better


def test_a_precision_beside_those_that_were_given_is_not_offered(make_question):
    """Eight bits are offered where bf16 was assumed; whoever gives formats allows these alone, and each is searched."""
    question = make_question(model="llama-3.1-8b", cluster="8xh100-sxm", seq_len=4096, global_batch_size=64)
    result = search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=BOUNDS)
    for assumed, offered in ((frozenset(("precision",)), ["precision=fp8-mixed"]), (frozenset(), [])):
        offers = free_offers(replace(question, open_fields=assumed), result.plans[0], limits=BOUNDS)
        assert [offer.change for offer in offers if "precision" in offer.change] == offered


def test_nothing_is_offered_where_nothing_is_gained(make_question):
    """Blocks are compiled already, and eight GPUs share 64 sequences."""
    question = make_question(model="llama-3.1-8b", cluster="8xh100-sxm", seq_len=4096, global_batch_size=64)
    result = search(model=question.model, cluster=question.cluster, recipe=question.recipe)
    found = what_if(result, limits=SearchBounds()).changes
    assert [change.change for change in found] == [
        "h200-sxm instead of h100-sxm",
        "one dead GPU of 8, global_batch_size=63",
        "8.00 GiB more on every GPU",
    ]


def test_the_next_gpu_type_is_answered_as_the_changed_question():
    """Found around the recommended plan, 16 H200 were 4 % slower than what the command answers."""
    question = {"model": read_model("llama-3.1-8b"), "recipe": Recipe(seq_len=8192, global_batch_size=128)}
    changes = what_if(search(**question, cluster=read_cluster("16xh100-sxm")), limits=SearchBounds()).changes
    [found] = [change for change in changes if change.change == "h200-sxm instead of h100-sxm"]
    answered = search(**question, cluster=read_cluster("16xh200-sxm")).plans[0]
    assert (found.plan.layout, found.step_s) == (answered.plan.layout, answered.prediction.time.step_s)


@pytest.mark.runs
def test_more_memory_on_every_gpu_is_not_slower():
    """70B on 64 A100 of 40 and of 80 GB: the larger ones were recommended a slower plan, by a rule on ties."""
    recipe = Recipe(seq_len=4096, global_batch_size=128)
    small_s, large_s = (
        search(model=read_model("llama-3.1-70b"), cluster=read_cluster(cluster), recipe=recipe)
        .plans[0]
        .prediction.time.step_s
        for cluster in ("64xa100-sxm-40", "64xa100-sxm-80")
    )
    assert large_s < small_s


PLAIN = {"cp": 1, "pp": 1, "tp": 1, "offload": "none", "activation_offload": False}
"""Bounds that keep a search short."""


def changed_answers(model, cluster, **asked):
    """The what-ifs of an answer by their change, and the answer."""
    result = ask(model, cluster, **asked)
    changes = what_if(result, limits=result.bounds).changes
    return {change.change: change for change in changes}, result


def ask(model, cluster, **asked):
    """The answer of the front door, which asks like the command line."""
    return sw.plan(model, cluster, **PLAIN, **asked).result


@pytest.mark.parametrize(
    ("cluster", "asked", "change", "changed"),
    [
        ("8xh100-sxm", {"engine": "torchtitan"}, "precision=fp8-mixed", {"precision": "fp8-mixed"}),
        ("8xh100-sxm", {"engine": "torchtitan"}, "compile=true", {"compile": True}),
        ("8xa100-sxm-80", {"attention": "eager", "engine": "fsdp2"}, "attention=flash", {"attention": "flash"}),
        (
            "8xh100-sxm",
            {"engine": "torchtitan", "attention_kernel": "efficient", "compile": True, "precision": "bf16-mixed"},
            "attention_kernel=cudnn",
            {"attention_kernel": "cudnn"},
        ),
        ("8xa100-sxm-80", {"blocking_launches": True}, "blocking_launches=false", {"blocking_launches": False}),
    ],
)
def test_a_switch_that_gains_is_offered_as_the_changed_command_answers(cluster, asked, change, changed):
    asked = {"seq_len": 8192, "global_batch_size": 64, **asked}
    found, now = changed_answers("llama-3.1-8b", cluster, **asked)
    answered = ask("llama-3.1-8b", cluster, **{**asked, **changed}).plans[0]
    assert (found[change].plan.layout, found[change].step_s) == (answered.plan.layout, answered.prediction.time.step_s)
    assert found[change].rate_ratio > 1.03
    assert found[change].rate_ratio == pytest.approx(now.plans[0].prediction.time.step_s / found[change].step_s)


def test_a_precision_that_was_given_is_not_questioned():
    found, _ = changed_answers("llama-3.1-8b", "8xh100-sxm", seq_len=8192, global_batch_size=64, precision="bf16-mixed")
    assert not [change for change in found if change.startswith("precision")]


@pytest.mark.parametrize(
    ("change", "cluster", "batch"),
    [
        ("one dead GPU of 32, global_batch_size=124", "31xh100-sxm", 124),
        ("3 servers instead of 4, global_batch_size=120", "24xh100-sxm", 120),
        ("5 servers instead of 4, global_batch_size=120", "40xh100-sxm", 120),
    ],
)
def test_a_dead_gpu_and_a_server_more_or_less_are_answered_as_the_changed_command(change, cluster, batch):
    asked = {"seq_len": 8192, "precision": "bf16-mixed"}
    now = ask("llama-3.1-8b", "32xh100-sxm", global_batch_size=128, **asked)
    offers = {offer.change: offer.question for offer in size_offers(now.question, now.plans[0], limits=now.bounds)}
    assert (offers[change].cluster.num_gpus, offers[change].global_batch_size) == (int(cluster.split("x")[0]), batch)
    answered = ask("llama-3.1-8b", cluster, global_batch_size=batch, **asked).plans[0]
    searched = search(
        model=now.question.model,
        cluster=offers[change].cluster,
        recipe=offers[change].recipe,
        bounds=now.bounds,
    ).plans[0]
    assert (searched.plan.layout, searched.prediction.time.step_s) == (
        answered.plan.layout,
        answered.prediction.time.step_s,
    )


def test_a_dead_gpu_is_in_the_answer_with_the_batch_that_its_neighbours_can_share():
    """64 sequences are no multiple of anything that 31 ranks could do together."""
    found, _ = changed_answers("llama-3.1-8b", "32xh100-sxm", seq_len=8192, global_batch_size=64)
    dead = found["one dead GPU of 32, global_batch_size=62"]
    assert (dead.plan.cluster.num_gpus, dead.plan.layout.dp_replicate * dead.plan.layout.dp_shard) == (31, 31)
    assert 0.9 < dead.rate_ratio < 1.05


def test_a_batch_that_nobody_gave_is_assumed_again_for_another_cluster():
    now = ask("llama-3.1-8b", "32xh100-sxm", seq_len=8192)
    offers = list(size_offers(now.question, now.plans[0], limits=now.bounds))
    assert [(offer.change, offer.question.global_batch_size) for offer in offers] == [
        ("one dead GPU of 32", 124),
        ("3 servers instead of 4", 96),
        ("5 servers instead of 4", 160),
    ]


@pytest.mark.parametrize(("compiles", "is_offered"), [(False, True), (True, False)])
def test_another_engine_has_to_beat_this_one_with_its_own_switches(compiles, is_offered):
    """Compiled, torchtitan is as fast as our trainer within a tenth; eager, accelerate without compile is not."""
    asked = {"seq_len": 8192, "global_batch_size": 64, "engine": "torchtitan", "precision": "bf16-mixed"}
    result = ask("llama-3.1-8b", "8xa100-sxm-80", compile=compiles, **asked)
    now = replace(result.plans[0], price_fraction=0.0)
    names = [offer.change for offer in free_offers(result.question, now, limits=result.bounds)]
    assert ("compile=true" in names) is is_offered
    assert not [name for name in names if name.startswith("engine=")]


@pytest.mark.runs
def test_an_engine_that_is_much_faster_with_this_model_is_offered():
    bounds = {"tp": 1, "pp": 1, "cp": 1, "offload": "none"}
    asked = {"seq_len": 4096, "global_batch_size": 64, "precision": "bf16-mixed", **bounds}
    result = sw.plan("qwen3-30b-a3b", "8xb200-sxm", engine="torchtitan", **asked).result
    change = next(change for change in what_if(result, limits=result.bounds).changes if "engine=" in change.change)
    answered = sw.plan("qwen3-30b-a3b", "8xb200-sxm", engine=change.plan.engine, **asked).result.plans[0]
    assert (change.plan.layout, change.step_s) == (answered.plan.layout, answered.prediction.time.step_s)


def test_a_batch_that_the_gpus_share_is_the_first_thing_to_say():
    """134 sequences on 16 GPUs: a GPU that fails was offered, with 22 % more a GPU, and 128 sequences were not."""
    result = sw.plan("llama-3.1-8b", "16xh100-sxm", engine="torchtitan", seq_len=8192, global_batch_size=134).result
    changes = what_if(result, limits=SearchBounds()).changes
    assert changes[0].change == "global_batch_size=128"
    assert changes[0].rate_ratio > 1.1
    fewer = [change.change for change in changes if change.has_fewer_gpus]
    assert all(change.startswith("one dead GPU of 16") for change in fewer)


@pytest.mark.parametrize(("model", "cluster"), [("llama-3.2-3b", "1xrtx-4090"), ("mixtral-8x7b", "8xh100-sxm")])
def test_states_of_fewer_bytes_are_offered_where_those_assumed_have_to_move_to_the_host(model, cluster):
    """Mixtral on eight H100 kept its weights on the host, three times slower than with 8-bit moments on the GPUs."""
    answer = sw.plan(model, cluster, seq_len=8192, global_batch_size=32).result
    assert answer.plans[0].plan.recipe.offload != "none"
    found = {change.change: change for change in what_if(answer, limits=SearchBounds()).changes}
    narrow = found["optimizer=adamw-8bit precision=bf16"]
    assert narrow.plan.recipe.offload == "none"
    changed = sw.plan(
        model, cluster, seq_len=8192, global_batch_size=32, optimizer="adamw-8bit", precision="bf16"
    ).result.plans[0]
    assert narrow.step_s == changed.prediction.time.step_s


def test_a_base_of_4_bits_is_offered_where_one_of_16_has_to_be_streamed_from_the_host():
    """LoRA of 7B on one RTX 3090 under transformers streams the base for every micro-batch."""
    asked = {"adapter": "lora", "seq_len": 4096, "global_batch_size": 16, "engine": "accelerate"}
    answer = sw.plan("qwen2.5-7b", "1xrtx-3090", **asked).result
    assert answer.plans[0].plan.recipe.offload == "parameters"
    offers = free_offers(answer.question, answer.plans[0], limits=SearchBounds())
    assert "adapter=qlora" in {offer.change for offer in offers}


def test_a_question_that_was_tried_briefly_is_screened_once(make_question):
    """A few predictions say that 16 sequences are worth a search; the search finds the space screened already."""
    screening, one_pass = (import_module(f"shardwise.search.{name}") for name in ("screening", "one_pass"))
    question = make_question(model="llama-3.1-8b", cluster="8xa100-sxm-40", seq_len=4096, global_batch_size=16)
    screening._screened.cache_clear()
    alone = one_pass.find(question, BOUNDS)
    screening._screened.cache_clear()
    one_pass.find(question, replace(BOUNDS, max_predictions=3), is_brief=True)
    assert one_pass.find(question, BOUNDS) == alone
    assert screening._screened.cache_info().misses == 1


def test_a_changed_question_without_a_plan_is_left_at_that():
    """8,191 GPUs have no layout of 405B; what would have one was searched for over a minute, and not shown."""
    answer = sw.plan(
        "llama-3.1-405b",
        "1024xdgx-h100",
        engine="megatron",
        precision="fp8-mixed",
        seq_len=8192,
        global_batch_size=2048,
        limits=SearchBounds(max_predictions=4),
    ).result
    started_s = process_time()
    changes = what_if(answer, limits=SearchBounds(max_predictions=4)).changes
    assert not [change for change in changes if change.change.startswith("one GPU")]
    assert process_time() - started_s < 20
