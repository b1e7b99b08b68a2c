"""Screens stay within their lines and columns whatever they have to say, and narrow terminals are respected."""

import re
from dataclasses import replace

import pytest

from calibrations import calibration
from render.sample_answers import FOUND, NOT_FOUND
from render.sample_records import PLAN, PREDICTION
from shardwise.catalog import read_cluster
from shardwise.layout import Layout
from shardwise.prediction import RunningCost, TimeEntry
from shardwise.render.answer_words import memory_words, run_words, speed_words
from shardwise.render.first_screen import (
    CHANGE_LINES,
    ScreenContext,
    next_lines,
    plan_screen,
    question_section,
    what_if_screen,
)
from shardwise.render.layout_words import kept_words, layout_words, options_text, recipe_words, short_words
from shardwise.render.names import recompute_text
from shardwise.render.no_plan_screen import no_plan_screen, relief_lines
from shardwise.render.terminal import TextStyle
from shardwise.search import Sensitivity, WhatIf
from shardwise.search.shortlist import Beside, Shortlist
from shardwise.units import GIB

LONG = "a sentence of the search that goes on and on, with numbers such as 69.45 s and 10.42 GiB; " * 9
BESIDE = Beside(plan=PLAN, prediction=PREDICTION, step_ratio=0.9)
CROWDED = Shortlist(
    recommended=replace(
        FOUND.plans[0],
        why=LONG,
        plan=replace(
            PLAN,
            layout=Layout(
                dp_replicate=2,
                dp_shard=64,
                tp=8,
                pp=16,
                vpp=2,
                ep=8,
                cp=2,
                schedule="interleaved",
                stage_layers=(5, 6, 7, 8) * 4,
                sequence_parallel=True,
                reshard_after_forward=False,
            ),
            recipe=replace(PLAN.recipe, recompute="selective", recompute_layers=3, offload="parameters"),
        ),
    ),
    fastest=BESIDE,
    alternatives=(BESIDE, BESIDE, BESIDE),
)
CONTEXT = ScreenContext(
    assumed=frozenset({"seq_len", "cluster"}),
    command="shardwise plan llama-3.1-405b 2048xdgx-h100 --engine megatron --seq-len 131072 --global-batch-size 128",
    num_kept_lines=CHANGE_LINES,
)


NOTED = replace(
    CROWDED.recommended.plan,
    model=replace(PLAN.model, name="a-model-of-somebody-who-gave-it-a-name-as-long-as-a-path"),
    cluster=replace(PLAN.cluster, calibration=calibration(), assumptions=(f"calibrated with {LONG}",)),
    recipe=replace(CROWDED.recommended.plan.recipe, seq_len=131072),
)
"""Its name, its calibration and a warning have two lines each."""


@pytest.mark.parametrize("plan", [CROWDED.recommended.plan, NOTED], ids=["plain", "calibrated"])
@pytest.mark.parametrize("width", [24, 40, 60, 80, 120])
def test_a_crowded_screen_leaves_room_for_what_follows(width, plan):
    """The reason lost its room to lines above it, and taking from alternatives that were gone was a traceback."""
    crowded = replace(CROWDED, recommended=replace(CROWDED.recommended, plan=plan))
    screen = plan_screen(crowded, CONTEXT, style=TextStyle(width=width))
    lines = screen.splitlines()
    assert max(map(len, lines)) <= min(width, 80)
    if width >= 80:
        assert len(lines) <= 25 - CHANGE_LINES
    assert "Why: a sentence" in screen


@pytest.mark.parametrize("width", [24, 40, 60])
def test_a_row_of_a_narrow_screen_has_only_whole_figures(width):
    """Names had no columns left, which was a traceback below 41 columns."""
    short = replace(CROWDED, recommended=FOUND.plans[0], alternatives=(BESIDE,))
    room = ScreenContext(num_kept_lines=-20)  # for rows that a full screen leaves out
    screen = plan_screen(short, room, style=TextStyle(width=width))
    heading, row = (line for line in screen.splitlines() if line.startswith(("Alternatives", "1 ")))
    figures = {"GiB": "65.00", "step": "2.00 s", "differs": "-10.0%"}
    shown = [name for name in figures if name in heading]
    assert shown == list(figures)[: {24: 1, 40: 2, 60: 3}[width]]
    assert row.endswith(figures[shown[-1]])


