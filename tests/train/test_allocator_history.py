"""The allocator's history: recorded over the first steps, written once, and also when training fails."""

import pytest

from shardwise.errors import PlanError
from shardwise.launch.surroundings import require_allocator
from shardwise.train.allocator_history import allocator_history


@pytest.fixture
def calls(monkeypatch):
    """What would have been asked of CUDA."""
    found = []

    def record(enabled="all", **_facts):
        found.append(("record", enabled))

    monkeypatch.setattr("shardwise.train.allocator_history.record_allocator_history", record)
    monkeypatch.setattr(
        "shardwise.train.allocator_history.dump_allocator_history", lambda path: found.append(("dump", path))
    )
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 3)
    return found


def test_it_is_written_after_the_third_step_and_recording_ends(calls, tmp_path):
    with allocator_history(tmp_path, is_wanted=True, last_step=9) as history:
        for step in (1, 2, 3):
            assert calls == [("record", "all")]
            history.after_step(step)
        assert calls[1:] == [("dump", str(tmp_path / "snapshots" / "rank-0003.pickle")), ("record", None)]
        history.after_step(4)
    assert len(calls) == 3


def test_a_shorter_run_and_a_failure_write_it_too(calls, tmp_path):
    with pytest.raises(MemoryError), allocator_history(tmp_path, is_wanted=True, last_step=9):
        raise MemoryError
    assert [name for name, _ in calls] == ["record", "dump", "record"]


def test_nobody_is_recorded_who_did_not_ask(calls, tmp_path):
    with allocator_history(tmp_path, is_wanted=False, last_step=1) as history:
        history.after_step(1)
    assert calls == []
    assert not (tmp_path / "snapshots").exists()


def test_processors_have_no_history():
    with pytest.raises(PlanError) as refusal:
        require_allocator(is_on_gpu=False)
    assert refusal.value.code == "train-memory-snapshot"
    require_allocator(is_on_gpu=True)
