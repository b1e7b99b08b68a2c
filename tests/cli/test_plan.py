"""``shardwise plan``: the contract of the search, bounds, the plan file it writes, and the answer when nothing fits."""

import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import time

import pytest

from shardwise.cli.main import main
from shardwise.units import format_seconds

QUESTION = ["plan", "llama-3.1-8b", "8xh100-sxm", "--seq-len", "4096", "--global-batch-size", "64"]


ALONE = [*QUESTION, "--no-what-if"]
"""The same without the searches for what one more change would bring, for tests of something else."""


def answer(words, capsys, *, exit_code: int = 0):
    assert main([*words, "--json"]) == exit_code
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def answered():
    """The answer to the question as it stands, searched for once."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main([*QUESTION, "--json"]) == 0
    return json.loads(said.getvalue())


def test_the_answer_is_the_contract(answered):
    written = answered
    assert written["schema"] == "shardwise.search/1"
    assert {"space", "plans", "pareto", "rejected"} <= set(written)
    assert {"layouts_considered", "layouts_feasible", "wall_s"} <= set(written["space"])
    assert {"plan", "prediction"} <= set(written["plans"][0])
    assert written["plans"][0]["plan"]["schema"] == "shardwise.plan/1"
    assert written["plans"][0]["prediction"]["schema"] == "shardwise.prediction/1"
    assert all(set(group) == {"rule", "count", "example", "fix"} for group in written["rejected"])


def test_every_plan_of_the_answer_fits_and_uses_every_gpu(answered):
    for ranked in answered["plans"]:
        layout = ranked["plan"]["layout"]
        assert ranked["prediction"]["fits"]
        assert layout["dp_replicate"] * layout["dp_shard"] * layout["tp"] * layout["cp"] * layout["pp"] == 8
        assert ranked["plan"]["recipe"]["global_batch_size"] == 64


def test_bounds_bind(capsys):
    written = answer([*ALONE, "--tp", "2", "--pp", "1..2", "--cp", "1", "--recompute", "full", "--top", "3"], capsys)
    assert 1 <= len(written["plans"]) <= 3
    for ranked in written["plans"]:
        assert ranked["plan"]["layout"]["tp"] == 2
        assert ranked["plan"]["layout"]["pp"] in (1, 2)
        assert ranked["plan"]["recipe"]["recompute"] == "full"


@pytest.mark.parametrize(("word", "moves"), [("--activation-offload", True), ("--no-activation-offload", False)])
def test_activations_move_to_the_host_or_stay_as_asked(word, moves, capsys):
    """Left free, a search of this keeps activations on the host: the fastest layout fits no other way."""
    words = ["plan", "qwen2.5-72b", "64xa100-sxm-80", "--cp", "1", "--tp", "1", "--pp", "1", "--no-what-if"]
    plans = answer([*words, word], capsys)["plans"]
    assert plans
    assert {ranked["plan"]["recipe"]["activation_offload"] for ranked in plans} == {moves}


def test_the_written_plan_is_the_recommended_one_and_predicts_the_same(tmp_path, capsys):
    path = tmp_path / "plan.json"
    best = answer([*ALONE, "--out", str(path)], capsys)["plans"][0]
    assert json.loads(path.read_text(encoding="utf-8")) == best["plan"]
    assert answer(["predict", str(path)], capsys)["memory"] == best["prediction"]["memory"]


def test_an_alternative_of_the_screen_is_written_by_its_number(tmp_path, capsys):
    """An alternative had a row and no way to ask for it."""
    picked = {name: tmp_path / f"{name}.json" for name in ("fastest", "1", "2")}
    for name, path in picked.items():
        assert main([*ALONE, "--out", str(path), "--pick", name]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("2 ")]
    step_s = answer(["predict", str(picked["2"])], capsys)["time"]["step_s"]
    assert format_seconds(step_s) in rows[-1]
    plans = [path.read_text(encoding="utf-8") for path in picked.values()]
    assert len(set(plans)) == 3
    assert main([*ALONE, "--pick", "1"]) == 2
    assert "add --out plan.json" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["8xh100-sxm", "--gpus", "8..16"], ["--gpus", "8", "--gpu-types", "h100-sxm"]])
def test_several_clusters_have_no_alternatives_to_pick(words, tmp_path, capsys):
    """`--out p.json --pick 1` was told to add --out."""
    path = tmp_path / "p.json"
    assert main(["plan", "llama-3.1-8b", *words, "--out", str(path), "--pick", "1"]) == 2
    said = capsys.readouterr().err
    assert "--pick does nothing beside several clusters" in said
    assert "leave out --pick" in said
    assert "add --out" not in said


def test_an_alternative_that_the_screen_does_not_have_is_told_what_it_has(tmp_path, capsys):
    path = tmp_path / "plan.json"
    few = ["plan", "gpt2", "1xh100-sxm", "--no-what-if", "--micro-batch-size", "1", "--offload", "none"]
    few += ["--recompute", "none,full", "--no-activation-offload"]
    assert main(few) == 0
    count = sum(line[:2] in ("1 ", "2 ", "3 ") for line in capsys.readouterr().out.splitlines())
    assert main([*few, "--out", str(path), "--pick", "3"]) == 2
    said = capsys.readouterr().err
    assert f"--pick 3, but the screen has {count} alternative" in said
    assert "give --pick fastest" in said
    assert not path.exists()


def test_an_existing_file_is_kept_unless_forced(tmp_path, capsys):
    path = tmp_path / "plan.json"
    path.write_text("mine", encoding="utf-8")
    assert main([*ALONE, "--out", str(path)]) == 2
    assert path.read_text(encoding="utf-8") == "mine"
    assert main([*ALONE, "--out", str(path), "--force"]) == 0
    assert path.read_text(encoding="utf-8") != "mine"


def test_the_text_says_why_the_others_lost(capsys):
    assert main([*ALONE, "--details"]) == 0
    printed = capsys.readouterr().out
    assert "Recommended: " in printed
    assert "Why the others lost" in printed
    assert max(len(line) for line in printed.splitlines()) <= 80


def test_the_answer_is_one_screen_and_the_rest_is_asked_for(capsys):
    """The figures of the two commands: the first screen is below 26 lines, and what was printed before follows it."""
    assert main([*QUESTION, "--no-what-if"]) == 0
    screen = capsys.readouterr().out
    assert len(screen.splitlines()) <= 25
    assert "Why the others lost" not in screen
    assert main([*QUESTION, "--no-what-if", "--details"]) == 0
    assert capsys.readouterr().out.startswith(screen)


def test_the_screen_is_printed_before_what_ifs_are_searched(monkeypatch, capsys):
    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("shardwise.search.what_if", interrupted)
    assert main(QUESTION) == 130
    assert "Recommended: " in capsys.readouterr().out


def test_the_answer_names_the_recommended_plan_and_is_short_unless_asked(answered, capsys):
    best = answered["plans"][0]
    assert answered["recommended"]["plan"] == best["plan"]
    assert answered["recommended"]["reason"] == best["why"]
    assert main([*QUESTION, "--json"]) == 0
    assert len(capsys.readouterr().out.encode()) < 40_000
    whole = answer([*QUESTION, "--full"], capsys)
    assert "left_out" not in whole
    assert all(row["prediction"]["time"]["communication"] for row in whole["plans"])
    assert [row["plan"] for row in whole["plans"]] == [row["plan"] for row in answered["plans"]]


def test_when_nothing_fits_the_closest_plan_and_what_would_help_are_the_answer(capsys):
    words = ["plan", "llama-3.1-70b", "4xh100-sxm", "--seq-len", "8192", "--offload", "none"]
    written = answer(words, capsys, exit_code=3)
    assert written["plans"] == []
    assert written["closest"]["missing_bytes"] > 0
    assert main([*words, "--no-what-if"]) == 3
    assert "Nothing fits" in capsys.readouterr().out


@pytest.mark.parametrize("objective", ["step_time", "cost", "memory", "fewest_gpus"])
def test_every_objective_answers(objective, capsys):
    written = answer([*ALONE, "--objective", objective, "--top", "2"], capsys)
    assert written["objective"] == objective
    assert written["plans"]


def test_a_plan_file_can_be_the_question(tmp_path, answered, capsys):
    path = tmp_path / "question.json"
    path.write_text(
        json.dumps({"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {"seq_len": 4096}}), encoding="utf-8"
    )
    written = answer(["plan", str(path), "--global-batch-size", "64"], capsys)
    assert written["plans"] == answered["plans"]


@pytest.mark.parametrize(("engine", "is_compiled"), [("native", True), ("torchtitan", False)])
def test_a_search_compiles_when_a_plan_file_would(engine, is_compiled, capsys):
    written = answer([*ALONE, "--engine", engine, "--top", "3"], capsys)
    assert {ranked["plan"]["recipe"]["compile"] for ranked in written["plans"]} == {is_compiled}
    assert any(sentence.startswith(f"compile={str(is_compiled).lower()}: ") for sentence in written["assumptions"])


@pytest.mark.parametrize(("model", "seq_len"), [("gpt2", 1024), ("opt-13b", 2048), ("bert-base", 512)])
@pytest.mark.parametrize("command", ["plan", "predict", "explain"])
def test_a_model_with_few_learned_positions_needs_no_sequence_length(command, model, seq_len, capsys):
    written = answer([command, model, "8xh100-sxm", *(("--dp-shard", "8") if command == "explain" else ())], capsys)
    text = json.dumps(written)
    assert f"{model} has {seq_len} positions" in text


@pytest.mark.parametrize("name", ["plan.yaml", "plan.YML"])
def test_a_plan_file_that_ends_in_yaml_is_yaml_and_predicts_the_same(name, tmp_path, capsys):
    path = tmp_path / name
    best = answer([*ALONE, "--out", str(path)], capsys)["plans"][0]
    assert path.read_text(encoding="utf-8").startswith("schema: shardwise.plan/1\n")
    assert answer(["predict", str(path)], capsys)["memory"] == best["prediction"]["memory"]


def test_a_dash_is_no_name_for_the_plan_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*ALONE, "--out", "-"]) == 2
    assert "output-path" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("option", "name"), [("--out", "plan.json"), ("--html", "page.html")])
def test_a_folder_is_no_file_and_the_advice_ends_as_the_file_does(option, name, tmp_path, capsys):
    assert main([*QUESTION, option, str(tmp_path)]) == 2
    assert f"fix: write to {tmp_path / name}" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--out", "--html"])
@pytest.mark.parametrize("length", [250, 300])
def test_a_name_that_is_too_long_for_a_file_is_refused_before_the_search(option, length, tmp_path, capsys):
    assert main([*QUESTION, option, str(tmp_path / ("x" * length))]) == 2
    assert "cannot be a file: File name too long [output-path]" in capsys.readouterr().err


def test_what_is_no_number_of_gpus_is_called_that(capsys):
    assert main([*QUESTION, "--gpus", "0"]) == 2
    assert "gpus='0' is no number of GPUs, interval or list of them" in capsys.readouterr().err


def test_equal_questions_are_answered_with_equal_bytes(answered, capsys):
    def said():
        assert main([*QUESTION, "--top", "2"]) == 0
        return capsys.readouterr().out

    assert said() == said()
    again = answer(QUESTION, capsys)
    assert again == answered
    assert again["space"]["wall_s"] is None


def test_how_long_it_took_is_said_when_asked(capsys):
    words = [*QUESTION, "--top", "1", "--no-what-if", "--timings"]
    assert answer(words, capsys)["space"]["wall_s"] > 0
    assert main(words) == 0
    assert " layouts considered in " in " ".join(capsys.readouterr().out.split())


def test_half_open_bounds_and_the_most_gpus_bind(capsys):
    words = ["plan", "llama-3.1-8b", "32xh100-sxm", "--seq-len", "4096", "--global-batch-size", "64", "--top", "3"]
    for ranked in answer([*words, "--max-gpus", "20", "--dp-shard", "..4", "--tp", "2.."], capsys)["plans"]:
        layout = ranked["plan"]["layout"]
        assert layout["dp_replicate"] * layout["dp_shard"] * layout["tp"] * layout["cp"] * layout["pp"] == 16
        assert layout["dp_shard"] <= 4
        assert layout["tp"] >= 2


def test_precisions_that_may_be_used_are_searched_and_one_alone_is_the_recipes(capsys):
    """The dense fp8 peak of H100 is twice that of bf16, so fp8 wins where both may be used."""
    both = answer([*ALONE, "--precision", "bf16-mixed,fp8-mixed", "--top", "2"], capsys)
    assert both["plans"][0]["plan"]["recipe"]["precision"] == "fp8-mixed"
    alone = answer([*ALONE, "--precision", "bf16", "--top", "2"], capsys)
    assert {ranked["plan"]["recipe"]["precision"] for ranked in alone["plans"]} == {"bf16"}


def test_a_batch_in_tokens_is_rounded_openly(capsys):
    words = ["plan", "llama-3.1-8b", "8xh100-sxm", "--seq-len", "4096", "--top", "1", "--global-batch-tokens"]
    written = answer([*words, "1M"], capsys)
    assert written["plans"][0]["plan"]["recipe"]["global_batch_size"] == 256
    assert any("1,000,000 tokens of sequences of 4,096, rounded" in sentence for sentence in written["assumptions"])
    assert main([*words, "1M", "--global-batch-size", "8"]) == 2
    assert "exclude each other" in capsys.readouterr().err


RUN = [*QUESTION, "--tokens", "1T"]


@pytest.mark.parametrize("words", [["--deadline-days", "-3"], ["--budget-usd", "1K"]])
def test_what_cannot_be_met_is_no_plan_with_the_nearest_that_can(words, tmp_path, capsys):
    path = tmp_path / "plan.json"
    assert main([*RUN, *words, "--json", "--out", str(path)]) == 3
    said = capsys.readouterr()
    missed = json.loads(said.out)["missed"]
    change = missed["changes"][0]["change"]
    assert not path.exists()
    assert said.err.startswith(f"wrote nothing to {path}: there is no plan, because ")
    assert said.err.endswith(f"; with {change} there is one\n")
    name, _, value = change.partition("=")
    assert f"--{name.replace('_', '-')}" == words[0]
    assert answer([*RUN, words[0], value], capsys)["plans"]


def test_a_batch_smaller_than_the_pinned_ranks_is_no_plan_with_a_batch_that_has_one(capsys):
    words = ["plan", "llama-3.1-8b", "8xh100-sxm", "--dp-shard", "8", "--global-batch-size", "4"]
    written = answer(words, capsys, exit_code=3)
    assert written["plans"] == []
    assert written["repairs"][0]["change"] == "global_batch_size=8"


@pytest.mark.parametrize(
    "words",
    [
        ["--deadline-days", "nan"],
        ["--deadline-days", "inf"],
        ["--budget-usd", "nan"],
        ["--budget-usd", "0"],
        ["--budget-usd", "-2M"],
    ],
)
def test_targets_that_mean_nothing_are_refused(words, capsys):
    assert main([*RUN, "=".join(words)]) == 2
    printed = capsys.readouterr().err
    assert f"argument {words[0]}" in printed
    assert "[cli-usage]" in printed


def test_a_deadline_needs_tokens(capsys):
    assert main([*QUESTION, "--deadline-days", "3"]) == 2
    assert "set tokens=1e12" in capsys.readouterr().err


def test_a_price_of_ones_own_is_what_the_run_costs(capsys):
    """139 days of 8 GPUs at $3.00 an hour, whatever the catalogue's price is."""
    words = ["plan", "llama-3.1-8b", "8xh100-sxm", "--tokens", "1T", "--global-batch-size", "128", "--no-what-if"]
    cost = answer([*words, "--price", "3"], capsys)["recommended"]["prediction"]["cost"]
    assert cost["usd"] == pytest.approx(3 * cost["gpu_hours"])
    assert main([*words, "--price", "-3"]) == 2
    assert "usd_per_gpu_hour is -3.0" in capsys.readouterr().err
    assert main([*words[:2], "--gpus", "8,16", "--gpu-types", "h100-sxm,a100-sxm-80=1", "--price", "3"]) == 2
    assert "fix: write --gpu-types h100-sxm=3,a100-sxm-80=3, and leave out --price" in capsys.readouterr().err


