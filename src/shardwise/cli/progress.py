"""A progress bar on stderr when a person waits at a terminal, and nothing at all in a pipe."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
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


@contextmanager
def step_bar(*, total: int, label: str = "") -> Iterator[Callable[[Mapping[str, object]], None]]:
    """What to call with the record of each training step; on a terminal it moves a bar with loss and speed."""
    if not sys.stderr.isatty() or not takes_control_codes():
        yield lambda _record: None
        return
    from rich.console import Console
    from rich.progress import Progress

    from shardwise.render.step_text import exposed_text, speed_text, validation_text

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(f"{label}starting", total=total)

        exposed = validation = ""

        def show(record: Mapping[str, object]) -> None:
            nonlocal exposed, validation
            exposed, validation = exposed_text(record) or exposed, validation_text(record) or validation
            said = label + speed_text(record) + exposed + validation
            bar.update(task, completed=float(str(record["step"])), description=said)

        yield show


@contextmanager
def share_bar() -> Iterator[Callable[[str, float], None]]:
    """What to call with what is done now and the share that is done already; a bar on a terminal."""
    if not sys.stderr.isatty() or not takes_control_codes():
        yield lambda _label, _done_fraction: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda label, done_fraction: bar.update(task, completed=done_fraction, description=label)
