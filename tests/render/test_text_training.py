"""What a finished run says."""

from pathlib import Path

from shapes import plan
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.predict import predict
from shardwise.reconcile.traced import traced_components
from shardwise.render.text_training import training_text
from shardwise.units import format_seconds

MEASURED = {
    "time": {"step_s": 0.5, "num_steps_measured": 7, "first_step_s": 52.3},
    "throughput": {"tokens_per_s_per_gpu": 1158.4},
    "memory": {"peak_allocated_bytes": 3 << 30},
    "loss": {"first": 7.6613, "last": 6.2822},
}


def text_of(measured):
    asked = plan(read_model("llama-3.1-8b"), engine="native", layout=Layout(dp_shard=8), seq_len=4096)
    return training_text(plan=asked, prediction=predict(asked), measured=measured, used=(), folder=Path("runs/a"))


def test_steps_that_fp16_skipped_are_said():
    def said(num_skipped):
        scale = {"ratio": 32768.0, "num_skipped_steps": num_skipped, "num_steps": 20}
        return text_of({**MEASURED, "loss_scale": scale})

    sentence = "skipped 1 of 20 steps, whose gradients overflowed fp16; the loss scale was 32,768 at the end"
    assert sentence in " ".join(said(1).split())
    assert "skipped" not in said(0)
    assert "skipped" not in text_of({**MEASURED, "loss_scale": None})


def test_the_step_time_says_how_many_steps_it_is_of_and_what_the_first_one_took():
    lines = [line.split() for line in text_of(MEASURED).splitlines()]
    at = next(index for index, words in enumerate(lines) if words[:2] == ["step", "time"])
    assert lines[at][-2:] == ["500.0", "ms"]
    assert lines[at + 1] == ["steps", "it", "is", "the", "median", "of", "7"]
    assert lines[at + 2] == ["first", "step", "52.30", "s"]


def test_what_a_run_began_with_stands_in_its_head():
    asked = plan(read_model("llama-3.1-8b"), engine="native", layout=Layout(dp_shard=8), seq_len=4096)
    measured = {**MEASURED, "inputs": {"in_words": {"weights": "random", "tokens": "synthetic"}}}
    text = training_text(plan=asked, prediction=predict(asked), measured=measured, used=(), folder=Path("runs/a"))
    head = [line.split() for line in text.partition("\n\n")[0].splitlines()]
    assert head[-2:] == [["weights", "random"], ["tokens", "synthetic"]]


def test_predicted_parts_are_those_that_reconcile_lays_beside_the_trace():
    asked = plan(read_model("llama-3.1-8b"), engine="native", layout=Layout(dp_shard=8), seq_len=4096)
    found = predict(asked)
    traced = traced_components(asked, found)
    counted = next(part.duration_s for part in found.time.components if part.component == "exposed_communication")
    assert traced["exposed_communication"] < counted
    time = {**MEASURED["time"], "components_s": dict.fromkeys(traced, 0.1)}
    text = training_text(
        plan=asked, prediction=found, measured={**MEASURED, "time": time}, used=(), folder=Path("runs/a")
    )
    lines = [line.split() for line in text.splitlines()]
    for name, words in (
        ("backward", ["backward", "(sampled)"]),
        ("exposed_communication", ["exposed", "communication"]),
    ):
        (shown,) = [line for line in lines if line[: len(words)] == words]
        assert " ".join(shown[-4:-2]) == format_seconds(traced[name])
