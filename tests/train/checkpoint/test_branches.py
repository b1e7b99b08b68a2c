"""A run that goes on from an older checkpoint begins a branch; the one that it leaves is kept apart."""

import json
from contextlib import suppress

import pytest

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint import folder as folder_module
from shardwise.train.checkpoint.folder import CheckpointFolder, find_checkpoint
from shardwise.train.checkpoint.lineage import Lineage, Stretch, lineage_of

FIRST = Lineage(life="1-aaaaaa")
STATE = "state.json"


def save(path, lineage, step):
    """What rank 0 does at a step."""
    folder = CheckpointFolder(path, lineage)
    unfinished = folder.begin(step)
    (unfinished / "__0_0.distcp").write_bytes(lineage.life.encode())
    (unfinished / ".metadata").write_bytes(b"metadata")
    (unfinished / STATE).write_text(json.dumps({"step": step, "lineage": lineage.to_json()}), encoding="utf-8")
    return folder.publish(step)


def resumed(path, life, asked=None):
    """A new life that goes on from what was asked for; its lineage."""
    checkpoint = find_checkpoint(asked or path)
    lineage = lineage_of(checkpoint.path).child(life, step=checkpoint.step)
    CheckpointFolder(path, lineage).follow(checkpoint.path)
    return lineage


def steps(path):
    return [found.step for found in CheckpointFolder(path).complete()]


def names(path):
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_dir())


@pytest.fixture
def states(tmp_path):
    """Checkpoints of steps 10, 15 and 20 of one life."""
    CheckpointFolder(tmp_path, FIRST).follow(None)
    for step in (10, 15, 20):
        save(tmp_path, FIRST, step)
    return tmp_path


def test_a_plain_resume_moves_nothing(states):
    lineage = resumed(states, "2-b")
    assert lineage.ancestors == (Stretch(life=FIRST.life, step=20),)
    assert steps(states) == [10, 15, 20]
    assert find_checkpoint(states).step == 20


def test_a_rollback_is_the_truth_before_its_first_save(states):
    resumed(states, "2-b", states / "step-00000015")
    assert find_checkpoint(states).step == 15
    assert CheckpointFolder(states).newest().step == 15
    assert steps(states) == [10, 15]
    assert (states / "abandoned-2-b" / "step-00000020" / "__0_0.distcp").read_bytes() == FIRST.life.encode()


def test_what_the_branch_saves_is_newest_and_pruned_by_itself(states):
    branch = resumed(states, "2-b", states / "step-00000010")
    for step in (12, 14):
        save(states, branch, step)
        CheckpointFolder(states, branch).prune(2)
    assert steps(states) == [12, 14]
    assert find_checkpoint(states).step == 14
    assert sorted(path.name for path in (states / "abandoned-2-b").iterdir()) == ["step-00000015", "step-00000020"]


def test_a_save_of_the_same_step_in_the_branch_is_the_branch_s(states):
    branch = resumed(states, "2-b", states / "step-00000015")
    save(states, branch, 20)
    assert (find_checkpoint(states).path / "__0_0.distcp").read_bytes() == b"2-b"
    assert (states / "abandoned-2-b" / "step-00000020" / "__0_0.distcp").read_bytes() == FIRST.life.encode()


def test_an_abandoned_checkpoint_can_be_returned_to(states):
    branch = resumed(states, "2-b", states / "step-00000015")
    save(states, branch, 18)
    back = resumed(states, "3-c", states / "abandoned-2-b" / "step-00000020")
    assert back.ancestors == (Stretch(life=FIRST.life, step=20),)
    assert find_checkpoint(states).path == states / "abandoned-2-b" / "step-00000020"
    assert steps(states) == [10, 15]
    assert (states / "abandoned-3-c" / "step-00000018").is_dir()
    save(states, back, 21)
    assert find_checkpoint(states).step == 21
    assert find_checkpoint(states / "abandoned-3-c").step == 18


def test_steps_of_a_grandparent_behind_the_branch_do_not_count(states):
    """A life that saved 18 after 15 was resumed; a zombie of the first life then publishes its step 17."""
    branch = resumed(states, "2-b", states / "step-00000015")
    save(states, branch, 18)
    save(states, FIRST, 17)
    last = resumed(states, "3-c", states / "step-00000018")
    assert last.ancestors == (Stretch(life=FIRST.life, step=15), Stretch(life="2-b", step=18))
    assert steps(states) == [10, 15, 18]
    assert (states / "abandoned-3-c" / "step-00000017").is_dir()


