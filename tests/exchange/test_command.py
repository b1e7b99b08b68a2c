"""What ``import`` and ``export`` print, write and refuse."""

import json
from pathlib import Path

import pytest

from shardwise.ask.foreign_plan import is_foreign
from shardwise.cli.main import main
from shardwise.plan_file import read_plan

FILES = Path(__file__).parent / "files"
MEGATRON = str(FILES / "meg-llama70b-gh200" / "submit.sbatch")
DEEPSPEED = [str(FILES / "x-ds-triple-world1" / "ds.json")]


def answer(capsys, *words):
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_what_is_known_says_where_it_stands(capsys):
    code, reading = answer(capsys, "import", MEGATRON)
    assert code == 0
    assert reading["schema"] == "shardwise.reading/1"
    assert reading["known"]["pp"] == {"value": 8, "place": "submit.sbatch:--pipeline-model-parallel-size"}
    assert reading["known"]["vpp"]["value"] == 2
    assert reading["read_as"][1] == {"file": "submit.sbatch", "tool": "Megatron-LM", "version": "2026-08 (d98e8a64)"}


def test_a_plan_is_written_when_nothing_is_open(tmp_path, capsys):
    out = tmp_path / "plan.json"
    words = ["import", MEGATRON, "--model", "llama-3-70b", "--cluster", "128xh100-sxm", "--out", str(out)]
    assert main(words) == 0
    plan = read_plan(out)
    assert (plan.engine, plan.layout.tp, plan.layout.pp, plan.num_microbatches) == ("megatron", 4, 8, 256)
    assert main(words) == 2
    assert "output-exists" in capsys.readouterr().err


def test_what_is_open_is_asked_for_and_not_filled_in(capsys, tmp_path):
    words = (
        "import",
        *DEEPSPEED,
        "--model",
        "llama-2-7b",
        "--cluster",
        "4xa100-sxm-80",
        "--out",
        str(tmp_path / "p.json"),
    )
    code, error = answer(capsys, *words)
    assert (code, error["code"]) == (2, "import-open")
    assert "seq_len, precision, optimizer, recompute" in error["error"]
    settings = ["seq_len=4096", "precision=bf16-mixed", "optimizer=adamw", "recompute=none"]
    assert main([*words, *(word for setting in settings for word in ("--set", setting))]) == 0


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("sequence=3", "plan-unknown-key"),
        ("tp=many", "plan-wrong-type"),
        ("tp", "cli-usage"),
        ("zero_stage=9", "plan-out-of-range"),
    ],
)
def test_a_setting_that_is_none_is_refused(capsys, setting, code):
    found, error = answer(capsys, "import", *DEEPSPEED, "--set", setting)
    assert (found, error["code"]) == (2, code)


def test_a_cluster_of_another_size_is_a_contradiction(capsys):
    _, reading = answer(capsys, "import", MEGATRON, "--cluster", "64xh100-sxm")
    claims = {one["field"]: [claim["value"] for claim in one["claims"]] for one in reading["contradictions"]}
    assert sorted(claims["world_size"]) == [64, 128]


def test_the_files_stand_where_a_plan_stands(capsys):
    words = ["--model", "llama-3-70b", "--cluster", "128xh100-sxm"]
    code, found = answer(capsys, "predict", MEGATRON, *words)
    assert (code, found["schema"]) == (3, "shardwise.prediction/1")
    assert answer(capsys, "explain", MEGATRON, *words, "--recompute", "full")[1]["schema"] == "shardwise.explanation/1"
    assert answer(capsys, "predict", MEGATRON)[1]["code"] == "import-open"


def test_what_an_engine_cannot_run_is_named_with_the_nearest_plan_and_its_cost(capsys):
    words = ("export", "llama-3.1-8b", "8xh100-sxm", "--seq-len", "4096", "--pp", "2", "--attention-kernel", "cudnn")
    code, error = answer(capsys, *words, "--to", "deepspeed")
    assert (code, error["code"]) == (2, "engine-deepspeed-zero-with-pipeline")
    assert "attention_kernel=null" in error["fix"]
    assert "GiB on the fullest GPU" in error["fix"]


def test_a_folder_that_cannot_be_made_and_a_file_that_is_not_there_are_refused(tmp_path, capsys):
    words = (
        "export",
        "llama-3.1-8b",
        "8xh100-sxm",
        "--seq-len",
        "4096",
        "--engine",
        "torchtitan",
        "--to",
        "torchtitan",
    )
    code, error = answer(capsys, *words, "--out", str(tmp_path / "none" / "run"))
    assert (code, error["code"]) == (2, "output-path")
    code, error = answer(capsys, "import", str(tmp_path / "none.json"))
    assert (code, error["fix"]) == (2, "check the path")