@pytest.mark.parametrize(("width", "figures"), [(140, "37.00 of 79.00 GiB, 1.00 s a step; "), (60, "")])
def test_what_a_change_costs_besides_stays_where_its_figures_go(width, figures):
    """The caution went first, and nothing said so: other numerics were proposed like any option."""
    caution = "other numerics: check the loss, fits at the edge: try it first"
    one = replace(NOT_FOUND.closest.reliefs[0], change="optimizer=adamw-8bit", caution=caution)
    lines = relief_lines([one] * 4, width, heading="What would make it fit")
    assert f"optimizer=adamw-8bit: {figures}{caution[:30]}" in lines[1].plain


def test_other_hardware_that_would_hold_it_stands_with_its_dollars():
    """Every other row was free; "other hardware" was all that was said of 8 H200 in place of 8 A100."""
    running = RunningCost(
        usd_per_gpu_hour=3.5, usd_per_hour=28.0, usd_per_million_tokens=0.07, price_source="OCI, on demand"
    )
    other = replace(PLAN, cluster=read_cluster("8xh200-sxm"))
    one = replace(NOT_FOUND.closest.reliefs[0], change="gpu=h200-sxm", plan=other, caution="", running_cost=running)
    asked = read_cluster("8xa100-sxm-40")
    for on, dollars in ((asked, ", $70.00 per 1B tokens"), (other.cluster, "")):
        lines = relief_lines([one] * 4, 80, heading="What would make it fit", asked=on)
        assert lines[1].plain == f"  gpu=h200-sxm: 37.00 of 139.80 GiB, 1.00 s a step{dollars}"


def test_a_command_that_is_too_long_to_repeat_is_referred_to():
    context = replace(
        CONTEXT, command=CONTEXT.command + " --tokens 15.6T --precision bf16-mixed,fp8-mixed --optimizer muon"
    )
    assert "Next: the same command with --out plan.json\n" in plan_screen(CROWDED, context)


def test_a_plan_that_was_written_is_explained_next():
    screen = plan_screen(CROWDED, replace(CONTEXT, plan_file="mine.json"))
    assert "Next: shardwise explain mine.json\n" in screen
    assert "then: shardwise train mine.json --steps 10 --launcher slurm --out run\n" in screen


@pytest.mark.parametrize("depth", [12, 30])
def test_a_plan_whose_path_is_longer_than_a_line_is_called_a_file(depth):
    """The path alone was a traceback or was broken in two, and a run was "the same command" as an explanation."""
    screen = plan_screen(CROWDED, replace(CONTEXT, plan_file="folder/" * depth + "mine.json"))
    assert "Next: shardwise explain FILE\n" in screen
    assert "then: shardwise train FILE --steps 10 --launcher slurm --out run\n" in screen


@pytest.mark.parametrize(
    ("cluster", "changes", "typed"),
    [
        ("8xh100-sxm", {}, "shardwise train mine.json --steps 10"),
        ("16xh100-sxm", {}, "shardwise train mine.json --steps 10 --launcher slurm --out run"),
        ("8xh100-sxm", {"engine": "torchtitan"}, "shardwise export mine.json --to torchtitan --out run"),
        ("16xh100-sxm", {"engine": "megatron"}, "shardwise export mine.json --to megatron --launcher slurm --out run"),
        ("16xh100-sxm", {"engine": "fsdp2"}, "shardwise timeline mine.json --html step.html"),
    ],
)
def test_a_first_run_has_few_steps_and_a_scheduler_where_there_are_servers(cluster, changes, typed):
    """`train plan.json` was proposed for months on hundreds of GPUs, without a launcher and without data."""
    plan = replace(PLAN, cluster=read_cluster(cluster), engine=changes.get("engine", "native"))
    lines = next_lines(plan, replace(CONTEXT, plan_file="mine.json"), 80)
    assert lines[-1].plain == f"then: {typed}"


def test_whoever_fine_tunes_has_weights_and_data():
    """`--random-weights` was the next command of every fine-tune."""
    plan = replace(PLAN, cluster=read_cluster("1xrtx-4090"), engine="native")
    tuned = (replace(plan.recipe, adapter="lora"), replace(plan.recipe, tokens=plan.model.num_params / 2))
    for recipe in tuned:
        lines = next_lines(replace(plan, recipe=recipe), replace(CONTEXT, plan_file="mine.json"), 80)
        assert [line.plain for line in lines[-2:]] == [
            "then: shardwise train mine.json --weights FOLDER --data FILE",
            "  (its speed alone: --steps 10 --random-weights in their place)",
        ]


