"""What to type next: of a plan that may not fit its first remedy and a search, of one that fits its run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from shardwise.plan import Plan
from shardwise.render.screen_lines import command_lines, screen_width
from shardwise.render.terminal import TextStyle
from shardwise.step.native_engine import is_native_engine
from shardwise.units import format_gib, format_seconds

if TYPE_CHECKING:  # a plan that fits is answered without the search and the explanations
    from shardwise.explain.records import VerifiedChange

NEXT_LABELS = ("Next: ", "then: ")


def as_command(command: str, name: str) -> str:
    """A command that asks another command the same question.

    >>> as_command("shardwise explain plan.json --tp 2", "timeline")
    'shardwise timeline plan.json --tp 2'
    """
    program, _, *words = command.split(" ")
    return " ".join((program, name, *words))


def ready_commands(command: str, plan: Plan) -> tuple[str, ...]:
    """The run prepared, where the native engine runs it, and the step drawn."""
    tried = (f"{as_command(command, 'train')} --dry-run",) if is_native_engine(plan) else ()
    return (*tried, f"{as_command(command, 'timeline')} --html step.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What follows an answer: the first remedy of a plan that may not fit, and commands to type."""

    remedy: "VerifiedChange | None" = None
    commands: Sequence[str] = ()
    typed: str = ""
    """The command that is answered."""

    @property
    def remedy_parts(self) -> Iterator[Text]:
        """The first remedy as a sentence, with the memory and the step that were predicted and what it costs."""
        change = self.remedy
        if change is not None:
            needs = f"{format_gib(change.needed_bytes)} ({change.fit}), {format_seconds(change.step_s)} a step"
            yield Text(f"First remedy: {change.edit}: {needs}; {change.cost}.", style="bold")

    def lines(self, style: TextStyle) -> Iterator[Text]:
        """A command a line; one that is too long is told by what differs from the command as it was typed."""
        if self.commands:
            yield Text()
        for label, command in zip(NEXT_LABELS, self.commands, strict=False):
            yield from command_lines(command, label, screen_width(style), short=_difference(command, self.typed))


NOTHING_FOLLOWS = Following()


def _difference(command: str, typed: str) -> str:
    """What a command says otherwise than the one that was typed.

    >>> _difference("shardwise predict gpt2 2xt4 --tp 2 --compile", "shardwise predict gpt2 t4 --compile")
    'the same command on 2xt4 with --tp 2'
    """
    (start, *options), (before, *known) = command.split(" --"), typed.split(" --")
    if start.split()[:2] != before.split()[:2]:
        return f"{' '.join(start.split()[:2])}, with the same plan"
    where = "" if start == before else f" on {start.split()[-1]}"
    changed = " ".join(f"--{option}" for option in options if option not in known)
    return f"the same command{where}{changed and ' with '}{changed}"