def test_a_sweep_refuses_the_bound_that_its_sizes_say_already(capsys):
    words = ["plan", "llama-3.1-8b", "64xh100-sxm", "--gpus", "8..64", "--max-gpus", "16"]
    assert main(words) == 2
    assert "leave out --max-gpus, and end --gpus where it should" in capsys.readouterr().err


def test_sizes_of_no_type_are_asked_for_a_type(capsys):
    assert main(["plan", "llama-3.1-8b", "--gpus", "16..256", "--tokens", "1T"]) == 2
    assert "add --gpu-types h100-sxm,h200-sxm" in capsys.readouterr().err


def test_a_sweep_keeps_one_batch_and_recommends_a_cluster_that_meets_the_deadline(tmp_path, capsys):
    path = tmp_path / "plan.json"
    words = ["plan", "llama-3.1-8b", "--gpus", "8..16", "--gpu-types", "h100-sxm=2.00,a100-sxm-80", "--tokens", "1T"]
    words += ["--seq-len", "4096", "--global-batch-size", "64", "--deadline-days", "100", "--out", str(path)]
    written = answer(words, capsys)
    assert written["schema"] == "shardwise.sweep/1"
    assert [(row["gpu"], row["num_gpus"]) for row in written["clusters"]] == [
        ("h100-sxm", 8),
        ("h100-sxm", 16),
        ("a100-sxm-80", 8),
        ("a100-sxm-80", 16),
    ]
    chosen = next(row for row in written["clusters"] if row["is_recommended"])
    assert (chosen["gpu"], chosen["num_gpus"], chosen["usd_per_gpu_hour"]) == ("h100-sxm", 16, 2.0)
    assert {row["best"]["plan"]["recipe"]["global_batch_size"] for row in written["clusters"]} == {64}
    assert json.loads(path.read_text(encoding="utf-8")) == chosen["best"]["plan"]


