"""What a lab says of runs whose measurements are made up."""

from dataclasses import replace
from pathlib import Path

import pytest

from course.labs.test_catalogue import FOUR_GPUS, HERE
from shardwise.course.labs import Outcome, find_lab, lab_lesson
from shardwise.course.labs.run import planned_trials
from shardwise.course.labs.steadiness import unsteady_ratio
from shardwise.course.render.html_lesson import lessons_html
from shardwise.course.render.json_lesson import lab_object
from shardwise.course.render.svg_lesson import lessons_svg
from shardwise.course.render.text_lesson import lessons_text
from shardwise.render.terminal import TextStyle

TWO_GPUS = replace(FOUR_GPUS, num_processes=2, gpu="h200-sxm")


def measurement(*, step_s=1.0, tokens=100.0, parts=None, peak=1000, activations=0, families=(), exposed_s=0.0):
    return {
        "environment": {"device": "made up"},
        "steps": [{"step": number, "step_s": step_s} for number in range(1, 8)],
        "memory": {
            "peak_allocated_bytes": peak,
            "host_bytes": 0,
            "components_bytes": parts or {},
            "most_bytes": {**(parts or {}), "activations": activations},
        },
        "time": {
            "step_s": step_s,
            "components_s": {"forward": step_s - exposed_s, "exposed_communication": exposed_s},
            "communication": list(families),
        },
        "throughput": {"tokens_per_s_per_gpu": tokens},
    }


def outcomes(name, measured, *, setting=HERE, failures=None):
    """Outcomes of a lab's trials, by their names; those that are not named did not run."""
    failed = failures or {}
    return [
        Outcome(
            trial=found.trial,
            plan=found.plan,
            prediction=found.prediction,
            measurement=measured.get(found.trial.name),
            failure=failed.get(found.trial.name, ""),
            folder=found.folder,
            is_crowded=not setting.is_on_gpu and found.plan.layout.world_size > setting.num_cores,
        )
        for found in planned_trials(find_lab(name), setting, folder=Path("out"))
        if found.trial.name in measured or found.trial.name in failed
    ]


def claims(name, measured, **options):
    lab = find_lab(name)
    return {claim.says: claim for claim in lab.claims(outcomes(name, measured, **options))}


