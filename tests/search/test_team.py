"""Two processes answer what one does, and the one that leads never depends on the other."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwise.catalog import read_cluster
from shardwise.errors import LayoutError
from shardwise.families import read_model
from shardwise.recipe import Recipe
from shardwise.search import SearchBounds, question_of, search, sweep, what_if
from shardwise.search import team as team_module
from shardwise.search.team import ALONE, Team, in_team

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks well")

NUMBERS = (2, 3, 5, 7, 11, 13, 17)


@pytest.fixture(autouse=True)
def _patient(monkeypatch, tmp_path):
    """A busy machine changes nothing, nor do the threads of a test runner."""
    monkeypatch.setattr(team_module, "PATIENCE_S", 60.0)
    monkeypatch.setattr(team_module, "LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(team_module, "_num_own_running", lambda: 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    (tmp_path / "loadavg").write_text("0.50 0.40 0.30 1/400 12345\n", encoding="ascii")
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def children():
    """Processes that this one started and did not wait for, ended ones included."""
    lists = (task / "children" for task in Path("/proc/self/task").iterdir())
    return {pid for path in lists for pid in path.read_text(encoding="ascii").split()}


@pytest.fixture
def has_no_new_children():
    """Whether all that were started since the test began are gone; other tests may have left some."""
    before = children()
    return lambda: children() <= before


def test_every_item_is_done_once_by_one_of_two_processes(has_no_new_children):
    def work(number):
        time.sleep(0.05)
        return number, os.getpid()

    found = in_team(lambda team: team.each(work, NUMBERS), num_processes=2)
    assert [number for number, _ in found] == list(NUMBERS)
    is_mine = [process == os.getpid() for _, process in found]
    assert is_mine == sorted(is_mine, reverse=True)
    assert (is_mine[0], is_mine[-1]) == (True, False)
    assert has_no_new_children()


def test_results_larger_than_a_pipe_arrive():
    found = in_team(lambda team: team.each(lambda number: np.full(10**6, number), NUMBERS), num_processes=2)
    assert [int(array[-1]) for array in found] == list(NUMBERS)


def test_what_is_asked_within_a_half_is_done_by_who_asks():
    def asked_twice(team):
        def of_outer(outer):
            return os.getpid(), team.each(lambda inner: (outer * inner, os.getpid()), NUMBERS)

        return team.each(of_outer, NUMBERS), team.is_alone

    found, is_alone = in_team(asked_twice, num_processes=2)
    assert not is_alone
    for outer, (process, inner) in zip(NUMBERS, found, strict=True):
        assert inner == [(outer * number, process) for number in NUMBERS]


@pytest.mark.parametrize("bad", [2, 17])
def test_what_fails_in_either_half_is_raised_as_itself(bad, has_no_new_children):
    def work(number):
        if number == bad:
            raise LayoutError(f"{number} is bad luck", code="layout-degree-range", fix="take another")
        return number

    with pytest.raises(LayoutError, match=f"{bad} is bad luck"):
        in_team(lambda team: team.each(work, NUMBERS), num_processes=2)
    assert has_no_new_children()


def test_a_failure_that_is_caught_leaves_the_leader_alone_and_right():
    def work(number):
        if number == 17:
            raise LayoutError("bad luck", code="layout-degree-range", fix="take another")
        return number

    def twice(team):
        with pytest.raises(LayoutError):
            team.each(work, NUMBERS)
        return team.each(lambda number: 2 * number, NUMBERS), team.is_alone

    assert in_team(twice, num_processes=2) == ([2 * number for number in NUMBERS], True)


def test_a_follower_that_is_killed_is_not_missed(has_no_new_children):
    leader = os.getpid()

    def work(number):
        if os.getpid() != leader:
            os._exit(9)
        return number

    assert in_team(lambda team: team.each(work, NUMBERS), num_processes=2) == list(NUMBERS)
    assert has_no_new_children()


def test_a_follower_without_a_processor_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(team_module, "PATIENCE_S", 0.01)
    leader = os.getpid()

    def work(number):
        if os.getpid() != leader:
            time.sleep(60)
        return number

    started_s = time.perf_counter()
    assert in_team(lambda team: team.each(work, NUMBERS), num_processes=2) == list(NUMBERS)
    assert time.perf_counter() - started_s < 30


def test_members_that_ask_about_different_items_part():
    def own_items(team):
        return team.each(lambda number: number, NUMBERS if team.leads else NUMBERS[::-1]), team.is_alone

    assert in_team(own_items, num_processes=2) == (list(NUMBERS), True)


def test_an_interruption_ends_both_processes(has_no_new_children):
    def interrupted(team):
        if team.leads:
            raise KeyboardInterrupt
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        in_team(interrupted, num_processes=2)
    assert has_no_new_children()


def test_the_follower_prints_nothing_and_cleans_nothing_up():
    code = (
        "import atexit\n"
        "from shardwise.search import in_team\n"
        "atexit.register(print, 'cleaned up')\n"
        "print('begun')\n"
        "in_team(lambda team: team.each(abs, (1, 2)) and 1 / team.leads, num_processes=2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("begun\ncleaned up\n", "")


@pytest.mark.parametrize(("num_processes", "threads"), [(1, 1), (2, 2)])
def test_one_process_does_everything_where_one_is_asked_for_or_threads_run(monkeypatch, num_processes, threads):
    monkeypatch.setattr(threading, "active_count", lambda: threads)
    assert in_team(lambda team: team, num_processes=num_processes) is ALONE


def test_one_process_does_everything_where_all_processors_are_busy(tmp_path):
    (tmp_path / "loadavg").write_text("0.50 0.40 0.30 2/400 12345\n", encoding="ascii")
    assert in_team(lambda team: team, num_processes=2) is ALONE


def answer(team: Team, asked):
    """A search and what would change it, with whether both processes took part to the end."""
    asked = dict(asked)
    bounds = SearchBounds(max_predictions=6, max_plans=4)
    question = {"model": read_model(asked.pop("model")), "cluster": read_cluster(asked.pop("cluster")), **asked}
    result = search(**question, recipe=Recipe(seq_len=2048, global_batch_size=32), bounds=bounds, team=team)
    sensitivity = what_if(result, limits=bounds, team=team)
    return replace(result, space=replace(result.space, wall_s=0.0)), sensitivity, team.is_alone


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "llama-3.1-8b", "cluster": "16xh100-sxm", "engine": "native"},
        {"model": "mixtral-8x7b", "cluster": "16xh100-sxm", "engine": "megatron"},
        {"model": "llama-3.1-8b", "cluster": "8xa100-sxm-80", "engine": "deepspeed", "objective": "memory"},
        {"model": "llama-3.1-70b", "cluster": "1xh100-sxm", "engine": "native"},
    ],
    ids=lambda asked: f"{asked['model']}-{asked['engine']}",
)
def test_two_processes_give_the_answer_of_one(asked):
    *together, is_alone = in_team(lambda team: answer(team, asked), num_processes=2)
    assert not is_alone
    assert repr(together) == repr(list(answer(ALONE, asked)[:2]))


def test_two_processes_sweep_as_one():
    recipe = Recipe(seq_len=2048, global_batch_size=32)
    questions = [
        question_of(model=read_model("llama-3.2-1b"), cluster=read_cluster(name), recipe=recipe, engine="native")
        for name in ("1xh100-sxm", "2xh100-sxm", "4xh100-sxm", "8xa100-sxm-80")
    ]

    def swept(team):
        return sweep(questions, bounds=SearchBounds(max_predictions=4), objective="cost", team=team), team.is_alone

    together, is_alone = in_team(swept, num_processes=2)
    assert not is_alone
    assert repr(together) == repr(swept(ALONE)[0])


def test_what_is_over_in_the_next_moment_keeps_no_processor_busy(monkeypatch, tmp_path):
    loads = iter(["2/400", "2/400", "1/400"])
    monkeypatch.setattr(team_module.time, "sleep", lambda _: None)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"0.50 0.40 0.30 {next(loads)} 12345\n")
    assert in_team(lambda team: not team.is_alone, num_processes=2)
    loads = iter(["2/400"] * team_module.LOOKS)
    assert in_team(lambda team: team.is_alone, num_processes=2)


def test_own_threads_that_run_are_counted(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(team_module, "OWN_THREADS", tmp_path)
    for number, state in enumerate("RRS"):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "stat").write_text(f"{number} (a name) R) {state} 1 2 3\n", encoding="ascii")
    (tmp_path / "9").mkdir()  # one that ended
    assert team_module._num_own_running() == 2
