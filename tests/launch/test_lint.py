import re
import tomllib
from dataclasses import replace
from typing import get_args

import pytest
from torch.distributed.run import get_args_parser

from habits.source_tree import ROOT
from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.launch.lint import RULES, SurroundingsError, lint, require_no_errors
from shardwise.launch.lint_case import version_numbers
from shardwise.launch.support import packages_of
from shardwise.launch.surroundings import Surroundings, read_surroundings
from shardwise.plan_file import read_plan
from shardwise.recipe import Adapter
from shardwise.train.patient_torchrun import PATIENCE
from shardwise.units import GIB, MIB
from train.models import make_job

HERE = Surroundings(
    versions={"torch": "2.13.0+cu130", "transformers": "5.24.0", "triton": "3.8.0", "safetensors": "0.6.2"},
    num_cores=32,
    num_gpus=8,
    shared_memory_bytes=16 * GIB,
    free_disk_bytes=1000 * GIB,
    max_open_files=65_536,
    interfaces=("lo", "eth0", "ib0"),
    host_address="10.0.0.3",
)


def plan(*, num_nodes=1, recipe=None, **layout):
    return read_plan(
        {
            "model": "llama-3.1-8b",
            "cluster": {"gpu": "h100-sxm", "gpus_per_node": 8, "num_nodes": num_nodes, "network": "ib-ndr"},
            "recipe": {"seq_len": 4096, "global_batch_size": 64, **(recipe or {})},
            "layout": layout or {"dp_shard": 8 * num_nodes},
        }
    )


def found(variables=None, *, of=None, is_on_gpu=True, **changes):
    here = replace(HERE, variables=variables or {}, **changes)
    findings = lint(of or plan(), here, is_on_gpu=is_on_gpu, saves_states=True)
    return {finding.rule: finding for finding in findings}


def test_a_plan_for_gpus_trains_on_cpus_only_where_it_is_asked():
    """It trained an H100's plan on two cores for minutes, without a word."""
    bare = {"is_on_gpu": False, "num_gpus": 0}
    here = replace(HERE, num_gpus=0)
    (finding,) = [one for one in lint(plan(), here, is_on_gpu=False, is_device_asked=False) if one.severity == "error"]
    assert finding.rule == "gpus-missing"
    assert finding.claim == "the plan is for 8 x H100 SXM5 80GB, and no GPU can be seen"
    assert "--device cpu" in finding.fix
    assert "gpus-missing" not in found(**bare)
    cores = replace(plan(), cluster=read_cluster(str(ROOT / "examples" / "two-cores.toml")))
    assert not any(one.rule == "gpus-missing" for one in lint(cores, here, is_on_gpu=False, is_device_asked=False))


def test_a_good_machine_has_no_findings():
    assert found() == {}


