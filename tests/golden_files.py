"""Approved output: a file beside the test, compared word for word.

After a wanted change run ``UPDATE_GOLDEN=1 .venv/bin/pytest tests/render tests/cli tests/course`` and read the diff.
"""

import os
from pathlib import Path


def assert_golden(path: Path, text: str) -> None:
    """``text`` is what the approved file holds."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path} differs; see {__file__} for how to approve a change"
