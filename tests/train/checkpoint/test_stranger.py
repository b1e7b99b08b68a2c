"""A checkpoint from a stranger is data: nothing that it names is called, whoever looks at it."""

import io
import json
import pickle
import random
import shutil
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import MetadataIndex

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint.checkpointer import CheckpointRequest, DistributedCheckpointer
from shardwise.train.checkpoint.folder import find_checkpoint
from shardwise.train.checkpoint.metadata import read_metadata
from shardwise.train.pretrained.adapter import AdapterSettings, export_adapter
from shardwise.train.pretrained.export import ExportedModel, export_checkpoint

ADAPTER = AdapterSettings(rank=2, scale_ratio=1.0, dropout_fraction=0.0, target_names=("q_proj",))


class Values:
    def __init__(self, **values):
        self.values = values

    def state_dict(self):
        return dict(self.values)

    def load_state_dict(self, state):
        self.values = state


def states():
    weights = {"w": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16)}
    return {"model": Values(**weights), "progress": Values(step=3, names=["a", "b"], more={"rate": 0.5, "none": None})}


@pytest.fixture
def saved(tmp_path):
    """The folder of one checkpoint."""
    checkpointer = DistributedCheckpointer(CheckpointRequest(folder=tmp_path / "states"))
    checkpointer.finish(3, states())
    return find_checkpoint(tmp_path / "states").path


def resume(path):
    found = states()
    found["model"].values["w"] = torch.zeros(3, 4)
    DistributedCheckpointer(CheckpointRequest(resume_from=path)).load(found)
    return found


def export(path):
    return export_checkpoint(path, path.parent / "exported", ExportedModel(config={"model_type": "llama"}))


READERS = {
    "resume": resume,
    "export": export,
    "adapter": lambda path: export_adapter(path, path.parent / "exported", ADAPTER),
    "metadata": read_metadata,
}


