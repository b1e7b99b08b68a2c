"""How the command line's ranges are read."""

import pytest

from shardwise.errors import LayoutError
from shardwise.search import parse_range


@pytest.mark.parametrize(
    ("text", "allowed", "denied"),
    [
        ("8", (8,), (7, 9)),
        ("1..8", (1, 3, 8), (9,)),
        ("2-4", (2, 4), (1, 5)),
        ("1,2,16", (1, 2, 16), (4, 8)),
        ("..4", (1, 4), (5,)),
        ("4..", (4, 4096), (3,)),
    ],
)
def test_a_range_is_a_degree_an_interval_or_a_list(text, allowed, denied):
    limit = parse_range(text, axis="tp")
    assert all(limit.allows(value) for value in allowed)
    assert not any(limit.allows(value) for value in denied)


@pytest.mark.parametrize("text", ["8..2", "8-2"])
def test_an_interval_that_ends_before_it_starts_is_told_so(text):
    with pytest.raises(LayoutError) as refusal:
        parse_range(text, axis="pp")
    assert refusal.value.message == f"pp={text} starts at 8, which is larger than its end, 2"
    assert refusal.value.fix == "write the smaller number first: pp as 2..8"


def test_a_single_value_is_pinned():
    assert parse_range("4", axis="pp").pinned == 4
    assert parse_range("1..4", axis="pp").pinned is None


@pytest.mark.parametrize("text", ["", "0", "-1", "two", "..", "1;2", "999999999999"])
def test_anything_else_names_the_axis_and_shows_how_to_write_it(text):
    with pytest.raises(LayoutError) as refusal:
        parse_range(text, axis="pp")
    assert refusal.value.code == "search-bounds"
    assert "pp" in refusal.value.message
    assert "1..8" in refusal.value.fix
