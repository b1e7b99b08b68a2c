"""``import shardwise as sw``: the same answers and the same refusals as the command line, in Python's words."""

import json
import subprocess
import sys

import numpy as np
import pytest

import shardwise as sw
from shardwise.cli.main import main
from shardwise.search import IntRange

LLAMA = ("llama-3.1-8b", "8xh100-sxm")
TOO_MANY_RANKS = {
    "model": "llama-3.1-8b",
    "cluster": "8xh100-sxm",
    "recipe": {"seq_len": 4096},
    "layout": {"tp": 3, "dp_shard": 5},
}


def command(words, capsys):
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_at_most_twenty_names_are_public_and_each_is_there():
    assert len(sw.__all__) <= 20
    assert all(getattr(sw, name).__doc__ for name in sw.__all__)
    assert set(sw.__all__) <= set(dir(sw))


def test_a_folder_of_the_same_name_does_not_replace_a_function():
    code = "import shardwise as sw, shardwise.predict, shardwise.plan, shardwise.explain; print(callable(sw.plan), "
    code += "sw.predict.__module__, sw.explain.__name__, shardwise.plan is sw.plan)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "shardwise.ask.predicting", "explain", "True"]


def test_importing_the_package_imports_nothing_else():
    code = "import sys, shardwise; print(sorted(name for name in sys.modules if name.startswith('shardwise')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['shardwise']"


def test_fifteen_ranks_on_eight_gpus_are_the_refusal_of_the_command(tmp_path, capsys):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(TOO_MANY_RANKS), encoding="utf-8")
    code, refused = command(["predict", str(path)], capsys)
    for ask in (sw.predict, sw.explain, sw.load_plan):
        with pytest.raises(sw.ShardwiseError) as caught:
            ask(TOO_MANY_RANKS)
        assert (code, refused["code"]) == (2, "layout-world-size")
        assert (caught.value.message, caught.value.fix) == (refused["error"], refused["fix"])
        assert str(caught.value).endswith("fix: set tp=2 and dp_shard=4")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dp_shard": 8, "recompute": "full"}, ["--dp-shard", "8", "--recompute", "full"]),
        ({"tp": 8, "compile": False, "tokens": 1e12}, ["--tp", "8", "--no-compile", "--tokens", "1T"]),
        ({"engine": "megatron", "pp": 2}, ["--engine", "megatron", "--pp", "2"]),
    ],
)
def test_a_prediction_is_that_of_the_command(fields, words, capsys):
    _, printed = command(["predict", *LLAMA, *words], capsys)
    assert json.loads(json.dumps(sw.predict(*LLAMA, **fields).to_dict())) == printed


def test_a_search_and_its_bounds_are_those_of_the_command(capsys):
    words = ["plan", *LLAMA, "--tp", "2,4", "--recompute", "none,full", "--max-gpus", "8", "--no-what-if", "--full"]
    _, printed = command([*words, "--global-batch-tokens", "1M", "--top", "3"], capsys)
    answer = sw.plan(
        *LLAMA,
        limits=sw.SearchBounds(max_gpus=8, max_plans=3),
        global_batch_tokens=1e6,
        tp=[2, 4],
        recompute=["none", "full"],
    )
    assert json.loads(json.dumps(answer.to_dict()))["plans"] == printed["plans"]
    assert answer.plan.layout.tp in (2, 4)
    assert sw.predict(answer.plan).to_dict()["memory"] == printed["plans"][0]["prediction"]["memory"]


def test_bounds_of_axes_join_those_of_the_limits():
    limits = sw.SearchBounds(tp=IntRange(low=2, high=2), max_plans=1)
    layout = sw.plan("gpt2", "4xh100-sxm", limits=limits, pp=1, seq_len=1024, global_batch_size=8).plan.layout
    assert (layout.tp, layout.pp) == (2, 1)


def test_a_cost_is_that_of_the_command(capsys):
    _, printed = command(["cost", "llama-3.1-8b", "64xh100-sxm", "--tokens", "1T", "--mfu", "0.5"], capsys)
    assert json.loads(json.dumps(sw.cost("llama-3.1-8b", "64xh100-sxm", tokens=1e12, mfu=0.5).to_dict())) == printed


def test_a_field_that_would_be_ignored_is_refused_in_the_words_of_python():
    with pytest.raises(sw.ShardwiseError, match="recompute_modules does nothing") as caught:
        sw.predict(*LLAMA, recompute_modules=["mlp"])
    assert caught.value.fix == "add engine='megatron', or leave out recompute_modules"


