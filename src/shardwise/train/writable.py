"""Whether a folder can be written to, asked before anything is made."""

import os
from pathlib import Path

__all__ = ["why_not_writable"]


def why_not_writable(folder: Path) -> str:
    """Why files cannot be written into a folder, which need not be there yet; empty where they can.

    The nearest folder above it that is there decides; a link that leads nowhere is there and is no folder.
    """
    whole = folder.absolute()
    nearest = next(path for path in (whole, *whole.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        return f"{nearest} is no folder"
    return "" if os.access(nearest, os.W_OK | os.X_OK) else f"{nearest} may not be written to"
