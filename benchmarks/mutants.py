"""Change one piece of arithmetic at a time and see whether a test fails: ``make mutants``.

Sixty places are drawn with a seed, a quarter each from ``step``, ``predict``, ``search`` and ``train``. At each, one
operator is replaced by its opposite (+ and -, * and /, < and <=, ``min`` and ``max``). First the tests run once on a
copy of the package that computes every drawn place both ways and notes the tests in which the two values differ
(``mutant_probe.py``). Then each mutant meets only those tests, the fastest first, and after them the other tests of
their files, until one fails. A mutant that no test notices shows a test that is missing, or computes the same
(``EQUIVALENT`` says why). What was noted is kept in ``build/mutants`` until sources or tests change.

    python -m benchmarks.mutants --room step                                 # the fifteen of one room
    python -m benchmarks.mutants --only step/loss.py:33 --tests tests/step   # a line, by tests that are named
"""

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from benchmarks.mutant_probe import CHOSEN, NOTES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "shardwise"
PROBE = Path(__file__).with_name("mutant_probe.py")
ROOMS = {
    "step": ("tests/step", "tests/predict", "tests/search", "tests/published", "tests/explain"),
    "predict": ("tests/predict", "tests/search", "tests/published", "tests/explain", "tests/measure"),
    "search": ("tests/search", "tests/cli"),
    "train": ("tests/train", "tests/launch", "tests/measure"),
}
"""The tests that a mutant of each room may meet."""
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
BUILT_IN = ("min", "max")
EQUIVALENT: dict[str, str] = {
    "forward += position < last and chunk_owner(chunk=chunk.index - 1, layout=layout) != owner": (
        "a stage sends to as many other stages as it receives from, but for the ends of the model, which are excluded"
    ),
    "if other >= 0 and other != size:": "a batch of no sequences has no plan",
    "while at < len(covers) and covers[at][0] <= end_s:": "a cover that begins at an end takes nothing away",
    "return f\"is {format_percent(abs(share))} {'slower' if share >= 0 else 'faster'}\"": (
        "a share below half a per cent, and so one of nothing, is said to be as fast before"
    ),
}
"""The changed lines that compute what the original ones compute, each with the reason."""
GPU_ONLY = frozenset((Path("train/kernels.py"),))
"""Files that only a GPU can run: tests on a CPU notice no change there, those behind the marker ``gpu`` do."""
FIRST_TESTS = 20
"""So many tests are tried before the others are collected."""
START_S, SLOWER, HANGING_S = 120, 10, 1800
"""Tests of a mutant have so many seconds of a CPU, and so many times what they took when they were recorded; a process
that waits for something ends by the clock. On a busy machine a clock alone would end tests that are only slow."""
PROBED = "from mutant_probe import observed as _observed"


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
    node: ast.BinOp | ast.Compare | ast.Call

    def source(self) -> str:
        """The file's text with the change."""
        text = (PACKAGE / self.path).read_text(encoding="utf-8")
        return text[: self.start] + self.new + text[self.start + len(self.old) :]

    @property
    def name(self) -> str:
        """The place, as far as two mutants of one line need it."""
        return f"{self.path}:{self.line}:{self.start}"

    def __str__(self) -> str:
        changed = self.source().splitlines()[self.line - 1].strip()
        return f"{self.path}:{self.line}: {changed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What one run of the tests on the observing copy of the package showed."""

    duration_s: dict[str, float]
    """Seconds that each test took; tests that failed are left out."""
    differing: dict[str, frozenset[str]]
    """Of a mutant, by its name: the tests, or whole files, in which it computes something else."""

    def tests_of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """The tests in which the mutant computes something else, and the others of their files; the fastest first."""
        noted = self.differing.get(mutant.name, frozenset())
        # An empty name is the import of the package, before any test.
        files = {test.partition("::")[0] for test in noted}
        near = [test for test in self.duration_s if "" in noted or test.partition("::")[0] in files]
        near.sort(key=self.duration_s.__getitem__)
        differing = [test for test in near if test in noted or test.partition("::")[0] in noted]
        return differing, [test for test in near if test not in set(differing)]


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change of arithmetic that can be made to one file of the package."""
    text = (PACKAGE / path).read_text(encoding="utf-8")
    available = [name for name in CALLS if name in BUILT_IN or name in text]
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
            case ast.Call(func=ast.Name(id=name) as called) if name in CALLS and CALLS[name] in available:
                start = place(called.lineno, called.col_offset)
                yield Mutant(path=path, line=called.lineno, start=start, old=name, new=CALLS[name], node=node)
                continue
            case _:
                continue
        old, new = OPPOSITES[type(op)]
        begin = place(operands[0].end_lineno or 0, operands[0].end_col_offset or 0)
        start = text.index(old, begin, place(operands[1].lineno, operands[1].col_offset))
        line = text.count("\n", 0, start) + 1
        yield Mutant(path=path, line=line, start=start, old=old, new=new, node=node)


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
        chosen.extend(random.Random(f"{seed} {room}").sample(places, count // len(ROOMS)))
    return chosen


class _Observing(ast.NodeTransformer):
    """Puts a call of ``mutant_probe.observed`` in the place of each drawn operation of a file."""

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self.places = {_span(mutant.node): mutant for mutant in mutants}

    def visit(self, node: ast.AST) -> ast.AST:
        mutant = self.places.get(_span(node))
        node = self.generic_visit(node)
        if mutant is None or not isinstance(node, type(mutant.node)):
            return node
        if isinstance(node, ast.Call):
            both = f"lambda *a, **k: {mutant.old}(*a, **k), lambda *a, **k: {mutant.new}(*a, **k)"
            operands, named = node.args, node.keywords
        else:
            both = f"lambda a, b: a {mutant.old} b, lambda a, b: a {mutant.new} b"
            operands, named = [node.left, node.right if isinstance(node, ast.BinOp) else node.comparators[0]], []
        call = ast.parse(f"_observed({mutant.name!r}, {both})", mode="eval").body
        assert isinstance(call, ast.Call)
        call.args += operands
        call.keywords += named
        return call


def _span(node: ast.AST) -> tuple[int | None, ...]:
    return tuple(getattr(node, name, None) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"))


def observing_source(path: Path, mutants: Sequence[Mutant]) -> str:
    """The text of a file of the package that computes each of its drawn places both ways."""
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    tree = _Observing(mutants).visit(tree)
    first = [isinstance(one, ast.Expr) or getattr(one, "module", "") == "__future__" for one in tree.body].index(False)
    tree.body.insert(first, ast.parse(PROBED).body[0])
    return ast.unparse(ast.fix_missing_locations(tree))


def recorded(mutants: Sequence[Mutant], tests: Sequence[str], at_once: int) -> Recording:
    """Run tests on a copy of the package that notes where the mutants differ, or read what an earlier run noted."""
    digest = hashlib.sha256(repr(([mutant.name for mutant in mutants], tests)).encode())
    for path in sorted([*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]):
        digest.update(path.read_bytes())
    notes = ROOT / "build" / "mutants" / f"{digest.hexdigest()[:16]}.jsonl"
    if not notes.exists():
        notes.parent.mkdir(parents=True, exist_ok=True)
        unfinished = notes.with_suffix(".unfinished")
        unfinished.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            by_path = defaultdict(list)
            for mutant in mutants:
                by_path[mutant.path].append(mutant)
            sources = {path: observing_source(path, mine) for path, mine in by_path.items()}
            options = (f"-n{at_once}", "--dist", "loadfile", "--no-loadscope-reorder", *tests)
            print(f"recording which tests reach {len(mutants)} places: {' '.join(tests)}", flush=True)
            tested(Path(folder), sources, options, {NOTES: str(unfinished)}, limit_s=None)
        unfinished.rename(notes)
    return read(notes)


def read(notes: Path) -> Recording:
    """What the file of notes says."""
    duration_s: dict[str, float] = defaultdict(float)
    differing: dict[str, set[str]] = defaultdict(set)
    failed = set()
    for line in notes.read_text(encoding="utf-8").splitlines():
        note = json.loads(line)
        if "mutant" in note:
            differing[note["mutant"]].add(note["test"])
            continue
        duration_s[note["test"]] += note["duration_s"]
        if note["has_failed"]:
            failed.add(note["test"])
    if failed:
        print(f"left out, since they fail without a change: {', '.join(sorted(failed))}", flush=True)
    return Recording(
        duration_s={test: duration for test, duration in duration_s.items() if test not in failed},
        differing={name: frozenset(tests) for name, tests in differing.items()},
    )


def tested(
    folder: Path,
    sources: dict[Path, str],
    options: Sequence[str],
    variables: dict[str, str],
    *,
    limit_s: float | None,
) -> subprocess.CompletedProcess[str]:
    """Run pytest on a copy of the package with changed files; the copy is made once a folder."""
    copy = folder / "src"
    if not copy.exists():
        shutil.copytree(PACKAGE.parent, copy)
        shutil.copy(PROBE, copy)
        for path, source in sources.items():
            (copy / "shardwise" / path).write_text(source, encoding="utf-8")
    environment = {**os.environ, **variables, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "CI": "1"}
    plugins = ("-p", PROBE.stem, "-p", "no:cacheprovider")
    limit = ("bash", "-c", f'ulimit -t {ceil(limit_s) if limit_s else "unlimited"}; exec "$@"', "bash")
    command = [*limit, sys.executable, "-m", "pytest", "-q", *plugins, "--tb=no", *options]
    timeout_s = limit_s and limit_s + HANGING_S
    return subprocess.run(
        command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s
    )


def first_failure(mutant: Mutant, recording: Recording, limit_s: float) -> str:
    """The first test that fails on a copy of the package with the change; empty where none does."""
    differing, others = recording.tests_of(mutant)
    tests, total_s = [], 0.0
    for test in (*differing, *others):
        total_s += recording.duration_s[test]
        if total_s < limit_s:
            tests.append(test)
    with tempfile.TemporaryDirectory() as folder:
        for batch in (tests[:FIRST_TESTS], tests[FIRST_TESTS:]):
            if not batch:
                continue
            chosen = Path(folder) / "tests.txt"
            chosen.write_text("\n".join(batch), encoding="utf-8")
            files = list(dict.fromkeys(test.partition("::")[0] for test in batch))
            taken_s = sum(recording.duration_s[test] for test in batch)
            try:
                ended = tested(
                    Path(folder),
                    {mutant.path: mutant.source()},
                    ("-x", "-n0", *files),
                    {CHOSEN: str(chosen)},
                    limit_s=START_S + SLOWER * taken_s,
                )
            except subprocess.TimeoutExpired:
                return "the tests do not end"
            if ended.returncode:
                failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return failed[0].split(" - ")[0] if failed else f"pytest ends with {ended.returncode}"
    return ""


def main() -> int:
    """Draw mutants, run the tests against each, and say which were noticed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--room", action="append", choices=tuple(ROOMS), help="only this room (may be repeated)")
    parser.add_argument("--only", metavar="PATH:LINE", help="every mutant of this line, or file, instead of drawn ones")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="these tests instead of those of the rooms")
    parser.add_argument("--count", type=int, default=60, help="mutants of all rooms (default: 60)")
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--limit", type=float, default=120, metavar="S", help="seconds of tests (default: 120)")
    parser.add_argument("--at-once", type=int, default=2, help="mutants that are tested side by side (default: 2)")
    arguments = parser.parse_args()
    rooms = arguments.room or tuple(ROOMS)
    if arguments.only:
        path, _, line = arguments.only.partition(":")
        if not (PACKAGE / path).is_file():
            parser.error(f"--only {path}: no file of src/shardwise; name one as in --only step/loss.py:33")
        rooms = (Path(path).parts[0],)
        if not arguments.tests and rooms[0] not in ROOMS:
            parser.error(f"--only {path}: no tests belong to {rooms[0]}; name some with --tests")
        mutants = [mutant for mutant in mutants_of(Path(path)) if line in ("", str(mutant.line))]
    else:
        mutants = drawn(rooms, arguments.count, arguments.seed)
    tests = arguments.tests or list(dict.fromkeys(folder for room in rooms for folder in ROOMS[room]))
    recording = recorded(mutants, tests, arguments.at_once)
    unseen = []
    begun_s = time.monotonic()
    with ThreadPoolExecutor(arguments.at_once) as workers:
        failures = workers.map(lambda mutant: first_failure(mutant, recording, arguments.limit), mutants)
        for number, (mutant, failure) in enumerate(zip(mutants, failures, strict=True), start=1):
            same = "" if failure else EQUIVALENT.get(str(mutant).split(": ", 1)[1], "")
            if not failure and not same:
                unseen.append(mutant)
                num_tests = len(recording.tests_of(mutant)[0])
                same = f"it computes something else in {num_tests} tests, and none of them looks"
            word = "killed" if failure else "UNSEEN" if mutant in unseen else "same  "
            print(f"[{number}/{len(mutants)}, {time.monotonic() - begun_s:.0f} s] {word} {mutant}", flush=True)
            print(f"        {failure or same}", flush=True)
    print(f"{len(mutants) - len(unseen)} of {len(mutants)} mutants were noticed or compute the same")
    must_be_seen = [mutant for mutant in unseen if mutant.path.parts[0] == "step"]
    return int(bool(must_be_seen) or len(unseen) > len(mutants) // 10)


if __name__ == "__main__":
    raise SystemExit(main())
