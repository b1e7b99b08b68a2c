"""Whatever a plan file holds, reading and checking it ends in a plan with refusals or in one of our errors."""

import json
from copy import deepcopy
from math import isfinite

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardwise.errors import ShardwiseError
from shardwise.plan import Plan
from shardwise.plan_file import plan_to_json, read_plan
from shardwise.plan_file.read import numbered_plan_lines
from shardwise.rules import find_refusals
from strategies import plan_documents

FUZZ = settings(max_examples=200)


def is_well_formed(answer):
    """A plan whose refusals can all be said, or an error of one sentence with a code and a fix."""
    if isinstance(answer, Plan):
        for refusal in find_refusals(answer):
            assert refusal.message
            assert refusal.fix
            assert refusal.neighbour
        assert all(isfinite(number) for number in numbers_in(plan_to_json(answer)))
        return True
    assert isinstance(answer, ShardwiseError)
    assert answer.code == answer.code.lower()
    assert "\n" not in answer.message
    assert len(answer.message) < 600
    return True


def numbers_in(tree):
    if isinstance(tree, dict):
        return [number for value in tree.values() for number in numbers_in(value)]
    if isinstance(tree, list):
        return [number for value in tree for number in numbers_in(value)]
    return [tree] if isinstance(tree, int | float) else []


def answer_to(read, source):
    try:
        return read(source)
    except ShardwiseError as error:
        return error


@FUZZ
@given(plan_documents())
def test_no_document_ends_in_anything_but_a_plan_or_an_error(document):
    assert is_well_formed(answer_to(read_plan, document))


@FUZZ
@given(st.lists(plan_documents(), max_size=4))
def test_lines_of_documents_are_answered_one_by_one(documents):
    lines = [json.dumps(document) for document in documents]
    answers = [answer for _, answer in numbered_plan_lines(lines)]
    assert len(answers) == len(lines)
    assert all(map(is_well_formed, answers))


@FUZZ
@given(st.binary(max_size=200))
@example(b"\x00")
@example(b"{}")
@example(b"!!binary |\n  a")
@example(b"? ? ?")
@example(b"%YAML 9.9\n---\na: 1")
@example(b"- - - -")
def test_no_bytes_in_a_file_end_in_anything_but_an_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("plans", numbered=True)
    for name in ("plan.json", "plan.yaml", "plan"):
        (folder / name).write_bytes(data)
        assert is_well_formed(answer_to(read_plan, folder / name))


@FUZZ
@given(st.text(max_size=120))
def test_no_text_ends_in_anything_but_an_error(text):
    assert is_well_formed(answer_to(read_plan, "{" + text))
    assert is_well_formed(answer_to(read_plan, "model:\n" + text))


@FUZZ
@given(plan_documents(), st.data())
def test_a_cut_document_ends_in_a_plan_or_an_error(document, data):
    for text in (json.dumps(document), yaml.safe_dump(document)):
        cut = data.draw(st.integers(0, len(text)))
        assert is_well_formed(answer_to(read_plan, "\n" + text[:cut] + "\n "))


@FUZZ
@given(plan_documents())
def test_reading_changes_nothing_in_the_document(document):
    before = deepcopy(document)
    answer_to(read_plan, document)
    assert repr(document) == repr(before)
