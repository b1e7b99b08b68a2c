"""Real ranks that really fail: killed, out of memory, stuck, out of disk; the others end long before a time-out."""

import json
import os
import resource
import signal
import socket
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from shardwise.errors import DataError
from shardwise.train.checkpoint.checkpointer import CheckpointRequest, DistributedCheckpointer
from shardwise.train.checkpoint.folder import find_checkpoint
from shardwise.train.failure.classify import LossError
from shardwise.train.failure.diagnose import diagnose
from shardwise.train.failure.keepers import KEEPERS_VARIABLE, LAUNCHER
from shardwise.train.failure.record import (
    FailureRecord,
    RankRecord,
    failures_of,
    lost_keeper_of,
    lost_ranks,
    ranks_of,
    write_record,
)
from shardwise.train.failure.watch import RankWatch, WatchLimits
from train.ranks import run_ranks, start_ranks

LIMITS = WatchLimits(poll_s=0.1, peer_grace_s=1.0, hang_s=90.0, stop_grace_s=60.0)
SECONDS_TO_END = 45.0
"""Half of what the watch and gloo wait: whoever ends sooner has heard of the failure. On an idle machine 1 to 2 s."""
LIMIT_S = 600
"""How long a test waits for what takes seconds on an idle machine."""


class State:
    """Two tensors that every rank has, so that each of two ranks writes one of them."""

    def __init__(self):
        self.values = {"weights": torch.zeros(64, 64), "moments": torch.zeros(64, 64)}

    def state_dict(self):
        return self.values

    def load_state_dict(self, state):
        self.values = state


def watched(rank, folder, at_step, *, limits=LIMITS, num_steps=1_000_000, checkpointer=None):
    """A loop of all-reduces; ``at_step(rank, step)`` may do anything to the rank."""
    watch = RankWatch(folder, rank=rank, limits=limits)
    watch.start()
    watch.has_met = True
    watch.measure_memory = lambda: {"parameters": 10 << 20, "optimizer": 20 << 20}
    states = {"model": State()}
    try:
        for step in range(num_steps):
            stop = torch.tensor([float(watch.is_stop_requested)])
            dist.all_reduce(stop, op=dist.ReduceOp.MAX)
            if stop.item():
                watch.beat(step=step, phase="saving")
                checkpointer.finish(step, states)
                break
            at_step(rank, step)
            watch.beat(step=step + 1)
            time.sleep(0.01)
            if checkpointer is not None:
                checkpointer.after_step(step + 1, states)
    except BaseException as error:  # noqa: BLE001 - what the worker does
        watch.fail(error)
    watch.finish()
    return watch.step


def fails(world_size, function, folder, *given):
    """Start ranks, wait until all have ended, and say how many seconds after the first of them that was."""
    processes = start_ranks(world_size, function, folder, *given)
    ended = {}
    started = time.monotonic()
    while len(ended) < world_size and time.monotonic() - started < LIMIT_S:
        for number, process in enumerate(processes):
            if number not in ended and process.exitcode is not None:
                ended[number] = time.monotonic()
        time.sleep(0.02)
    for process in processes:
        process.kill()
    assert len(ended) == world_size, "a rank did not end"
    return max(ended.values()) - min(ended.values())


def _out_of_memory(rank, folder):
    def at_step(rank, step):
        if rank == 1 and step == 5:
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
            torch.empty(16 << 30, dtype=torch.uint8)

    return watched(rank, folder, at_step)


def test_out_of_memory_on_one_rank_ends_all_and_says_what_was_asked_for(tmp_path):
    assert fails(2, _out_of_memory, tmp_path) < SECONDS_TO_END
    error = diagnose(tmp_path)
    assert error.exit_code == 3
    assert error.code == "train-out-of-memory"
    assert error.message.startswith("rank 1 ran out of memory after step 5 (training): 17179869184 bytes more were")
    record = next(record for record in failures_of(tmp_path) if record.rank == 1)
    assert record.memory_bytes == {"parameters": 10 << 20, "optimizer": 20 << 20}


def _killed(rank, folder):
    def at_step(rank, step):
        if step == 5:
            (folder / f"there-{rank}").touch()
        if rank == 1 and step == 5:  # what it sent at last could be lost with it
            wait_until(lambda: len(list(folder.glob("there-*"))) == 3, "the others did not come as far")
            os.kill(os.getpid(), signal.SIGKILL)

    return watched(rank, folder, at_step)


def test_a_killed_rank_ends_all_and_is_named(tmp_path):
    assert fails(3, _killed, tmp_path) < SECONDS_TO_END
    error = diagnose(tmp_path)
    assert error.exit_code == 1
    assert error.code == "train-rank-died"
    assert error.message.startswith("rank 1 (process ")
    assert "died without a word, when the others had done 6 steps: it was killed from outside" in error.message
    assert [record.rank for record in lost_ranks(tmp_path)] == [1]
    assert {record.kind for record in failures_of(tmp_path)} <= {"peer-lost", "stopped"}


