"""Whoever asks about a plan that does not fit is told the same first remedy, and the numbers are its prediction's."""

import re
import shlex
from dataclasses import replace

import pytest

from shardwise.cli.main import main
from shardwise.explain import explain
from shardwise.explain.changes import first_remedy, remedies
from shardwise.explain.out_of_memory import explain_out_of_memory
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.units import format_gib

MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB"
QUESTIONS = [
    "llama-3.1-70b 64xh100-sxm --tp 8 --pp 2 --global-batch-size 128 --micro-batch-size 2",
    "llama-3.1-8b 1xrtx-4090 --micro-batch-size 1 --dp-shard 1",
    "mixtral-8x22b 8xh100-sxm --ep 8 --dp-shard 8",
    "llama-3.1-70b 8xh100-sxm --tp 8 --micro-batch-size 2 --seq-len 4096",
]


def first_of(words: str, capsys) -> str:
    main(shlex.split(words))
    screen = " ".join(capsys.readouterr().out.split())
    return re.search(r"First remedy: (.*?): [\d.,]+ GiB", screen).group(1)


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_same_plan_gets_the_same_first_remedy_everywhere(question, capsys):
    found = {name: first_of(f"{name} {question}", capsys) for name in ("predict", "explain", "timeline")}
    found["judge"] = first_of(f"judge {question} --mfu 0.3", capsys)
    main(["explain", *question.split(), "--oom", MESSAGE])
    said = " ".join(capsys.readouterr().out.split())
    assert len(set(found.values())) == 1, found
    assert f"-> {found['predict']} needs " in said


def plan(cluster="8xh100-sxm", model="llama-3.1-8b", recipe=None, **layout):
    asked = {"seq_len": 8192, "global_batch_size": 64} | (recipe or {})
    return read_plan({"model": model, "cluster": cluster, "recipe": asked, "layout": layout})


def test_what_the_others_do_without_is_left_out_of_edits_that_are_added_up():
    """A million tokens: each of the edits is needed."""
    asked = plan(recipe={"seq_len": 1 << 20, "global_batch_size": 8}, dp_shard=8)
    first = first_remedy(asked, predict(asked))
    assert first is not None
    assert first.fit == "fits"
    again = predict(first.plan)
    assert (again.memory.needed_bytes, again.time.step_s) == (first.needed_bytes, first.step_s)


def test_more_servers_come_with_the_flags_that_they_need():
    """Servers alone do not hold the activations of Mixtral 8x22B, and recomputation alone does not hold its states."""
    asked = plan(model="mixtral-8x22b", recipe={"global_batch_size": 8}, ep=8, dp_shard=8)
    first = first_remedy(asked, predict(asked))
    assert first.edit.startswith("num_nodes=")
    assert "recompute=" in first.edit
    assert predict(first.plan).fit == "fits"


def test_adapters_are_added_up_with_recomputation_behind_what_trains_every_weight():
    asked = plan("1xrtx-4090", recipe={"micro_batch_size": 1, "global_batch_size": 1})
    edits = [change.edit for change in remedies(asked, predict(asked))]
    assert edits[0].startswith("optimizer=adamw-8bit precision=bf16")
    assert edits[-1] == "adapter=qlora recompute=selective"


def test_what_the_hosts_cannot_hold_is_no_remedy():
    """Offloading all states of 8B takes 120 GiB, and the host of a gaming card has 64."""
    asked = plan("1xrtx-4090", recipe={"micro_batch_size": 1, "global_batch_size": 1})
    assert all(predict(change.plan).memory.fits_host for change in remedies(asked, predict(asked)))


def test_a_log_and_an_explanation_say_the_same():
    asked = plan(recipe={"micro_batch_size": 4}, dp_shard=8)
    change = explain(asked).changes[0]
    told = explain_out_of_memory(MESSAGE, plan=asked)[1].suggestion
    assert told == f"{change.edit} needs {format_gib(change.needed_bytes)} ({change.fit})"


def test_a_run_that_needed_more_than_predicted_gets_a_remedy_that_leaves_more_room():
    asked = plan(recipe={"micro_batch_size": 2}, dp_shard=8)
    prediction = predict(replace(asked))
    first = first_remedy(asked, prediction, needed_bytes=2 * prediction.memory.needed_bytes)
    assert 2 * first.needed_bytes <= prediction.memory.capacity_bytes