@pytest.mark.parametrize(
    ("variables", "rule", "severity", "fix"),
    [
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "max-connections", "warning", "unset CUDA_DEVICE_MAX_CONNECTIONS"),
        ({"NCCL_P2P_DISABLE": "1"}, "left-on", "warning", "unset NCCL_P2P_DISABLE"),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "left-on", "warning", "unset CUDA_LAUNCH_BLOCKING"),
        ({"TORCH_DISTRIBUTED_DEBUG": "detail"}, "left-on", "warning", "unset TORCH_DISTRIBUTED_DEBUG"),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, "watchdog-off", "warning", "unset TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ({"OMP_NUM_THREADS": "16"}, "threads", "warning", "export OMP_NUM_THREADS=4"),
        ({"TORCHDYNAMO_DISABLE": "1"}, "compile-off", "warning", "unset TORCHDYNAMO_DISABLE"),
        (
            {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"},
            "rendezvous-store",
            "warning",
            "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
        ),
        (
            {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"},
            "allocator-twice",
            "warning",
            "unset PYTORCH_CUDA_ALLOC_CONF",
        ),
        (
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync,expandable_segments:True"},
            "allocator-backend",
            "warning",
            "export PYTORCH_ALLOC_CONF=expandable_segments:True",
        ),
        (
            {"PYTORCH_ALLOC_CONF": "expandable_segments:False"},
            "fragmentation",
            "note",
            "export PYTORCH_ALLOC_CONF=expandable_segments:True",
        ),
        (
            {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            "allocator-off",
            "warning",
            "unset PYTORCH_NO_CUDA_MEMORY_CACHING",
        ),
        ({"NCCL_SOCKET_IFNAME": "enp1"}, "interface-missing", "error", "export NCCL_SOCKET_IFNAME=eth0"),
    ],
)
def test_a_setting_is_found_with_what_to_type(variables, rule, severity, fix):
    finding = found(variables)[rule]
    assert (finding.severity, finding.fix) == (severity, fix)


@pytest.mark.parametrize("value", ["ib", "^docker,lo", "=eth0", "eth0,ib0"])
def test_interfaces_are_named_as_nccl_names_them(value):
    assert found({"NCCL_SOCKET_IFNAME": value}) == {}


def test_one_queue_is_right_for_tensor_parallelism_alone_and_wrong_beside_sharding():
    one = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert found(one, of=plan(tp=8)) == {}
    both = found(one, of=plan(tp=2, dp_shard=4))["max-connections"]
    assert both.fix == "export CUDA_DEVICE_MAX_CONNECTIONS=32"
    assert "max-connections" in found(one, of=plan(pp=8))
    assert found(one, is_on_gpu=False) == {}


def test_missing_gpus_are_counted_with_what_hides_them():
    finding = found({"CUDA_VISIBLE_DEVICES": "0,1"}, num_gpus=2)["gpus-missing"]
    assert finding.claim == "8 processes want a GPU each, and 2 can be seen (CUDA_VISIBLE_DEVICES=0,1)"
    assert found(num_gpus=0, is_on_gpu=False) == {}


def test_many_nodes_need_an_address_that_others_understand():
    of = plan(num_nodes=2)
    findings = found({"MASTER_ADDR": "localhost"}, of=of, host_address="127.0.1.1", max_locked_bytes=65_536)
    assert {rule: finding.severity for rule, finding in findings.items()} == {
        "rendezvous-address": "error",
        "host-name": "warning",
        "locked-memory": "warning",
    }
    assert found({"NCCL_IB_DISABLE": "1"}, of=of).keys() == {"infiniband-off"}
    assert found({"MASTER_ADDR": "localhost"}, host_address="127.0.1.1") == {}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"shared_memory_bytes": 64 * MIB}, "shared-memory"),
        ({"max_open_files": 256}, "open-files"),
        ({"free_disk_bytes": 50 * GIB}, "disk"),
        ({"has_compiler": False}, "compiler-missing"),
        ({"versions": {}}, "torch-missing"),
        ({"versions": {"torch": "2.8.1", "triton": "3"}}, "torch-old"),
        ({"versions": {"torch": "2.13.0"}}, "triton-missing"),
        ({"versions": {"torch": "2.13.0+cpu", "triton": "3"}}, "torch-cpu"),
        ({"versions": {"torch": "2.13.0", "triton": "3", "transformers": "4.57.1"}}, "transformers-old"),
    ],
)
def test_what_the_machine_lacks_is_found(changes, rule):
    assert found(**changes).keys() == {rule}


def test_a_checkpoint_is_weights_and_two_moments():
    """8,030,261,248 parameters of 12 bytes."""
    assert found(free_disk_bytes=50 * GIB)["disk"].claim.startswith("one checkpoint takes 96.36 GB, and 53.69 GB are")


def test_a_schedule_that_gloo_cannot_run_is_found():
    of = plan(pp=4, dp_shard=2, schedule="zbv", vpp=2)
    old = {"torch": "2.11.0+cpu"}
    assert "schedule-on-gloo" in found(of=of, is_on_gpu=False, versions=old)
    assert "schedule-on-gloo" not in found(of=of, is_on_gpu=False)
    assert "schedule-on-gloo" not in found(of=of, versions=old)


