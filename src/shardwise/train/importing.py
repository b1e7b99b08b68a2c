"""Imports what ranks will import and names the GPUs that torch sees: ``python -m shardwise.train.importing torch``.

Writes one JSON object: why a package cannot be imported under ``failures``, ``gpu_names``, and why there are none under
``gpu_failure`` where torch says so. A launcher, which itself imports no torch, asks it.
"""

import json
import sys
from collections.abc import Sequence
from importlib import import_module

__all__ = ["importing"]


def importing(names: Sequence[str]) -> dict[str, object]:
    """Import failures of the named packages, and the names of the GPUs or why torch cannot tell them."""
    failures: dict[str, str] = {}
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever a package raises when it is imported is the answer
            failures[name] = _said(error)
    gpu_names, gpu_failure = [], ""
    if "torch" not in failures:
        try:
            gpu_names = _gpu_names()
        except (RuntimeError, AssertionError) as error:  # a driver that is too old
            gpu_failure = _said(error)
    return {"failures": failures, "gpu_names": gpu_names, "gpu_failure": gpu_failure}


def _gpu_names() -> list[str]:
    import torch  # noqa: PLC0415 - it may be what cannot be imported

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    sys.stdout.write(json.dumps(importing(sys.argv[1:])) + "\n")
