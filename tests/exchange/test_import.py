"""Eighty files of real projects, retyped, mean the plans that stand in cases.jsonl, and their mistakes are named."""

import json
from pathlib import Path

import pytest

from shardwise.catalog import read_cluster
from shardwise.exchange import read_files
from shardwise.exchange.documents import parse_documents
from shardwise.exchange.mistakes import find_mistakes, load_kinds
from shardwise.exchange.names import BESIDE, FILE, OPTION, Claim
from shardwise.exchange.tools.table import TOOLS

FOLDER = Path(__file__).parent
MEGATRON_HEADER = (
    ("bf16", True),
    ("micro_batch_size", 1),
    ("num_layers", 4),
    ("seq_length", 512),
    ("world_size", 8),
    ("tensor_model_parallel_size", 2),
)
CASES = {
    case["id"]: case for case in map(json.loads, (FOLDER / "cases.jsonl").read_text(encoding="utf-8").splitlines())
}
DIFFERENCES = {
    # Launchers tell a program its rank and the world alone (torch/distributed/run.py, training-operator envvar.go), so
    # that neither their lines nor their job files say how the program shards; the table takes it from the project.
    "k8s-pytorchjob-simple": {"dp_shard"},
    "skypilot-ddp": {"dp_replicate", "dp_shard", "zero_stage"},
    "x-k8s-no-node-rank": {"dp_replicate", "dp_shard", "zero_stage"},
    "x-k8s-trainjob-mpi": {"dp_replicate", "dp_shard", "zero_stage"},
    # The file that decides is named and was not given: accelerate reads distributed_type from it (commands/launch.py,
    # _validate_launch_command), LLaMA-Factory hands ds_z3.json to DeepSpeed, and a name is no ZeRO stage.
    "x-acc-uneven-machines": {"engine", "dp_replicate", "dp_shard", "zero_stage"},
    "x-lf-deepspeed-yaml": {"dp_replicate", "dp_shard", "zero_stage"},
    # params.json and the line of an inference program: the number of pieces stands in the folder of the weights.
    "x-meta-mp2-one-process": {"dp_replicate", "dp_shard", "zero_stage", "tp", "optimizer", "recompute"},
    # TrainingArguments.optim is adamw_torch_fused where nobody says it (transformers 5.24 training_args.py): the table
    # has adamw in 12 of 15 such files. It has nothing offloaded in 12 of the 15 files that name no engine, and leaves
    # three open. Files of one kind are read alike: an offload has to be asked for by name.
    "open-instruct-tulu70b": {"optimizer", "offload"},
    "x-acc-8-of-16": {"optimizer"},
    "x-k8s-jobset-one-node-worlds": {"offload"},
    "x-slurm-launch-node-address": {"offload"},
    # --optimizer is adam and recompute_granularity None where a line leaves them out (Megatron-LM d98e8a64
    # megatron/training/arguments.py, Megatron-DeepSpeed alike).
    "x-megds-pp2-zero2": {"optimizer", "recompute"},
    "x-ds-offload-client-optimizer": {"recompute"},
    # Without --use-distributed-optimizer nothing is divided: dp_shard is 1 at stage 0 by the table's own words.
    "x-meg-80-layers-pp16-vpp": {"dp_shard"},
    "x-meg-last-stage-pp1": {"dp_shard"},
    # num_processes counts all machines (accelerate utils/launch.py), and the file says 1.
    "x-acc-procs-per-machine": {"world_size", "dp_replicate"},
}
"""Fields that are read in another way than the table has them, and why."""


def reading_of(case, settings=(), world_size=None):
    files = sorted((FOLDER / "files" / case["id"]).iterdir())
    world_size = world_size or case["world_size"]
    if world_size:
        settings = [*settings, Claim(field="world_size", value=world_size, place="--cluster", strength=FILE)]
    return read_files(files, settings=settings)


def said(reading, field):
    """What a reading says of a field: its value, both sides of a contradiction, or that it is open."""
    disputed = [
        claim.value for one in reading.contradictions if one.first.field == field for claim in (one.first, one.second)
    ]
    known = reading.value(field)
    return {"open" if known is None or disputed else known, known, *disputed} - {None}


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_files_mean_the_plan(name):
    case = CASES[name]
    reading = reading_of(case)
    differ = {
        field
        for field, wanted in (case["plan"] or {}).items()
        if not said(reading, field) & set(wanted if isinstance(wanted, list) else [wanted])
    }
    assert differ == DIFFERENCES.get(name, set())


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_mistake_is_named_and_no_right_file_is_blamed(name):
    case = CASES[name]
    cluster = read_cluster(case["cluster"]) if "cluster" in case else None
    found = find_mistakes(reading_of(case, world_size=case.get("seen_world_size")), cluster=cluster)
    assert (case["mistake"] in {mistake.code for mistake in found}) if case["mistake"] else found == ()
    assert all(mistake.place and mistake.what and mistake.fix for mistake in found)


