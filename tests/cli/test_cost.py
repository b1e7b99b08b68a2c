"""``shardwise cost``: from FLOP and an MFU, or from a plan."""

import json

import pytest

from shardwise.cli.main import main

LLAMA_405B = ["cost", "llama-3.1-405b", "--tokens", "15.6T", "--gpu", "h100-sxm", "--num-gpus", "16384"]


def answer(words, capsys, *, exit_code: int = 0):
    assert main([*words, "--json"]) == exit_code
    return json.loads(capsys.readouterr().out)


def test_gpu_hours_of_llama_3_405b_follow_from_its_published_figures(capsys):
    """arXiv:2407.21783, section 2: 3.8e25 FLOP, 15.6T tokens; table 4: 0.38 to 0.43 MFU. The model card's 30.84 M
    GPU-hours lie inside what that range of MFU gives."""
    hours = [
        answer([*LLAMA_405B, "--mfu", mfu, "--goodput", "1"], capsys)["cost"]["gpu_hours"] for mfu in ("0.43", "0.34")
    ]
    assert hours[0] < 30.84e6 < hours[1]


def test_gpu_hours_are_flop_over_rate(capsys):
    """6 x 405,853,388,800 x 15.6e12 / (0.4 x 989.5e12 x 3600) = 26,660,404.5 hours at goodput 1."""
    cost = answer([*LLAMA_405B, "--mfu", "0.4", "--goodput", "1", "--price", "2"], capsys)["cost"]
    assert cost["gpu_hours"] == pytest.approx(26_660_404.5, rel=1e-6)
    assert cost["usd"] == pytest.approx(53_320_809.0, rel=1e-6)
    assert cost["days"] == pytest.approx(67.80, abs=0.01)


def test_a_counted_cluster_is_not_an_accelerator(capsys):
    assert main(["cost", "llama-3.1-70b", "--tokens", "1T", "--gpu", "8xh100-sxm", "--num-gpus", "4"]) == 2
    assert "write 8xh100-sxm after the model" in capsys.readouterr().err


def test_the_answer_has_its_shape(capsys):
    written = answer([*LLAMA_405B, "--mfu", "0.4"], capsys)
    assert list(written) == [
        "schema",
        "model",
        "parameters",
        "gpu",
        "num_gpus",
        "fits",
        "fit",
        "plan",
        "cost",
        "assumptions",
    ]
    assert written["schema"] == "shardwise.cost/1"
    assert {"gpu_hours", "usd", "days", "goodput_fraction", "goodput_low_fraction"} <= set(written["cost"])


def test_a_cluster_says_the_same_as_a_gpu_and_a_number(capsys):
    by_cluster = answer(["cost", "llama-3.2-1b", "8xh100-sxm", "--tokens", "1T"], capsys)
    by_number = answer(["cost", "llama-3.2-1b", "--gpu", "h100-sxm", "--num-gpus", "8", "--tokens", "1T"], capsys)
    assert by_cluster["cost"] == by_number["cost"]


def test_a_model_is_priced_at_the_step_of_the_plan_recommended_for_it(capsys):
    recommended = answer(["plan", "llama-3.2-1b", "8xh100-sxm", "--tokens", "1T", "--top", "1"], capsys)["plans"][0]
    written = answer(["cost", "llama-3.2-1b", "8xh100-sxm", "--tokens", "1T"], capsys)
    assert written["plan"] == recommended["plan"]
    assert written["cost"]["gpu_hours"] == recommended["prediction"]["cost"]["gpu_hours"]
    assert any("the step is that of the plan recommended for it: " in said for said in written["cost"]["assumptions"])


def test_where_no_plan_fits_an_mfu_is_assumed_and_said(capsys):
    written = answer(["cost", "llama-3.1-405b", "1xrtx-4090", "--tokens", "1B"], capsys, exit_code=3)
    assert (written["fits"], written["fit"]) == (False, "does not fit")
    assert any("so an MFU is assumed" in said for said in written["cost"]["assumptions"])
    said = next(said for said in written["cost"]["assumptions"] if said.startswith("MFU 42.0% of the dense bf16 peak"))
    assert said.endswith("as 6(N - input embedding) + causal attention of 8,192 tokens a sequence")


def test_a_run_that_does_not_fit_says_so_before_its_price(capsys):
    assert main(["cost", "llama-3.1-405b", "1xrtx-4090", "--tokens", "1B"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("It does not fit the memory of 1 x ")
    assert "1.00B tokens: " in " ".join(lines[:3])


def test_where_the_question_is_refused_nobody_knows_whether_it_fits(capsys):
    """It was said to fit, although no plan was searched."""
    written = answer(["cost", "gpt2", "8xv100-sxm2-32", "--tokens", "1B", "--seq-len", "100000"], capsys)
    assert (written["fits"], written["fit"], written["plan"]) == (None, None, None)
    assert any(said.startswith("no plan was searched (seq_len=100000") for said in written["cost"]["assumptions"])
    assert main(["cost", "gpt2", "8xv100-sxm2-32", "--tokens", "1B", "--seq-len", "100000"]) == 0
    assert "Its memory" not in capsys.readouterr().out


def test_a_plan_is_priced_at_its_predicted_rate(tmp_path, capsys):
    path = tmp_path / "plan.json"
    plan = {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {"seq_len": 4096, "tokens": 1e12}}
    path.write_text(json.dumps(plan), encoding="utf-8")
    predicted = answer(["predict", str(path)], capsys)
    written = answer(["cost", str(path)], capsys)
    assert written["cost"] == predicted["cost"]
    dearer = answer(["cost", str(path), "--price", "100", "--tokens", "2T"], capsys)["cost"]
    assert dearer["usd"] == pytest.approx(200 * predicted["cost"]["gpu_hours"])


def test_the_text_names_the_price_and_what_is_assumed(capsys):
    assert main([*LLAMA_405B, "--mfu", "0.4", "--price", "2"]) == 0
    printed = capsys.readouterr().out
    assert "at $2.00 per GPU and hour (given)" in printed
    assert "Assumed" in printed


def test_a_name_with_a_space_is_quoted_in_the_next_command(tmp_path, monkeypatch, capsys):
    """That of a plan that fits was, that of one that does not was not."""
    monkeypatch.chdir(tmp_path)
    asked = {"model": "llama-3.1-8b", "cluster": "1xh100-sxm", "recipe": {"seq_len": 8192}}
    (tmp_path / "my plan.json").write_text(json.dumps(asked), encoding="utf-8")
    assert main(["cost", "my plan.json", "--tokens", "1B"]) == 3
    assert capsys.readouterr().out.endswith("\nNext: shardwise explain 'my plan.json'\n")
