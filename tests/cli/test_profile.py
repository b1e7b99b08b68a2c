"""``shardwise profile``: text, JSON and page of the same numbers, and what is refused."""

import json

import pytest

from measure.made_up_traces import collective, kernel, mark, write_trace
from shardwise.cli.main import main


@pytest.fixture
def trace(tmp_path):
    gather = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return write_trace(
        tmp_path,
        [
            mark("ProfilerStep#3", 0, 100),
            mark("FSDP::all_gather (layers.0)", 1, 3),
            *collective(gather, 5, 45, launch=2, word="_allgather_base", elements=1000, size=2, dtype="Float"),
            *kernel("sgemm", 45, 95, launch=4),
        ],
    )


def test_text_says_where_the_step_went_and_defines_its_words(trace, capsys):
    assert main(["profile", str(trace)]) == 0
    printed = capsys.readouterr().out
    assert "exposed communication   40.0 us   44.4%" in printed
    assert "all_gather" in printed
    assert "layers.0" in printed
    assert "nccl-tests" in printed


def test_json_has_the_same_numbers(trace, capsys):
    assert main(["profile", str(trace), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "shardwise.profile/1"
    assert answer["split"]["compute_s"] == pytest.approx(50e-6)
    assert answer["collectives"][0]["payload_bytes"] == 4000
    assert answer["units"][0]["unit"] == "layers.0"


def test_the_page_is_written_once_and_holds_every_unit(trace, tmp_path, capsys):
    page = tmp_path / "profile.html"
    assert main(["profile", str(trace), "--html", str(page)]) == 0
    assert "layers.0" in page.read_text(encoding="utf-8")
    assert main(["profile", str(trace), "--html", str(page)]) == 2
    assert "output-exists" in capsys.readouterr().err


def test_what_is_no_trace_ends_with_2_and_a_fix(tmp_path, capsys):
    path = tmp_path / "notes.json"
    path.write_text("[1, 2", encoding="utf-8")
    assert main(["profile", str(path)]) == 2
    assert "trace-empty" in capsys.readouterr().err
    assert main(["profile", str(tmp_path / "missing.json"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "trace-unreadable"


PLAN = {
    "model": "llama-3.1-8b",
    "cluster": "2xh100-sxm",
    "recipe": {"seq_len": 512, "global_batch_size": 4, "compile": False, "adapter": "lora"},
    "layout": {"dp_shard": 2},
}


@pytest.fixture
def run_folder(tmp_path, trace):
    """A run of ours that kept a trace."""
    folder = tmp_path / "run"
    (folder / "traces").mkdir(parents=True)
    trace.rename(folder / "traces" / trace.name)
    (folder / "plan.json").write_text(json.dumps(PLAN), encoding="utf-8")
    return folder


def test_without_a_plan_gains_are_called_bounds(trace, capsys):
    assert main(["profile", str(trace)]) == 0
    assert "bounds from the trace alone" in " ".join(capsys.readouterr().out.split())
    assert main(["profile", str(trace), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [finding["knobs"] for finding in answer["findings"]] == [None] * len(answer["findings"])
    assert answer["utilisation"] is None


def test_a_run_folder_is_read_with_its_plan(run_folder, capsys):
    assert main(["profile", str(run_folder), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    turned = [finding["knobs"] for finding in answer["findings"]]
    assert any(knobs["gains"] or knobs["no_gain"] or knobs["does_not_fit"] for knobs in turned)
    assert answer["utilisation"][0]["mfu_convention"].endswith("dense bf16 peak of H100 SXM5 80GB, 989.5 TFLOP/s")
    assert main(["profile", str(run_folder / "traces")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "predicted gain" in printed or "predicted to gain nothing" in printed
    assert "dense bf16 peak of H100 SXM5 80GB" in printed


def test_a_run_that_kept_no_trace_says_how_to_keep_one(tmp_path, capsys):
    (tmp_path / "plan.json").write_text(json.dumps(PLAN), encoding="utf-8")
    assert main(["profile", str(tmp_path)]) == 2
    assert "--profile-every" in capsys.readouterr().err


def test_a_calibration_without_a_plan_is_refused(trace, tmp_path, capsys):
    assert main(["profile", str(trace), "--calibration", str(tmp_path / "here.json")]) == 2
    assert "--plan" in capsys.readouterr().err
