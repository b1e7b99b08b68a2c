"""The memory picture: equal stages share a bar, long pipelines show their fullest, and the scale is one for all."""

from dataclasses import replace

from render.sample_records import MEMORY, stage_memory
from shardwise.render.terminal import page_text
from shardwise.render.text_memory import MAX_BARS, shown_runs, stage_picture


def picture(stages) -> list[str]:
    return page_text([stage_picture(replace(MEMORY, stages=tuple(stages)))]).splitlines()


def test_equal_neighbours_share_a_bar():
    lines = picture(
        [stage_memory(0, extra_gib=9), *(stage_memory(stage) for stage in range(1, 7)), stage_memory(7, extra_gib=3)]
    )
    assert [line.partition(" P")[0].strip() for line in lines] == ["stage 0", "stage 1-6", "stage 7"]


def test_equal_stages_that_are_apart_keep_their_own_bars():
    stages = [stage_memory(0), stage_memory(1, extra_gib=5), stage_memory(2)]
    assert [run.label for run in shown_runs(stages)] == ["stage 0", "stage 1", "stage 2"]


def test_a_long_uneven_pipeline_shows_its_fullest_stages_and_says_how_many_are_left_out():
    lines = picture([stage_memory(stage, extra_gib=stage) for stage in range(MAX_BARS + 5)])
    assert len(lines) == MAX_BARS + 1
    assert lines[0].startswith("stage 5 ")
    assert lines[-1] == "and 5 stages that hold less; --json has them all"


def test_bars_of_all_stages_have_one_scale():
    lines = picture([stage_memory(0, extra_gib=40), stage_memory(1)])
    assert lines[0].index("|") == lines[1].index("|")