def test_a_config_that_names_two_families_is_found():
    fields = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    of = replace(plan(), model=read_model({**fields, "architectures": ["MistralForCausalLM"]}))
    finding = found(of=of)["model-type"]
    assert (finding.severity, "names MistralForCausalLM, but model_type is llama" in finding.claim) == ("warning", True)
    assert "model-type" not in found(
        of=replace(of, model=read_model({**fields, "architectures": ["LlamaForCausalLM"]}))
    )


def test_experts_without_adapters_are_warned_of_where_all_matrices_were_asked_for():
    of = replace(plan(recipe={"adapter": "lora", "lora_targets": "all-linear"}), model=read_model("mixtral-8x7b"))
    assert found(of=of)["experts-not-adapted"].severity == "warning"
    assert "experts-not-adapted" not in found(of=replace(of, recipe=replace(of.recipe, lora_targets="attention")))
    assert "experts-not-adapted" not in found(of=plan(recipe={"adapter": "lora", "lora_targets": "all-linear"}))


def test_a_torchrun_that_cuts_a_save_short_is_noted_where_states_are_saved():
    finding = found(torchrun_can_wait=False)["save-cut-short"]
    assert finding.severity == "note"
    here = replace(HERE, torchrun_can_wait=False)
    assert lint(plan(), here, is_on_gpu=True, saves_states=False) == ()


def test_an_error_refuses_the_run_and_a_warning_does_not():
    require_no_errors(tuple(found({"NCCL_P2P_DISABLE": "1"}).values()))
    with pytest.raises(SurroundingsError, match=r"torch is not installed \(and 1 more\)") as refusal:
        require_no_errors(lint(plan(), replace(HERE, versions={}, num_gpus=0), is_on_gpu=True))
    assert refusal.value.fix == "pip install 'shardwise[train]'"


def test_errors_come_first():
    findings = lint(plan(), replace(HERE, num_gpus=0, max_open_files=200), is_on_gpu=True)
    assert [finding.severity for finding in findings] == ["error", "warning"]


def test_versions_are_compared_as_numbers():
    assert version_numbers("2.11.0+cu130") == (2, 11, 0)
    assert version_numbers("2.9") < version_numbers("2.11.0")


def test_this_machine_can_be_read_and_linted():
    here = read_surroundings()
    assert here.num_cores >= 1
    assert "torch" in here.versions
    assert here.torchrun_can_wait == (PATIENCE in get_args_parser().format_help())
    assert here.free_disk_bytes > 0
    assert "lo" in here.interfaces
    lint(plan(), here, is_on_gpu=False)


@pytest.mark.parametrize("adapter", get_args(Adapter))
@pytest.mark.parametrize("precision", ["bf16-mixed", "fp8-mixed"])
@pytest.mark.parametrize("implementation", ["shardwise", "transformers"])
def test_what_the_extra_for_training_brings_is_all_that_a_run_is_refused_for(adapter, precision, implementation):
    """``triton`` comes with torch's builds for GPUs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = {re.split(r"[<>=]", requirement)[0] for requirement in project["optional-dependencies"]["train"]}
    of = plan(recipe={"adapter": adapter, "precision": precision})
    job = replace(make_job(adapter=adapter, precision=precision), implementation=implementation)
    versions = {name: version for name, version in HERE.versions.items() if name in {*brought, "triton"}}
    findings = lint(of, replace(HERE, versions=versions), is_on_gpu=True, packages=packages_of(job))
    assert [finding.claim for finding in findings if finding.severity == "error"] == []
    for name in packages_of(job):
        without = {other: version for other, version in versions.items() if other != name}
        findings = lint(of, replace(HERE, versions=without), is_on_gpu=True, packages=packages_of(job))
        assert (f"{name} is not installed", "pip install 'shardwise[train]'") in {(f.claim, f.fix) for f in findings}


def test_every_rule_says_what_it_is_about():
    assert [rule.__name__ for rule in RULES if not rule.__doc__] == []


def test_fewer_open_files_than_torchrun_needs_are_an_error():
    finding = found(max_open_files=20)["open-files"]
    assert (finding.severity, finding.fix) == ("error", "ulimit -n 4096")
    assert found(max_open_files=200)["open-files"].severity == "warning"
