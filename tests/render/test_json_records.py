"""The keys that records are written under: each names a member of its record, and the list is approved."""

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import pytest

from golden_files import assert_golden
from habits.source_tree import imported_modules
from render.sample_records import PREDICTION
from shardwise.render.json_records import KEYS, json_object

GOLDEN = Path(__file__).parent / "golden" / "json_keys.txt"


@pytest.fixture(scope="module")
def records() -> dict[str, list[type]]:
    """Every class of records of the package that is written, by name."""
    packages = ("calibration", "prediction", "explain", "launch", "measure", "reconcile", "search", "validate")
    found: dict[str, list[type]] = {name: [] for name in KEYS}
    for package in packages:
        for module in imported_modules(package=f"shardwise.{package}"):
            for name, value in vars(module).items():
                if name in found and is_dataclass(value) and value not in found[name]:
                    found[name].append(value)
    return found


def written_keys(keys: str, record: type) -> list[str]:
    """The keys themselves; ``*place`` stays as it is."""
    words = [word.partition("=")[0] for word in keys.split()]
    return [key for word in words for key in ([field.name for field in fields(record)] if word == "*" else [word])]


def test_no_key_is_renamed_or_goes_unnoticed(records):
    lines = [f"{name}: {' '.join(written_keys(keys, records[name][0]))}\n" for name, keys in KEYS.items()]
    assert_golden(GOLDEN, "".join(lines))


def test_every_row_is_about_one_class_and_names_its_members(records):
    for name, keys in KEYS.items():
        (record,) = records[name]
        for word in keys.split():
            place = (word.partition("=")[2] or word).strip("{}*").partition(".")[0]
            assert not place or hasattr(record, place), f"{name} has no {place}"


@dataclass(frozen=True)
class Entry:
    """A record of two fields."""

    name: str
    amount: int


@dataclass(frozen=True)
class Owner:
    """A record that others are written into."""

    first: int
    entries: tuple[Entry, ...]
    pairs: tuple[tuple[str, int], ...]
    entry: Entry

    @property
    def doubled(self) -> int:
        """Twice the first."""
        return 2 * self.first


def test_keys_are_members_places_objects_and_all_fields():
    owner = Owner(first=3, entries=(Entry("a", 5),), pairs=(("b", 7),), entry=Entry("c", 11))
    keys = "doubled one=first amount=entry.amount a={entries} b={pairs}"
    assert json_object(owner, keys) == {"doubled": 6, "one": 3, "amount": 11, "a": {"a": 5}, "b": {"b": 7}}
    assert json_object(owner.entry, "* again=name") == {"name": "c", "amount": 11, "again": "c"}


def test_a_record_without_keys_is_not_written_by_chance():
    with pytest.raises(KeyError, match="Entry"):
        json_object(Entry("a", 5))


def test_the_largest_tensors_have_names_of_their_own():
    written = json_object(PREDICTION, "memory")["memory"]
    assert written["stages"][0]["largest_tensors"][0].keys() == {"name", "bytes"}