def test_the_question_says_what_gets_an_adapter():
    """The matrices stood in the plan file alone."""
    recipe = replace(PLAN.recipe, adapter="qlora", lora_rank=64, lora_targets="all-linear")
    lines = question_section(replace(PLAN, recipe=recipe), ScreenContext(), 120, place="here")
    assert "qlora of rank 64 on all-linear" in " ".join(line.plain for line in lines)


def test_a_faster_alternative_says_what_it_would_have_to_gain():
    """A row was faster and smaller than the recommended plan, and nothing said why it was not recommended."""
    paid = replace(BESIDE, asked_fraction=0.08, why="10.0% faster, but it gains less than is asked.")
    slower = replace(BESIDE, step_ratio=1.2, asked_fraction=0.02, why="20.0% slower.")
    room = ScreenContext(num_kept_lines=-20)
    rows = plan_screen(replace(CROWDED, alternatives=(paid, slower)), room).splitlines()
    heading, first, second = (row for row in rows if row.startswith(("Alternatives", "1 ", "2 ")))
    assert heading.endswith("differs must gain")
    assert first.endswith("-10.0%      8.0%")
    assert second.endswith("+20.0%")
    plain = plan_screen(replace(CROWDED, alternatives=(slower,)), room)
    assert "must gain" not in plain


def what_ifs(*step_ratios):
    return tuple(
        WhatIf(change=f"change {ratio}", plan=PLAN, step_s=2 * ratio, step_ratio=ratio, rate_ratio=1 / ratio)
        for ratio in step_ratios
    )


def test_the_two_changes_that_save_most_are_shown_on_a_line_each():
    changes = what_ifs(1.0, 0.7, 1.1, 0.98)
    lines = what_if_screen(Sensitivity(binding="Memory binds.", changes=changes)).splitlines()
    assert len(lines) == CHANGE_LINES
    assert "change 0.7: 1.40 s a step, 30.0% less" in lines[0]
    assert "change 0.98: 1.96 s a step, 2.0% less" in lines[1]


def test_what_exactly_the_tokens_asked_for_cost_is_said_before_what_gains():
    """4M tokens were 976 sequences, 61 for each of 16 ranks, and nothing said that 1,024 save a sixth."""
    exact = replace(what_ifs(1.2)[0], change="global_batch_size=976", is_as_asked=True)
    lines = what_if_screen(Sensitivity(binding="", changes=(*what_ifs(0.7, 0.8), exact))).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["With --global-batch-size 976", "With change 0.7"]


def test_a_batch_in_tokens_says_which_sequences_stand_for_it():
    batch = replace(PLAN, recipe=replace(PLAN.recipe, seq_len=4096, global_batch_size=1024))
    on_16 = replace(batch, cluster=read_cluster("16xh100-sxm"), layout=Layout(dp_shard=16))
    said = "4.00M tokens asked: 1,024 sequences, 4.19M tokens, divide better than 976."
    for asked, lines in ((4e6, [said]), (2**22, [])):
        section = question_section(on_16, ScreenContext(asked_tokens=asked), 80)
        assert [line.plain for line in section if "asked" in line.plain] == lines


def test_changes_that_save_nothing_are_named_as_such():
    shown = what_if_screen(Sensitivity(binding="Memory binds.", changes=what_ifs(1.0, 0.996, 1.02)))
    assert shown == "No shorter step: change 1.0; change 0.996; change 1.02\n"


def test_more_memory_on_the_same_gpu_is_not_offered():
    """Nobody sells 8 GiB more on every GPU."""
    more = replace(what_ifs(0.5)[0], change="8.00 GiB more on every GPU", is_for_sale=False)
    shown = what_if_screen(Sensitivity(binding="Memory binds.", changes=(*what_ifs(0.9), more)))
    assert "change 0.9" in shown
    assert "GiB" not in shown
    assert shown.endswith("\nMemory binds.\n")
    idle = replace(more, step_ratio=1.0, rate_ratio=1.0)
    assert "binds" not in what_if_screen(Sensitivity(binding="Memory binds.", changes=(*what_ifs(0.9), idle)))