THREE_FILES = {
    "ds.json": '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}',
    "args.yaml": "per_device_train_batch_size: 2\nmax_length: 2048\ngradient_checkpointing: no\ndeepspeed: ds.json\n",
    "run.sh": "torchrun --nproc_per_node 8 train.py --config args.yaml --gradient_accumulation_steps 1\n",
}


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        (("predict",), 0),
        (("explain",), 0),
        (("cost", "--tokens", "1B"), 0),
        (("timeline",), 0),
        (("judge", "--mfu", "0.4"), 0),
        (("export", "--to", "deepspeed"), 0),
        (("plan", "--top", "1", "--no-what-if"), 0),
        (("train",), 2),
        (("trace",), 2),
    ],
)
def test_three_files_stand_where_any_command_takes_a_plan(tmp_path, capsys, command, exit_code):
    files = [tmp_path / name for name in THREE_FILES]
    for file in files:
        file.write_text(THREE_FILES[file.name], encoding="utf-8")
    name, *options = command
    placed = ["--model", "llama-3.2-1b", "--cluster", "8xh100-sxm", *options]
    code, found = answer(capsys, name, *map(str, files), *placed)
    assert code == exit_code
    assert found.get("code") == (None if exit_code == 0 else "train-engine")
    assert answer(capsys, name, *map(str, files), str(tmp_path / "none.yaml"), *placed)[1]["code"] == "plan-not-found"


def test_a_model_beside_a_cluster_is_named_once(capsys):
    for words in (("predict", "llama-3.1-8b"), ("cost", "llama-3.1-8b"), ("judge", "llama-3.1-8b", "--mfu", "0.4")):
        for option in (("--model", "llama-3.1-70b"), ("--cluster", "16xh100-sxm")):
            code, error = answer(capsys, words[0], words[1], "8xh100-sxm", *words[2:], *option)
            assert (code, error["code"]) == (2, "cli-usage")


def test_a_file_of_nobody_is_refused(tmp_path, capsys):
    path = tmp_path / "notes.txt"
    path.write_text("hello world\n", encoding="utf-8")
    assert answer(capsys, "import", str(path))[1]["code"] == "import-unknown-file"