class Harmful:
    """Makes a file when it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


class Evaluated(Harmful):
    def __reduce__(self):
        return eval, (f"__import__('pathlib').Path({str(self.mark)!r}).touch()",)


class Loaded(Harmful):
    """Goes through a function of torch that unpickles what it is given."""

    def __reduce__(self):
        buffer = io.BytesIO()
        torch.save(Harmful(self.mark), buffer)
        return torch.storage._load_from_bytes, (buffer.getvalue(),)


HARMFUL = [Harmful, Evaluated, Loaded]


def reseal(path):
    """Make the sums of the small files true again, as whoever changed them would."""
    listed = json.loads((path / "COMPLETE").read_text(encoding="utf-8"))
    listed["files_bytes"] = {name: (path / name).stat().st_size for name in listed["files_bytes"]}
    listed["files_crc32"] = {name: crc32((path / name).read_bytes()) for name in listed["files_crc32"]}
    (path / "COMPLETE").write_text(json.dumps(listed), encoding="utf-8")


def replace_value(path, name, harmful):
    """Put other bytes in the place of a value or a tensor, with a place that is true of them."""
    metadata = FileSystemReader(path).read_metadata()
    place = next(place for index, place in metadata.storage_data.items() if index.fqn == name)
    buffer = io.BytesIO()
    torch.save(harmful, buffer)
    file = path / place.relative_path
    place.offset, place.length = file.stat().st_size, len(buffer.getvalue())
    file.write_bytes(file.read_bytes() + buffer.getvalue())
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    reseal(path)


def refused(read, path, mark):
    with pytest.raises(CheckpointError) as raised:
        read(path)
    assert not mark.exists()
    assert "\n" not in raised.value.message
    return raised.value


@pytest.mark.parametrize("harmful", HARMFUL)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_code_in_the_metadata_is_not_run(saved, tmp_path, read, harmful):
    mark = tmp_path / "mark"
    metadata = FileSystemReader(saved).read_metadata()
    metadata.planner_data["model.w"] = harmful(mark)
    (saved / ".metadata").write_bytes(pickle.dumps(metadata))
    reseal(saved)
    error = refused(read, saved, mark)
    assert error.code == "checkpoint-unsafe"
    assert error.message.startswith(f"{saved / '.metadata'} names ")
    FileSystemReader(saved).read_metadata()
    assert mark.exists(), "torch's own reader runs it, so the test can fail"


@pytest.mark.parametrize("harmful", HARMFUL)
@pytest.mark.parametrize("name", ["progress.step", "progress.more.none", "model.w"])
def test_code_in_the_place_of_a_value_or_a_tensor_is_not_run(saved, tmp_path, name, harmful):
    replace_value(saved, name, harmful(tmp_path / "mark"))
    error = refused(resume, saved, tmp_path / "mark")
    assert error.code == "checkpoint-unsafe"
    assert error.message.startswith(f"{saved} holds something besides tensors and plain values")


@pytest.mark.parametrize("read", [READERS["export"], READERS["adapter"]], ids=["export", "adapter"])
def test_code_in_the_place_of_a_tensor_is_not_run_by_an_export(saved, tmp_path, read):
    replace_value(saved, "model.w", Harmful(tmp_path / "mark"))
    assert refused(read, saved, tmp_path / "mark").code == "checkpoint-unsafe"


def test_what_our_reader_finds_is_what_torch_finds(saved):
    theirs, ours = FileSystemReader(saved).read_metadata(), read_metadata(saved)
    theirs.storage_meta = ours.storage_meta
    assert ours == theirs


def test_a_checkpoint_of_ours_comes_back_whole(saved):
    found = resume(saved)
    assert found["model"].values["w"].tolist() == torch.arange(12.0).reshape(3, 4).tolist()
    assert found["progress"].values == {"step": 3, "names": ["a", "b"], "more": {"rate": 0.5, "none": None}}


def _elsewhere(metadata):
    next(iter(metadata.storage_data.values())).relative_path = "../../secret"


def _too_far(metadata):
    next(iter(metadata.storage_data.values())).length = 1 << 40


def _too_large(metadata):
    held = metadata.state_dict_metadata["model.b"]
    held.size = held.chunks[0].sizes = torch.Size([1 << 40])


def _half(metadata):
    metadata.state_dict_metadata["model.w"].chunks[0].sizes = torch.Size([3, 2])


def _nowhere(metadata):
    metadata.storage_data = {index: place for index, place in metadata.storage_data.items() if index.fqn != "model.b"}


def _text_for_a_table(metadata):
    metadata.storage_data = "nothing"


def _unlisted(metadata):
    index, place = next((index, place) for index, place in metadata.storage_data.items() if index.fqn == "model.w")
    metadata.storage_data[MetadataIndex(index.fqn, torch.Size([1, 1]))] = place


CLAIMS = [_elsewhere, _too_far, _too_large, _half, _nowhere, _unlisted, _text_for_a_table]


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_claim_that_goes_beyond_the_files_is_refused(saved, claim):
    metadata = FileSystemReader(saved).read_metadata()
    claim(metadata)
    (saved / ".metadata").write_bytes(pickle.dumps(metadata))
    reseal(saved)
    with pytest.raises(CheckpointError) as raised:
        resume(saved)
    assert raised.value.code == "checkpoint-damaged"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04.",
        b"\x80\x04\x8e" + (1 << 40).to_bytes(8, "little") + b"x.",
        b"\x80\x02Nr\xf0\xff\xff\xff.",
        b"(" * 100_000 + b".",
        b"I" + b"9" * 5000 + b"\n.",
    ],
    ids=["empty", "nothing", "a terabyte", "a table of billions", "marks", "digits"],
)
def test_a_pickle_that_claims_what_is_not_there_costs_no_memory(saved, content):
    (saved / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError) as raised:
        read_metadata(saved)
    assert raised.value.code == "checkpoint-damaged"


def test_changed_metadata_never_end_in_another_error(saved):
    """What is read afterwards, where a change leaves it readable, is refused in one sentence as well."""
    content, draw = (saved / ".metadata").read_bytes(), random.Random(5)
    for number in range(300):
        changed = bytearray(content)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        copied = shutil.copytree(saved, saved.parent / f"step-{number + 100}")
        (copied / ".metadata").write_bytes(changed[: draw.choice((len(changed), draw.randrange(len(changed))))])
        reseal(copied)
        with suppress(CheckpointError):
            resume(copied)
        shutil.rmtree(copied)


@pytest.mark.parametrize("file", ["COMPLETE", "state.json"])
@pytest.mark.parametrize(
    "content",
    [
        "[" * 200_000,
        '{"files_bytes": {".metadata": "x"}}',
        '{"files_bytes": [1]}',
        "7",
        "\udcff",
        '{"job": {"schema": 1}}',
    ],
)
def test_the_small_files_are_never_a_traceback(saved, file, content):
    (saved / file).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError) as raised:
        find_checkpoint(saved)
    assert raised.value.code == "checkpoint-damaged"
