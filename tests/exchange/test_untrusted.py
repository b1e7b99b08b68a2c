"""Damaged files are answered by an error of ours or a reading, never by a traceback."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import ShardwiseError
from shardwise.exchange.documents import parse_documents
from shardwise.exchange.mistakes import find_mistakes
from shardwise.exchange.reading import plan_document, read_parsed

FILES = sorted(path for path in (Path(__file__).parent / "files").rglob("*") if path.is_file())
ODD = st.sampled_from(('"x"', "-1", "0", "null", "[1, {}]", "1e400", "true", "{}", "9" * 30, "\u2028", "auto", "none"))


def read(text, name):
    """Everything that the program does with a file but print."""
    try:
        reading = read_parsed(parse_documents(text, name=name))
        find_mistakes(reading)
        plan_document(reading, model="m", cluster="c")
    except ShardwiseError:
        pass


@settings(max_examples=150)
@given(path=st.sampled_from(FILES), data=st.data())
def test_a_damaged_file_is_never_a_traceback(path, data):
    text = path.read_text(encoding="utf-8")
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 12)))
    read(text[:start] + data.draw(ODD | st.text(max_size=4)) + text[end:], path.name)


@settings(max_examples=100)
@given(path=st.sampled_from(FILES), data=st.data())
def test_odd_values_are_never_a_traceback(path, data):
    words = path.read_text(encoding="utf-8").split(" ")
    index = data.draw(st.integers(0, len(words) - 1))
    read(" ".join([*words[:index], data.draw(ODD), *words[index + 1 :]]), path.name)


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", "[" * 5000), ("a.toml", "a=" + "[" * 5000), ("a.yaml", "[" * 5000)]
)
def test_a_deep_file_is_refused(name, text):
    with pytest.raises(ShardwiseError):
        parse_documents(text, name=name)


def test_a_file_with_too_many_keys_is_refused():
    with pytest.raises(ShardwiseError, match="6000 keys"):
        parse_documents("\n".join(f"a{n}: 1" for n in range(6000)), name="a.yaml")


def test_aliases_that_would_expand_to_gigabytes_are_refused():
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    with pytest.raises(ShardwiseError, match="repeat more than 5000 values"):
        parse_documents(f"a0: &a0 [x, x]\n{levels}", name="a.yaml")


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a\n  <<: *a", "a: &a {b: *a}", "a:\n  <<: 3", "a:\n  <<: [3]"])
def test_an_alias_that_holds_itself_or_is_no_mapping_is_refused(text):
    with pytest.raises(ShardwiseError):
        parse_documents(text, name="a.yaml")
