import json

import pytest

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint import folder as folder_module
from shardwise.train.checkpoint.folder import CheckpointFolder, find_checkpoint


def save(folder, step, *, size_bytes=10):
    path = folder.begin(step)
    (path / "__0_0.distcp").write_bytes(b"x" * size_bytes)
    (path / ".metadata").write_bytes(b"metadata")
    return folder.publish(step)


def steps(folder):
    return [checkpoint.step for checkpoint in folder.complete()]


def test_a_published_checkpoint_is_the_newest_and_named_by_latest(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 20)
    save(folder, 100)
    assert folder.newest().step == 100
    assert folder.newest().size_bytes == 18
    assert (tmp_path / "latest").read_text(encoding="utf-8") == "step-00000100\n"


def test_a_save_that_was_cut_short_is_never_chosen(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 10)
    path = folder.begin(20)
    (path / "__0_0.distcp").write_bytes(b"half")
    assert find_checkpoint(tmp_path).step == 10
    with pytest.raises(CheckpointError, match=r"the save of step 20 did not end: .*\.metadata is missing"):
        folder.publish(20)
    assert find_checkpoint(tmp_path).step == 10


@pytest.mark.parametrize("stop_at", ["flush", "complete", "rename", "latest"])
def test_dying_at_any_moment_of_publishing_leaves_a_whole_checkpoint(tmp_path, monkeypatch, stop_at):
    """The process is taken to die by an exception out of the operation; what is on disk then is what counts."""
    folder = CheckpointFolder(tmp_path)
    save(folder, 10)
    with monkeypatch.context() as patch:
        _die_at(patch, stop_at)
        with pytest.raises(KeyboardInterrupt):
            save(folder, 20)
    assert find_checkpoint(tmp_path).step == (20 if stop_at == "latest" else 10)
    assert save(folder, 20).step == 20
    assert steps(folder) == [10, 20]


def _die_at(patch, moment):
    def die(*_args):
        raise KeyboardInterrupt

    real_write = folder_module._write_durably
    if moment == "flush":
        patch.setattr(folder_module, "flush_to_disk", die)
    elif moment == "rename":
        patch.setattr(folder_module.Path, "rename", die)
    else:
        name = {"complete": "COMPLETE", "latest": "latest"}[moment]
        patch.setattr(
            folder_module, "_write_durably", lambda path, text: die() if path.name == name else real_write(path, text)
        )


def test_pruning_keeps_the_newest_and_never_the_last_good_one(tmp_path):
    folder = CheckpointFolder(tmp_path)
    for step in (10, 20, 30):
        save(folder, step)
    folder.begin(15)
    assert [checkpoint.step for checkpoint in folder.prune(2)] == [10]
    assert steps(folder) == [20, 30]
    folder.prune(0)
    assert steps(folder) == [30]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000030"]


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("__0_0.distcp", b"short", "has 5 bytes and was written with 10"),
        ("__0_0.distcp", None, "is missing"),
        (".metadata", bytes(8), "holds other bytes than were written"),
        ("COMPLETE", b"", "is missing or cannot be read"),
    ],
)
def test_a_damaged_checkpoint_is_named_with_the_good_one_before_it(tmp_path, file, content, said):
    """Going on from the one before would lose steps that nobody was told of."""
    folder = CheckpointFolder(tmp_path)
    good = save(folder, 10).path
    damaged = save(folder, 20).path / file
    damaged.write_bytes(content) if content is not None else damaged.unlink()
    for asked in (tmp_path, tmp_path / "step-00000020"):
        with pytest.raises(CheckpointError, match="the checkpoint of step 20 is damaged") as raised:
            find_checkpoint(asked)
        assert f"{damaged} {said}" in raised.value.message
        assert raised.value.code == "checkpoint-damaged"
        assert raised.value.fix.endswith(f"go on from step 10: --resume {good}")
    assert find_checkpoint(good).step == 10


def test_a_checkpoint_is_found_by_run_folder_by_folder_and_by_itself(tmp_path):
    folder = CheckpointFolder(tmp_path / "checkpoints")
    save(folder, 10)
    save(folder, 20)
    assert find_checkpoint(tmp_path).step == 20
    assert find_checkpoint(tmp_path / "checkpoints").step == 20
    assert find_checkpoint(tmp_path / "checkpoints" / "step-00000010").step == 10


def test_where_there_is_none_it_is_said_what_there_is(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere: it does not exist"):
        find_checkpoint(tmp_path / "nowhere")
    CheckpointFolder(tmp_path).begin(7)
    with pytest.raises(CheckpointError, match="unfinished-step-00000007 never became complete"):
        find_checkpoint(tmp_path)
    save(CheckpointFolder(tmp_path), 8).path.joinpath("__0_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"step-00000008/__0_0\.distcp is missing") as raised:
        find_checkpoint(tmp_path)
    assert raised.value.fix.endswith("start again: no older one is there")


def test_a_checkpoint_says_what_is_in_it(tmp_path):
    path = save(CheckpointFolder(tmp_path), 3).path
    assert json.loads((path / "COMPLETE").read_text(encoding="utf-8")) == {
        "step": 3,
        "files_bytes": {".metadata": 8, "__0_0.distcp": 10},
        "files_crc32": {".metadata": 1326724116},
    }