def test_a_sweep_shows_what_is_offloaded_within_80_columns(capsys):
    words = ["plan", "llama-3.1-70b", "--gpus", "8", "--gpu-types", "h100-sxm", "--seq-len", "4096", "--tokens", "1B"]
    assert main([*words, "--global-batch-size", "8", "--details"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index(next(line for line in lines if "recompute" in line)) :]
    assert any("+parameters" in line or "+optimizer" in line for line in table)
    assert max(len(line) for line in lines) <= 80


def test_a_sweep_proposes_the_command_of_the_cluster_that_it_recommends(capsys):
    words = ["plan", "llama-3.1-8b", "--gpus", "8,16", "--gpu-types=h100-sxm,a100-sxm-80", "--seq-len", "4096"]
    assert main([*words, "--tokens", "1B"]) == 0
    printed = " ".join(capsys.readouterr().out.replace("\\\n", " ").split())
    (gpus,) = set(re.findall(r"Recommended of 4 clusters: (\d+) x H100", printed))
    command = f"Next: shardwise plan llama-3.1-8b {gpus}xh100-sxm --seq-len 4096 --tokens 1B --global-batch-size"
    assert command in printed


def test_a_sweep_says_what_a_gpu_costs_and_breaks_no_words(capsys):
    words = ["plan", "llama-3.1-70b", "--gpus", "8", "--gpu-types", "h100-sxm=2.25,a100-sxm-80=0", "--seq-len", "4096"]
    assert main([*words, "--tokens", "1B", "--global-batch-size", "8", "--details"]) == 0
    printed = capsys.readouterr().out
    rows = printed[printed.index("type") : printed.index("(> recommended")].split()
    assert {"a100-sxm-80", "h100-sxm", "$2.25", "$0.00", "recompute", "+parameters"} <= set(rows)
    assert max(len(line) for line in printed.splitlines()) <= 80


def test_the_front_is_drawn_in_the_text_and_on_a_page_that_loads_nothing(tmp_path, capsys):
    path = tmp_path / "plan.html"
    assert main([*ALONE, "--html", str(path), "--details"]) == 0
    assert "Time against memory" in capsys.readouterr().out
    page = path.read_text(encoding="utf-8")
    assert "<svg" in page
    assert "<script" not in page


def test_what_binds_is_said_and_more_memory_never_makes_it_slower(answered):
    tried = answered["what_if"]
    assert "emory" in tried["binding"]
    assert tried["changes"][0]["step_ratio"] <= 1


SEARCHES = """
import runpy, sys
from pathlib import Path
from shardwise.search import one_pass
told, find_one = Path(sys.argv.pop(1)), one_pass._find
def find_and_tell(*given, **named):
    found = find_one(*given, **named)
    told.touch()
    return found
one_pass._find = find_and_tell
sys.argv[0] = "shardwise"
runpy.run_module("shardwise", run_name="__main__")
"""
"""The program, which says when it has looked at the first of many clusters, and imported all that it needs."""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_search_that_is_stopped_ends_without_a_word(how, tmp_path):
    words = ["plan", "llama-3.1-405b", "--gpus", "256..16384", "--gpu-types", "h100-sxm,h200-sxm", "--json"]
    command = [sys.executable, "-c", SEARCHES, str(tmp_path / "searches"), *words]  # many seconds of searching
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "searches").exists():
        assert program.poll() is None, program.stderr.read()
        time.sleep(0.005)
    program.send_signal(how)
    printed, complaints = program.communicate(timeout=300)
    # A Ctrl-C inside an exec (a dataclass being imported) makes Python end by the signal; a shell shows 130 either way.
    assert program.returncode in ({130, -how} if how is signal.SIGINT else {-how})
    assert (printed, complaints) == ("", "")


