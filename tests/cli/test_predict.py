"""``shardwise predict``: a file, standard input, MODEL and CLUSTER, and many plans at once."""

import io
import json
import re
import shlex
import sys

import pytest

from shardwise.cli.command import find_command, make_parser
from shardwise.cli.main import main

PLAN = {
    "model": "llama-3.1-8b",
    "cluster": "8xh100-sxm",
    "recipe": {"seq_len": 4096, "global_batch_size": 16},
    "layout": {"dp_shard": 8},
}
TOO_BIG = {**PLAN, "model": "llama-3.1-405b"}
TOP_LEVEL = [
    "schema",
    "fits",
    "fit",
    "parameters",
    "memory",
    "time",
    "throughput",
    "running_cost",
    "warnings",
    "assumptions",
]


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN), encoding="utf-8")
    return path


@pytest.fixture
def pipe(monkeypatch):
    """Put text on standard input."""

    def put(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return put


def answer(words, capsys, *, exit_code: int = 0):
    assert main(words) == exit_code
    return json.loads(capsys.readouterr().out)


def test_a_plan_file_is_answered_with_the_contract(plan_file, capsys):
    written = answer(["predict", str(plan_file), "--json"], capsys)
    assert list(written) == TOP_LEVEL
    assert written["fits"] is True
    assert written["parameters"]["total"] == 8_030_261_248
    memory = written["memory"]
    assert sum(memory["components_bytes"].values()) == memory["device_used_bytes"]
    assert sum(written["time"]["components_s"].values()) == pytest.approx(written["time"]["step_s"])


def test_a_yaml_plan_is_read_too(tmp_path, capsys, plan_file):
    path = tmp_path / "plan.yaml"
    path.write_text(
        "model: llama-3.1-8b\ncluster: 8xh100-sxm\n"
        "recipe: {seq_len: 4096, global_batch_size: 16}\nlayout: {dp_shard: 8}\n",
        encoding="utf-8",
    )
    assert answer(["predict", str(path), "--json"], capsys) == answer(["predict", str(plan_file), "--json"], capsys)


def test_model_and_cluster_with_options_are_the_same_plan(plan_file, capsys):
    words = ["--seq-len", "4096", "--global-batch-size", "16", "--dp-shard", "8", "--json"]
    by_options = answer(["predict", "llama-3.1-8b", "8xh100-sxm", *words], capsys)
    assert by_options == answer(["predict", str(plan_file), "--json"], capsys)


@pytest.mark.parametrize("text", [json.dumps(PLAN), json.dumps(PLAN, indent=2), "\n" + json.dumps(PLAN) + "\n\n"])
def test_a_plan_on_standard_input_is_the_same_plan(text, pipe, plan_file, capsys):
    pipe(text)
    piped = answer(["predict", "-", "--json"], capsys)
    assert piped == answer(["predict", str(plan_file), "--json"], capsys)


def test_options_win_over_the_plan_file(plan_file, capsys):
    written = answer(["predict", str(plan_file), "--recompute", "full", "--json"], capsys)
    plain = answer(["predict", str(plan_file), "--json"], capsys)
    assert written["memory"]["components_bytes"]["activations"] < plain["memory"]["components_bytes"]["activations"]
    assert written["time"]["components_s"]["recompute"] > 0


def test_a_plan_that_does_not_fit_is_an_answer_with_exit_code_3(tmp_path, capsys):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(TOO_BIG), encoding="utf-8")
    assert answer(["predict", str(path), "--json"], capsys, exit_code=3)["fits"] is False
    assert main(["predict", str(path)]) == 3
    assert "It does not fit" in capsys.readouterr().out


FITS = "predict llama-3.1-8b 8xh100-sxm --dp-shard 8 --recompute full"
TOO_LARGE = "predict llama-3.1-70b 8xh100-sxm --tp 8 --sequence-parallel --micro-batch-size 2 --seq-len 4096"


