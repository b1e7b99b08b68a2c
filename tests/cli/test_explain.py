"""``shardwise explain``: one plan, a choice of strategies, and the tensor behind an out-of-memory error."""

import io
import json
import re
import sys

import pytest

from shardwise.cli.main import main
from shardwise.render.retyped import retyped

SETTINGS = ["--seq-len", "4096", "--global-batch-size", "64"]
TOO_BIG = ["explain", "llama-3.1-8b", "8xh100-sxm", *SETTINGS, "--dp-replicate", "8", "--zero-stage", "0"]
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 79.18 GiB "
    "of which 1.20 GiB is free. Process 7 has 77.98 GiB memory in use. Of the allocated memory 70.00 GiB is allocated "
    "by PyTorch, and 5.00 GiB is reserved by PyTorch but unallocated."
)


def answer(words, capsys, *, exit_code: int = 0):
    assert main([*words, "--json"]) == exit_code
    return json.loads(capsys.readouterr().out)


def test_a_plan_that_does_not_fit_is_explained_with_changes_that_were_predicted_again(capsys):
    written = answer(TOO_BIG, capsys, exit_code=3)
    assert list(written) == ["schema", "plan", "prediction", "findings", "changes", "best", "plans"]
    assert written["schema"] == "shardwise.explanation/1"
    assert written["prediction"]["fits"] is False
    assert any(change["fits"] for change in written["changes"])
    for change in written["changes"]:
        assert change["plan"]["schema"] == "shardwise.plan/1"


def typed_next(screen, question):
    """The words of the command that a screen names next, whole where it is said by its options alone."""
    command = " ".join(screen.replace(" \\\n ", "").partition("\nNext: ")[2].partition("\nthen: ")[0].split())
    if not command.startswith("the same command"):
        return command.split()[1:]
    where, _, options = command.removeprefix("the same command ").partition("with ")
    asked = [question[0], question[1], where.split()[1] if where else question[2], *question[3:]]
    return retyped(f"shardwise {' '.join(asked)}", grouped(options)).split()[1:]


def grouped(options):
    return [f"--{option.strip()}" for option in options.split("--") if option]


def test_the_first_remedy_is_what_to_type_next_and_then_every_layout_is_searched(capsys):
    """A plan that could not run was to be drawn."""
    assert main(TOO_BIG) == 3
    screen = capsys.readouterr().out
    first = answer(TOO_BIG, capsys, exit_code=3)["changes"][0]
    typed = answer(typed_next(screen, TOO_BIG), capsys)
    assert typed["plan"]["layout"] == first["plan"]["layout"]
    assert typed["prediction"]["time"]["step_s"] == pytest.approx(first["step_s"])
    searched = screen.replace(" \\\n ", "").partition("\nthen: ")[2]
    assert searched == f"shardwise plan llama-3.1-8b 8xh100-sxm {' '.join(SETTINGS)}\n"


def test_the_best_plan_is_what_to_type_next_of_one_that_fits_and_then_its_run_is_tried(capsys):
    asked = ["explain", "llama-3.1-8b", "8xh100-sxm", *SETTINGS, "--tp", "8"]
    assert main(asked) == 0
    screen = capsys.readouterr().out
    best = answer(asked, capsys)["best"]
    typed = answer(typed_next(screen, asked), capsys)
    assert typed["plan"]["layout"] == best["plan"]["layout"]
    assert typed["best"]["edit"] == ""
    assert screen.replace(" \\\n ", "").partition("\nthen: ")[2] == (
        f"shardwise train llama-3.1-8b 8xh100-sxm {' '.join(SETTINGS)} --tp 8 --dry-run\n"
    )


