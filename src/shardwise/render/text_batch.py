"""A batch of training data as text: what is read, and what of it is learned."""

from collections.abc import Sequence
from typing import Protocol

__all__ = ["batch_text"]

READ, LEARNED = "  | ", "  > "


class Part(Protocol):
    """A run of neighbouring tokens that are either all learned or all only read."""

    @property
    def is_learned(self) -> bool:
        """Whether their loss counts."""

    @property
    def text(self) -> str:
        """The text that the tokens stand for."""


class Shown(Protocol):
    """One sequence of a batch, as the text shows it."""

    @property
    def num_tokens(self) -> int:
        """Tokens without padding."""

    @property
    def num_learned(self) -> int:
        """Tokens whose loss counts."""

    @property
    def num_padding(self) -> int:
        """Places without a token."""

    @property
    def parts(self) -> Sequence[Part]:
        """The runs of its tokens, in their order."""


def batch_text(samples: Sequence[Shown]) -> str:
    """Every sequence with its parts: those behind ``>`` are learned, those behind ``|`` are only read."""
    lines = ["> is learned, | is only read"]
    for number, sample in enumerate(samples, start=1):
        padding = f", {sample.num_padding:,} places of padding" if sample.num_padding else ""
        lines.append(f"sequence {number}: {sample.num_tokens:,} tokens, {sample.num_learned:,} learned{padding}")
        lines += [(LEARNED if part.is_learned else READ) + part.text.replace("\n", "\\n") for part in sample.parts]
    return "\n".join(lines)
