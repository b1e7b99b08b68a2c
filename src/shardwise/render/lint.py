"""Findings about the surroundings of a run, as text."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["lint_text"]


class Finding(Protocol):
    """A finding of a linter, with the texts that are shown."""

    @property
    def rule(self) -> str:
        """Its name."""

    @property
    def severity(self) -> str:
        """error, warning or note."""

    @property
    def claim(self) -> str:
        """The fact that was found."""

    @property
    def fix(self) -> str:
        """The fix, as the user would type it."""


def lint_text(findings: Sequence[Finding]) -> str:
    """Two lines a finding, as errors have."""
    if not findings:
        return "nothing to complain about"
    return "\n".join(f"{found.severity}: {found.claim} [{found.rule}]\n  fix: {found.fix}" for found in findings)
