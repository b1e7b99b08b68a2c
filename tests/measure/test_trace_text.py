"""Traces that are cut off, damaged, foreign or empty: what is read, what is said, and never a silent zero."""

import gzip
import json
import time

import pytest

from measure.made_up_traces import kernel, trace_text, write_trace
from shardwise.errors import TraceError
from shardwise.measure import trace_text as reading
from shardwise.measure.profile import profile_traces
from shardwise.measure.rank_trace import read_rank_trace
from shardwise.measure.trace_files import trace_files
from shardwise.measure.trace_text import ReadingNotes, trace_events

EVENTS = [event for index in range(50) for event in kernel(f"sgemm {index} µ", 10 * index, 10 * index + 5, launch=0)]


def read(path):
    notes = ReadingNotes()
    return list(trace_events(path, notes)), notes


def test_what_was_written_is_read_whatever_the_size_of_a_chunk(tmp_path, monkeypatch):
    path = write_trace(tmp_path, EVENTS)
    for size in (1, 7, 64, 4096):
        monkeypatch.setattr(reading, "CHUNK_BYTES", size)
        found, notes = read(path)
        assert found == EVENTS
        assert notes.header["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 2}
        assert "traceName" not in notes.header
        assert (notes.is_truncated, notes.num_damaged) == (False, 0)


def test_gzip_is_told_by_its_first_bytes(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(trace_text(EVENTS).encode()))
    assert read(path)[0] == EVENTS


def test_a_bare_array_may_end_without_its_bracket(tmp_path):
    path = tmp_path / "array.json"
    path.write_text(json.dumps(EVENTS)[:-1], encoding="utf-8")
    assert read(path)[0] == EVENTS


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path, compressed):
    text = trace_text(EVENTS).encode()
    content = gzip.compress(text) if compressed else text
    path = tmp_path / "cut.json"
    path.write_bytes(content[: len(content) * 2 // 3])
    trace = read_rank_trace(path)
    assert 0 < len(trace.works) < 50
    assert "the file ends in the middle" in trace.warnings[0]


def test_a_damaged_event_is_skipped_and_counted(tmp_path):
    text = trace_text(EVENTS)
    broken = text.replace('"name": "sgemm 7 \\u00b5"', '"name": sgemm 7', 1)
    assert broken != text
    path = tmp_path / "damaged.json"
    path.write_text(broken, encoding="utf-8")
    found, notes = read(path)
    assert notes.num_damaged >= 1
    assert len(found) >= len(EVENTS) - 2


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "trace-foreign"),
        (b"PK\x03\x04 a zip", "trace-foreign"),
        (b'{"nodes": []}', "trace-foreign"),
        (b'{"traceEvents": []}', "trace-empty"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}', "trace-empty"),
        (b"\x1f\x8b\x08\x00 broken", "trace-foreign"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_fix(tmp_path, content, code):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(TraceError) as refused:
        read_rank_trace(path)
    assert refused.value.code == code
    assert refused.value.fix


def test_one_bad_file_among_good_ones_is_reported_beside_them(tmp_path):
    bad = tmp_path / "bad.json"
    bad.write_text("no trace", encoding="utf-8")
    profile = profile_traces([bad, write_trace(tmp_path, EVENTS)])
    assert len(profile.ranks) == 1
    assert any("bad.json" in warning for warning in profile.warnings)


def test_events_without_a_duration_are_said_to_be_skipped(tmp_path):
    path = write_trace(tmp_path, [*EVENTS, {"ph": "X", "cat": "kernel", "name": "sgemm", "ts": "late"}])
    assert any("no start or duration" in warning for warning in read_rank_trace(path).warnings)


def test_folders_are_searched_and_missing_files_refused(tmp_path):
    path = write_trace(tmp_path, EVENTS, rank=3)
    (tmp_path / "notes.txt").write_text("", encoding="utf-8")
    assert trace_files([tmp_path]) == (path,)
    with pytest.raises(TraceError):
        trace_files([tmp_path / "missing.json"])


def packed_blanks(tmp_path, num_bytes):
    path = tmp_path / "rank0.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"[")
        for _ in range(num_bytes >> 20):
            file.write(b" " * (1 << 20))
        file.write(b"]")
    return path


def test_blanks_without_end_are_no_trace(tmp_path):
    path = packed_blanks(tmp_path, 64 << 20)
    started_s = time.process_time()
    with pytest.raises(TraceError, match="blanks one after the other"):
        list(trace_events(path, ReadingNotes()))
    assert time.process_time() - started_s < 20


def test_a_file_that_unpacks_to_a_thousand_times_its_size_is_no_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "FREE_BYTES", 1 << 20)
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b"[" + b'{"ph": "M"},' * 2_000_000))
    with pytest.raises(TraceError, match="unpacks to more than"):
        list(trace_events(path, ReadingNotes()))


def test_no_more_is_unpacked_at_once_than_is_looked_at(tmp_path):
    path = packed_blanks(tmp_path, 64 << 20)
    with path.open("rb") as file:
        assert max(map(len, reading._unpacked(file, ReadingNotes()))) <= reading.CHUNK_BYTES


def test_a_nest_without_end_is_damage(tmp_path):
    path = tmp_path / "rank0.json"
    path.write_text('[{"ph": "M"},\n  {"args": ' + "[" * 100_000 + ',\n  {"ph": "M"}]', encoding="utf-8")
    notes = ReadingNotes()
    assert len(list(trace_events(path, notes))) == 2
    assert notes.num_damaged == 1
