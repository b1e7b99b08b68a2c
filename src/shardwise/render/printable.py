"""Text as a terminal may be given it: names and messages out of files move no cursor and colour nothing."""

import re

__all__ = ["printable"]

COLOUR = r"\x1b\[[0-9;]*m"
CONTROL = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
"""What moves the cursor, starts a command of the terminal, or turns the direction of writing; no tab, no line end."""
HIDDEN = re.compile(CONTROL)
HIDDEN_OR_COLOUR = re.compile(f"({COLOUR})|{CONTROL}")


def printable(text: str, *, has_colour: bool = False) -> str:
    r"""The text with control characters written out, as JSON writes them too.

    Args:
        text: of an answer or a message.
        has_colour: whether the text is coloured already, and keeps that.

    >>> printable("a model \x1b[31mred")
    'a model \\u001b[31mred'
    """
    if has_colour:
        return HIDDEN_OR_COLOUR.sub(lambda found: found[1] or _written_out(found[0]), text)
    return HIDDEN.sub(lambda found: _written_out(found[0]), text)


def _written_out(character: str) -> str:
    return f"\\u{ord(character):04x}"
