"""Whatever a file from outside holds, its reader answers with one of our refusals, at once, and escapes nothing."""

import json
import random
import time
from collections import Counter

import pytest

from outside import PLAN, READERS
from shardwise.errors import ShardwiseError

SEED = 20261129
NUM_CASES = 20_000
NUM_QUICK = 300
MOST_S = 30.0
"""Of this process's own time, for one file."""


def case(number):
    """A reader and the damaged content of one of its files."""
    draw = random.Random(f"{SEED} {number}")
    reader = draw.choice(READERS)
    return reader, reader.damage(reader.content, draw)


def answered(number, folder, capsys):
    """What becomes of one case: refused or read."""
    reader, content = case(number)
    path = folder / reader.file
    for old in folder.glob("*"):
        if old.is_file() and old.name != "good-plan.json":
            old.unlink()
    path.write_bytes(content)
    started_s = time.process_time()
    refusal = None
    try:
        reader.read(path)
    except ShardwiseError as error:
        refusal = error
    except BaseException as error:
        raise AssertionError(f"case {number}, {reader.name}: {error!r}, of {content[:300]!r}") from error
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err, f"case {number}, {reader.name}: an escape byte reached the terminal"
    assert time.process_time() - started_s < MOST_S, f"case {number}, {reader.name}"
    assert refusal is None or "\n" not in refusal.message, f"case {number}, {reader.name}: {refusal}"
    return "refused" if refusal or said.err else "read"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDWISE_DEBUG", "1")  # a failure of ours is raised and not reported
    (tmp_path / "good-plan.json").write_text(json.dumps(PLAN), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_good_file_is_read(folder, reader, capsys):
    path = folder / reader.file
    path.write_bytes(reader.content)
    if reader.name == "index of weights":
        path.with_name("part-1.safetensors").write_bytes(next(one.content for one in READERS if one.name == "weights"))
    reader.read(path)
    assert "error:" not in capsys.readouterr().err


def test_some_hundred_damaged_files_are_answered(folder, capsys):
    found = Counter(answered(number, folder, capsys) for number in range(NUM_QUICK))
    assert found["refused"] > NUM_QUICK / 3


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(20))
def test_thousands_of_damaged_files_are_answered(folder, part, capsys):
    """Twenty parts of a thousand; a number names a case for good."""
    share = NUM_CASES // 20
    found = Counter(answered(number, folder, capsys) for number in range(part * share, (part + 1) * share))
    assert found["refused"] > share / 3
