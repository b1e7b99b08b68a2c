"""The branches of a script's ``if`` and ``case``: which of them may run, as far as the script itself says."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

CONDITION = re.compile(r"(?<![^\s;])(if|elif)\s+(\[.+?)\s*(?=;|\n|$)")
CASE = re.compile(r"^case\s+\S+\s+in\b")
LABEL = re.compile(r"\(?([^()$=]+)\)(?=\s|$)")
"""The patterns before a branch of ``case``, such as ``-h|--help)``."""
COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {
    "=": fnmatchcase,
    "==": fnmatchcase,
    "!=": lambda first, second: not fnmatchcase(first, second),
    "-eq": lambda first, second: int(first) == int(second),
    "-ne": lambda first, second: int(first) != int(second),
    "-gt": lambda first, second: int(first) > int(second),
    "-ge": lambda first, second: int(first) >= int(second),
    "-lt": lambda first, second: int(first) < int(second),
    "-le": lambda first, second: int(first) <= int(second),
}
TRUTHS: Mapping[str, bool] = {"true": True, "false": False}


@dataclass(slots=True)
class Branches:
    """The branches of one ``if`` or ``case``, of which one is being read."""

    word: str | None = None
    """The word that a ``case`` compares with its patterns; ``None`` for an ``if``."""
    is_read: bool = True
    """Whether the branch may be the one that runs."""
    is_settled: bool = False
    """Whether one whose condition holds has begun."""
    is_doubtful: bool = False
    """Whether one has begun whose condition only who runs the script knows."""

    def begin(self, truth: bool | None) -> None:
        """Begin a branch whose condition holds, does not hold, or is known only where the script runs."""
        self.is_read = not self.is_settled and truth is not False
        self.is_settled |= truth is True
        self.is_doubtful |= truth is None

    def begin_label(self, label: str) -> None:
        """Begin the branch of a ``case`` that a label such as ``8B|70B`` stands before."""
        patterns = re.sub(r"[\s\"']", "", label).split("|")
        word = self.word or "$"
        self.begin(None if "$" in word else any(fnmatchcase(word, one) for one in patterns))


def after_keyword(branches: list[Branches], words: list[str]) -> list[str]:
    """A command without the keyword of a branch in front, with which a branch begins or the last one ends."""
    keyword, rest = (words[0], words[1:]) if words else ("", [])
    if keyword == "case":
        branches.append(Branches(word=rest[0] if rest else "$"))
        return []
    if keyword == "if":
        branches.append(Branches())
    if keyword in ("if", "elif") and branches:
        is_decided = len(rest) == 1 and rest[0] in (*TRUTHS, "unknown")
        branches[-1].begin(TRUTHS.get(rest[0]) if is_decided else None)
        return [] if is_decided else rest
    if keyword == "else" and branches:
        branches[-1].begin(True)
    elif keyword in ("fi", "esac") and branches:
        branches.pop()
    else:
        return words
    return rest


def truth(words: Sequence[str]) -> str:
    """Whether the condition of an ``if`` holds: ``true``, ``false``, or ``unknown`` until the script runs.

    >>> [truth(one.split()) for one in ("[ 8B == 70B ]", "[[ 4 -gt 2 ]]", "[ $1 = x ]", "[ -f x ]")]
    ['false', 'true', 'unknown', 'unknown']
    """
    inner = words[1:-1]
    if words[-1:] not in (["]"], ["]]"]) or any("$" in word for word in inner):
        return "unknown"
    try:
        if len(inner) == 2 and inner[0] in ("-z", "-n"):
            return str((inner[1] == "") == (inner[0] == "-z")).lower()
        if len(inner) == 3 and inner[1] in COMPARISONS:
            return str(COMPARISONS[inner[1]](inner[0], inner[2])).lower()
    except ValueError:  # no whole number
        pass
    return "unknown"
