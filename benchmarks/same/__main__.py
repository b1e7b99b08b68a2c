"""Whether predictions and answers are still those that were frozen: ``make same``.

``plans.jsonl`` holds 2,400 plans (``draw.py``), ``questions.txt`` 61 command lines of ``shardwise plan``. What the
program answered when the oracle was frozen lies in ``answers.jsonl.xz``: per plan its prediction, or the code of its
refusal; of every seventh plan the inventory of one stage as well; per question the recommended and the fastest plan, or
what was closest. Integers and words have to be equal, floats within one part in 10^12. Names that people read
(of tensors, of collectives, assumptions) are left out, so that prose can change.

``make same`` compares; ``python -m benchmarks.same --freeze`` records, after an old answer turned out to be wrong: in a
commit of its own that names what changed.
"""

import argparse
import contextlib
import io
import json
import lzma
import math
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from shardwise.cli.main import main as shardwise
from shardwise.errors import ShardwiseError
from shardwise.plan_file import read_plan
from shardwise.rules import find_errors
from shardwise.step.collectives import stage_collectives
from shardwise.step.inventory import Collective, Operation, StageInventory
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operations import stage_operations
from shardwise.step.stage_context import StageContext
from shardwise.step.stage_inventory import stage_inventory

FOLDER = Path(__file__).parent
PLANS, QUESTIONS, ANSWERS = FOLDER / "plans.jsonl", FOLDER / "questions.txt", FOLDER / "answers.jsonl.xz"
RELATIVE = 1e-12
EVERY = 7
"""One plan in so many has the inventory of a stage compared as well."""
WORDS = frozenset(
    ("name", "assumptions", "peak_moment", "moment", "reason", "note", "notes", "warnings", "mfu_convention", "basis")
)
"""Keys whose values are prose."""
SHOWN_DIFFERENCES = 40

Answer = Any
"""Whatever JSON can hold."""


def main() -> int:
    """Compare with the frozen answers, or freeze those of now."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--freeze", action="store_true", help="record the answers of now")
    arguments = parser.parse_args()
    if arguments.freeze:
        with lzma.open(ANSWERS, "wt", encoding="utf-8", preset=9) as stream:
            stream.writelines(json.dumps(answer, sort_keys=True) + "\n" for answer in answers())
        return 0
    with lzma.open(ANSWERS, "rt", encoding="utf-8") as stream:
        return _report(tuple(json.loads(line)) for line in stream)


def answers() -> Iterator[tuple[str, Answer]]:
    """What is asked, and what the program says to it now."""
    lines = PLANS.read_text(encoding="utf-8").splitlines()
    told = _told(["predict", str(PLANS), "--json"]).splitlines()
    for number, (line, answer) in enumerate(zip(lines, told, strict=True), start=1):
        yield f"predict line {number}", _prediction(json.loads(answer))
        if number % EVERY == 0:
            yield f"inventory line {number}", _inventory(json.loads(line), number)
    for question in QUESTIONS.read_text(encoding="utf-8").splitlines():
        yield (
            f"plan {question}",
            _recommendation(json.loads(_told(["plan", *shlex.split(question), "--no-what-if", "--json", "--full"]))),
        )


def _told(arguments: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
        shardwise(arguments)
    return out.getvalue()


def _prediction(document: dict[str, Answer]) -> Answer:
    """A prediction without its prose, or the code of what refused the plan."""
    return {"code": document["code"]} if "code" in document else _without_words(document)


def _without_words(value: Answer) -> Answer:
    if isinstance(value, dict):
        return {key: _without_words(part) for key, part in value.items() if key not in WORDS}
    return [_without_words(part) for part in value] if isinstance(value, list) else value


def _inventory(document: dict[str, Answer], number: int) -> Answer:
    """The tensors, operations and collectives of one stage of a plan; nothing of a plan that is refused."""
    try:
        plan = read_plan(document)
    except ShardwiseError:
        return None
    if find_errors(plan):
        return None
    stages = pipeline_stages(model=plan.model, layout=plan.layout)
    context = StageContext(plan=plan, stage=stages[number % len(stages)])
    return {
        "tensors": _tensors(stage_inventory(plan, context.stage)),
        "operations": sorted(_operation(one) for one in stage_operations(context)),
        "collectives": sorted(_collective(one) for one in stage_collectives(context)),
    }


def _tensors(inventory: StageInventory) -> Answer:
    """Bytes of each component alive at each phase, the most of its moments."""
    most: Counter[str] = Counter()
    for moment, place in zip(inventory.moments, range(len(inventory.moments)), strict=True):
        alive: Counter[str] = Counter()
        for tensor in inventory.tensors:
            if tensor.first_use <= place <= tensor.last_use:
                alive[f"{moment.phase} {tensor.component}"] += tensor.num_bytes
        most |= alive
    return {**most, "host": inventory.host_bytes, "nvme": inventory.nvme_bytes}


def _operation(one: Operation) -> Answer:
    sizes = [one.m, one.n, one.k, one.count, one.num_kernels]
    return [one.phase, one.kind, one.dtype, *sizes, one.flop, one.num_bytes, one.slowdown_ratio]


def _collective(one: Collective) -> Answer:
    chosen = one.sent_once.num_experts_per_tok if one.sent_once else 1
    sizes = [one.group_size, one.stride, one.count, one.rounds, chosen, one.num_bytes]
    return [one.phase, one.kind, one.axis, *sizes, one.is_overlappable]


def _recommendation(document: dict[str, Answer]) -> Answer:
    """The recommended and the fastest plan with their predictions, or what was closest, or the code of the refusal."""
    if "code" in document:
        return {"code": document["code"]}
    rows = document.get("plans") or [one["best"] for one in document.get("clusters", ()) if one["best"]]
    fastest = min(rows, key=lambda row: row["prediction"]["time"]["step_s"], default=None)
    closest = document.get("closest")
    return {
        "recommended": rows and _row(rows[0]),
        "fastest": fastest and _row(fastest),
        "closest": closest and closest["plan"],
        "rejected": sorted(row["rule"] for row in document.get("rejected", ())),
    }


def _row(row: dict[str, Answer]) -> Answer:
    memory, time = row["prediction"]["memory"], row["prediction"]["time"]
    return {"plan": row["plan"], "step_s": time["step_s"], "peak_allocated_bytes": memory["peak_allocated_bytes"]}


def _report(frozen: Iterator[tuple[str, Answer]]) -> int:
    """Print what differs; exit code 1 where anything does."""
    different, shown, compared = 0, 0, 0
    for old, new in zip_longest(frozen, answers()):
        if old is None or new is None or old[0] != new[0]:
            print(f"the oracle asks {old and old[0]!r} where the program answers {new and new[0]!r}")
            return 1
        compared += 1
        differences = list(_differences(old[1], new[1], ""))
        different += bool(differences)
        for difference in differences[: max(0, SHOWN_DIFFERENCES - shown)]:
            print(f"{old[0]}: {difference}")
        shown += len(differences)
    print(f"{compared - different} of {compared} answers are the same")
    return 1 if different else 0


def _differences(old: Answer, new: Answer, place: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from _differences(old.get(key), new.get(key), f"{place}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, now) in enumerate(zip(old, new, strict=True)):
            yield from _differences(before, now, f"{place}[{number}]")
    elif not _is_same(old, new):
        yield f"{place.lstrip('.')} was {_short(old)}, is {_short(new)}"


def _is_same(old: Answer, new: Answer) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=RELATIVE)
    return bool(old == new)


def _short(value: Answer) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


if __name__ == "__main__":
    sys.exit(main())