def test_other_hardware_is_shown_with_its_dollars():
    running = RunningCost(
        usd_per_gpu_hour=3.5, usd_per_hour=28.0, usd_per_million_tokens=0.07, price_source="OCI, on demand"
    )
    swap = replace(what_ifs(0.7)[0], change="h200-sxm instead of h100-sxm", running_cost=running)
    swap = replace(swap, plan=replace(PLAN, cluster=read_cluster("8xh200-sxm")))
    changes = Sensitivity(binding="Memory binds.", changes=(swap,))
    shown = what_if_screen(changes, now=replace(PREDICTION, running_cost=running))
    assert shown == "With h200-sxm: 1.40 s a step, 30.0% less; $28.00 an hour, $70.00 per 1B tokens\n"
    other = replace(running, price_source="specialist median")
    shown = what_if_screen(changes, now=replace(PREDICTION, running_cost=other))
    assert "; $70.00 per 1B tokens (OCI, on demand)\n" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_what_hurts_is_shown_where_nothing_else_helps_as_tokens_a_gpu_trains():
    """A step of 63 GPUs that takes as long as one of 64 does a little less for each of them."""
    fails = WhatIf(change="one dead GPU of 64", plan=PLAN, step_s=3.0, step_ratio=1.5, rate_ratio=0.65)
    shown = what_if_screen(Sensitivity(binding="Memory binds.", changes=(*what_ifs(1.0, 0.7), fails))).splitlines()
    assert "change 0.7: 1.40 s a step, 30.0% less" in shown[0]
    assert "one dead GPU of 64: 3.00 s a step, 35.0% fewer tokens/s per GPU" in shown[1]


def test_a_change_that_options_make_is_shown_as_they_are_typed():
    change = replace(what_ifs(0.7)[0], change="optimizer=adamw-8bit compile=true")
    shown = what_if_screen(Sensitivity(binding="Memory binds.", changes=(change,)))
    assert shown.startswith("With --optimizer adamw-8bit --compile: 1.40 s a step, 30.0% less")


def test_where_nothing_was_tried_what_binds_is_said():
    assert what_if_screen(Sensitivity(binding="Memory binds.", changes=())) == "Memory binds.\n"


def test_a_screen_without_a_plan_says_what_would_have_one():
    screen = no_plan_screen(NOT_FOUND, CONTEXT)
    assert len(screen.splitlines()) <= 25
    assert "Nothing fits: no plan. The closest lacks 8.00 GiB:" in screen
    assert "does not fit" in screen
    assert "num_nodes=4: 37.00 of" in screen
    assert "Next: " not in screen  # nobody says how many GPUs were asked for
    typed = no_plan_screen(replace(NOT_FOUND, question=NOT_FOUND.closest.plan), CONTEXT)
    assert re.search(r"Next: shardwise plan llama-3.1-405b \d+xdgx-h100 ", typed)
    reliefs = tuple(replace(NOT_FOUND.closest.reliefs[0], change=change) for change in ("adapter=lora", "seq_len=32"))
    helped = replace(NOT_FOUND, closest=replace(NOT_FOUND.closest, reliefs=reliefs))
    typed = no_plan_screen(helped, replace(CONTEXT, command="shardwise plan tiny-7 2xacme-8 --seq-len 64"))
    assert "Next: shardwise plan tiny-7 2xacme-8 --seq-len 64 --adapter lora\n" in typed
    assert "or: shardwise plan tiny-7 2xacme-8 --seq-len 32\n" in typed
    refused = no_plan_screen(replace(NOT_FOUND, closest=None), CONTEXT)
    assert "tp=3 with 7 heads: set tp=1" in refused


@pytest.mark.parametrize(
    ("layout", "words", "short"),
    [
        (Layout(), "one GPU, nothing divided", "one GPU"),
        (Layout(dp_shard=8), "FSDP (ZeRO-3) over 8 GPUs", "FSDP 8"),
        (
            Layout(dp_shard=8, reshard_after_forward=False),
            "FSDP, parameters kept after forward, over 8 GPUs",
            "FSDP 8 no reshard",
        ),
        (Layout(dp_shard=8, zero_stage=1), "ZeRO-1 over 8 GPUs", "ZeRO-1 8"),
        (Layout(dp_replicate=8), "data parallel over 8, every rank with all states", "DDP 8"),
        (
            Layout(dp_replicate=4, dp_shard=8),
            "HSDP: 4 copies, each FSDP (ZeRO-3) over 8 ranks",
            "HSDP 4x8",
        ),
        (
            Layout(dp_shard=4, zero_stage=1, tp=8, pp=2),
            "ZeRO-1 over 4 ranks, tensor parallel 8, 2 pipeline stages",
            "ZeRO-1 4 + TP 8 + PP 2",
        ),
        (Layout(tp=8), "no data parallelism, tensor parallel 8", "TP 8"),
    ],
)
def test_a_layout_has_the_words_of_its_own_kind(layout, words, short):
    """FSDP that keeps its parameters after forward is not called ZeRO-3."""
    plan = replace(PLAN, layout=layout)
    assert layout_words(plan) == words
    assert short_words(plan) == short


