"""A progress bar on stderr when a person waits at a terminal, and nothing at all in a pipe."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from shardwise.cli.output import takes_control_codes

Item = TypeVar("Item")


def with_progress(items: Iterable[Item], *, label: str, total: int | None = None) -> Iterator[Item]:
    """``items`` one by one, with a bar on stderr while they are worked on."""
    if not sys.stderr.isatty() or sys.stdout.isatty() or not takes_control_codes():
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    # rich would take standard output over while the bar moves, and the answers with it.
    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(label, total=total)
        for item in items:
            yield item
            bar.advance(task)


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """A moving sign on stderr while one long call runs."""
    if not sys.stderr.isatty() or not takes_control_codes():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(label):
        yield
