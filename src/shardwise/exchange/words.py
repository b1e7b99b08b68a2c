"""The text of a shell script as statements, commands and words, and the mark of words that may not run."""

import re
import shlex
from collections.abc import Iterator

MAX_LINE_CHARACTERS = 50_000
"""The longest line that is read. A line with variables worked out is cut here too, so that variables that contain
each other do not grow it without end."""
ASSIGNMENT = re.compile(r"^(?:(?:export|local|declare|readonly)\s+(?:-\w+\s+)*)?([A-Za-z_]\w*)(\+?)=")
LIST_START = re.compile(ASSIGNMENT.pattern + r"\(")
HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)-?\s*[\"']?([A-Za-z_]\w*)([\"']?)")
"""The start of a text that ends with the word named here; nothing in it is a command. In quotes, the word leaves the
variables in the text as they are."""
RUNS_ITS_TEXT = re.compile(r"(?:sbatch|bash|sh)\b")
"""Programs for which such a text is the script itself."""
MAYBE = "\0"
"""Stands behind every word that a branch gave a variable which may not run, wherever the variable is worked out."""


class Maybe(str):
    """A word of a command with such a mark, read without it."""

    __slots__ = ("written",)
    written: str
    """The word with its marks."""

    def __new__(cls, written: str) -> "Maybe":
        """The word of what is written."""
        word = super().__new__(cls, written.replace(MAYBE, ""))
        word.written = written
        return word


def marked(after: str, before: str) -> str:
    """A value that a branch gives which may not run: words that were not there before are marked, or else the whole.

    >>> marked("--tp 4 --fp8", "--tp 2").replace(MAYBE, "?"), marked("", "2").replace(MAYBE, "?")
    ('--tp 4? --fp8?', '?')
    """
    kept = frozenset(before.split())
    said = re.sub(r"\S+", lambda word: word[0] if MAYBE in word[0] or word[0] in kept else word[0] + MAYBE, after)
    return said if MAYBE in said or after == before else f"{said} {MAYBE}".strip()


def statements(text: str) -> Iterator[str]:
    """Yield whole statements: a line that ends in a backslash, an open quote or an open list is joined to the next."""
    pending = end_of_file = ""
    for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines():
        stripped = line.strip()
        if end_of_file:
            pending += f"\n{line}"
            if stripped == end_of_file:
                yield pending.rpartition("\n")[0]
                pending = end_of_file = ""
            continue
        is_comment = stripped.startswith("#") and not (stripped.startswith("#SBATCH") and not pending)
        if (is_comment and not _in_quotes(pending)) or not (stripped or pending):
            continue
        pending = f"{pending}\n{stripped.partition(' #')[0] if pending else stripped}".strip()
        document = HERE_DOCUMENT.search(stripped)
        end_of_file = document[1] if document and not RUNS_ITS_TEXT.match(stripped) else ""
        if end_of_file:
            continue
        if document or len(pending) > MAX_LINE_CHARACTERS or not _is_open(pending):
            yield pending[:MAX_LINE_CHARACTERS]
            pending = ""
    if pending:
        yield pending


def _is_open(text: str) -> bool:
    """Return whether a quote, or the list of an assignment, has no end yet."""
    plain = re.sub(r"\\.", "", text)
    in_list = LIST_START.match(plain) is not None and not plain.rstrip().endswith(")")
    return in_list or _in_quotes(text)


def _in_quotes(text: str) -> bool:
    """Return whether a quote has no end yet."""
    plain = re.sub(r"\\.", "", text)
    without_single = re.sub(r"'[^']*'", "", re.sub(r'"[^"]*"', "", plain))
    return "'" in without_single.replace('"', "") or '"' in without_single


def commands(text: str) -> Iterator[str]:
    """The commands of a statement, which a semicolon, a bar or an ampersand outside quotes ends.

    >>> list(commands("clear; srun bash -c 'a; b' 2>&1 | tee log"))
    ['clear', " srun bash -c 'a; b' 2>&1 ", ' tee log']
    """
    start, quote = 0, ""
    for index, character in enumerate(text):
        if quote:
            quote = "" if character == quote and text[index - 1] != "\\" else quote
        elif character in "\"'":
            quote = character
        elif character in ";|" or (character == "&" and text[index - 1 : index] not in (">", "<")):
            if text[start:index].strip():
                yield text[start:index]
            start = index + 1
    yield text[start:]


def elements(text: str) -> str:
    """The elements of a list as they are when it stands unquoted: an option written with its value is two words.

    >>> elements('--bf16 "--lr 0.1" --data "a b"  # why')
    "--bf16 --lr 0.1 --data 'a b'"
    """
    return " ".join(
        shlex.quote(word) if re.search(r"[\s;&|'\"]", word) and not word.startswith("-") else word
        for word in words_of(text)
    )


def words_of(text: str) -> list[str]:
    """The words of a text without their quotes, with their marks."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a quote without an end
        return text.split()


def command_words(text: str) -> list[str]:
    """The words of a command, in which a mark alone is none."""
    return [Maybe(word) if MAYBE in word else word for word in words_of(text) if word != MAYBE]


def as_written(word: str) -> str:
    """A word of a command with its marks, for a text that is read once more."""
    return word.written if isinstance(word, Maybe) else word
