"""Memory snapshots whose answers are known: a step of a small model, event by event."""

import pickle

import pytest

from shardwise.cli.main import main
from shardwise.errors import TraceError
from shardwise.measure.memory_profile import profile_memory
from shardwise.measure.memory_snapshot import read_memory_snapshot

FORWARD = [("model.py", "forward", 10), ("torch/nn/modules/module.py", "_call_impl", 1)]
LOSS = [("torch/nn/functional.py", "cross_entropy", 3), ("train.py", "step", 7)]
OPTIMIZER = [("torch/optim/adamw.py", "_init_group", 5), ("torch/optim/adamw.py", "step", 6)]
BUILD = [("train.py", "build", 2)]
GATHER = [("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_all_gather", 9), *FORWARD]
REDUCE = [
    ("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_reduce", 9),
    ("a.py", "post_backward", 1),
]
AUTOGRAD = []


def event(action, address, size, frames=()):
    named = [{"filename": file, "name": name, "line": line} for file, name, line in frames]
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": named}


def alloc(address, size, frames):
    return event("alloc", address, size, frames)


def free(address, size):
    return event("free_requested", address, size)


STEP = [
    alloc(1, 100, BUILD),  # parameters
    alloc(2, 50, GATHER),
    alloc(3, 40, FORWARD),  # saved for backward
    alloc(4, 8, FORWARD),  # a temporary
    free(4, 8),
    free(2, 50),
    alloc(5, 30, LOSS),
    alloc(6, 60, AUTOGRAD),  # a gradient before its reduction
    free(5, 30),
    alloc(7, 25, REDUCE),  # its shard, which the optimizer reads
    free(6, 60),
    free(3, 40),
    alloc(8, 200, OPTIMIZER),
    free(7, 25),
]


def write(folder, *, events=STEP, blocks=((1, 100), (8, 200)), total=512, name="rank0.pickle"):
    held = [
        {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": []}
        for address, size in blocks
    ]
    segment = {"device": 0, "address": 0, "total_size": total, "stream": 0, "blocks": held}
    path = folder / name
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [events, []], "allocator_settings": {}}))
    return path


def components(moment):
    return dict(moment.components)


def test_the_peak_of_each_phase_is_what_was_held_there_by_component(tmp_path):
    (profile,) = profile_memory(write(tmp_path))
    peaks = {moment.phase: (moment.num_bytes, components(moment)) for moment in profile.phase_peaks}
    assert peaks == {
        "load": (100, {"parameters": 100}),
        "forward": (198, {"parameters": 100, "gathered_parameters": 50, "activations": 40, "temporaries": 8}),
        "loss": (170, {"parameters": 100, "activations": 40, "logits": 30}),
        "backward": (230, {"parameters": 100, "activations": 40, "logits": 30, "temporaries": 60}),
        "optimizer": (325, {"parameters": 100, "gradients": 25, "optimizer": 200}),
    }
    assert profile.peak.phase == "optimizer"
    assert profile.peak_reserved_bytes == 512
    assert profile.slack_bytes == 187


def test_the_code_that_asked_is_named_without_plumbing(tmp_path):
    (profile,) = profile_memory(write(tmp_path))
    assert [(share.label, share.num_blocks, share.num_bytes) for share in profile.code] == [
        ("adamw.py:5 _init_group < adamw.py:6 step", 1, 200),
        ("train.py:2 build", 1, 100),
        ("_fsdp_collectives.py:9 foreach_reduce < a.py:1 post_backward", 1, 25),
    ]


def test_what_was_held_before_the_recording_counts_at_every_moment(tmp_path):
    path = write(tmp_path, events=STEP[1:6], blocks=((1, 100), (3, 40)))
    (profile,) = profile_memory(path)
    assert components(profile.peak) == {
        "before_recording": 100,
        "gathered_parameters": 50,
        "activations": 40,
        "temporaries": 8,
    }


def test_a_block_released_without_a_request_was_held_before(tmp_path):
    (history,) = read_memory_snapshot(write(tmp_path, events=[free(9, 70), *STEP[:1]], blocks=((1, 100),)))
    assert [(block.num_bytes, block.begin, block.end) for block in history.allocations] == [
        (70, None, 0),
        (100, 1, None),
    ]


def test_the_largest_reservation_is_found_by_walking_back_from_the_dump(tmp_path):
    events = [event("segment_alloc", 0, 400), *STEP, event("segment_free", 0, 300)]
    (profile,) = profile_memory(write(tmp_path, events=events, total=212))
    assert profile.peak_reserved_bytes == 512


def test_a_refused_request_is_reported_with_what_was_free(tmp_path, capsys):
    refused = {"action": "oom", "size": 2**30, "device_free": 2**20, "stream": 0}
    path = write(tmp_path, events=[*STEP, refused])
    (profile,) = profile_memory(path)
    assert [(request.num_bytes, request.free_bytes) for request in profile.refused] == [(2**30, 2**20)]
    assert main(["profile", str(path)]) == 0
    assert "out of memory: 1.00 GiB was asked for, 1.00 MiB free on the device" in capsys.readouterr().out


def test_the_picture_of_the_page_names_components_and_phases(tmp_path):
    page = tmp_path / "memory.html"
    assert main(["profile", str(write(tmp_path)), "--html", str(page)]) == 0
    text = page.read_text()
    assert "Where the memory went" in text
    assert "<title>gathered parameters</title>" in text
    assert "Where the step went" not in text


class _Trap:
    def __reduce__(self):
        return (print, ("code ran",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path, capsys):
    path = tmp_path / "trap.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [_Trap()], "segments": []}))
    assert main(["profile", str(path)]) == 2
    captured = capsys.readouterr()
    assert "code ran" not in captured.out
    assert "builtins.print" in captured.err


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04",
        pickle.dumps([1, 2]),
        pickle.dumps({"segments": []}),
        pickle.dumps({"segments": [], "device_traces": [[], []]}),
        pickle.dumps({"segments": [], "device_traces": [STEP]})[:-60],
    ],
)
def test_a_damaged_foreign_or_empty_snapshot_is_an_error_with_a_fix(tmp_path, content):
    path = tmp_path / "broken.pickle"
    path.write_bytes(content)
    with pytest.raises(TraceError) as refused:
        profile_memory(path)
    assert refused.value.code == "memory-snapshot-unreadable"
    assert "_record_memory_history" in refused.value.fix
