"""The first screen: for every question of the laugh test at most 25 lines of 80 columns, and every fact is on it."""

import contextlib
import io
import json
import re
import shlex
from math import prod

import pytest

from judgement.test_questions import GIB, QUESTIONS
from shardwise.attention_kernels import ATTENTION_KERNELS
from shardwise.cli.command import find_command, make_parser
from shardwise.cli.main import main

QUICK = ("qlora-70b-two-3090", "8b-one-server-no-batch", "8b-two-servers-compile")
"""Asked by every run of the tests: one of a few GPUs, one that leaves everything open, one of two servers."""
ANSWERED = [
    pytest.param(shlex.split(one["command"])[1:], id=one["id"], marks=[] if one["id"] in QUICK else [pytest.mark.runs])
    for one in QUESTIONS["question"]
    if "refuses" not in one
]


def printed(words):
    out = io.StringIO()
    aside = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(aside):
        exit_code = main(words)
    return exit_code, out.getvalue() or aside.getvalue()


def commands_of(screen):
    """What the screen tells its reader to type; a backslash continues a line."""
    joined = screen.replace(" \\\n  ", " ")
    return [line[len("Next: ") :] for line in joined.splitlines() if line.startswith(("Next: ", "then: "))]


def question_facts(plan, kernel):
    recipe, batch = plan["recipe"], plan["recipe"]["global_batch_size"]
    return [
        plan["engine"],
        recipe["precision"],
        f"compile {'on' if recipe['compile'] else 'off'}",
        f"attention by {ATTENTION_KERNELS[kernel].title}",
        f"{recipe['seq_len']:,}",
        f"{batch:,} sequence{'s' * (batch > 1)} ({recipe['seq_len'] * batch:,} tokens) a step",
    ]


def answer_facts(row):
    memory, layout = row["prediction"]["memory"], row["plan"]["layout"]
    degrees = [f"--{name} {layout[name]}" for name in ("tp", "cp", "pp", "ep") if layout[name] > 1]
    # One GPU has one rate: "257 tokens/s, 257 per GPU" says it twice.
    num_gpus = prod(layout[name] for name in ("dp_replicate", "dp_shard", "tp", "cp", "pp"))
    per = "tokens/s" if num_gpus == 1 else "per GPU"
    edge = memory["needed_bytes"] * memory["high_fraction"] > memory["capacity_bytes"]
    return [
        f"--dp-shard {layout['dp_shard']}",
        *degrees,
        f"--micro-batch-size {row['plan']['recipe']['micro_batch_size']}",
        f"{memory['needed_bytes'] / GIB:.2f} of {memory['capacity_bytes'] / GIB:.2f} GiB",
        ": at the edge" if edge else ": fits",
        f"{row['prediction']['throughput']['tokens_per_s_per_gpu']:,.0f} {per}",
        f"MFU {100 * row['prediction']['throughput']['mfu_fraction']:.1f}%",
    ]


@pytest.mark.parametrize("words", ANSWERED)
def test_the_first_screen_is_one_screen_with_every_fact(words):
    exit_code, screen = printed(words)
    lines = screen.splitlines()
    assert exit_code == 0
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    answer = json.loads(printed([*words, "--json", "--no-what-if"])[1])
    best, shown = answer["recommended"], " ".join(screen.split())
    wanted = [*question_facts(best["plan"], best["prediction"]["time"]["attention_kernel"]), *answer_facts(best)]
    unstarred = shown.replace("*", "")
    assert [fact for fact in wanted if fact not in unstarred] == []
    assert "Recommended" in screen
    assert re.search(r"\nWhy(?: not the fastest)?: ", screen)
    if "cost" in best["prediction"]:
        assert f"{best['prediction']['cost']['days']:,.1f} days" in shown
    if "--gpus" not in words:
        assert re.search(r"\n(?:With [^\n]+ a step, |No shorter step: )[^\n]+\n", screen)
        assert re.search(r"\n  fastest  ", screen)
        rows = screen[screen.index("Alternatives") : screen.index("\nWhy")].strip().splitlines()[1:]
        assert len(rows) <= 3
        assert rows or "Alternatives: no plan of another kind was found to fit." in screen
    commands = commands_of(screen)
    assert len(commands) == 2
    for command in commands:
        if command.startswith("shardwise "):
            name, *rest = shlex.split(command)[1:]
            entry = find_command(name)
            make_parser(entry, entry.load()).parse_args(rest)


def test_the_assumed_parts_of_a_question_are_marked():
    asked = ["plan", "llama-3.1-8b", "8xa100-sxm-80", "--no-what-if"]
    bare = printed(asked)[1].split("Recommended")[0]
    assert re.search(r"8,192\* tokens .* bf16-mixed\*,\s+adamw\*, native\*, compile on\*", bare, flags=re.DOTALL)
    given = ["--seq-len", "4096", "--global-batch-size", "64", "--precision", "bf16", "--engine", "fsdp2", "--compile"]
    said = printed([*asked, *given])[1].split("Recommended")[0]
    assert "4,096 tokens a sequence, 64 sequences (262,144 tokens) a step, bf16, adamw*" in " ".join(said.split())
    assert "fsdp2, compile on," in " ".join(said.split())


@pytest.mark.parametrize(
    ("question", "warned"),
    [
        ("plan llama-2-7b 8xa100-sxm-80 --seq-len 8192", "seq_len=8192 is beyond the 4096 positions"),
        ("plan gemma-2-9b 8xv100-sxm-32", "the loss becomes NaN whatever the loss scale"),
    ],
)
def test_what_is_wrong_with_the_question_itself_is_said_under_it(question, warned):
    """Nothing but --details said so, and no layout mends it."""
    _, screen = printed([*shlex.split(question), "--no-what-if"])
    assert "\nWarning: " in screen
    assert warned in " ".join(screen.split())
    assert len(screen.splitlines()) <= 25


def test_a_length_that_nobody_gave_is_one_that_the_model_has_positions_for():
    _, screen = printed(["plan", "llama-2-7b", "8xa100-sxm-80", "--no-what-if"])
    assert "4,096* tokens a sequence" in screen
    assert "Warning" not in screen