def test_the_best_plan_is_the_one_that_plan_recommends(capsys):
    """Changes of one field were proposed that were three times as slow as what `plan` found for the same question."""
    given = ["llama-3.1-70b", "16xh100-sxm", "--engine", "megatron", "--seq-len", "4096", "--global-batch-size", "64"]
    explained = answer(["explain", *given, "--tp", "8", "--cp", "2", "--recompute", "full"], capsys, exit_code=3)
    recommended = answer(["plan", *given, "--no-what-if"], capsys)["recommended"]
    assert explained["best"]["plan"]["layout"] == recommended["plan"]["layout"]
    assert explained["best"]["step_s"] == recommended["prediction"]["time"]["step_s"]
    assert explained["best"]["needed_bytes"] == recommended["prediction"]["memory"]["needed_bytes"]


QUESTIONS = [
    "llama-3.1-8b 1xrtx-4090 --micro-batch-size 1",
    "llama-3.2-1b 8xl40s --engine deepspeed --tp 4 --micro-batch-size 16 --zero-stage 2 --tokens 1B",
    "llama-3.1-70b 16xh100-sxm --engine megatron --tp 8 --pp 2 --recompute full --recompute-layers 4",
    "llama-3.1-8b 8xh100-sxm --engine megatron --tp 2 --pp 4 --vpp 2",
    "llama-3.1-8b 2xh100-sxm --engine deepspeed --pp 2 --zero-stage 1",
    "mixtral-8x7b 8xa100-sxm-80 --engine fsdp1 --zero-stage 3 --micro-batch-size 2",
    "llama-3.1-70b 1xh100-sxm --adapter qlora --micro-batch-size 8",
    "qwen2.5-7b 1xrtx-4090 --adapter lora --micro-batch-size 8",
]


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_is_typed_next_needs_and_lasts_what_the_screen_said(question, capsys):
    """A change to adapters was predicted at 8,192 tokens and typed for 2,048; a batch that an edit names was lost."""
    words = ["explain", *question.split()]
    main(words)
    screen = capsys.readouterr().out
    said = re.findall(r": ([\d.]+ [KMG]iB) \([^)]*\), ([^,]*) a step[,.]", " ".join(screen.split()))
    assert said
    main(typed_next(screen, words))
    typed = " ".join(capsys.readouterr().out.split())
    assert any(f"{needed} needed of" in typed and f"{step} a step (" in typed for needed, step in said)


def test_a_change_gives_what_it_promises_when_its_plan_is_predicted(tmp_path, capsys):
    change = next(change for change in answer(TOO_BIG, capsys, exit_code=3)["changes"] if change["fits"])
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(change["plan"]), encoding="utf-8")
    predicted = answer(["predict", str(path)], capsys)
    assert predicted["memory"]["device_used_bytes"] == change["device_used_bytes"]
    assert predicted["time"]["step_s"] == pytest.approx(change["step_s"])


def test_findings_have_numbers_in_base_units(capsys):
    written = answer(TOO_BIG, capsys, exit_code=3)
    for finding in written["findings"]:
        assert list(finding) == ["topic", "claim", "numbers", "because", "suggestion", "judged"]
        for number in finding["numbers"]:
            assert list(number)[:3] == ["name", "value", "unit"]
            assert number.get("plan", 0) < len(written["plans"])


def test_the_text_keeps_to_eighty_columns(capsys):
    assert main(TOO_BIG) == 3
    printed = capsys.readouterr().out
    assert "Changes, each predicted again" in printed
    assert max(len(line) for line in printed.splitlines()) <= 80


def test_model_and_cluster_without_a_layout_compare_strategies(capsys):
    written = answer(["explain", "llama-3.1-8b", "8xh100-sxm", *SETTINGS], capsys)
    assert list(written) == ["schema", "question", "findings", "plans"]
    claims = [finding["claim"] for finding in written["findings"] if finding["topic"] == "strategy"]
    assert any("FSDP" in claim for claim in claims)
    assert claims[-1].startswith("Recommended here")