@pytest.mark.parametrize(
    ("out", "html", "told"),
    [
        ("f.json", "f.json", ("the page would replace the plan", "f.html")),
        ("f.json", "./g/../f.json", ("the page would replace the plan", "f.html")),
        ("x.toml", None, ("a plan is written as JSON or YAML, and ", "x.json")),
        ("x.html", "y.html", ("a plan is written as JSON or YAML, and ", "x.json")),
    ],
)
def test_a_plan_has_a_file_and_an_ending_of_its_own(tmp_path, capsys, monkeypatch, out, html, told):
    (tmp_path / "g").mkdir()
    monkeypatch.setattr(
        "shardwise.cli.plan._run_search", lambda _arguments: pytest.fail("it searched before it refused")
    )
    words = ["--out", str(tmp_path / out), *(["--html", f"{tmp_path}/{html}"] if html else [])]
    assert main([*QUESTION, *words, "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert told[0] in answer["error"]
    assert (answer["code"], answer["fix"].endswith(told[1])) == ("output-path", True)
    assert [path.name for path in tmp_path.iterdir()] == ["g"]


def test_a_config_beside_a_cluster_file_is_a_question_and_no_file_of_another_tool(capsys):
    """What ``make demo`` asks."""
    files = ["examples/tiny-llama/config.json", "examples/two-cores.toml"]
    options = "--seq-len 256 --global-batch-size 8 --precision fp32 --no-compile --no-what-if"
    assert main(["plan", *files, *options.split()]) == 0
    assert "one CPU core" in capsys.readouterr().out


@pytest.mark.parametrize("where", [["8xh100-sxm"], ["--gpus", "8..16", "--gpu-types", "h100-sxm"]])
def test_a_whole_answer_is_refused_where_no_json_is_written(capsys, where):
    assert main(["plan", "llama-3.1-8b", *where, "--full"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: --full does nothing without --json [cli-usage]\n  fix: add --json"
    )


def test_the_screen_names_clusters_without_a_plan_and_marks_those_that_miss(capsys):
    words = ["plan", "llama-3.1-70b", "--gpu-types", "h100-sxm", "--tokens", "2T", "--deadline-days", "21.5"]
    assert main([*words, "--gpus", "1016,1024,1280"]) == 0
    written = capsys.readouterr().out
    assert "1024xh100-sxm at $2.82 (missed): " in written
    assert "No plan on 1016xh100-sxm: " in written


def test_the_screen_marks_no_cluster_where_every_one_misses(capsys):
    """Steps alone meet the deadline on 1,024 GPUs; the run, failures included, takes 22.2 days."""
    words = ["plan", "llama-3.1-70b", "--gpu-types", "h100-sxm", "--tokens", "2T", "--deadline-days", "21.5"]
    assert main([*words, "--gpus", "1016,1024"]) == 3
    written = capsys.readouterr().out
    assert "No plan: no cluster of these meets the deadline.\n" in written
    assert "1024xh100-sxm at $2.82: " in written
    assert "No plan on 1016xh100-sxm: 2,048 sequences are no multiple of 1,016 GPUs" in written
