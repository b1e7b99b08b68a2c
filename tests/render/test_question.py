"""Every answer repeats the question in the same lines: length, batch in sequences and tokens, precision, optimizer,
engine, compile and the kernel of attention; a star marks what nobody gave."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from shapes import plan
from shardwise.catalog import read_cluster
from shardwise.cli.main import main
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.predict import predict
from shardwise.render.names import cluster_text
from shardwise.render.question import plan_lines, question_lines, question_words
from shardwise.render.text_training import training_text

QUESTION = (
    "llama-3.1-8b (8.03B) on 8 x H100 SXM5 80GB (1 node)* 8,192 tokens a sequence, 32 sequences "
    "(262,144 tokens) a step, bf16-mixed, adamw, torchtitan, compile off*, attention by cuDNN"
)
"""The server around the GPUs is what a short name assumes."""
PLAN = {
    "model": "llama-3.1-8b",
    "cluster": "8xh100-sxm",
    "engine": "torchtitan",
    "recipe": {"seq_len": 8192, "global_batch_size": 32, "recompute": "full"},
    "layout": {"dp_shard": 8},
}


@pytest.mark.parametrize("command", ["predict FILE", "explain FILE", "cost FILE --tokens 1B", "timeline FILE"])
def test_an_answer_about_a_file_says_the_question_and_the_plan(command, tmp_path, capsys):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN), encoding="utf-8")
    assert main([word if word != "FILE" else str(file) for word in shlex.split(command)]) == 0
    words = " ".join(capsys.readouterr().out.split()).replace(" (* assumed)", "")
    said = words.replace(" 1.00B tokens in all,", "")
    assert QUESTION in said or QUESTION.replace("off*", "off") in said  # tokens that are given fill the plan again
    assert "layout dp_shard=8 zero_stage=3 tp=1 pp=1" in words
    assert "recipe micro_batch_size=1 recompute=full, 4 micro-batches a rank" in words


def test_a_judged_rate_is_beside_a_plan_that_says_its_question(tmp_path, capsys):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN), encoding="utf-8")
    assert main(["judge", str(file), "--tokens-per-s-per-gpu", "6000"]) == 0
    assert f"Compared with {QUESTION}" in " ".join(capsys.readouterr().out.split()).replace(" (* assumed)", "")


def test_what_nobody_gave_has_a_star(capsys):
    assert main(["predict", "llama-3.2-1b", "8xh100-sxm", "--dp-shard", "8", "--seq-len", "4096"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "4,096 tokens a sequence, 8* sequences (32,768 tokens) a step, bf16-mixed*, adamw*, native*" in words


def test_a_config_has_the_stars_of_its_folder(tmp_path, capsys):
    config = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4}
    config |= {"num_attention_heads": 8, "vocab_size": 32000}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    screens = []
    for source in (tmp_path, tmp_path / "config.json"):
        assert main(["plan", str(source), "4xl40s", "--no-what-if"]) == 0
        screens.append(capsys.readouterr().out.partition("\n\n")[0])
    assert "bf16-mixed*, adamw*, native*" in " ".join(screens[0].split())
    assert screens[0] == screens[1]


def test_a_network_that_was_given_is_part_of_the_hardware():
    given = read_cluster({"gpu": "h100-sxm", "num_gpus": 16, "network": "eth-100"})
    assert cluster_text(given) == "16 x H100 SXM5 80GB (2 nodes of 8 over eth-100)"
    assert cluster_text(read_cluster("16xh100-sxm")) == "16 x H100 SXM5 80GB (2 nodes of 8)"


def test_a_cluster_before_its_model_is_told_the_order(capsys):
    assert main(["plan", "8xh100-sxm", "llama-3.1-8b"]) == 2
    assert capsys.readouterr().err.endswith("fix: write llama-3.1-8b 8xh100-sxm\n")


def test_what_a_judged_question_left_open_has_a_star(capsys):
    assert main(["judge", "llama-3.1-8b", "8xh100-sxm", "--mfu", "0.4", "--seq-len", "4096"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "4,096 tokens a sequence" in words
    assert "tokens) a step, bf16-mixed*, adamw*, native*, compile on*, attention by cuDNN*" in words


def test_the_targets_of_adapters_are_said_once():
    adapted = plan(
        read_model("llama-3.1-8b"),
        engine="native",
        layout=Layout(dp_shard=8),
        adapter="lora",
        lora_targets="all-linear",
    )
    assert str(plan_lines(adapted, 10_000)).count("all-linear") == 1


def test_the_plan_that_is_priced_for_a_model_says_what_was_assumed(capsys):
    assert main(["cost", "llama-3.2-1b", "8xh100-sxm", "--tokens", "1B", "--seq-len", "2048"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "2,048 tokens a sequence" in words
    assert "1.00B tokens in all, bf16-mixed*, adamw*, native*, compile on*, attention by cuDNN*" in words


def test_the_end_of_a_run_says_it_as_well():
    asked = plan(read_model("llama-3.1-8b"), engine="native", layout=Layout(dp_shard=8), seq_len=4096)
    measured = {
        "time": {"step_s": 0.5},
        "throughput": {"tokens_per_s_per_gpu": 1158.4},
        "memory": {"peak_allocated_bytes": 3 << 30},
        "loss": {"first": 7.6, "last": 6.2},
    }
    text = training_text(plan=asked, prediction=predict(asked), measured=measured, used=(), folder=Path("runs/a"))
    assert " ".join(text.split()).startswith(" ".join(line.plain for line in question_lines(asked, 10_000)))


def test_adapters_and_routing_are_part_of_it():
    asked = plan(read_model("qwen3-30b-a3b"), engine="native", layout=Layout(dp_shard=8, ep=8))
    assert question_words(asked).endswith("balanced routing")
    adapted = replace(asked, recipe=replace(asked.recipe, adapter="lora", lora_rank=8))
    assert "lora of rank 8" in question_words(adapted)
