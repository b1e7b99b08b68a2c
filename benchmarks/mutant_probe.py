"""The copied package calls this module; pytest loads it as a plugin. Both write what they see to one file.

``benchmarks.mutants`` puts it beside a copy of the package. There ``a + b`` reads
``observed("...", now, changed, a, b)``, and each test in which the changed operator gives another value is noted, also
where a process that the test started computes it: pytest names the running test in the environment. Nothing else of the
computation changes.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

NOTES, CHOSEN = "SHARDWISE_MUTANT_NOTES", "SHARDWISE_MUTANT_TESTS"
"""The variables that name the file of notes, and the file of the tests to run, one a line in their order."""
_noted: set[tuple[str, str]] = set()


def observed(mutant: str, now: Callable[..., Any], changed: Callable[..., Any], *operands: Any, **named: Any) -> Any:
    """What the original operation gives; notes the running test where the changed one gives something else."""
    operands = tuple(list(one) if isinstance(one, Iterator) else one for one in operands)
    value = now(*operands, **named)
    test, _, phase = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
    # What a fixture computes may serve every test of the file.
    test = test.partition("::")[0] if phase == "(setup)" else test
    if (mutant, test) not in _noted and _differs(value, changed, operands, named):
        _noted.add((mutant, test))
        _note({"mutant": mutant, "test": test})
    return value


def _differs(value: Any, changed: Callable[..., Any], operands: tuple[Any, ...], named: dict[str, Any]) -> bool:
    try:
        with np.errstate(all="ignore"):
            return not bool(np.all(changed(*operands, **named) == value))
    except Exception:  # noqa: BLE001 -- any failure of the changed operation is one that a test can notice
        return True


def _note(what: dict[str, Any]) -> None:
    if NOTES in os.environ:
        # Not by pathlib, which a test may have replaced; one write, since several processes append.
        file = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, (json.dumps(what) + "\n").encode())
        os.close(file)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how long each phase of a test took, and whether it failed."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _note({"test": report.nodeid, "duration_s": report.duration, "has_failed": report.failed})


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the chosen tests, in the order in which they are named."""
    if CHOSEN in os.environ:
        names = Path(os.environ[CHOSEN]).read_text(encoding="utf-8").splitlines()
        place = {name: number for number, name in enumerate(names)}
        items[:] = sorted((item for item in items if item.nodeid in place), key=lambda item: place[item.nodeid])