REMEDIED = "shardwise predict llama-3.1-70b 24xh100-sxm --tp 8 --sequence-parallel --micro-batch-size 2 --seq-len 4096"


@pytest.mark.parametrize(
    ("command", "exit_code", "following"),
    [
        (
            FITS,
            0,
            "Next: shardwise explain llama-3.1-8b 8xh100-sxm --dp-shard 8 --recompute full\n"
            "then: shardwise timeline llama-3.1-8b 8xh100-sxm --dp-shard 8 --recompute full \\\n"
            "  --html step.html\n",
        ),
        (
            TOO_LARGE,
            3,
            "Next: the same command on 24xh100-sxm with --dp-shard 3 --zero-stage 3\n"
            "  --global-batch-size 6\n"
            "then: shardwise plan llama-3.1-70b 8xh100-sxm --seq-len 4096\n",
        ),
    ],
)
def test_a_plan_is_followed_by_two_commands_that_parse(command, exit_code, following, capsys):
    """One that does not fit gets its first remedy, and is searched without the layout that was asked for."""
    assert main(shlex.split(command)) == exit_code
    assert capsys.readouterr().out.endswith(f"\n\n{following}")
    following = following.replace("\n  ", " ").replace("the same command on 24xh100-sxm with", REMEDIED)
    for line in following.replace(" \\", "").splitlines():
        _, _, name, *rest = shlex.split(line)
        entry = find_command(name)
        make_parser(entry, entry.load()).parse_args(rest)


def test_what_cannot_be_typed_again_is_followed_by_nothing(pipe, plan_file, tmp_path, capsys):
    pipe(plan_file.read_text(encoding="utf-8"))
    for words in (["predict", "-"], ["predict", str(plan_file), "--html", str(tmp_path / "page.html")]):
        assert main(words) == 0
        assert "Next: " not in capsys.readouterr().out


def test_a_run_says_what_is_billed_and_what_its_steps_alone_take(capsys):
    command = [*shlex.split(FITS), "--tokens", "1T"]
    cost = answer([*command, "--json"], capsys)["cost"]
    assert cost["best_days"] == pytest.approx(cost["days"] * cost["goodput_fraction"], rel=1e-12)
    assert cost["best_usd"] == pytest.approx(cost["usd"] * cost["goodput_fraction"], rel=1e-12)
    assert main(command) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert (
        f"1.00T tokens: {cost['days']:,.1f} days ({cost['low_days']:,.1f} to {cost['high_days']:,.1f} days), "
        f"${cost['usd']:,.0f} (${cost['low_usd']:,.0f} to ${cost['high_usd']:,.0f}) billed at $"
    ) in told
    steps = f"; steps alone {cost['best_days']:,.1f} days, ${cost['best_usd']:,.0f}, goodput "
    assert f"{steps}{cost['goodput_fraction']:.1%}." in told


def test_a_run_of_minutes_is_not_said_in_days(capsys):
    """A fine-tune took "1 GPU-hours, 0.0 days, 0.0 MWh"."""
    assert main(shlex.split("predict llama-3.1-8b 1xrtx-4090 --adapter qlora --tokens 10M")) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(r"10\.00M tokens: \d+\.\d min \(\d+\.\d min to \d\.\d h\), \$0\.\d+ \(\$0", told)
    assert re.search(r"take 0\.\d+ GPU-hours, \d+\.\d min \(\d+\.\d min to \d\.\d h\), 0\.\d+ kWh;", told)
    assert "0.0 " not in told.partition("10.00M tokens take")[2].partition("Assumed")[0]


def test_a_band_has_the_unit_of_its_step(capsys):
    """It was 927.1 ms with a band of 852.9 ms to 1.05 s."""
    command = "predict llama-3.1-8b 2048xh100-sxm --dp-replicate 32 --dp-shard 64 --recompute selective"
    assert main(shlex.split(command)) == 0
    assert re.search(r"\d\.\d ms a step \(\d+\.\d to 1,\d+\.\d ms\)", capsys.readouterr().out)