def states(total):
    return {"parameters": total // 4, "optimizer": total // 2, "gradients": total // 4, "activations": 7}


def test_memory_compares_the_states_with_ddp():
    found = claims(
        "memory",
        {
            "DDP, small": measurement(parts=states(1600), peak=2000),
            "ZeRO-1, small": measurement(parts=states(1000)),
            "ZeRO-2, small": measurement(parts=states(1050)),
            "FSDP, small": measurement(parts=states(800)),
            "FSDP, larger": measurement(parts=states(2400), peak=3000),
        },
    )
    # 16 bytes a parameter, of which 12 and 14 are divided by two ranks: 16/10 and 16/9.
    assert found["ZeRO-1 divides DDP's states by 1.6 at least on 2 ranks"].verdict == "right"
    assert found["ZeRO-2 divides DDP's states by 1.8 at least on 2 ranks"].said == pytest.approx(16 / 9)
    assert found["ZeRO-2 divides DDP's states by 1.8 at least on 2 ranks"].verdict == "loose"
    division = found["FSDP divides the states by the 2 ranks"]
    assert (division.computed, division.verdict) == (2.0, "right")
    room = found["FSDP holds a larger model in the memory of DDP's small one"]
    assert (room.said, room.computed, room.verdict) == ("3.0x the model", "1.50x the peak", "loose")


def test_the_stages_of_zero_are_told_apart():
    """They peaked at the same memory with one micro-batch a step, where ZeRO-1 has nothing to add up."""
    trials = planned_trials(find_lab("memory"), HERE, folder=Path("out"))[:4]
    ddp, zero_1, zero_2, fsdp = (
        [
            quantity.predicted(
                Outcome(trial=at.trial, plan=at.plan, prediction=at.prediction, measurement=None, folder=at.folder)
            )
            for quantity in find_lab("memory").quantities
        ]
        for at in trials
    )
    assert ddp[0] > 1.2 * zero_1[0] > 1.05 * 1.2 * zero_2[0] > 1.1 * 1.05 * 1.2 * fsdp[0]
    assert ddp[1] == 2 * zero_1[1] == 2 * zero_2[1] == 2 * fsdp[1]
    assert zero_1[2] == zero_2[2] > ddp[2] > fsdp[2]


ONE_GPU = replace(FOUR_GPUS, num_processes=1)


@pytest.mark.parametrize(("setting", "verdicts"), [(ONE_GPU, {"unclear"}), (TWO_GPUS, {"wrong"})])
def test_one_rank_answers_nothing_about_dividing(setting, verdicts):
    equal = measurement(parts=states(1600), peak=2000)
    measured = dict.fromkeys(("DDP, small", "ZeRO-1, small", "ZeRO-2, small", "FSDP, small"), equal)
    lesson = lab_lesson(find_lab("memory"), outcomes("memory", measured, setting=setting), setting)
    assert {claim.verdict for claim in lesson.claims} == verdicts
    said = "this question needs at least 2 GPUs"
    assert all((said in claim.note) == (setting is ONE_GPU) for claim in lesson.claims)
    assert any(said in note.lower().replace("gpus", "GPUs") for note in lesson.notes) == (setting is ONE_GPU)


@pytest.mark.parametrize("name", ["memory", "throughput", "scaling", "prefetch", "communication"])
def test_labs_about_many_ranks_say_on_one_that_they_need_two(name):
    assert any(note.startswith("This question needs at least 2 GPUs") for note in notes_of_all(name, setting=ONE_GPU))
    assert not any("needs at least" in note for note in notes_of_all(name, setting=TWO_GPUS))


@pytest.mark.parametrize("name", ["checkpointing", "offload"])
def test_labs_about_one_rank_ask_for_no_second(name):
    assert not any("needs at least" in note for note in notes_of_all(name, setting=ONE_GPU))


def notes_of_all(name, *, setting):
    trials = planned_trials(find_lab(name), setting, folder=Path("out"))
    measured = {found.trial.name: measurement() for found in trials}
    return lab_lesson(find_lab(name), outcomes(name, measured, setting=setting), setting).notes


def test_a_run_that_filled_its_gpu_says_nothing_about_speed():
    """As 8B under DDP on two H200: 148 GB reserved, and every step waits for memory."""
    full = measurement(tokens=3600.0)
    full["memory"]["peak_reserved_bytes"] = 148_350_000_000
    found = claims("throughput", {"DDP, larger": full, "FSDP, larger": measurement(tokens=8200.0)}, setting=TWO_GPUS)
    (claim,) = found.values()
    assert claim.verdict == "unclear"
    assert claim.note.startswith("no verdict: 'DDP, larger' filled 99% of the GPU")


def test_checkpointing_says_what_a_step_loses_and_what_memory_wins():
    found = claims(
        "checkpointing",
        {
            "FSDP, small": measurement(step_s=1.0, activations=900),
            "full": measurement(step_s=1.25, activations=300),
        },
    )
    slower, less = found.values()
    assert (slower.computed, slower.verdict) == (pytest.approx(0.25), "right")
    assert (less.computed, less.verdict) == (3.0, "right")


def test_scaling_is_throughput_over_that_of_one():
    found = claims("scaling", {"1 process": measurement(tokens=100.0), "2 processes": measurement(tokens=70.0)})
    (claim,) = found.values()
    assert (claim.computed, claim.verdict) == (pytest.approx(0.7), "loose")


def test_prefetch_says_what_is_lost_without_it():
    found = claims("prefetch", {"no prefetch": measurement(step_s=1.25), "one unit ahead": measurement(step_s=1.0)})
    (claim,) = found.values()
    assert (claim.computed, claim.verdict) == (pytest.approx(0.2), "loose")


def test_what_holds_under_a_condition_is_not_wrong_where_the_condition_is_not_met():
    """A small model on fast links loses little without prefetch; many blocks leave less than a third."""
    found = claims("prefetch", {"no prefetch": measurement(step_s=1.02), "one unit ahead": measurement(step_s=1.0)})
    assert [claim.verdict for claim in found.values()] == ["loose"]
    measured = {"FSDP, small": measurement(activations=900), "full": measurement(activations=100)}
    assert [claim.verdict for claim in claims("checkpointing", measured).values()] == ["right", "loose"]


FAMILIES = (
    {"kind": "all_gather", "num_calls": 8, "work_s": 0.3, "exposed_s": 0.15},
    {"kind": "reduce_scatter", "num_calls": 4, "work_s": 0.1, "exposed_s": 0.05},
)


def test_communication_lists_collectives_kind_by_kind():
    measured = {"FSDP, small": measurement(families=FAMILIES, exposed_s=0.1)}
    lesson = lab_lesson(find_lab("communication"), outcomes("communication", measured), HERE)
    assert lesson.tables[1].title == "Collectives of one step of a rank: FSDP, small"
    rows = {row[0]: row for row in lesson.tables[1].rows}
    assert (rows["all-gather"][2], rows["all-gather"][4], rows["all-gather"][6]) == (8, 0.3, 0.15)
    shares = dict(zip([column.name for column in lesson.tables[0].columns], lesson.tables[0].rows[0], strict=False))
    assert shares["run"] == "FSDP, small"
    assert lesson.tables[0].rows[0][2] == pytest.approx(0.1)
    assert lesson.tables[0].rows[0][4] == pytest.approx(0.3)
    assert lesson.claims[0].computed == pytest.approx(0.25)


def test_an_all_to_all_that_divides_gradients_counts_as_scatter():
    exchanged = ({**FAMILIES[0]}, {**FAMILIES[1], "kind": "all_to_all"})
    for families in (FAMILIES, exchanged):
        measured = {"FSDP, small": measurement(families=families, exposed_s=0.1)}
        lesson = lab_lesson(find_lab("communication"), outcomes("communication", measured), HERE)
        assert lesson.tables[0].rows[0][6] == pytest.approx(0.1)
        assert lesson.claims[0].computed == pytest.approx(0.25)


def test_a_run_without_memory_is_a_result():
    measured = {"FSDP, larger": measurement(peak=50 * 2**30)}
    failures = {"DDP, larger": "rank 0 ran out of memory"}
    found = outcomes("memory", measured, setting=FOUR_GPUS, failures=failures)
    lesson = lab_lesson(find_lab("memory"), found, FOUR_GPUS)
    assert "DDP, larger: rank 0 ran out of memory" in lesson.notes
    assert lesson.tables[0].rows[0][2] is None
    bars = {group.name: group.bars for group in lesson.pictures[0].groups}
    assert [bar.amount for bar in bars["DDP, larger"]][1] is None


def test_host_memory_is_shown_where_it_is_measured():
    on_gpu = measurement()
    on_gpu["memory"] |= {"host_bytes": 700, "peak_reserved_bytes": 9}
    names = ("optimizer offloaded", "activations offloaded")
    for found, setting, cells in ((on_gpu, TWO_GPUS, [700, None]), (measurement(), HERE, [None, None])):
        lesson = lab_lesson(
            find_lab("offload"), outcomes("offload", dict.fromkeys(names, found), setting=setting), setting
        )
        assert [row[6] for row in lesson.tables[0].rows] == cells


def test_processors_say_what_they_cannot_show():
    lesson = lab_lesson(find_lab("offload"), outcomes("offload", {"FSDP, small": measurement()}), HERE)
    assert any("CPUs have no second memory" in note for note in lesson.notes)


CONCLUSIONS = {
    "memory": (
        {
            "DDP, small": measurement(parts=states(1600), peak=2000),
            "FSDP, small": measurement(parts=states(800), peak=1500),
        },
        "a rank of FSDP kept 50% of DDP's states and peaked at 75% of its memory",
    ),
    "throughput": (
        {"DDP, small": measurement(tokens=100.0), "FSDP, small": measurement(tokens=90.0)},
        "FSDP trained at 90% of DDP's speed with the small model",
    ),
    "checkpointing": (
        {"FSDP, small": measurement(activations=900), "full": measurement(activations=300, step_s=1.25)},
        "full checkpointing kept 33% of the activations for a step 1.25 times as long",
    ),
    "offload": (
        {"FSDP, small": measurement(peak=1000), "optimizer offloaded": measurement(peak=700, step_s=4.0)},
        "with optimizer offloaded: 70% of the peak, 4.00 times the step",
    ),
    "scaling": (
        {"1 process": measurement(tokens=100.0), "2 processes": measurement(tokens=80.0)},
        "a process kept 80% with 2 of the speed of one alone",
    ),
    "prefetch": (
        {"no prefetch": measurement(step_s=1.2, exposed_s=0.24), "one unit ahead": measurement(exposed_s=0.05)},
        "without prefetch a step took 1.20 times as long, and 20% instead of 5% of it was exposed",
    ),
    "communication": (
        {"FSDP, small": measurement(families=FAMILIES, exposed_s=0.1)},
        "FSDP's gathers and scatters worked in 40% of a step of the small model, with 10% exposed",
    ),
}


@pytest.mark.parametrize("name", CONCLUSIONS)
def test_every_lab_ends_in_one_sentence(name):
    measured, said = CONCLUSIONS[name]
    for setting, is_said in ((TWO_GPUS, True), (ONE_GPU, find_lab(name).min_processes == 1)):
        notes = lab_lesson(find_lab(name), outcomes(name, measured, setting=setting), setting).notes
        assert notes[0].startswith(f"In short: {said}") == is_said


@pytest.mark.parametrize("name", ["prefetch", "offload"])
def test_no_conclusion_is_drawn_from_a_step_that_cannot_be_shorter(name):
    runs = {"prefetch": ("no prefetch", "one unit ahead"), "offload": ("optimizer offloaded", "FSDP, small")}[name]
    measured = {runs[0]: measurement(step_s=0.7), runs[1]: measurement(step_s=1.0)}
    notes = lab_lesson(find_lab(name), outcomes(name, measured, setting=TWO_GPUS), TWO_GPUS).notes
    assert not any(note.startswith("In short") for note in notes)


def test_crowded_processes_get_no_verdict():
    measured = {"1 process": measurement(tokens=100.0), "4 processes": measurement(tokens=25.0)}
    (claim,) = claims("scaling", measured).values()
    assert (claim.verdict, claim.note) == (
        "unclear",
        "no verdict: 4 processes share fewer cores; a machine with more of them tells",
    )


def test_too_few_steps_to_look_into_one_are_said():
    few = replace(HERE, num_steps=3)
    lesson = lab_lesson(find_lab("prefetch"), outcomes("prefetch", {"no prefetch": measurement()}, setting=few), few)
    assert any(note.startswith("With 3 steps no step is looked into, which is step 4") for note in lesson.notes)


def with_steps(*seconds, step_s, looked_into=(4,), tokens=100.0):
    """A measurement with its steps; the first three are slow."""
    found = measurement(step_s=step_s, tokens=tokens)
    steps = [{"step": number, "step_s": second} for number, second in enumerate((9.0, 9.0, 9.0, *seconds), start=1)]
    time = {**found["time"], "samples": [{"step": step} for step in looked_into]}
    return {**found, "steps": steps, "time": time}


def test_a_difference_that_no_prefetching_can_make_gets_no_verdict():
    """150 ms without, 217 ms with a unit gathered ahead: every run steady in itself, and the machine slower in one."""
    found = claims(
        "prefetch",
        {
            "no prefetch": with_steps(0.3, 0.149, 0.150, 0.151, 0.3, step_s=0.150, looked_into=(4, 8)),
            "one unit ahead": with_steps(0.4, 0.215, 0.217, 0.220, 0.4, step_s=0.217, looked_into=(4, 8)),
        },
    )
    (claim,) = found.values()
    assert (claim.computed, claim.verdict) == (pytest.approx(-0.4467, abs=1e-3), "unclear")
    assert claim.note.startswith("no verdict: what differs between the runs cannot do this")


def test_steps_that_differ_get_no_verdict():
    found = claims(
        "throughput",
        {
            "DDP, small": with_steps(1.0, 1.0, 1.0, 1.7, step_s=1.0, tokens=90.0),
            "FSDP, small": with_steps(0.9, 0.9, 0.9, 0.9, step_s=0.9),
        },
    )
    (claim,) = found.values()
    assert (claim.computed, claim.verdict) == (pytest.approx(0.9), "unclear")
    assert claim.note.startswith("no verdict: steps of 'DDP, small' differ by 1.7 times")


def test_a_single_step_gets_no_verdict_and_no_conclusion():
    """Four steps leave one behind the warm-up: prefetching was said to save 55 % on a machine that was busy."""
    measured = {
        "no prefetch": with_steps(1.96, step_s=1.96, looked_into=()),
        "one unit ahead": with_steps(0.88, step_s=0.88, looked_into=()),
    }
    (claim,) = find_lab("prefetch").claims(outcomes("prefetch", measured))
    assert claim.verdict == "unclear"
    assert "'no prefetch' has 1 step behind the warm-up" in claim.note
    assert claim.note.endswith("2 more --steps tell more")
    assert find_lab("prefetch").conclusion(outcomes("prefetch", measured)) == ""


def test_wrong_is_said_only_when_single_steps_say_so_too():
    ddp = with_steps(1.0, 1.0, 1.0, 1.05, step_s=1.0, tokens=90.0)
    wide = with_steps(0.9, 0.8, 0.9, 1.1, step_s=0.9)
    narrow = with_steps(0.9, 0.88, 0.9, 0.91, step_s=0.9)
    verdicts = [
        next(iter(claims("throughput", {"DDP, small": ddp, "FSDP, small": fsdp}).values())).verdict
        for fsdp in (wide, narrow)
    ]
    assert verdicts == ["unclear", "wrong"]


def test_steps_that_the_profiler_looked_into_do_not_make_a_run_unsteady():
    (found,) = outcomes("checkpointing", {"full": with_steps(2.0, 1.0, 1.0, 1.0, 2.0, step_s=1.0, looked_into=(4, 8))})
    assert unsteady_ratio(found) == 1.0
    (found,) = outcomes("checkpointing", {"full": with_steps(2.0, 1.0, 1.0, 1.0, 2.0, step_s=1.0, looked_into=(4,))})
    assert unsteady_ratio(found) == 2.0


def test_unsteady_steps_are_said():
    measured = {"full": with_steps(9.0, 1.0, 1.7, 1.2, step_s=1.2)}
    lesson = lab_lesson(find_lab("checkpointing"), outcomes("checkpointing", measured), HERE)
    assert any("full: the slowest step took 1.7 times the fastest" in note for note in lesson.notes)


def test_crowded_cores_are_said():
    lesson = lab_lesson(find_lab("scaling"), outcomes("scaling", {"4 processes": measurement()}), HERE)
    assert any(note.startswith("4 processes share 2 cores") for note in lesson.notes)


def test_text_page_picture_and_json_show_the_same_report():
    measured = {"DDP, small": measurement(tokens=200.0), "FSDP, small": measurement(tokens=100.0)}
    lesson = lab_lesson(find_lab("throughput"), outcomes("throughput", measured), HERE)
    text = lessons_text([lesson], style=TextStyle(width=100))
    assert "said 1x, measured 2x" in text
    assert "█" in text
    for page in (lessons_html([lesson]), lessons_svg([lesson])):
        assert "Tokens per second of one rank" in page
    said = lab_object(lesson, [], is_complete=False)
    assert (said["schema"], said["is_simulated"], said["is_complete"]) == ("shardwise.lab/1", False, False)
    assert said["pictures"][0]["kind"] == "bars"