def test_an_out_of_memory_text_names_the_tensor_of_the_plan(capsys):
    """One sequence of 8,192 tokens over 128,256 words in fp32 is 8192 x 128256 x 4 = 4,202,692,608 bytes, 3.91 GiB."""
    words = ["explain", "llama-3.1-8b", "8xh100-sxm", "--seq-len", "8192", "--dp-shard", "8", "--oom", MESSAGE]
    findings = answer(words, capsys)["findings"]
    assert any(finding["topic"] == "allocation" and "logits" in finding["claim"] for finding in findings)


def test_an_out_of_memory_text_is_explained_without_a_plan(capsys):
    findings = answer(["explain", "--oom", MESSAGE], capsys)["findings"]
    assert findings[0]["topic"] == "out-of-memory"
    assert "3.91 GiB" in findings[0]["claim"]


def test_a_log_and_a_pipe_hold_the_same_message(tmp_path, capsys, monkeypatch):
    log = tmp_path / "train.log"
    log.write_bytes(b"\xff step 1\n" + MESSAGE.encode() + b"\nExiting\n")
    from_log = answer(["explain", "--oom-log", str(log)], capsys)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MESSAGE.encode())))
    assert answer(["explain", "--oom-log", "-"], capsys) == from_log


@pytest.mark.parametrize("size", ["34359738368", "32.00 GiB"])
def test_an_allocation_size_is_inverted(size, capsys):
    """16 x 32 heads x 4096^2 scores in fp32 are 34,359,738,368 bytes."""
    findings = answer(["explain", "--allocation-bytes", size], capsys)["findings"]
    assert any("scores" in finding["claim"] for finding in findings)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["explain"], "cli-usage"),
        (["explain", "--oom", "all is well"], "oom-text"),
        (["explain", "--oom-log", "nothing.log"], "oom-log"),
        (["explain", "--allocation-bytes", "many"], "allocation-size"),
        (["explain", "--oom", MESSAGE, "--allocation-bytes", "7"], "cli-usage"),
    ],
)
def test_what_cannot_be_explained_is_refused(words, code, capsys):
    assert answer(words, capsys, exit_code=2)["code"] == code


def test_strategy_before_model_and_cluster_answers_the_checklist(capsys):
    words = ["explain", "strategy", "gpt2", "8xa100-sxm-80", "--seq-len", "1024", "--global-batch-size", "256"]
    assert main(words) == 0
    written = capsys.readouterr().out
    assert "[checklist] Does it fit one GPU? yes" in written
    assert '[pitfall: loose] "ZeRO-3 = free memory"' in written


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "strategy"],
        ["explain", "gpt2", "8xa100-sxm-80", "8xh100-sxm"],
        ["explain", "strategy", "a", "b", "c"],
    ],
)
def test_strategy_wants_a_model_and_a_cluster(words, capsys):
    assert main(words) == 2
    assert "fix:" in capsys.readouterr().err


def test_one_gpu_with_a_micro_batch_is_a_plan(capsys):
    """The micro-batch was ignored, and strategies for one GPU were compared with another one."""
    words = ["explain", "llama-3.2-1b", "1xrtx-4090", "--adapter", "lora", "--seq-len", "2048"]
    assert main([*words, "--micro-batch-size", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "shardwise.explanation/1"
    assert "Recommended here" not in json.dumps(answer)
    assert main([*words, "--json"]) == 0
    assert "Recommended here" in capsys.readouterr().out


def test_the_first_change_fits_or_is_said_to_be_one_of_several(capsys):
    """A change that does not fit either was to be changed first; and others than those tried were said not to fit."""
    asked = ["llama-3.1-405b", "2xrtx-4090", "--tp", "2", "--seq-len", "8192"]
    assert main(["explain", *asked]) == 3
    text = capsys.readouterr().out
    assert "No change makes it fit, alone or up to 3 together; most is saved by: adapter" in " ".join(text.split())
    assert text.endswith("\nNext: shardwise plan llama-3.1-405b 2xrtx-4090 --seq-len 8192\n")
    assert "\noptimizer=adamw-8bit " in text
    assert "moments in 8 bits" in " ".join(text.split())