@pytest.mark.parametrize(
    ("ask", "code", "fix"),
    [
        (lambda: sw.predict(*LLAMA, tensor_parallel_size=8), "plan-unknown-key", "write tp"),
        (lambda: sw.plan(*LLAMA, recompute="ful"), "plan-unknown-choice", 'write recompute: "full"'),
        (lambda: sw.plan(*LLAMA, tp="two"), "search-bounds", "write tp as 8, as 1..8, as ..8, as 2.. or as 1,2,4"),
        (lambda: sw.predict("llama-3.1-8b"), "cli-usage", "name the cluster as well: llama-3.1-8b 8xh100-sxm"),
        (lambda: sw.predict(sw.load_plan(PLAN), "8xh100-sxm"), "cli-usage", "leave out 8xh100-sxm"),
        (lambda: sw.cost(*LLAMA), "cost-tokens", "set tokens=1e12"),
        (
            lambda: sw.cost(*LLAMA, tokens="1T"),
            "plan-wrong-type",
            "write tokens as a number without quotes, such as 1e12",
        ),
        (lambda: sw.judge(*LLAMA, tflops="420"), "plan-wrong-type", "write tflops as a number"),
        (lambda: sw.judge(*LLAMA), "judge-figure", "give one of tokens_per_s, tokens_per_s_per_gpu, tflops"),
        (lambda: sw.plan(*LLAMA, global_batch_tokens="4M"), "plan-wrong-type", "write global_batch_tokens as a number"),
        (
            lambda: sw.plan(*LLAMA, global_batch_tokens=float("nan")),
            "plan-wrong-type",
            "write global_batch_tokens as a",
        ),
        (lambda: sw.plan(*LLAMA, objective="fast"), "plan-unknown-choice", 'write objective="step_time"'),
        (lambda: sw.plan(*LLAMA, limits={"max_gpus": 4}), "plan-wrong-type", "write limits=sw.SearchBounds("),
        (lambda: sw.plan(*LLAMA, limits=sw.SearchBounds(tp=8)), "plan-wrong-type", "write sw.plan(..., tp=8)"),
        (
            lambda: sw.plan(*LLAMA, tokens=1e12, limits=sw.SearchBounds(budget_usd="2M")),
            "plan-wrong-type",
            "write budget_usd as a number",
        ),
        (lambda: sw.cost(*LLAMA, tokens=1e12, seq_len="4096"), "plan-wrong-type", "write seq_len as a number"),
        (lambda: sw.cost(*LLAMA, tokens=1e12, seq_len=4096.5), "plan-wrong-type", "write seq_len without a fraction"),
        (lambda: sw.cost(*LLAMA, tokens=10**400), "cost-tokens", "set tokens=1e12"),
        (lambda: sw.cost(*LLAMA, tokens=1e12, num_gpus=float("inf")), "plan-wrong-type", "write num_gpus without a"),
        *(
            (lambda bad=bad: sw.plan(*LLAMA, tokens=1e12, limits=sw.SearchBounds(**bad)), code, fix)
            for bad, code, fix in (
                ({"deadline_days": float("nan")}, "plan-wrong-type", "write deadline_days as a finite number"),
                ({"max_plans": "3"}, "plan-wrong-type", "write max_plans as a number"),
                ({"max_gpus": 1.5}, "plan-wrong-type", "write max_gpus without a fraction"),
                ({"recompute": "full"}, "plan-wrong-type", "write sw.plan(..., recompute='full')"),
                ({"recompute": ("ful",)}, "plan-unknown-choice", 'write recompute: "full"'),
                ({"zero_stage": (7,)}, "plan-out-of-range", "write zero_stage: 3"),
                ({"stage_layers": "16,16"}, "plan-wrong-type", "write sw.plan(..., stage_layers='16,16')"),
                ({"stage_layers": (16, "x")}, "search-bounds", "write stage_layers as 9,8,8,7"),
                ({"sequence_parallel": "yes"}, "plan-wrong-type", "write sw.plan(..., sequence_parallel='yes')"),
            )
        ),
        (lambda: sw.plan(*LLAMA, sequence_parallel="yes"), "plan-wrong-type", "write sequence_parallel: true"),
        (lambda: sw.plan(*LLAMA, zero_stage=7), "plan-out-of-range", "write zero_stage: 3"),
        (lambda: sw.load_plan("x" * 5000), "plan-not-found", "give the path of a plan file"),
        (lambda: sw.predict("x" * 5000), "cli-usage", "name the cluster as well: xxx"),
        (lambda: sw.predict("x" * 5000, "8xh100-sxm"), "model-unknown-name", "list the names with"),
        (lambda: sw.load_plan("no-such-plan"), "plan-not-found", "give the path of a plan file"),
        (lambda: sw.load_plan(None), "plan-wrong-type", "give the path of a plan file"),
        (lambda: sw.save_plan("plan", "plan.json"), "plan-wrong-type", "give the plan of an answer"),
    ],
)
def test_what_cannot_be_understood_says_what_to_write(ask, code, fix):
    with pytest.raises(sw.ShardwiseError) as caught:
        ask()
    assert caught.value.code == code
    assert caught.value.fix.startswith(fix)