def test_a_host_without_margin_is_at_the_edge_and_the_line_of_memory_says_what_it_holds():
    """LoRA on two cards of 24 GB was said to fit beside 94.50 of 94.72 GiB in the host, which nobody was told."""
    offloaded = replace(PREDICTION.memory, host_bytes_per_node=94 * GIB, host_capacity_bytes=96 * GIB)
    tight = replace(PREDICTION, memory=offloaded)
    assert (PREDICTION.fit, tight.fit) == ("fits", "at the edge")
    assert "and 94.00 of 96.00 GiB on each host: at the edge" in memory_words(tight)
    roomy = replace(PREDICTION, memory=replace(offloaded, host_capacity_bytes=128 * GIB))
    assert roomy.fit == "fits"
    assert "on each host: fits" in memory_words(roomy)


def test_deepspeed_has_no_fsdp():
    plan = replace(PLAN, engine="deepspeed", layout=Layout(dp_replicate=4, dp_shard=8, tp=2))
    assert layout_words(plan) == "4 copies, each ZeRO-3 over 8 ranks, tensor parallel 2"
    assert short_words(plan) == "ZeRO-3 4x8 + TP 2"


def test_one_gpu_has_one_rate_and_small_rates_are_whole_numbers():
    """It was "256.859 tokens/s, 257 per GPU"."""
    rates = replace(PREDICTION.throughput, tokens_per_s=256.859, tokens_per_s_per_gpu=256.859)
    assert "(1.75 to 2.50 s), 257 tokens/s, MFU" in speed_words(replace(PREDICTION, throughput=rates))
    two = replace(rates, tokens_per_s=237.194, tokens_per_s_per_gpu=118.597)
    assert "237 tokens/s, 119 per GPU" in speed_words(replace(PREDICTION, throughput=two))


def test_attention_is_named_where_it_takes_most_of_the_work():
    long = replace(PREDICTION, throughput=replace(PREDICTION.throughput, attention_fraction=0.948))
    assert speed_words(long).endswith("; attention is 94.8% of the FLOP")
    assert "attention" not in speed_words(PREDICTION)


@pytest.mark.parametrize(
    ("size", "cluster", "said"),
    [
        (30, "8xh100-sxm", "Only 2 of 8 GPUs can share 30 sequences evenly; 8 could share 32."),
        (254, "32xh100-sxm", "Only 2 of 32 GPUs can share 254 sequences evenly; 32 could share 256."),
        (32, "8xh100-sxm", ""),
    ],
)
def test_a_batch_that_the_gpus_cannot_share_is_said_before_the_answer(size, cluster, said):
    recipe = replace(PLAN.recipe, global_batch_size=size)
    plan = replace(PLAN, cluster=read_cluster(cluster), recipe=recipe, layout=Layout(tp=2, cp=2, dp_shard=2))
    lines = question_section(plan, ScreenContext(), 80, place="here")
    assert (said in [line.plain for line in lines]) if said else not any("share" in line.plain for line in lines)


def test_a_batch_that_more_ranks_could_share_than_the_plan_has_is_no_complaint():
    """DeepSeek-V3's 15,360 sequences on 2,048 GPUs: 1,024 could share them, and 128 data-parallel ranks do."""
    recipe = replace(PLAN.recipe, global_batch_size=15360)
    layout = Layout(pp=16, ep=64, dp_shard=128, zero_stage=1)
    plan = replace(PLAN, cluster=read_cluster("256xhgx-h800"), recipe=recipe, layout=layout)
    assert not any("share" in line.plain for line in question_section(plan, ScreenContext(), 80, place="here"))


def test_rows_of_one_table_have_names_of_their_own():
    """Two rows said "TP 8, optimizer+activations on host", one of them with everything recomputed."""
    moved = replace(PLAN.recipe, offload="optimizer", activation_offload=True)
    plans = [
        replace(PLAN, layout=Layout(tp=8), recipe=replace(moved, micro_batch_size=size, recompute=mode))
        for size, mode in ((1, "full"), (2, "selective"))
    ]
    shown = replace(CROWDED, alternatives=tuple(replace(BESIDE, plan=plan) for plan in plans))
    rows = plan_screen(shown, ScreenContext(), style=TextStyle()).splitlines()
    names = [row[2:44].strip() for row in rows if row.startswith(("1 TP 8", "2 TP 8"))]
    assert len(names) == len(set(names)) == 2


