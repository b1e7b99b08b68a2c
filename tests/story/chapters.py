"""Runs a chapter of the story: its Python blocks in one namespace, their output beside what the page shows.

A chapter is Markdown. Every Python block is run in order, as a reader would; what it prints is the text block that
follows it. Numbers stand in blocks and outputs; prose may only repeat them. A sentence with a word of amount ("twice",
"a third", "the largest") is followed by ``<!-- holds: EXPRESSION -->`` in its paragraph, which is evaluated with what
the blocks before it computed.
"""

import contextlib
import io
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from habits.source_tree import ROOT

STORY = ROOT / "docs" / "story"
PICTURES = STORY / "pictures"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<shown>.*?)```\n)?", flags=re.DOTALL)
NUMBER = re.compile(r"(?<![\w.:/-])\d[\d,]*(?:\.\d+)?(?![\w/-]|\.\d)")
NOT_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\([^)]*\)\[|\]\([^)]*\)|arXiv:[\d.]+|<!--.*?-->|^#.*$", flags=re.DOTALL | re.MULTILINE
)
HOLDS = re.compile(r"<!-- holds: (?P<claim>.*?) -->", flags=re.DOTALL)
PIECE = re.compile(f"{BLOCK.pattern}|{HOLDS.pattern}", flags=re.DOTALL)
AMOUNT = re.compile(
    r"\b((?<!at )once|twice|thrice|half|halves|a third|a quarter|double[ds]?|as much|as many|as long|as fast|"
    r"several times|tens of times|times as|largest|smallest|fastest|slowest|the best|none of|nearly all|every row|"
    r"(?:an?|one|two|three) (?:fifth|sixth|seventh|eighth|tenth)s?|(?:three|four|five|six|seven|eight|nine|ten) times|"
    r"\w+teen times|\w+ty times|as little|a few percent)\b",
    flags=re.IGNORECASE,
)
SMALL_NUMBER = 12
"""Counts up to a dozen may stand in a sentence by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One page after it was run."""

    text: str
    """The page with the outputs of today."""
    pictures: tuple[tuple[str, str], ...]
    """Name and content of every picture that was drawn."""
    untrue: tuple[str, ...] = ()
    """Claims of the prose that do not hold for what was computed."""


def chapter_paths() -> list[Path]:
    """The chapters in reading order."""
    return sorted(STORY.glob("[0-9][0-9]-*.md"))


def run_chapter(text: str) -> Chapter:
    """Run every block of a page in an empty folder beside the recorded runs of the repository."""
    namespace: dict[str, object] = {"__name__": "__story__"}
    parts: list[str] = []
    untrue: list[str] = []
    end = 0
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("benchmarks").symlink_to(ROOT / "benchmarks")
        for piece in PIECE.finditer(text):
            parts.append(text[end : piece.start()])
            if piece["code"] is not None:
                parts.append(_block_text(piece["code"], _printed(piece["code"], namespace)))
            else:
                parts.append(piece.group())
                if not eval(piece["claim"], namespace):
                    untrue.append(piece["claim"])
            end = piece.end()
        parts.append(text[end:])
        pictures = tuple((path.stem, path.read_text(encoding="utf-8")) for path in sorted(Path("pictures").glob("*")))
    return Chapter(text="".join(parts), pictures=pictures, untrue=tuple(untrue))


def _printed(code: str, namespace: dict[str, object]) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "<chapter>", "exec"), namespace)
    return output.getvalue()


def _block_text(code: str, printed: str) -> str:
    shown = f"\n```text\n{printed}```\n" if printed else ""
    return f"```python\n{code}```\n{shown}"


def loose_numbers(text: str) -> list[str]:
    """Numbers of the prose that no block of the page contains: nobody computed them."""
    computed = " ".join(block.group() for block in BLOCK.finditer(text))
    return [number for number in _prose_numbers(text) if number.replace(",", "") not in computed.replace(",", "")]


def loose_amounts(text: str) -> list[str]:
    """Words of amount in paragraphs that nothing ties to what was computed."""
    plain = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    paragraphs = re.split(r"\n\s*\n", plain)
    return [
        word.group()
        for paragraph in paragraphs
        if "<!-- holds: " not in paragraph and not re.match(r"#|!|\*[^*]", paragraph)
        for word in AMOUNT.finditer(NOT_PROSE.sub(" ", paragraph))
    ]


def _prose_numbers(text: str) -> Iterator[str]:
    for found in NUMBER.finditer(NOT_PROSE.sub(" ", text)):
        number = found.group().rstrip(",")
        if "." in number or int(number.replace(",", "")) > SMALL_NUMBER:
            yield number


def update(path: Path, chapter: Chapter, keeps_text: bool) -> None:
    """Write the pictures, and the page unless it keeps its text (it differs in rounding alone)."""
    if not keeps_text:
        path.write_text(chapter.text, encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    for name, svg in chapter.pictures:
        (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")
