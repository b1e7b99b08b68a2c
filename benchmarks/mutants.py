"""Change one piece of arithmetic at a time and see whether a test fails: ``make mutants``.

Sixty places are drawn with a seed, a quarter each from ``step``, ``predict``, ``search`` and ``train``. At each, one
operator is replaced by its opposite (+ and -, * and /, < and <=, ``min`` and ``max``) in a copy of the package, and
tests run against the copy until one fails. A mutant that no test notices shows a test that is missing, or computes the
same (``EQUIVALENT`` says why). It takes an hour or two on two cores, so continuous integration leaves it out.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "shardwise"
ROOMS = {
    "step": ("tests/step", "tests/predict", "tests/search", "tests/published", "tests/explain"),
    "predict": ("tests/predict", "tests/search", "tests/published", "tests/explain", "tests/measure"),
    "search": ("tests/search", "tests/cli"),
    "train": ("tests/train", "tests/launch", "tests/measure"),
}
"""The tests that a mutant of each room meets, in the order in which they run; those that start many runs come last."""
OPPOSITES: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
}
CALLS = {"min": "max", "max": "min", "least": "most", "most": "least"}
EQUIVALENT: dict[str, str] = {
    "forward += position < last and chunk_owner(chunk=chunk.index - 1, layout=layout) != owner": (
        "a stage sends to as many other stages as it receives from, but for the ends of the model, which are excluded"
    ),
    "if other >= 0 and other != size:": "a batch of no sequences has no plan",
}
"""The changed lines that compute what the original ones compute, each with the reason."""
GPU_ONLY = frozenset((Path("train/kernels.py"),))
"""Files that only a GPU can run: tests on a CPU notice no change there, those behind the marker ``gpu`` do."""
TIMEOUT_S = 1800
NOTHING_COLLECTED = 5
"""What pytest ends with where every test of a folder is left out of ``make test``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One operator or call of one file, and what takes its place."""

    path: Path
    """From the package's folder."""
    line: int
    start: int
    """Where the replaced text begins, in characters from the beginning of the file."""
    old: str
    new: str

    def source(self) -> str:
        """The file's text with the change."""
        text = (PACKAGE / self.path).read_text(encoding="utf-8")
        return text[: self.start] + self.new + text[self.start + len(self.old) :]

    def __str__(self) -> str:
        changed = self.source().splitlines()[self.line - 1].strip()
        return f"{self.path}:{self.line}: {changed}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change of arithmetic that can be made to one file of the package."""
    text = (PACKAGE / path).read_text(encoding="utf-8")
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def place(line: int, column: int) -> int:
        before = text[begins[line - 1] :].encode()[:column].decode()
        return begins[line - 1] + len(before)

    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPPOSITES and not joins_text(node):
                operands = (left, right)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPPOSITES:
                operands = (left, right)
            case ast.Call(func=ast.Name(id=name) as called) if name in CALLS:
                start = place(called.lineno, called.col_offset)
                yield Mutant(path=path, line=called.lineno, start=start, old=name, new=CALLS[name])
                continue
            case _:
                continue
        old, new = OPPOSITES[type(op)]
        begin = place(operands[0].end_lineno or 0, operands[0].end_col_offset or 0)
        start = text.index(old, begin, place(operands[1].lineno, operands[1].col_offset))
        yield Mutant(path=path, line=text.count("\n", 0, start) + 1, start=start, old=old, new=new)


def joins_text(node: ast.BinOp) -> bool:
    """Whether an operator joins strings or parts of a path, and computes nothing."""
    return any(
        isinstance(part, ast.JoinedStr)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        or ast.unparse(part).endswith(("path", "folder", "directory", "PATH", "FOLDER"))
        for part in (node.left, node.right)
    )


def drawn(rooms: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Equally many mutants of every room, each room's drawn by a generator of its own."""
    chosen: list[Mutant] = []
    for room in rooms:
        files = sorted(path.relative_to(PACKAGE) for path in (PACKAGE / room).rglob("*.py"))
        places = [mutant for path in files if path not in GPU_ONLY for mutant in mutants_of(path)]
        chosen.extend(random.Random(f"{seed} {room}").sample(places, count // len(rooms)))
    return chosen


def first_failure(mutant: Mutant) -> str:
    """The first test that fails on a copy of the package with the change; empty where none does."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(PACKAGE.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "shardwise" / mutant.path).write_text(mutant.source(), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        for tests in ROOMS[mutant.path.parts[0]]:
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "--tb=no", tests]
            try:
                ended = subprocess.run(
                    command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
                )
            except subprocess.TimeoutExpired:
                return f"{tests} does not end"
            if ended.returncode not in {0, NOTHING_COLLECTED}:
                failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return failed[0].split(" - ")[0] if failed else f"{tests} cannot run"
    return ""


def main() -> int:
    """Draw mutants, run the tests against each, and say which were noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rooms", nargs="+", choices=tuple(ROOMS), default=tuple(ROOMS))
    parser.add_argument("--count", type=int, default=60, help="mutants in all (default: 60)")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--at-once", type=int, default=2, help="mutants that are tested side by side (default: 2)")
    arguments = parser.parse_args()
    mutants = drawn(arguments.rooms, arguments.count, arguments.seed)
    unseen = []
    with ThreadPoolExecutor(arguments.at_once) as workers:
        for mutant, failure in zip(mutants, workers.map(first_failure, mutants), strict=True):
            same = "" if failure else EQUIVALENT.get(str(mutant).split(": ", 1)[1], "")
            print(
                f"{'killed' if failure else 'same  ' if same else 'UNSEEN'}  {mutant}\n        {failure or same}",
                flush=True,
            )
            if not failure and not same:
                unseen.append(mutant)
    print(f"{len(mutants) - len(unseen)} of {len(mutants)} mutants were noticed or compute the same")
    must_be_seen = [mutant for mutant in unseen if mutant.path.parts[0] == "step"]
    return int(bool(must_be_seen) or len(unseen) > len(mutants) // 10)


if __name__ == "__main__":
    raise SystemExit(main())
