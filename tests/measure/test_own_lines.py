"""Which lines of a metrics file count, when the run was rolled back, killed and resumed."""

import json

import pytest

from shardwise.measure.own_lines import lineage_lines
from shardwise.measure.trainer_logs import read_trainer_log


def lines(life, steps, *, parent=None, after=0, loss=1.0):
    fields = {"life": life, "parent_life": parent, "parent_step": after} if life is not None else {}
    return [json.dumps({"step": step, "loss": loss, "step_s": loss, **fields}) for step in steps]


def kept(*written):
    text = "\n".join(line for lines in written for line in lines)
    return [(line["step"], line["loss"]) for line in lineage_lines(text) if "loss" in line]


def test_a_rollback_leaves_out_the_abandoned_steps():
    first = lines("1-a", range(1, 7))
    assert kept(first, lines("2-b", (4, 5), parent="1-a", after=3, loss=2.0)) == [
        *((step, 1.0) for step in (1, 2, 3)),
        *((step, 2.0) for step in (4, 5)),
    ]


def test_a_branch_further_on_does_not_bring_them_back():
    """Ten, back to 3 up to 12, and back to 8 of the second: the first life counts up to 3."""
    found = kept(
        lines("1-a", range(1, 11)),
        lines("2-b", range(4, 13), parent="1-a", after=3, loss=2.0),
        lines("3-c", (9,), parent="2-b", after=8, loss=3.0),
    )
    assert found == [*((step, 1.0) for step in range(1, 4)), *((step, 2.0) for step in range(4, 9)), (9, 3.0)]


def test_a_return_to_an_abandoned_branch_leaves_out_the_other_one():
    found = kept(
        lines("1-a", range(1, 7)),
        lines("2-b", (4, 5), parent="1-a", after=3, loss=2.0),
        lines("3-c", (7,), parent="1-a", after=6, loss=3.0),
    )
    assert found == [*((step, 1.0) for step in range(1, 7)), (7, 3.0)]


def test_a_run_that_goes_on_from_another_folder_has_its_own_steps_alone():
    found = kept(lines("1-a", range(1, 7)), lines("2-b", (101, 102), parent="7-elsewhere", after=100))
    assert [step for step, _ in found] == [101, 102]


def test_lines_without_a_life_follow_the_order_of_the_file():
    """Two starts of a version before lives, then one of this."""
    old = [*lines(None, range(1, 6)), *lines(None, (4, 5, 6), loss=2.0)]
    assert kept(old) == [*((step, 1.0) for step in (1, 2, 3)), *((step, 2.0) for step in (4, 5, 6))]
    assert kept(old, lines("1-a", (5,), parent="", after=4, loss=3.0))[-2:] == [(4, 2.0), (5, 3.0)]


def test_a_trainer_log_is_read_along_the_lineage(tmp_path):
    written = [*lines("1-a", range(1, 7)), *lines("2-b", (4, 5), parent="1-a", after=3, loss=2.0), '{"step": 6, "lo']
    (tmp_path / "metrics.jsonl").write_text("\n".join(written), encoding="utf-8")
    log = read_trainer_log(tmp_path / "metrics.jsonl")
    assert [(step.step, step.step_s) for step in log.steps] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0)]


STRANGE = (
    '{"step": 1, "life": []}',
    '{"step": 1, "life": "a", "parent_life": ["a"]}',
    '{"step": 1, "life": "a", "parent_life": "a", "parent_step": "x"}',
    '{"step": "x", "life": "a"}',
    '{"step": ' + "[" * 100_000,
    "[1]",
)


@pytest.mark.parametrize("line", STRANGE)
def test_strange_lines_are_no_traceback(line):
    assert len(lineage_lines(line)) <= 1
    assert kept(lines("2-b", (2,), parent="a", after=1), [line.replace("1", "3")], lines("2-b", (4,)))[-1] == (4, 1.0)
