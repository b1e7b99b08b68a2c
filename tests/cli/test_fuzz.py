"""Whatever is written into a plan, the answer is a strict JSON object: a prediction of finite numbers, or an error."""

import json
import math
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.cli.predict import line_object
from shardwise.plan_file.read import numbered_plan_lines
from shardwise.render.json_text import json_line

NUMBERS = st.one_of(
    st.integers(min_value=-3, max_value=9),
    st.sampled_from([0, 16, 64, 512, 4096, 10**9, 10**30, -(10**18), 1e308, 0.5, float("nan"), float("inf")]),
)
VALUES = st.one_of(
    NUMBERS, st.none(), st.booleans(), st.text(max_size=6), st.lists(NUMBERS, max_size=3), st.just({"tp": 2})
)
NAMES = {
    "recipe": [
        "seq_len",
        "micro_batch_size",
        "global_batch_size",
        "precision",
        "optimizer",
        "recompute",
        "offload",
        "attention",
        "adapter",
        "lora_rank",
        "loss_chunks",
        "tokens",
        "recompute_layers",
        "compile",
        "nonsense",
    ],
    "layout": ["dp_shard", "dp_replicate", "tp", "pp", "cp", "ep", "vpp", "zero_stage", "schedule", "stage_layers"],
}
CHOICES = st.sampled_from(
    ["fp32", "bf16", "fp8-mixed", "sgd", "muon", "full", "selective", "nvme", "optimizer", "eager", "qlora", "zbv"]
)
MODELS = st.sampled_from(
    ["gpt2", "llama-3.1-8b", "mixtral-8x7b", "70B", "0B", "", {"num_parameters": 7e9}, {"x": 1}, 7]
)
CLUSTERS = st.sampled_from(["8xh100-sxm", "a100-sxm-80", "64xh100-sxm", "8xh100", "0xh100-sxm", "", {"gpu": "t4"}, []])


def group(name: str) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(st.sampled_from(NAMES[name]), st.one_of(VALUES, CHOICES), max_size=4)


PLANS = st.fixed_dictionaries(
    {"model": MODELS, "cluster": CLUSTERS, "recipe": group("recipe").map(lambda recipe: {"seq_len": 512, **recipe})},
    optional={"layout": group("layout"), "engine": st.sampled_from(["native", "megatron", "deepspeed", "jax"])},
)


def numbers(value: object) -> Iterator[float]:
    if isinstance(value, dict):
        for item in value.values():
            yield from numbers(item)
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def answer(line: str) -> dict[str, object]:
    """What a line of a JSONL file is answered with, written and read back as strict JSON."""
    ((_, plan),) = numbered_plan_lines([line])
    return json.loads(json_line(line_object(plan, line_number=1)))


@settings(max_examples=300)
@given(plan=PLANS)
def test_every_plan_is_answered_with_finite_numbers_or_an_error(plan):
    written = answer(json.dumps(plan))
    if "schema" in written:
        assert all(math.isfinite(number) and number >= 0 for number in numbers(written))
    else:
        assert list(written) == ["ok", "error", "code", "fix", "line"]
        assert all(isinstance(written[name], str) and written[name] for name in ("error", "code", "fix"))
        assert "\n" not in str(written["error"])


@settings(max_examples=200)
@given(text=st.text(min_size=1, max_size=40).filter(lambda text: text.strip() and "\n" not in text))
def test_every_line_of_text_is_answered(text):
    assert list(answer(text)) == ["ok", "error", "code", "fix", "line"]
