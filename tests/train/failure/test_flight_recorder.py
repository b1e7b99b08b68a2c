"""The collective that hangs is read off torch's own recording."""

import json

from shardwise.train.failure.flight_recorder import num_collectives, waiting_collective

ENTRIES = [
    {"profiling_name": "nccl:all_reduce", "state": "completed", "collective_seq_id": 385, "input_sizes": [[4]]},
    {"profiling_name": "nccl:_all_gather_base", "state": "started", "collective_seq_id": 386, "input_sizes": [[7, 11]]},
    {"profiling_name": "nccl:all_reduce", "state": "scheduled", "collective_seq_id": 387, "input_sizes": [[4]]},
]


def test_the_first_collective_that_did_not_complete_is_named(tmp_path):
    path = tmp_path / "recording.json"
    path.write_text(json.dumps({"entries": ENTRIES}))
    assert waiting_collective(path) == "_all_gather_base of 7x11 elements, number 386 of its group"
    assert num_collectives(path) == 387


def test_nothing_hangs_where_all_completed(tmp_path):
    path = tmp_path / "recording.json"
    path.write_text(json.dumps({"entries": ENTRIES[:1]}))
    assert waiting_collective(path) == ""


def test_a_rank_without_a_recording_has_no_count(tmp_path):
    assert num_collectives(tmp_path / "none.json") is None