def test_there_are_forty_kinds_of_mistakes_and_the_silent_ones_come_first():
    kinds = load_kinds()
    assert len({kind.code for kind in kinds}) >= 40
    assert sum(kind.tool_says == "silent" for kind in kinds) >= 10
    assert all(kind.source for kind in kinds)


def test_a_setting_wins_and_settles_a_contradiction():
    chosen = [Claim(field="precision", value="bf16-mixed", place="--set", strength=OPTION)]
    reading = reading_of(CASES["x-hf-bf16-left-on"], chosen)
    assert reading.value("precision") == "bf16-mixed"
    assert not [one for one in reading.contradictions if one.first.field == "precision"]


def test_a_long_log_is_read_as_far_as_its_settings_stand(tmp_path):
    log = tmp_path / "train.log"
    head = "".join(f"  {key} ............ {value}\n" for key, value in MEGATRON_HEADER)
    log.write_text(head + " iteration 1/ 9 | elapsed time per iteration (ms): 1.0 |\n" * 40_000)
    reading = read_files([log])
    assert (reading.value("tp"), reading.value("seq_len")) == (2, 512)


def test_a_number_that_cannot_be_is_not_understood_rather_than_dropped(tmp_path):
    config = tmp_path / "ds.json"
    config.write_text('{"train_batch_size": -8, "bf16": true, "zero_optimization": {"stage": 7}}')
    reading = read_files([config])
    assert {one.place for one in reading.not_understood} == {
        "ds.json:zero_optimization.stage",
        "ds.json:train_batch_size",
        "ds.json:bf16",
    }
    assert {"zero_stage", "precision"} <= {one.field for one in reading.questions}


def test_what_is_not_understood_is_kept():
    reading = reading_of(CASES["meg-starcoder"])
    assert [(one.place, one.value) for one in reading.not_understood] == [
        ("train.slurm:--attention-head-type", "multiquery")
    ]


def test_a_file_that_another_names_and_that_was_not_given_is_said():
    assert read_files([FOLDER / "files/x-hf-ds-mismatch/args.yaml"]).named_files == ("ds.json",)


def test_only_what_nothing_else_answers_is_asked_for():
    reading = reading_of(CASES["lf-fsdp2-2gpus"])
    questions = [one.field for one in reading.questions]
    assert questions == ["micro_batch_size", "seq_len", "optimizer", "recompute"]


ANCHORED = """
base_model: meta-llama/Llama-3.1-8B
x-kept: &kept
  offload_params: false
  version: 2
x-sizes: &sizes
  micro_batch_size: 4
  gradient_accumulation_steps: 2
<<: [*sizes]
fsdp_config:
  <<: *kept
  offload_params: true
sequence_len: &length 4096
eval_sequence_len: *length
micro_batch_size: 2
"""


def test_anchors_and_merged_mappings_are_read_with_what_stands_beside_them_first():
    document, *_ = parse_documents(ANCHORED, name="axolotl.yaml")
    said = {fact.key: fact.value for fact in document.facts if not fact.key.startswith("x_")}
    assert said == {
        "base_model": "meta-llama/Llama-3.1-8B",
        "fsdp_config.offload_params": True,
        "fsdp_config.version": 2,
        "sequence_len": 4096,
        "eval_sequence_len": 4096,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 2,
    }


@pytest.mark.parametrize("tool", TOOLS.values(), ids=list(TOOLS))
def test_a_key_has_one_row_for_each_field_that_it_says(tool):
    rows = [(name.key, name.field) for name in tool.names]
    assert len(set(rows)) == len(rows)
    beside = [key for key, field in rows if field == BESIDE]
    assert [key for key, field in rows if field != BESIDE and key in beside] == []


def test_a_value_that_cannot_be_is_said_where_its_field_is_open(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 5}}', encoding="utf-8")
    why = {one.field: one.why for one in read_files([path]).open}
    assert why["zero_stage"] == "ds.json:zero_optimization.stage says 5, and a plan takes 0, 1, 2, 3"
    assert why["seq_len"] == "no file says it"


def test_two_formats_of_one_file_contradict_each_other_with_both_places(tmp_path):
    path = tmp_path / "ds.json"
    both = '{"train_batch_size": 8, "bf16": {"enabled": true}, "fp16": {"enabled": true}}'
    path.write_text(both, encoding="utf-8")
    reading = read_files([path])
    (found,) = reading.contradictions
    assert (found.first.place, found.second.place) == ("ds.json:bf16.enabled", "ds.json:fp16.enabled")
    assert [one.code for one in find_mistakes(reading)] == ["both-formats"]


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("stage3_param_persistance_threshold", "stage3_param_persistence_threshold"),
        ("overlap_com", "overlap_comm"),
        ("something_else", ""),
    ],
)
def test_the_near_name_stands_beside_a_key_that_is_not_understood(tmp_path, key, near):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"train_batch_size": 8, "zero_optimization": {key: 1}}), encoding="utf-8")
    (unread,) = read_files([path]).not_understood
    assert (unread.place, unread.near) == (f"ds.json:zero_optimization.{key}", near)
