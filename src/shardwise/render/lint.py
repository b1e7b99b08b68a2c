"""Findings about the surroundings of a run, as text."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["lint_text"]


class Finding(Protocol):
    """What is shown of a finding."""

    @property
    def rule(self) -> str:
        """Its name."""

    @property
    def severity(self) -> str:
        """error, warning or note."""

    @property
    def claim(self) -> str:
        """What is so."""

    @property
    def fix(self) -> str:
        """What to type."""


def lint_text(findings: Sequence[Finding]) -> str:
    """Two lines a finding, as errors have."""
    if not findings:
        return "nothing to complain about"
    return "\n".join(f"{found.severity}: {found.claim} [{found.rule}]\n  fix: {found.fix}" for found in findings)