def test_missing_gpus_are_no_offer_however_fast_the_others_are():
    fails = WhatIf(
        change="one dead GPU of 64", plan=PLAN, step_s=1.0, step_ratio=0.5, rate_ratio=2.0, gpus_ratio=63 / 64
    )
    shown = what_if_screen(Sensitivity(binding="Memory binds.", changes=(fails, *what_ifs(0.9)))).splitlines()
    assert len(shown) == 1
    assert "change 0.9" in shown[0]


def test_what_memory_costs_in_time_stands_beside_the_speed():
    """A server less had a quarter less speed per GPU, all of it recomputation, and the screen named no cause."""
    entries = (
        TimeEntry(component="backward", duration_s=1.0),
        TimeEntry(component="recompute", duration_s=0.3),
        TimeEntry(component="offload", duration_s=0.1),
    )
    both = "; recomputing and waiting for the host to fit: 20.0% of the step"
    for count, words in ((1, ""), (2, "; recomputing to fit: 15.0% of the step"), (3, both)):
        time = replace(PREDICTION.time, step_s=2.0, components=entries[:count])
        assert speed_words(replace(PREDICTION, time=time)).partition("MFU 41.2%")[2] == words


def test_dollars_stand_beside_their_rate_and_their_band():
    """Without --tokens there was no cost at all, and with it no price per GPU and no band."""
    running = RunningCost(usd_per_gpu_hour=2.5, usd_per_hour=40.0, usd_per_million_tokens=0.05, price_source="AWS")
    priced = replace(PREDICTION, cost=None, running_cost=running)
    assert speed_words(priced).endswith("; $40.00 an hour at $2.50 a GPU (AWS), $50.00 per 1B tokens")
    alone = replace(priced, running_cost=replace(running, usd_per_hour=2.5))
    assert speed_words(alone).endswith("; $2.50 an hour (AWS), $50.00 per 1B tokens")
    assert "an hour" not in speed_words(replace(priced, cost=PREDICTION.cost))
    assert "an hour" not in speed_words(replace(priced, running_cost=None))
    hours = {"gpu_hours": 400.0, "low_gpu_hours": 360.0, "high_gpu_hours": 480.0}
    cost = replace(PREDICTION.cost, **hours, days=10.0, usd=1000.0, usd_per_gpu_hour=2.5, price_source="AWS")
    assert run_words(cost) == (
        "1.00T tokens: 10.0 days (9.0 to 12.0 days), $1,000 ($900.00 to $1,200) billed at $2.50 per GPU and hour "
        "(AWS); steps alone 9.0 days, $900.00, goodput 90.0%"
    )
    given = replace(cost, low_gpu_hours=400.0, high_gpu_hours=400.0)
    assert run_words(given).startswith("1.00T tokens: 10.0 days, $1,000 billed at")


def test_a_reason_that_is_too_long_ends_with_a_whole_part():
    """It was cut in the middle of a list of prices, with an ellipsis."""
    screen = plan_screen(CROWDED, CONTEXT)
    assert "..." not in screen.split("Why:")[1].split("Next:")[0]
    reason = screen.split("Why:")[1].split("Next:")[0]
    assert reason.rstrip().endswith(("and on.", "such as 69.45 s and 10.42 GiB."))


def test_modules_that_are_recomputed_are_named_as_they_are_typed():
    recipe = replace(PLAN.recipe, recompute="selective", recompute_layers=None)
    few = replace(PLAN, recipe=replace(recipe, recompute_modules=("layernorm",)))
    more = replace(PLAN, recipe=replace(recipe, recompute_modules=("mla_up_proj", "layernorm", "moe_act")))
    assert recipe_words(few).startswith("layernorm recomputed, micro-batch")
    assert recipe_words(more).startswith("mla_up_proj, layernorm and moe_act recomputed, micro-batch")
    assert [kept_words(plan.recipe)[0] for plan in (few, more)] == ["recompute layernorm", "recompute 3 modules"]
    assert recompute_text(more.recipe).startswith("mla_up_proj, layernorm, moe_act")
    assert "--recompute-modules\N{NO-BREAK SPACE}mla_up_proj,layernorm,moe_act" in options_text(more)
    whole = replace(recipe, recompute="full", recompute_modules=("moe",))
    assert kept_words(whole)[0] == "full recompute"
    assert recompute_text(whole).startswith("full")
