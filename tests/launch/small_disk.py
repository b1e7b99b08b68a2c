"""A disk of a few kilobytes, for what happens when one is full."""

import os
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def small_disk(folder, *, size_kib):
    """A folder that holds so much and no more; skips where this user may not mount one."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs a user who may")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
