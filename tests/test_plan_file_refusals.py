"""What is no plan: every kind of bad input is one sentence, a code, and one thing to type next."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from habits.source_tree import ROOT
from shardwise.errors import LayoutError, PlanError, RecipeError, ShardwiseError
from shardwise.plan_file import read_plan
from shardwise.plan_file.text import MAX_DEPTH, MAX_PLAN_BYTES

SMALLEST = {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {"seq_len": 4096}}

FILES: dict[str, tuple[str, bytes, str, str]] = {
    "empty": ("plan.json", b"", "plan-empty", "plan.json is empty"),
    "blanks": ("plan.yaml", b" \n\t\n", "plan-empty", "plan.yaml is empty"),
    "binary": ("plan.json", b"\x89PNG\r\n\x1a\n", "plan-not-text", "plan.json is not UTF-8 text (byte 0 is 0x89)"),
    "utf-16": ("plan.json", "{}".encode("utf-16"), "plan-not-text", "plan.json is not UTF-8 text (byte 0 is 0xff)"),
    "zero bytes": ("plan.json", b'{"a": "\0"}', "plan-not-text", "plan.json holds zero bytes, so it is not text"),
    "too large": (
        "plan.json",
        b" " * (MAX_PLAN_BYTES + 1),
        "plan-too-large",
        "is larger than 1048576 bytes, the most a plan file has",
    ),
    "large yaml": (
        "plan.yaml",
        b"model: " + b"a" * 300_000,
        "plan-too-large",
        "plan.yaml is larger than 262144 bytes, the most a YAML plan has",
    ),
    "broken json": (
        "plan.json",
        b'{"model": "a",\n "cluster" "b"}',
        "plan-syntax",
        "plan.json is not JSON: expecting ':' delimiter at line 2, column 12",
    ),
    "comment in json": (
        "plan.json",
        b'{"model": "a", // my model\n}',
        "plan-syntax",
        "plan.json is not JSON: expecting property name enclosed in double quotes at line 1, column 16",
    ),
    "cut in a key": (
        "plan.json",
        b'{"model": "a", "clu',
        "plan-syntax",
        "plan.json is not JSON: unterminated string starting at line 1, column 16",
    ),
    "yaml saved as json": ("plan.json", b"model: a", "plan-syntax", "plan.json is not JSON: expecting value at line 1"),
    "broken yaml": (
        "plan.yaml",
        b"model: [a",
        "plan-syntax",
        "plan.yaml is not YAML: expected ',' or ']', but got '<stream end>' at line 1, column 10",
    ),
    "tab in yaml": ("plan.yaml", b"model:\n\t- a", "plan-syntax", "that cannot start any token at line 2, column 1"),
    "two yaml documents": (
        "plan.yaml",
        b"a: 1\n---\nb: 2",
        "plan-syntax",
        "expected a single document in the stream, but found another document at line 2, column 1",
    ),
    "control character in yaml": (
        "plan.yaml",
        b"model: \x01",
        "plan-syntax",
        "plan.yaml is not YAML: unacceptable character #x0001: special characters are not allowed",
    ),
    "code in yaml": (
        "plan.yaml",
        b'model: !!python/object/apply:os.system ["ls"]',
        "plan-syntax",
        "could not determine a constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.system'",
    ),
    "number as yaml key": ("plan.yaml", b"1: 2", "plan-syntax", "line 1 has the key 1, which is not text"),
    "list as yaml key": (
        "plan.yaml",
        b"? [a, b]\n: 1",
        "plan-syntax",
        "line 1 has the key ['a', 'b'], which is not text",
    ),
    "duplicate json key": (
        "plan.json",
        b'{"model": "a", "model": "b"}',
        "plan-duplicate-key",
        "plan.json gives the key 'model' twice in one place",
    ),
    "duplicate yaml key": (
        "plan.yaml",
        b"layout:\n  tp: 1\n  tp: 2",
        "plan-duplicate-key",
        "line 3 gives the key 'tp' twice in one place",
    ),
    "yaml alias": ("plan.yaml", b"a: &x [1]\nb: *x", "plan-alias", "line 2 refers back to an anchor"),
    "yaml bomb": (
        "plan.yaml",
        b"a: &a [x, x, x, x]\n" + b"".join(b"%c: &%c [*%c, *%c]\n" % (c, c, c - 1, c - 1) for c in range(98, 122)),
        "plan-alias",
        "line 2 refers back to an anchor, which a plan does not need",
    ),
    "deep json": ("plan.json", b'{"model":' * 100_000, "plan-too-deep", "plan.json is nested deeper than 24 levels"),
    "rather deep json": (
        "plan.json",
        b'{"model":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
        "plan-too-deep",
        "plan.json is nested deeper than 24 levels",
    ),
    "deep yaml": ("plan.yaml", b"[" * 20_000, "plan-too-deep", "plan.yaml is nested deeper than 24 levels"),
    "NaN": ("plan.json", b'{"model": NaN}', "plan-not-finite", "model is nan, which is not a finite number"),
    "NaN in a key": (
        "plan.json",
        b'{"model": "gpt2", "layout": {"tp": -Infinity}}',
        "plan-not-finite",
        "layout.tp is -inf, which is not a finite number",
    ),
    "infinity in yaml": ("plan.yaml", b"recipe: {seq_len: .inf}", "plan-not-finite", "recipe.seq_len is inf"),
    "thousands of digits": (
        "plan.json",
        b'{"recipe": {"seq_len": 1' + b"0" * 5000 + b"}}",
        "plan-out-of-range",
        "plan.json holds a whole number of thousands of digits",
    ),
    "a list of plans": ("plan.json", b"[{}, {}]", "plan-not-a-mapping", "plan.json holds a list, not the named parts"),
    "a single word": ("plan.yaml", b"hello", "plan-not-a-mapping", "plan.yaml holds a single value (str)"),
}


@pytest.mark.parametrize(("name", "data", "code", "message"), FILES.values(), ids=FILES)
def test_a_file_that_is_no_plan_is_refused_in_one_sentence(name, data, code, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(PlanError) as caught:
        read_plan(tmp_path / name)
    assert caught.value.code == code
    assert message in caught.value.message
    assert "\n" not in caught.value.message + caught.value.fix


def test_a_missing_file_names_the_nearest_plan_beside_it(tmp_path):
    (tmp_path / "llama.json").write_text("{}", encoding="utf-8")
    with pytest.raises(PlanError) as caught:
        read_plan(tmp_path / "lama.json")
    assert (caught.value.code, caught.value.fix) == ("plan-not-found", f"use {tmp_path / 'llama.json'}")


@pytest.mark.parametrize("missing", ["nope.json", "plan.json", "fows2.yaml", "x.json", "rows_2024.json"])
def test_a_missing_file_is_not_answered_with_an_unrelated_neighbour(missing, tmp_path):
    (tmp_path / "rows.json").write_text("{}", encoding="utf-8")
    with pytest.raises(PlanError) as caught:
        read_plan(tmp_path / missing)
    assert caught.value.fix.endswith("make a plan: shardwise plan llama-3.1-8b 8xh100-sxm --out plan.json")


@pytest.mark.parametrize(("missing", "near"), [("Plan.json", "plan.yaml"), ("plans.json", "plan.yaml")])
def test_another_ending_or_letter_is_a_near_name(missing, near, tmp_path):
    (tmp_path / near).write_text("{}", encoding="utf-8")
    with pytest.raises(PlanError) as caught:
        read_plan(tmp_path / missing)
    assert caught.value.fix == f"use {tmp_path / near}"


@pytest.mark.parametrize("source", ["x" * 5000, "a\0b", "."])
def test_a_path_that_cannot_be_opened_is_refused(source):
    with pytest.raises(PlanError) as caught:
        read_plan(source)
    assert caught.value.code == "plan-unreadable"
    assert len(caught.value.message) < 250


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs an endless file")
def test_an_endless_file_is_refused_without_reading_it_all():
    with pytest.raises(PlanError, match="is larger than"):
        read_plan("/dev/zero")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("{}", encoding="utf-8")
    path.chmod(0)
    with pytest.raises(PlanError, match="Permission denied"):
        read_plan(path)


def test_a_hundred_megabytes_are_refused_unread(tmp_path):
    path = tmp_path / "plan.json"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    tracemalloc.start()
    with pytest.raises(PlanError, match="is larger than"):
        read_plan(path)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 3 * MAX_PLAN_BYTES


FIELDS: dict[str, tuple[dict[str, object], type[ShardwiseError], str, str, str]] = {
    "no model": ({"model": None}, PlanError, "plan-missing-key", "the plan has no model", 'write model: "llama'),
    "no cluster": ({"cluster": None}, PlanError, "plan-missing-key", "the plan has no cluster", 'write cluster: "8x'),
    "no recipe": ({"recipe": None}, PlanError, "plan-missing-key", "the plan has no recipe.seq_len", "write recipe:"),
    "no seq_len": (
        {"recipe": {"optimizer": "adamw"}},
        PlanError,
        "plan-missing-key",
        "the plan has no recipe.seq_len",
        'write recipe: {"seq_len": 4096}',
    ),
    "other schema": (
        {"schema": "shardwise.plan/2"},
        PlanError,
        "plan-schema",
        "the schema is 'shardwise.plan/2', but this program reads shardwise.plan/1",
        'write schema: "shardwise.plan/1", or leave it out',
    ),
    "unknown part": (
        {"hyperparameters": {}},
        PlanError,
        "plan-unknown-key",
        "hyperparameters is not a field of a plan",
        "leave it out, or use one of schema, model, cluster, recipe, layout, engine",
    ),
    "another tool's part": (
        {"parallelism": {}},
        PlanError,
        "plan-unknown-key",
        "parallelism is not a field of a plan",
        "write layout",
    ),
    "misspelt field": (
        {"recipe": {"seq_len": 1, "optimiser": "adamw"}},
        RecipeError,
        "plan-unknown-key",
        "recipe.optimiser is not a field of a plan",
        "write optimizer",
    ),
    "torchtitan's name": (
        {"layout": {"tensor_parallel_degree": 2}},
        LayoutError,
        "plan-unknown-key",
        "layout.tensor_parallel_degree is not a field of a plan",
        "write tp",
    ),
    "DeepSpeed's name": (
        {"recipe": {"seq_len": 1, "train_micro_batch_size_per_gpu": 2}},
        RecipeError,
        "plan-unknown-key",
        "recipe.train_micro_batch_size_per_gpu is not a field of a plan",
        "write micro_batch_size",
    ),
    "layout as list": (
        {"layout": [2, 4]},
        PlanError,
        "plan-wrong-type",
        "layout is a list, not a group of fields",
        "write layout as a mapping, such as {dp_replicate: ...}",
    ),
    "quoted number": (
        {"layout": {"tp": "2"}},
        LayoutError,
        "plan-wrong-type",
        "layout.tp is '2', not a whole number",
        "write 2 without quotes",
    ),
    "fraction": (
        {"layout": {"tp": 2.5}},
        LayoutError,
        "plan-wrong-type",
        "layout.tp is 2.5, not a whole number",
        "write a number such as 8",
    ),
    "boolean degree": (
        {"layout": {"tp": True}},
        LayoutError,
        "plan-wrong-type",
        "layout.tp is true, not a whole number",
        "write a number such as 8",
    ),
    "negative degree": (
        {"layout": {"tp": -1}},
        LayoutError,
        "plan-out-of-range",
        "layout.tp is -1, outside 1 to 1048576",
        "write tp: 1",
    ),
    "absurd degree": (
        {"layout": {"tp": 10**9}},
        LayoutError,
        "plan-out-of-range",
        "layout.tp is 1000000000, outside 1 to 1048576",
        "write tp: 1048576",
    ),
    "enormous float": (
        {"layout": {"tp": 1e300}},
        LayoutError,
        "plan-out-of-range",
        "layout.tp is a number of more than 30 digits, outside 1 to 1048576",
        "write tp: 1048576",
    ),
    "zero shards": (
        {"layout": {"dp_shard": 0}},
        LayoutError,
        "plan-out-of-range",
        "layout.dp_shard is 0, outside 1 to 1048576, or -1 for the rest",
        "write dp_shard: -1",
    ),
    "ZeRO-4": (
        {"layout": {"zero_stage": 4}},
        LayoutError,
        "plan-out-of-range",
        "layout.zero_stage is 4, outside 0 to 3",
        "write zero_stage: 3",
    ),
    "negative sequence": (
        {"recipe": {"seq_len": -4096}},
        RecipeError,
        "plan-out-of-range",
        "recipe.seq_len is -4096, outside 1 to 134217728",
        "write seq_len: 4096",
    ),
    "not a number": (
        {"recipe": {"seq_len": float("nan")}},
        PlanError,
        "plan-not-finite",
        "recipe.seq_len is nan, which is not a finite number",
        "write a number, or leave recipe.seq_len out",
    ),
    "tokens with a unit": (
        {"recipe": {"seq_len": 1, "tokens": "15T"}},
        RecipeError,
        "plan-wrong-type",
        "recipe.tokens is '15T', not a number",
        "write a number such as 1.0e12",
    ),
    "infinite tokens as text": (
        {"recipe": {"seq_len": 1, "tokens": "inf"}},
        RecipeError,
        "plan-out-of-range",
        "recipe.tokens is inf, outside 1 to 1000000000000000000",
        "write tokens: 1000000000000000000",
    ),
    "NaN tokens as text": (
        {"recipe": {"seq_len": 1, "tokens": "nan"}},
        RecipeError,
        "plan-out-of-range",
        "recipe.tokens is nan, outside 1 to 1000000000000000000",
        "write tokens: 1000000000000000000",
    ),
    "capital letters": (
        {"layout": {"schedule": "1F1B"}},
        LayoutError,
        "plan-unknown-choice",
        "layout.schedule is '1F1B', not one of gpipe, 1f1b, interleaved, zb-h1, zb-h2, zbv, dualpipev, dualpipe",
        'write schedule: "1f1b"',
    ),
    "unquoted no": (
        {"recipe": {"seq_len": 1, "offload": False}},
        RecipeError,
        "plan-unknown-choice",
        "recipe.offload is false, not one of none, optimizer, parameters, nvme",
        'write offload: "none"',
    ),
    "yes for a flag": (
        {"recipe": {"seq_len": 1, "compile": "yes"}},
        RecipeError,
        "plan-wrong-type",
        "recipe.compile is 'yes', neither true nor false",
        "write compile: true or compile: false, without quotes",
    ),
    "number for a flag": (
        {"recipe": {"seq_len": 1, "compile": 1}},
        RecipeError,
        "plan-wrong-type",
        "recipe.compile is 1, neither true nor false",
        "write compile: true or compile: false, without quotes",
    ),
    "unknown engine": (
        {"engine": "megatronn"},
        PlanError,
        "plan-unknown-choice",
        "engine is 'megatronn', not one of native, torchtitan, megatron, deepspeed, fsdp2, fsdp1, accelerate, hai-llm, "
        "nanotron",
        'write engine: "megatron"',
    ),
    "empty stages": (
        {"layout": {"stage_layers": []}},
        LayoutError,
        "plan-wrong-type",
        "layout.stage_layers is an empty list",
        "write stage_layers: [15, 16, 16, 15]",
    ),
    "word among stages": (
        {"layout": {"stage_layers": [8, "x"]}},
        LayoutError,
        "plan-wrong-type",
        "layout.stage_layers[1] is 'x', not a whole number",
        "write a number such as 8",
    ),
    "model as number": (
        {"model": 70e9},
        PlanError,
        "plan-wrong-type",
        "model is 70000000000.0, neither a name nor a mapping",
        'write model: {"num_parameters": 70000000000.0}',
    ),
    "cluster as list": (
        {"cluster": ["h100"]},
        PlanError,
        "plan-wrong-type",
        "cluster is a list, neither a name nor a mapping",
        "write a name of shardwise catalog nodes, or the fields as a mapping",
    ),
}


@pytest.mark.parametrize(("given", "error", "code", "message", "fix"), FIELDS.values(), ids=FIELDS)
def test_a_field_that_makes_no_sense_is_named_with_its_value_and_a_fix(given, error, code, message, fix):
    with pytest.raises(error) as caught:
        read_plan({key: value for key, value in {**SMALLEST, **given}.items() if value is not None})
    assert caught.value.code == code
    assert caught.value.message == message
    assert caught.value.fix.startswith(fix)


def test_what_the_fix_says_is_accepted():
    for given, *_, fix in FIELDS.values():
        name, _, value = fix.removeprefix("write ").partition(": ")
        if name in ("tp", "dp_shard", "zero_stage", "schedule") and value:
            layout = {**dict(given.get("layout", {})), name: json.loads(value)}
            read_plan({**SMALLEST, "layout": layout})


@pytest.mark.parametrize("source", [5, None, b"{}", [SMALLEST]])
def test_what_is_neither_path_nor_text_nor_mapping_is_refused(source):
    with pytest.raises(PlanError, match="a plan is a path, a text or a mapping"):
        read_plan(source)


def test_values_that_no_file_can_hold_are_refused():
    with pytest.raises(PlanError, match="model holds values that no plan file can hold"):
        read_plan({**SMALLEST, "model": {"hidden_size": {1, 2}}})


def test_every_code_of_plan_files_is_explained():
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    codes = {code for _, _, code, _ in FILES.values()} | {code for _, _, code, _, _ in FIELDS.values()}
    codes |= {"plan-not-found", "plan-unreadable", "plan-hand-made"}
    assert sorted(code for code in codes if f"## {code}\n" not in page) == []


@pytest.mark.parametrize(
    ("layers", "fix"), [(0, "set recompute=none and leave out recompute_layers"), (-3, "write recompute_layers: 1")]
)
def test_no_layer_is_no_number_of_recomputed_layers(layers, fix):
    with pytest.raises(RecipeError) as refused:
        read_plan({**SMALLEST, "recipe": {"seq_len": 4096, "recompute": "full", "recompute_layers": layers}})
    assert (refused.value.code, refused.value.fix) == ("plan-out-of-range", fix)