def test_exports_are_printed_or_written(tmp_path, capsys):
    words = [
        "export",
        "llama-3.1-8b",
        "16xh100-sxm",
        "--seq-len",
        "4096",
        "--engine",
        "torchtitan",
        "--to",
        "torchtitan",
    ]
    code, found = answer(capsys, *words)
    assert (code, found["checked_against"]) == (0, "torchtitan 0.2.2")
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["launch.sh", "torchtitan.toml"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2


def test_what_a_target_cannot_say_is_named_with_the_nearest_plan_and_its_cost(capsys):
    words = ("export", "llama-3.1-8b", "16xh100-sxm", "--seq-len", "4096", "--loss-chunks", "4")
    code, error = answer(capsys, *words, "--engine", "torchtitan", "--to", "torchtitan")
    assert (code, error["code"]) == (2, "export-inexpressible")
    assert "cannot say loss_chunks=4" in error["error"]
    assert error["fix"].startswith("set loss_chunks=1: ")
    assert "GiB on the fullest GPU" in error["fix"]


def test_what_the_engine_of_a_target_cannot_run_is_its_rule(capsys):
    words = ("export", "llama-3.1-8b", "16xh100-sxm", "--seq-len", "4096", "--pp", "2", "--global-batch-size", "64")
    code, error = answer(capsys, *words, "--to", "accelerate")
    assert code == 2
    assert error["error"].startswith("accelerate: ")


def test_every_file_of_another_tool_may_stand_where_a_plan_stands():
    paths = [path for path in sorted(FILES.rglob("*")) if path.is_file()]
    assert len(paths) > 80
    assert [path.parent.name for path in paths if not is_foreign(path)] == []


def test_two_files_of_one_run_are_explained_as_the_plan_they_say(capsys):
    files = [str(FILES / "ah-zephyr-sft" / name) for name in ("config.yaml", "zero3.yaml")]
    assert main(["explain", *files, "--cluster", "8xa100-sxm-80"]) == 0
    assert capsys.readouterr().out.startswith("It fits: ")


TRL_ARGUMENTS = {
    "model_name_or_path": "meta-llama/Llama-3.1-8B",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "max_length": 4096,
    "bf16": True,
    "gradient_checkpointing": True,
}
ZERO = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
ADAPTER = {"peft_type": "LORA", "r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}
STEPS = """
{'loss': 2.1, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.01}
{'train_runtime': 500.0, 'train_samples_per_second': 12.8, 'train_steps_per_second': 0.2, 'train_loss': 2.0}
"""


@pytest.fixture
def three_files(tmp_path):
    """Arguments of TRL, DeepSpeed's JSON and an adapter: one run in three files."""
    parts = {"args.json": TRL_ARGUMENTS, "ds.json": ZERO, "adapter_config.json": ADAPTER}
    for name, part in parts.items():
        tmp_path.joinpath(name).write_text(json.dumps(part))
    return [str(tmp_path / name) for name in parts]


@pytest.mark.parametrize("command", ["predict", "explain"])
def test_three_files_of_one_run_stand_where_a_plan_stands(command, three_files, capsys):
    assert main([command, *three_files, "--cluster", "8xh100-sxm"]) == 0
    assert capsys.readouterr().out.startswith("It fits: ")


def test_a_third_word_beside_a_model_and_a_cluster_has_no_place(capsys):
    code, error = answer(capsys, "predict", "llama-3.1-8b", "8xh100-sxm", "more")
    assert (code, error["code"], error["error"]) == (2, "cli-usage", "there is no place for 'more'")


def test_a_log_is_laid_beside_the_prediction_of_the_files_it_ran(three_files, tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text(STEPS)
    plans = [word for name in three_files for word in ("--plan", name)]
    assert main(["reconcile", str(log), *plans, "--cluster", "8xh100-sxm"]) == 0
    text = capsys.readouterr().out
    assert "8 x H100 SXM5 80GB" in text
    assert "dp_shard=8 zero_stage=3" in text


def test_an_export_says_where_the_tool_runs_another_kernel_than_was_predicted(capsys):
    """Megatron-LM refuses Transformer Engine's fused loss, and its own keeps 8 bytes more of every logit."""
    words = ["export", "llama-3.1-8b", "8xh100-sxm", "--engine", "megatron", "--tp", "2", "--dp-shard", "4"]
    words += ["--zero-stage", "1", "--seq-len", "8192", "--global-batch-size", "64", "--to", "megatron"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "--cross-entropy-fusion-impl native" in printed.out
    note = " ".join(printed.err.split())
    assert "runs fused_loss_kernel=native, which the plan leaves open: 57.99 GiB on the fullest GPU (fits)" in note
    assert "where 55.54 GiB were predicted (fits); --no-fused-loss needs 56.03 GiB (fits) and a step as long" in note
    assert main([*words, "--no-fused-loss"]) == 0
    unfused = capsys.readouterr()
    assert "cross-entropy-loss-fusion" not in unfused.out
    assert "leaves open" not in unfused.err
    assert main([*words, "--fused-loss-kernel", "te"]) != 0
    refused = capsys.readouterr().err
    assert "cannot say fused_loss_kernel=te" in refused
    assert "fused_loss_kernel=native" in refused
    assert main([*words, "--fused-loss-kernel", "native"]) == 0
    assert "leaves open" not in capsys.readouterr().err


def test_a_page_of_which_nearly_nothing_is_understood_is_no_file_of_a_tool(tmp_path, capsys):
    page = tmp_path / "README.md"
    words = [f"tool{index} --option {index} --size-of-something {index}" for index in range(30)]
    page.write_text("\n".join([*words, "train --tensor-model-parallel-size 8 --micro-batch-size 2"]), encoding="utf-8")
    code, error = answer(capsys, "import", str(page))
    assert (code, error["code"]) == (2, "import-unknown-file")
    assert not is_foreign(page)
    page.write_text("\n".join(words[:3]) + "\ntorchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 2")
    assert is_foreign(page)


@pytest.mark.parametrize("missing", ["xyz.json", "./xyz", "args.sh"])
def test_a_missing_file_beside_one_of_another_tool_is_said_to_be_missing(capsys, missing):
    code, error = answer(capsys, "explain", *DEEPSPEED, missing)
    assert (code, error["code"], error["error"]) == (2, "plan-not-found", f"there is no file '{missing}'")


def test_a_missing_text_is_no_model_without_a_cluster(capsys):
    code, error = answer(capsys, "explain", "NOTES.md")
    assert (code, error["code"]) == (2, "plan-not-found")


@pytest.mark.parametrize("beside", [[], ["8xh100-sxm"]])
def test_an_out_of_memory_text_in_the_place_of_a_plan_is_named_with_its_option(tmp_path, capsys, beside):
    log = tmp_path / "oom.txt"
    log.write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "79.10 GiB of which 1.20 GiB is free.\n",
        encoding="utf-8",
    )
    code, error = answer(capsys, "explain", str(log), *beside)
    assert code == 2
    assert "out-of-memory message" in error["error"]
    assert f"--oom-log {log}" in error["fix"]


def test_a_model_that_no_file_names_is_open(capsys):
    assert main(["import", *DEEPSPEED]) == 0
    assert "model: no file says it  -> --model\n" in capsys.readouterr().out