def test_a_run_from_another_folder_or_from_nothing_leaves_all_that_is_there(states, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    save(elsewhere, FIRST, 5)
    resumed(states, "2-b", elsewhere / "step-00000005")
    assert steps(states) == []
    assert sorted(path.name for path in (states / "abandoned-2-b").iterdir())[-1] == "step-00000020"
    with pytest.raises(CheckpointError, match=r"what an earlier life of the run saved is in .*abandoned-2-b"):
        find_checkpoint(states)
    CheckpointFolder(states, Lineage(life="3-c")).follow(None)
    save(states, Lineage(life="3-c"), 1)
    assert find_checkpoint(states).step == 1


class Killed(BaseException):
    pass


def counted_operations(patch, last):
    """Every operation that changes names on the disk; the process is taken to die before one of them."""
    done = []

    def watched(real):
        def operation(*given, **named):
            if len(done) == last:
                raise Killed
            done.append(real.__name__)
            return real(*given, **named)

        return operation

    for name in ("rename", "replace", "mkdir"):
        patch.setattr(folder_module.Path, name, watched(getattr(folder_module.Path, name)))
    patch.setattr(folder_module.shutil, "rmtree", watched(folder_module.shutil.rmtree))
    return done


@pytest.mark.parametrize("moment", range(12))
def test_dying_between_any_two_moves_of_a_rollback_leaves_a_state_that_the_next_life_understands(
    states, monkeypatch, moment
):
    with monkeypatch.context() as patch:
        counted_operations(patch, moment)
        with suppress(Killed):
            save(states, resumed(states, "2-b", states / "step-00000010"), 12)
    found = find_checkpoint(states)
    assert found.step in (10, 12, 20)
    latest = (states / "latest").read_text(encoding="utf-8").split("\n")
    assert (found.step == 20) == (latest[1] == FIRST.life), "what was not begun is not begun"
    lineage = resumed(states, "3-c")
    assert [step for step in steps(states) if step > found.step] == []
    save(states, lineage, 30)
    assert find_checkpoint(states).step == 30
    everything = {path.name for path in states.rglob("step-*")}
    assert {"step-00000010", "step-00000015", "step-00000020"} <= everything, "nothing is deleted unasked"


def test_all_moments_of_a_rollback_are_tried(states, monkeypatch):
    with monkeypatch.context() as patch:
        done = counted_operations(patch, -1)
        save(states, resumed(states, "2-b", states / "step-00000010"), 12)
    assert 8 <= len(done) <= 12


@pytest.mark.parametrize("moment", range(5))
def test_dying_while_a_checkpoint_is_published_keeps_a_whole_one(states, monkeypatch, moment):
    with monkeypatch.context() as patch:
        counted_operations(patch, moment)
        with suppress(Killed):
            save(states, FIRST, 25)
    assert find_checkpoint(states).step in (20, 25)
    lineage = resumed(states, "2-b")
    assert save(states, lineage, 30).step == 30


def forget_lives(path):
    """The folder as versions before lives left it."""
    for checkpoint in path.glob("step-*"):
        (checkpoint / STATE).unlink()
        listed = json.loads((checkpoint / "COMPLETE").read_text(encoding="utf-8"))
        for field in ("files_bytes", "files_crc32"):
            listed[field].pop(STATE)
        (checkpoint / "COMPLETE").write_text(json.dumps(listed), encoding="utf-8")
    named = (path / "latest").read_text(encoding="utf-8").split("\n")[0]
    (path / "latest").write_text(f"{named}\n", encoding="utf-8")


def test_an_old_folder_is_resumed_and_rolled_back(states):
    forget_lives(states)
    assert find_checkpoint(states).step == 20
    branch = resumed(states, "1-b", states / "step-00000015")
    assert branch.ancestors == (Stretch(life="", step=15),)
    assert steps(states) == [10, 15]
    save(states, branch, 16)
    assert find_checkpoint(states).step == 16


def test_an_old_folder_without_latest_or_with_an_older_rollback_is_understood(states):
    forget_lives(states)
    (states / "latest").write_text("step-00000015\n", encoding="utf-8")
    assert find_checkpoint(states).step == 15
    (states / "latest").unlink()
    assert find_checkpoint(states).step == 20


def test_a_checkpoint_that_latest_names_and_somebody_took_away_is_said_to_be_missing(states):
    (states / "step-00000020").rename(states / "mine")
    with pytest.raises(CheckpointError) as raised:
        find_checkpoint(states)
    assert raised.value.message.endswith("step-00000020 is missing, and latest names it")
    assert raised.value.fix.endswith(f"go on from step 15: --resume {states / 'step-00000015'}")


def test_what_a_life_that_stood_still_goes_on_writing_is_never_published(states):
    """Its unfinished folder is gone, and the one of the new life has another name."""
    zombie = CheckpointFolder(states, FIRST)
    unfinished = zombie.begin(25)
    (unfinished / ".metadata").write_bytes(b"half of one")
    branch = resumed(states, "2-b")
    own = CheckpointFolder(states, branch).begin(25)
    assert own != unfinished
    with pytest.raises(CheckpointError, match="did not end"):
        zombie.publish(25)
    (own / ".metadata").write_bytes(b"whole")
    assert (CheckpointFolder(states, branch).publish(25).path / ".metadata").read_bytes() == b"whole"


def test_a_life_that_lost_the_folder_while_its_files_were_flushed_publishes_nothing(states):
    zombie = CheckpointFolder(states, FIRST)
    unfinished = zombie.begin(25)
    (unfinished / ".metadata").write_bytes(b"whole")
    before = sorted(states.glob("step-*"))

    def lost():
        assert (unfinished / "COMPLETE").exists(), "asked too early"
        raise CheckpointError("another run took it over", code="train-folder-lost", fix="let it go on")

    with pytest.raises(CheckpointError, match="another run"):
        zombie.publish(25, require_held=lost)
    assert sorted(states.glob("step-*")) == before


@pytest.mark.parametrize("content", ["", "\n", "../../etc\nx\n", "\0\n", "step-00000015\n99999999999999999999-x\n"])
def test_a_strange_latest_is_no_traceback(states, content):
    (states / "latest").write_text(content, encoding="utf-8")
    with suppress(CheckpointError):
        assert find_checkpoint(states).step in (15, 20)
