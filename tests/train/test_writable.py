"""A folder that cannot be written to is known before anything is made."""

import pytest

from shardwise.train.writable import why_not_writable


def test_a_folder_that_is_there_or_can_be_made_is_writable(tmp_path):
    assert why_not_writable(tmp_path) == ""
    assert why_not_writable(tmp_path / "a" / "b") == ""


@pytest.mark.parametrize("below", ["", "run/checkpoints"])
def test_a_file_or_a_link_to_nowhere_on_the_way_is_named(tmp_path, below):
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "deleted")
    for name in ("file", "link"):
        assert why_not_writable(tmp_path / name / below) == f"{tmp_path / name} is no folder"


def test_a_folder_that_others_own_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwise.train.writable.os.access", lambda *_: False)
    assert why_not_writable(tmp_path / "run") == f"{tmp_path} may not be written to"
