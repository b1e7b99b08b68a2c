"""A process that may start no more threads says which limit it met."""

import resource
import threading

import pytest

from shardwise.train.failure import threads
from shardwise.train.failure.classify import classify
from shardwise.train.failure.diagnose import diagnose
from shardwise.train.failure.record import FailureRecord, write_record
from shardwise.train.failure.threads import thread_sentences


@pytest.mark.parametrize("said", ["can't start new thread", "Resource temporarily unavailable"])
def test_a_thread_that_does_not_start_has_a_kind_of_its_own(said):
    assert classify(RuntimeError(said)) == "no-thread"
    assert classify(ValueError(said)) == "exception"


def test_so_it_is_where_python_really_has_none(monkeypatch):
    monkeypatch.setattr(threading, "_start_new_thread", _refuse)
    with pytest.raises(RuntimeError) as refused:
        threading.Thread(target=print).start()
    assert classify(refused.value) == "no-thread"


def test_a_socket_that_says_the_same_is_a_lost_peer():
    said = "writev [127.0.0.1]:4242: Resource temporarily unavailable; connection closed by peer"
    assert classify(RuntimeError(said)) == "peer-lost"


def _refuse(*_):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("limits", "says", "fix"),
    [
        ({"v": (2 << 20, -1)}, "ulimit -v is 2,048 KiB of address space", "ulimit -v unlimited, or use fewer"),
        ({"u": (64, 128)}, "ulimit -u is 64", "ulimit -u 128, or use fewer"),
        ({"u": (64, 64)}, "ulimit -u is 64", "have root raise ulimit -u, or use fewer"),
        ({"pids": "99\n"}, "the container's pids.max is 99", "raise the container's pids.max, or use fewer"),
        ({"pids": "max\n"}, "no limit of this shell or container is set", "use fewer ranks"),
        ({}, "no limit of this shell or container is set", "use fewer ranks"),
    ],
    ids=str,
)
def test_the_limit_is_named_with_how_to_raise_it(tmp_path, monkeypatch, limits, says, fix):
    kinds = {resource.RLIMIT_AS: "v", resource.RLIMIT_NPROC: "u"}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits.get(kinds[kind], (resource.RLIM_INFINITY, -1)))
    monkeypatch.setattr(threads, "PIDS_MAX", tmp_path / "pids.max")
    if "pids" in limits:
        (tmp_path / "pids.max").write_text(limits["pids"], encoding="ascii")
    record = FailureRecord(
        rank=1,
        kind="no-thread",
        message="RuntimeError: can't start new thread",
        step=0,
        phase="starting",
        time_s=1.0,
    )
    write_record(tmp_path, record)
    error = diagnose(tmp_path)
    assert (error.code, error.exit_code) == ("train-threads", 1)
    assert error.message.startswith(f"rank 1 could start no more threads (can't start new thread): {says}")
    assert error.fix.startswith(fix)


def test_a_process_before_there_are_ranks_is_none_of_them():
    assert thread_sentences(None, "can't start new thread")[0].startswith("a process of the run could start no more")
