"""A folder belongs to one run: who holds it, when it is taken over, and how a run notices that it lost it."""

import errno
import fcntl
import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from shardwise.train import lease as lease_module
from shardwise.train.job import CheckpointSpec
from shardwise.train.lease import BEAT_S, DEAD_AFTER_S, LeaseError, LostFolderError, join, require_free, seen, take
from train.models import make_job

FORKED = multiprocessing.get_context("fork")
LIMIT_S = 300
"""How long a test waits for what takes milliseconds on a quiet machine."""


@pytest.fixture
def job(tmp_path):
    return replace(make_job(), run_folder=str(tmp_path / "run"))


def life_file(job, number=1):
    return job.folder / "lives" / f"{number:08d}.json"


def refused(job):
    with pytest.raises(LeaseError) as raised:
        take(job)
    assert raised.value.code == "train-folder-held"
    return raised.value


def make_older(path, seconds):
    os.utime(path, (time.time() - seconds, time.time() - seconds))


@pytest.fixture
def without_locks(monkeypatch):
    """A file system that knows no locks."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.fixture
def from_elsewhere(monkeypatch):
    """From now on this is another host."""
    return lambda: monkeypatch.setattr(lease_module, "_machine", lambda: "another")


def start_holder(job):
    """A process that holds the folder until it is killed."""
    ready = FORKED.Event()
    process = FORKED.Process(target=_hold, args=(job, ready), daemon=True)
    process.start()
    assert ready.wait(LIMIT_S)
    return process


def _hold(job, ready):
    take(job)
    ready.set()
    time.sleep(2 * LIMIT_S)


def kill(process):
    process.kill()
    process.join()


def test_a_second_run_is_refused_in_one_sentence_that_says_who_holds_the_folder(job):
    process = start_holder(job)
    error = refused(job)
    assert f"the folder {job.folder} is held by another run (process {process.pid} on " in error.message
    assert ", since 20" in error.message
    assert int(re.search(r"gave a sign of life (\d+) s ago", error.message)[1]) < DEAD_AFTER_S
    assert f"kill {process.pid} on " in error.fix
    assert "60 s after the last sign of life" in error.fix
    with pytest.raises(LeaseError):
        require_free(job)
    kill(process)


def test_the_folder_of_a_dead_run_is_taken_over_at_once(job):
    kill(start_holder(job))
    require_free(job)
    assert take(job).lineage.number == 2


def test_a_run_that_stands_still_on_this_host_is_never_taken_over(job):
    process = start_holder(job)
    os.kill(process.pid, signal.SIGSTOP)
    make_older(life_file(job), 10 * DEAD_AFTER_S)
    refused(job)
    kill(process)


def test_a_life_that_ended_leaves_the_folder_free(job, from_elsewhere):
    take(job).release()
    from_elsewhere()
    assert take(job).lineage.number == 2


def test_without_locks_a_process_that_is_gone_holds_nothing(job, without_locks):
    process = start_holder(job)
    refused(job)
    kill(process)
    assert take(job).lineage.number == 2


def test_without_locks_rank_0_keeps_the_folder_of_a_launcher_that_is_gone(job, without_locks):
    process = start_holder(job)
    join(job, json.loads(life_file(job).read_text(encoding="utf-8"))["life"])
    kill(process)
    refused(job)


def test_rank_0_keeps_the_folder_of_a_launcher_that_is_gone(job):
    process = start_holder(job)
    kept = join(job, json.loads(life_file(job).read_text(encoding="utf-8"))["life"])
    kill(process)
    refused(job)
    kept.release()
    take(job)


@pytest.mark.parametrize("silent_s", [0.0, DEAD_AFTER_S - 20, -3600.0])
def test_a_run_on_another_host_that_gives_signs_of_life_is_not_taken_over(job, from_elsewhere, silent_s):
    """Also when it is said to have done so in an hour."""
    held = take(job)
    from_elsewhere()
    make_older(life_file(job), silent_s)
    refused(job)
    held.release()


def test_a_run_that_was_taken_over_from_another_host_notices_and_leaves_no_mark(job, from_elsewhere):
    held = take(job)
    make_older(life_file(job), DEAD_AFTER_S + 5)
    held.beat_s = time.monotonic()
    from_elsewhere()
    other = take(job)
    lost = held.look()
    assert isinstance(lost, LostFolderError)
    assert (lost.code, lost.exit_code) == ("train-folder-lost", 1)
    assert f"process {os.getpid()} on " in lost.message
    held.release()
    with pytest.raises(LostFolderError):
        held.require_held()
    assert other.look() is None
    refused(job)


def test_a_sign_of_life_is_given_every_few_seconds_by_those_who_keep_the_folder(job, monkeypatch):
    held = take(job)
    looking = seen(job, held.lineage.life)
    for holder, now_s, is_given in (
        (looking, 1000.0, False),
        (held, 1000.0, True),
        (held, 1000.0 + BEAT_S - 0.1, False),
        (held, 1000.0 + BEAT_S, True),
    ):
        monkeypatch.setattr(lease_module, "time", SimpleNamespace(monotonic=lambda now_s=now_s: now_s))
        make_older(life_file(job), 3600)
        holder.look()
        assert (time.time() - life_file(job).stat().st_mtime < 1800) == is_given, now_s


def test_a_folder_that_was_deleted_is_said_to_be(job):
    held = take(job)
    shutil.rmtree(job.folder)
    assert held.look().code == "train-folder-gone"
    held.release()
    assert not job.folder.exists()


def test_a_file_system_that_does_not_answer_takes_no_folder_away(job, monkeypatch):
    held = take(job)

    def refuse(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(lease_module, "_newest_number", refuse)
    assert held.look() is None


def _race(job, start, over, answers):
    start.wait(LIMIT_S)
    try:
        taken = take(job)
        answers.put(taken.lineage.life)
    except LeaseError:
        answers.put("")
    over.wait(LIMIT_S)  # who holds the folder lives until all have asked for it


@pytest.mark.parametrize("has_links", [True, False], ids=["links", "no links"])
def test_of_runs_that_begin_at_the_same_moment_one_gets_the_folder(job, monkeypatch, has_links):
    if not has_links:
        monkeypatch.setattr(lease_module.os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no")))
    kill(start_holder(job))
    start, over, answers = FORKED.Event(), FORKED.Event(), FORKED.Queue()
    processes = [FORKED.Process(target=_race, args=(job, start, over, answers), daemon=True) for _ in range(6)]
    for process in processes:
        process.start()
    start.set()
    found = [answers.get(timeout=LIMIT_S) for _ in processes]
    over.set()
    for process in processes:
        process.join()
    assert sum(bool(life) for life in found) == 1


def with_states(job, folder):
    return replace(job, checkpoint=CheckpointSpec(folder=str(folder)))


def test_checkpoints_that_lie_elsewhere_are_held_too(job, tmp_path):
    """Two run folders, one folder of checkpoints."""
    held = take(with_states(job, tmp_path / "states"))
    other = with_states(replace(job, run_folder=str(tmp_path / "other")), tmp_path / "states")
    assert str(tmp_path / "states") in refused(other).message
    held.release()
    assert take(other).lineage.number == 2
    assert (tmp_path / "other" / "lives" / "00000002.json").exists()


def test_checkpoints_in_another_run_s_folder_are_that_run_s(job, tmp_path):
    held = take(with_states(job, job.folder / "checkpoints"))
    refused(with_states(replace(job, run_folder=str(tmp_path / "other")), job.folder / "checkpoints"))
    held.release()


def test_a_folder_given_back_because_the_other_one_is_held_can_be_taken(job, tmp_path):
    states = take(replace(job, run_folder=str(tmp_path / "states")))
    refused(with_states(job, tmp_path / "states"))
    take(job).release()
    states.release()


@pytest.mark.parametrize("content", ["", "[]", '{"pid": "x"}', "\0", "{" * 100_000])
def test_a_life_that_cannot_be_read_holds_the_folder_as_long_as_it_is_new(job, content):
    take(job).release()
    life_file(job).with_suffix(".ended").unlink()
    life_file(job).write_text(content, encoding="utf-8")
    refused(job)
    make_older(life_file(job), DEAD_AFTER_S + 5)
    assert take(job).lineage.number == 2


def test_nodes_of_one_run_do_not_refuse_each_other(job):
    held = take(job, run_id="seven")
    require_free(job, run_id="seven")
    for other in ("eight", ""):
        with pytest.raises(LeaseError):
            require_free(job, run_id=other)
    held.release()


def test_ranks_that_torchrun_started_again_elsewhere_take_over_what_their_run_held(job):
    held = take(job, run_id="seven")
    assert take(job, run_id="seven", is_restart=True).lineage.number == held.lineage.number + 1


@pytest.mark.parametrize(("run_id", "is_restart"), [("seven", False), ("eight", True), ("none", True), ("", True)])
def test_a_start_of_another_run_does_not(job, run_id, is_restart):
    held = take(job, run_id="none" if run_id == "none" else "seven")
    with pytest.raises(LeaseError):
        take(job, run_id=run_id, is_restart=is_restart)
    held.release()