def test_a_rule_that_only_warns_is_said_and_does_not_refuse(capsys):
    words = ["predict", "llama-3.1-8b", "8xa10g", "--seq-len", "512", "--tp", "8"]
    warnings = answer([*words, "--json"], capsys)["warnings"]
    assert [warning["rule"] for warning in warnings] == ["layout-tp-over-pcie"]
    assert main(words) == 0
    assert "[layout-tp-over-pcie]" in capsys.readouterr().out


def test_the_seed_convention_counts_twelve_bytes_per_parameter(capsys):
    """2 bytes of weights and gradients and 8 of Adam moments, undivided: 8,030,261,248 parameters on one GPU."""
    words = ["predict", "llama-3.1-8b", "h100-sxm", "--seq-len", "64", "--convention", "seed", "--json"]
    parts = answer(words, capsys, exit_code=3)["memory"]["components_bytes"]
    assert parts["parameters"] == parts["gradients"] == 16_060_522_496
    assert parts["optimizer"] == 64_242_089_984


def test_many_plans_are_answered_in_order_and_errors_keep_their_line(tmp_path, capsys):
    path = tmp_path / "plans.jsonl"
    lines = [json.dumps(PLAN), "nonsense", "", json.dumps({**PLAN, "layout": {"tp": 7}}), json.dumps(TOO_BIG)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["predict", str(path)]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [written.get("fits", written.get("ok")) for written in answers] == [True, False, False, False]
    assert [written.get("code") for written in answers][1] == "plan-syntax"
    assert [next(iter(written)) for written in answers] == ["schema", "ok", "ok", "schema"]
    for written in answers[1:3]:
        assert list(written) == ["ok", "error", "code", "fix", "line"]
    assert [written["line"] for written in answers[1:3]] == [2, 4]


def test_blank_lines_on_standard_input_count(pipe, capsys):
    pipe("\n".join(["", json.dumps(PLAN), "", "nonsense", json.dumps({**PLAN, "layout": {"tp": 7}})]))
    assert main(["predict", "-"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [written.get("line") for written in answers] == [None, 4, 5]
    assert answers[1]["error"].startswith("line 4 is not JSON")


def test_jsonl_answers_a_single_line_with_a_single_line(pipe, tmp_path, capsys):
    path = tmp_path / "plans.txt"
    path.write_text(json.dumps(PLAN), encoding="utf-8")
    pipe("nonsense")
    assert main(["predict", str(path), "--jsonl"]) == main(["predict", "-", "--jsonl"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [written.get("line") for written in answers] == [None, 1]


def test_a_line_longer_than_a_plan_is_one_line(pipe, capsys):
    pipe("\n".join([json.dumps(PLAN), '{"a": "' + "x" * 2_500_000 + '"}', "nonsense"]))
    assert main(["predict", "-"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [written.get("code") for written in answers] == [None, "plan-too-large", "plan-syntax"]
    assert [written.get("line") for written in answers] == [None, 2, 3]


def test_jsonl_does_not_go_with_a_model(capsys):
    assert main(["predict", "llama-3.1-8b", "8xh100-sxm", "--jsonl"]) == 2
    assert "write --json" in capsys.readouterr().err


def test_json_lines_on_standard_input_are_many_plans(pipe, capsys):
    pipe("\n".join(json.dumps(plan) for plan in (PLAN, TOO_BIG)))
    assert main(["predict", "-"]) == 0
    assert [json.loads(line)["fits"] for line in capsys.readouterr().out.splitlines()] == [True, False]


def test_a_line_equals_the_answer_for_the_plan_alone(tmp_path, plan_file, capsys):
    path = tmp_path / "plans.jsonl"
    path.write_text(json.dumps(PLAN) + "\n", encoding="utf-8")
    assert main(["predict", str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == answer(["predict", str(plan_file), "--json"], capsys)


def test_what_communication_adds_is_said_when_asked(plan_file, tmp_path, capsys):
    words = ["predict", str(plan_file), "--exposed"]
    assert main(words) == 0
    assert "of the step would go if communication were free" in capsys.readouterr().out
    exposed = answer([*words, "--json"], capsys)["exposed"]
    assert exposed["total_s"] > 0
    assert exposed["axes_s"] == {"dp_shard": exposed["total_s"]}
    assert "blocks[0]" in exposed["units_s"]
    path = tmp_path / "plans.jsonl"
    path.write_text(json.dumps(PLAN) + "\n", encoding="utf-8")
    assert main(["predict", str(path), "--exposed"]) == 0
    assert json.loads(capsys.readouterr().out)["exposed"] == exposed


def test_options_do_not_go_with_many_plans(tmp_path, capsys):
    path = tmp_path / "plans.jsonl"
    path.write_text(json.dumps(PLAN) + "\n", encoding="utf-8")
    assert main(["predict", str(path), "--tp", "2"]) == 2
    assert "many plans" in capsys.readouterr().err


def test_two_hundred_plans_are_answered_line_by_line(tmp_path, capsys):
    """Each by itself; how long they take is held by ``benchmarks/batch_speed.py``."""
    path = tmp_path / "plans.jsonl"
    plans = [
        {**PLAN, "recipe": {"seq_len": 128 * (1 + number), "global_batch_size": 8, "micro_batch_size": 1}}
        for number in range(200)
    ]
    path.write_text("\n".join(json.dumps(plan) for plan in plans), encoding="utf-8")
    assert main(["predict", str(path)]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    steps = [answer["time"]["step_s"] for answer in answers]
    assert len(steps) == 200
    assert steps == sorted(steps)


def test_pictures_are_written_once_and_only_overwritten_with_force(plan_file, tmp_path, capsys):
    svg, page = tmp_path / "memory.svg", tmp_path / "report.html"
    words = ["predict", str(plan_file), "--svg", str(svg), "--html", str(page)]
    assert main(words) == 0
    assert f"wrote {svg}" in capsys.readouterr().err
    assert svg.read_text(encoding="utf-8").startswith("<svg")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(words) == 2
    assert "[output-exists]" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0


def test_text_for_an_encoding_without_line_characters_still_prints(plan_file, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["predict", str(plan_file)]) == 0
    assert b"It fits" in written.getvalue()


def test_a_single_line_on_standard_input_is_one_plan_like_a_file(pipe, plan_file, capsys):
    pipe(json.dumps(PLAN) + "\n")
    piped = main(["predict", "-"]), capsys.readouterr().out
    code, printed = main(["predict", str(plan_file)]), capsys.readouterr().out
    assert piped == (code, printed[: printed.index("\nNext: ")])
    assert piped[1].startswith("It fits: ")
    pipe(json.dumps(TOO_BIG) + "\n")
    assert main(["predict", "-", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["fits"] is False


def test_the_help_says_how_standard_input_is_read(capsys):
    assert main(["predict", "--help"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "Standard input that holds a single plan" in page
    assert "writes --jsonl" in page


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_a_plan_whose_band_leaves_the_device_is_at_the_edge(command, capsys):
    """Row A10: what is needed times 1.08 is above the card, and the headline said that it fits."""
    words = [command, "qwen3-8b", "1xh100-sxm", "--engine", "accelerate", "--precision", "bf16", "--recompute", "full"]
    words += ["--seq-len", "2048", "--micro-batch-size", "1", "--dp-shard", "1"]
    assert main(words) == 0
    headline = capsys.readouterr().out.splitlines()[0]
    assert headline.startswith("It is at the edge: 77.07 GiB needed of 79.18 GiB on the fullest GPU")


def test_an_empty_plan_on_standard_input_is_told_what_it_lacks(pipe, capsys):
    pipe("{}")
    assert main(["predict", "-"]) == 2
    assert "the plan has no model [plan-missing-key]" in capsys.readouterr().err