def _begins_beside_old_records(rank, folder):
    watch = RankWatch(folder, rank=rank, limits=LIMITS)
    watch.start()
    time.sleep(LIMITS.peer_grace_s + 1)  # the other rank is still importing
    write_record(folder, replace(OLD, has_ended=True))
    watch.has_met = True
    watch.finish()


OLD = RankRecord(rank=1, pid=2**22 + 1, host=socket.gethostname(), attempt="/0")
"""Of an earlier start by hand, which torchrun gives the same name as this one; no such process lives."""


def test_a_record_of_an_earlier_start_does_not_end_a_rank_that_waits_for_the_others(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    write_record(tmp_path, OLD)
    run_ranks(1, _begins_beside_old_records, tmp_path)
    assert not failures_of(tmp_path)


def _ends_before_it_looks(rank, folder):
    os.environ[KEEPERS_VARIABLE] = json.dumps({LAUNCHER: OLD.pid})
    watch = RankWatch(folder, rank=rank, limits=LIMITS)
    watch._look_for_keepers = lambda: None
    watch.start()
    watch.finish()


def test_a_rank_that_ends_before_it_has_looked_for_its_keepers_names_the_one_that_is_gone(tmp_path):
    run_ranks(1, _ends_before_it_looks, tmp_path)
    assert lost_keeper_of(tmp_path) == f"shardwise (process {OLD.pid})"


def test_records_of_a_folder_that_is_moved_while_it_is_listed_are_none(tmp_path, monkeypatch):
    write_record(tmp_path, OLD)

    def moved(*_):
        raise FileNotFoundError(tmp_path)

    monkeypatch.setattr(Path, "glob", moved)
    assert ranks_of(tmp_path) == failures_of(tmp_path) == ()


def _stuck(rank, folder):
    def at_step(rank, step):
        if rank == 1 and step == 5:
            _sleep_for_ever()
        if step == 5:  # the steps before take as long as they take
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=2), dist.group.WORLD)

    return watched(rank, folder, at_step)


def _sleep_for_ever():
    while True:
        time.sleep(0.1)


def test_a_rank_that_does_not_come_is_named_with_the_place_it_stands_at(tmp_path):
    assert fails(3, _stuck, tmp_path) < SECONDS_TO_END
    error = diagnose(tmp_path)
    assert error.code == "train-hang"
    assert "waited for each other in vain after step 5: rank 1 did not come" in error.message
    stacks = tmp_path / "failures" / "stacks-rank-0001.txt"
    assert str(stacks) in error.fix
    assert "_sleep_for_ever" in stacks.read_text(encoding="utf-8")
    recorder = next(record.flight_recorder_file for record in failures_of(tmp_path) if record.kind == "hang")
    assert recorder in error.message
    assert json.loads(Path(recorder).read_text(encoding="utf-8"))["entries"]


def _alone_for_ever(rank, folder):
    limits = WatchLimits(poll_s=0.1, peer_grace_s=1.0, hang_s=1.5)
    return watched(rank, folder, lambda rank, step: _sleep_for_ever() if step == 3 else None, limits=limits)


def test_a_run_in_which_nothing_moves_is_ended_without_any_collective(tmp_path):
    fails(1, _alone_for_ever, tmp_path)
    error = diagnose(tmp_path)
    assert error.code == "train-hang"
    assert "no step was finished for 2 s" in error.message


def _loss(rank, folder):
    def at_step(rank, step):
        if step == 4:
            raise LossError("the loss of step 5 is nan", code="train-loss", fix="lower the learning rate")

    return watched(rank, folder, at_step)


def test_a_loss_that_is_no_number_is_said_once_with_the_last_good_one(tmp_path):
    lines = [
        {"step": 3, "loss": 2.75},
        {"step": 4, "loss": 2.5, "gradient_norm": 80.25},
        {"step": 5, "loss": 2.25, "gradient_norm": float("nan")},
        {"step": 6, "loss": float("nan"), "gradient_norm": 1.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    fails(2, _loss, tmp_path)
    error = diagnose(tmp_path)
    assert error.message == "the loss of step 5 is nan; at step 4 the loss was 2.5 and its gradient norm 80.25"
    assert (error.code, error.fix, error.exit_code) == ("train-loss", "lower the learning rate", 1)


def _no_room(rank, folder):
    checkpointer = DistributedCheckpointer(CheckpointRequest(folder=folder / "checkpoints", every_steps=3))

    def at_step(rank, step):
        if rank == 1 and step == 4:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))

    return watched(rank, folder, at_step, checkpointer=checkpointer)


def test_a_part_that_cannot_be_written_ends_all_and_the_checkpoint_before_stays(tmp_path):
    fails(2, _no_room, tmp_path)
    error = diagnose(tmp_path)
    assert error.code == "train-disk-full"
    assert "a file would become too large; step-00000003 is whole and kept" in error.message
    assert "ulimit -f" in error.message
    assert find_checkpoint(tmp_path).step == 3