def test_numbers_of_numpy_are_numbers():
    asked = sw.predict(*LLAMA, seq_len=np.int64(4096), tokens=np.float32(1e12), tp=np.int32(2))
    assert asked.to_dict() == sw.predict(*LLAMA, seq_len=4096, tokens=float(np.float32(1e12)), tp=2).to_dict()
    given = {"tokens": np.int64(10**12), "mfu": np.float32(0.5), "seq_len": np.int32(4096), "price": np.float64(2)}
    asked, plain = (sw.cost(*LLAMA, **it) for it in (given, {name: float(value) for name, value in given.items()}))
    assert json.dumps(asked.to_dict()) == json.dumps(plain.to_dict())
    limits = sw.SearchBounds(deadline_days=np.float32(3000), max_gpus=np.int64(4), zero_stage=(3,), recompute=("full",))
    found = sw.plan(*LLAMA, tokens=np.int64(10**9), limits=limits, price=np.float32(2), seq_len=4096)
    assert json.loads(json.dumps(found.to_dict()))["plans"]
    assert found.plan.recipe.recompute == "full"
    assert sw.judge(*LLAMA, mfu=np.float32(0.5)).to_dict() == sw.judge(*LLAMA, mfu=0.5).to_dict()


PLAN = {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {"seq_len": 4096}}


def test_fields_win_over_a_plan_and_the_plan_stays_as_it_was():
    plan = sw.load_plan(PLAN)
    longer = sw.predict(plan, seq_len=8192)
    assert (plan.recipe.seq_len, longer.plan.recipe.seq_len) == (4096, 8192)
    assert longer.memory.needed_bytes > sw.predict(plan).memory.needed_bytes


def test_a_plan_is_saved_once_and_read_back_equal(tmp_path):
    plan = sw.load_plan(PLAN, tp=2)
    for name in ("plan.json", "plan.yaml"):
        path = sw.save_plan(plan, tmp_path / name)
        assert sw.load_plan(path) == plan
        with pytest.raises(sw.ShardwiseError, match="exists already"):
            sw.save_plan(plan, path)
    with pytest.raises(sw.ShardwiseError, match="cannot be written"):
        sw.save_plan(plan, tmp_path / "no" / "plan.json")


def test_answers_and_records_print_themselves_in_a_few_lines():
    predicted = sw.predict(*LLAMA)
    assert repr(predicted).startswith("It fits: ")
    assert len(repr(predicted).splitlines()) <= 4
    assert repr(predicted.plan) == (
        "Plan(ModelSpec(llama-3.1-8b, 8,030,261,248 parameters) on Cluster(8 x h100-sxm), dp_shard=8, native)"
    )
    assert repr(sw.SearchBounds(deadline_days=30)) == "SearchBounds(deadline_days=30)"
    assert sw.load_plan(predicted.plan.to_dict()) == predicted.plan
    assert predicted.plan._repr_html_().startswith("<pre>Plan(")
    for answer in (predicted, sw.explain(predicted.plan), sw.cost(*LLAMA, tokens=1e12, mfu=0.4)):
        page = answer._repr_html_()
        assert "<pre>" in page
        assert "<script" not in page


def test_fields_that_nobody_gave_have_the_stars_of_the_command(capsys):
    """Every one looked as if it had been given."""
    for ask in ("predict", "explain"):
        main([ask, *LLAMA, "--seq-len", "4096", "--dp-shard", "8"])
        printed = capsys.readouterr().out
        asked = printed[printed.index(LLAMA[0]) : printed.index("layout ")]
        assert "4,096 tokens" in asked
        assert "sequences (32,768 tokens) a step" in asked.replace("*", "").replace("\n", " ")
        assert asked in getattr(sw, ask)(*LLAMA, seq_len=4096, dp_shard=8).text()
    main(["plan", *LLAMA, "--precision", "bf16", "--no-what-if"])
    printed = capsys.readouterr().out.partition("Recommended")[0]
    assert "bf16, adamw*, native*" in printed.replace("\n", " ")
    found = sw.plan(*LLAMA, precision="bf16")
    assert found.text().startswith(printed)
    assert "*" not in sw.predict(found.plan).text().partition("layout ")[0].replace("(1 node)* (* assumed)", "")


def test_a_search_that_finds_nothing_is_an_answer_and_asking_for_its_plan_an_error(tmp_path):
    answer = sw.plan("llama-3.1-70b", "1xh100-sxm", recompute="none", offload="none")
    assert answer.plans == ()
    assert "No plan" in repr(answer) or "fits" in repr(answer)
    with pytest.raises(sw.ShardwiseError, match="there is no plan") as caught:
        answer.save(tmp_path / "plan.json")
    assert caught.value.code == "search-no-plan"


@pytest.mark.parametrize("indent", [None, 1])
def test_a_plan_is_read_from_its_json_text_of_one_line_or_of_several(indent):
    text = json.dumps({"model": "llama-3.2-1b", "cluster": "1xh100-sxm", "recipe": {"seq_len": 2048}}, indent=indent)
    assert sw.load_plan(text).model.name == "llama-3.2-1b"
    assert sw.predict(text).to_dict()["fits"]