def _refusing(rank, folder):
    def at_step(rank, step):
        if rank == 1 and step == 2:
            raise DataError("the data hold token 300", code="data-vocabulary", fix="tokenise again")

    return watched(rank, folder, at_step)


def test_what_one_rank_refuses_is_refused_with_its_own_code_and_fix(tmp_path):
    assert fails(2, _refusing, tmp_path) < SECONDS_TO_END
    error = diagnose(tmp_path)
    assert (error.message, error.code, error.fix) == ("the data hold token 300", "data-vocabulary", "tokenise again")
    assert error.exit_code == 2


def _wrong(rank, folder):
    return watched(rank, folder, lambda rank, step: nn.Linear(2, 2)(torch.ones(3)) if rank == 0 and step == 2 else None)


def test_an_error_of_the_program_names_rank_step_and_error(tmp_path):
    assert fails(2, _wrong, tmp_path) < SECONDS_TO_END
    error = diagnose(tmp_path)
    assert error.code == "train-failed"
    assert error.message.startswith("rank 0 failed after step 2 (training): RuntimeError: mat1 and mat2 shapes cannot")


def _says_it_goes(folder):
    """What a rank does at a step, so that the test knows it has done some."""
    return lambda rank, step: (folder / f"going-{rank}").touch() if step == 3 else None


def wait_until_two_go(folder):
    wait_until(lambda: len(list(folder.glob("going-*"))) == 2, "the ranks did not get going")


def wait_until(is_so, otherwise):
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def _stops_when_asked(rank, folder):
    checkpointer = DistributedCheckpointer(CheckpointRequest(folder=folder / "checkpoints"))
    return watched(rank, folder, _says_it_goes(folder), checkpointer=checkpointer)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_one_rank_stops_all_after_the_step_with_a_checkpoint(tmp_path, number):
    processes = start_ranks(2, _stops_when_asked, tmp_path)
    wait_until_two_go(tmp_path)
    os.kill(processes[0].pid, number)
    for process in processes:
        process.join(LIMIT_S)
    assert [process.exitcode for process in processes] == [0, 0]
    assert failures_of(tmp_path) == lost_ranks(tmp_path) == ()
    assert find_checkpoint(tmp_path).step > 0


def _goes_on(rank, folder):
    limits = WatchLimits(poll_s=0.1, peer_grace_s=1.0, hang_s=8.0)
    return watched(rank, folder, _says_it_goes(folder), limits=limits)


def test_a_rank_that_is_stopped_from_outside_is_named_and_ends_the_run(tmp_path):
    processes = start_ranks(2, _goes_on, tmp_path)
    wait_until_two_go(tmp_path)
    os.kill(processes[1].pid, signal.SIGSTOP)
    for process in processes:
        process.join(LIMIT_S)
    assert [process.exitcode for process in processes] == [1, -signal.SIGKILL]
    (failure,) = failures_of(tmp_path)
    assert failure.kind == "hang"
    assert f"rank 1 (process {processes[1].pid}) was stopped by a signal" in failure.message
    error = diagnose(tmp_path)
    assert error.code == "train-hang"
    assert f"rank 1 (process {processes[1].pid} on {socket.gethostname()}) stood still" in error.message


def _fine(rank, folder):
    return watched(rank, folder, lambda rank, step: None, num_steps=5)


def test_a_run_that_ends_well_leaves_no_failure(tmp_path):
    assert run_ranks(2, _fine, tmp_path) == [5, 5]
    assert failures_of(tmp_path) == lost_ranks(tmp_path) == ()


def _waits_after_its_end(rank, folder):
    watched(rank, folder, lambda rank, step: None, num_steps=5)
    (folder / "waits").touch()
    _sleep_for_ever()


def test_a_rank_that_waits_for_the_others_after_its_end_is_ended_by_a_signal(tmp_path):
    """torchrun keeps forked ranks until all have ended."""
    (process,) = start_ranks(1, _waits_after_its_end, tmp_path)
    wait_until((tmp_path / "waits").exists, "the rank did not come to its end")
    os.kill(process.pid, signal.SIGTERM)
    process.join(LIMIT_S)
    assert process.exitcode == -signal.SIGTERM
    assert failures_of(tmp_path) == ()


def test_a_run_that_left_nothing_is_said_to_have(tmp_path):
    error = diagnose(tmp_path, exit_code=7)
    assert "ended with exit code 7 and no rank said why" in error.message


def _beside_old_records(rank, folder):
    """Records of an earlier start in the same folder: a rank that died and one that failed."""
    os.environ["TORCHELASTIC_RUN_ID"] = "second"
    return watched(rank, folder, lambda rank, step: None, num_steps=30)


def test_records_of_an_earlier_start_end_nobody(tmp_path):
    write_record(tmp_path, RankRecord(rank=3, pid=999_999_999, host=socket.gethostname(), attempt="first/0"))
    old = FailureRecord(rank=2, kind="exception", message="", step=0, phase="", time_s=0.0, attempt="first/0")
    write_record(tmp_path, old)
    assert run_ranks(2, _beside_old_records, tmp_path) == [30, 30]
