"""Every export is read by the parser of the tool that it is written for: ``make targets``.

Two are in no package. ``MEGATRON_LM=FOLDER make targets`` reads with the parser of a checkout of Megatron-LM, and
``TORCHTITAN_MAIN=FOLDER:PACKAGES`` loads recipes with a checkout of torchtitan's main and what it imports (grain,
datasets, spmd_types, torch_checkpointing, torchao).
"""

import json
import os
import re
import shlex
import subprocess
import sys
import typing
from dataclasses import fields
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from tests.exchange.test_export import plain

from shardwise.cli.main import main
from shardwise.exchange.export import RESUMED, InexpressibleError, export_plan
from shardwise.exchange.model_name import FLAVORS
from shardwise.exchange.tools.table import TOOLS
from strategies import plans, runnable_plans

pytestmark = pytest.mark.targets
KUBERNETES = "1.37"
MEGATRON_LM = os.environ.get("MEGATRON_LM")
TORCHTITAN_MAIN = os.environ.get("TORCHTITAN_MAIN")
EXPORTS = {
    "torchtitan": (
        "llama-3.1-8b 1xh100-sxm --micro-batch-size 2",
        "llama-3.1-8b 8xh100-sxm --dp-shard 8 --recompute selective --global-batch-size 64 --tokens 1B",
        "llama-3.1-8b 8xh100-sxm --dp-replicate 8 --zero-stage 0 --precision fp32 --seq-len 2048",
        "llama-3.1-70b 64xh100-sxm --dp-replicate 2 --dp-shard 4 --tp 8 --recompute full --precision fp8-mixed",
        "llama-3.1-70b 64xh100-sxm --dp-shard 2 --tp 8 --pp 4 --schedule interleaved --vpp 2 --global-batch-size 64",
        "llama-3.1-70b 64xh100-sxm --dp-shard 2 --tp 8 --cp 4 --seq-len 131072 --offload parameters",
        "mixtral-8x7b 16xh100-sxm --dp-shard 16 --ep 8 --no-reshard-after-forward --no-compile",
    ),
    "deepspeed": (
        "llama-3.1-8b 8xa100-sxm-80 --dp-shard 8 --zero-stage 3 --offload nvme --recompute full",
        "llama-3.1-8b 8xa100-sxm-80 --dp-shard 8 --zero-stage 2 --offload optimizer --global-batch-size 64",
        "llama-3.1-8b 16xa100-sxm-80 --dp-replicate 16 --zero-stage 0 --precision fp16-mixed --tokens 1B",
        "llama-3.1-8b 8xa100-sxm-80 --dp-shard 8 --zero-stage 1 --optimizer lion --precision fp32",
        "llama-3.1-8b 8xh100-sxm --dp-shard 4 --tp 2 --zero-stage 1 --no-sequence-parallel",
        "llama-3.1-8b 8xh100-sxm --dp-shard 4 --cp 2 --zero-stage 3 --reduce-dtype fp32",
    ),
    "accelerate": (
        "llama-3.1-8b 8xh100-sxm --dp-shard 8 --zero-stage 3 --recompute full --compile",
        "llama-3.1-8b 16xh100-sxm --dp-shard 8 --dp-replicate 2 --no-reshard-after-forward --tokens 1B",
        "llama-3.1-8b 8xh100-sxm --dp-replicate 8 --zero-stage 0 --adapter qlora --lora-targets all-linear",
        "llama-3.1-8b 8xh100-sxm --dp-shard 2 --tp 4 --no-sequence-parallel --offload parameters --precision fp32",
        "llama-3.1-8b 8xh100-sxm --dp-shard 4 --cp 2 --zero-stage 3 --optimizer adamw-8bit",
        "llama-3.1-8b 1xh100-sxm --precision fp16-mixed --liger-kernels",
    ),
    "megatron": (
        "llama-3.1-8b 1xh100-sxm --micro-batch-size 2",
        "llama-3.1-8b 8xh100-sxm --dp-replicate 8 --zero-stage 0 --global-batch-size 64 --tokens 1B",
        "llama-3.1-70b 64xh100-sxm --dp-shard 2 --tp 8 --pp 4 --vpp 2 --zero-stage 1 --global-batch-size 64",
        "llama-3.1-70b 64xh100-sxm --dp-shard 64 --zero-stage 3 --recompute full",
        "llama-3.1-70b 64xh100-sxm --dp-shard 8 --tp 8 --zero-stage 2 --recompute selective",
        "llama-3.1-70b 64xh100-sxm --dp-shard 2 --tp 8 --cp 4 --zero-stage 1 --seq-len 131072 --precision fp8-mixed",
        "llama-3.1-8b 8xh100-sxm --dp-shard 8 --zero-stage 1 --offload optimizer",
        "llama-3.1-8b 8xh100-sxm --dp-shard 8 --zero-stage 1 --moment-dtype bf16",
        "llama-3.1-405b 256xh100-sxm --dp-shard 2 --tp 8 --pp 16 --vpp 8 --zero-stage 1 --global-batch-size 64",
        "qwen3-8b 8xh100-sxm --pp 2 --vpp 2 --dp-shard 4 --zero-stage 1 --global-batch-size 64",
        "mixtral-8x7b 16xh100-sxm --dp-shard 16 --ep 8 --zero-stage 1 --precision fp16-mixed",
        "qwen3-30b-a3b 16xh100-sxm --tp 2 --dp-shard 8 --ep 8 --zero-stage 1 --recompute full --recompute-layers 4",
    ),
}
"""Plans in the words of the command line, which between them use every value that the target has a word for."""


class StandIn:
    """Finds and loads Triton for Megatron-LM, which imports a gigabyte of kernels to read its arguments."""

    def find_spec(self, name, path=None, target=None):
        return spec_from_loader(name, self, is_package=True) if name.partition(".")[0] == "triton" else None

    def create_module(self, spec):
        return MagicMock(__version__="3.0.0")

    def exec_module(self, module):
        pass


def launch_line(folder, launcher, script="launch.sh"):
    """The words behind the launcher on the first node of the cluster."""
    text = (folder / script).read_text().replace("\\\n", " ").replace("$HEAD_NODE", "host").replace("$NODE_RANK", "0")
    text = text.replace(RESUMED, "")  # where there is no checkpoint yet
    return next(shlex.split(line) for line in text.splitlines() if line.startswith(launcher))[launcher.count(" ") + 1 :]


def torchrun_line(folder, num_processes, script="launch.sh"):
    """The arguments that torchrun's own parser leaves for the program of so many processes."""
    parsed = (
        import_module("torch.distributed.run").get_args_parser().parse_args(launch_line(folder, "torchrun", script))
    )
    assert int(parsed.nnodes) * int(parsed.nproc_per_node) == num_processes
    return parsed.training_script_args


def read_torchtitan(folder, num_processes, _):
    """0.2.2's importing of its models needs Triton, its configuration alone does not."""
    typeguard = import_module("typeguard")
    sys.modules.setdefault("torchtitan", module_from_spec(find_spec("torchtitan")))
    config = import_module("torchtitan.config").ConfigManager().parse_args(torchrun_line(folder, num_processes))
    for section in (getattr(config, one.name) for one in fields(config)):
        for name, kind in typing.get_type_hints(type(section)).items():  # a TOML file's types are not checked there
            typeguard.check_type(getattr(section, name), kind)
    axes = config.parallelism
    dims = import_module("torchtitan.distributed.parallel_dims").ParallelDims(
        dp_replicate=axes.data_parallel_replicate_degree,
        dp_shard=axes.data_parallel_shard_degree,
        cp=axes.context_parallel_degree,
        tp=axes.tensor_parallel_degree,
        pp=axes.pipeline_parallel_degree,
        ep=axes.expert_parallel_degree,
        etp=axes.expert_tensor_parallel_degree,
        world_size=num_processes,
    )
    ranks = dims.dp_replicate * dims.dp_shard
    assert config.training.global_batch_size % (config.training.local_batch_size * ranks) == 0


RECIPE_READER = """
import sys, typing
from dataclasses import fields
import torch._dynamo.debug_utils, typeguard
from tests.exchange.test_targets import StandIn
sys.meta_path.insert(0, StandIn())
torch.cuda.is_available, torch.cuda.get_device_capability = lambda: True, lambda *_: (9, 0)
from torchtitan.config.manager import ConfigManager
config = ConfigManager().parse_args(sys.argv[1:])
for section in (config.training, config.parallelism, config.compile):
    kinds = typing.get_type_hints(type(section))
    for one in fields(section):
        typeguard.check_type(getattr(section, one.name), kinds[one.name])
"""
"""Main has torchtitan's name, and so another process. Its recipes are dataclasses, which do not look at types."""


def read_recipe(folder, num_processes):
    """The recipe as ``torchtitan.train`` of main loads it."""
    if not TORCHTITAN_MAIN:
        pytest.skip("TORCHTITAN_MAIN names no checkout of torchtitan's main")
    path = [*TORCHTITAN_MAIN.split(os.pathsep), str(folder), *sys.path]
    return subprocess.run(
        [sys.executable, "-c", RECIPE_READER, *torchrun_line(folder, num_processes)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=False,
    )


def read_megatron(folder, num_processes, monkeypatch):
    """``parse_args`` and ``validate_args`` of the checkout, as on a node of Hopper GPUs with Transformer Engine."""
    if not MEGATRON_LM:
        pytest.skip("MEGATRON_LM names no checkout of Megatron-LM")
    monkeypatch.syspath_prepend(MEGATRON_LM)
    import_module("torch._dynamo.debug_utils")  # torch looks for Triton once, before something stands in for it
    monkeypatch.setattr(sys, "meta_path", [StandIn(), *sys.meta_path])
    monkeypatch.setattr(typing, "override", lambda method: method, raising=False)
    arguments = import_module("megatron.training.arguments")
    monkeypatch.setattr(arguments, "get_device_arch_version", lambda: 9)
    monkeypatch.setattr(import_module("torch").cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *torchrun_line(folder, num_processes, "pretrain.sh")])
    monkeypatch.setenv("WORLD_SIZE", str(num_processes))
    for name, value in re.findall(r"^export (\w+)=(\S+)$", (folder / "pretrain.sh").read_text(), flags=re.M):
        monkeypatch.setenv(name, value)
    embeddings = import_module("megatron.core.models.common.embeddings.rope_utils")
    monkeypatch.setattr(embeddings, "fused_apply_rotary_pos_emb", object())
    parsed = arguments.parse_args()
    arguments.validate_args(parsed)
    arguments.core_transformer_config_from_args(parsed)


def read_arguments(line, monkeypatch):
    """The arguments as TRL's own script reads them, on a machine with a GPU; an unknown key is an error."""
    arguments = import_module("transformers.training_args")
    monkeypatch.setattr(arguments, "is_torch_bf16_gpu_available", lambda: True)
    import_module("trl.scripts.sft").make_parser().parse_args_and_config(line)


def read_deepspeed(folder, num_processes, monkeypatch):
    """``DeepSpeedConfig`` in a world of that many ranks."""
    read_arguments(torchrun_line(folder, num_processes), monkeypatch)
    config = import_module("deepspeed.runtime.config")
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
    written = json.loads((folder / "ds_config.json").read_text())
    size = written.get("tensor_parallel", {}).get("autotp_size", 1)
    monkeypatch.setattr(config.dist, "get_world_size", lambda: num_processes // size)
    config.DeepSpeedConfig(written)


def read_accelerate(folder, num_processes, monkeypatch):
    """The file as ``accelerate launch`` reads it, and what it hands to the processes as they read it."""
    launch = import_module("accelerate.commands.launch")
    parsed = launch.launch_command_parser().parse_args(launch_line(folder, "accelerate launch"))
    read_arguments(parsed.training_script_args, monkeypatch)
    parsed, _, _ = launch._validate_launch_command(parsed)
    assert parsed.num_processes == num_processes
    utils = import_module("accelerate.utils")
    for name, value in utils.launch.prepare_multi_gpu_env(parsed).items():
        monkeypatch.setenv(name, value)
    if parsed.use_fsdp:
        assert utils.FullyShardedDataParallelPlugin().fsdp_version == 2
    utils.ParallelismConfig()._validate_accelerator(
        SimpleNamespace(
            num_processes=num_processes,
            multi_device=parsed.multi_gpu,
            is_fsdp2=parsed.use_fsdp,
            is_main_process=True,
        )
    )


READERS = {
    "torchtitan": read_torchtitan,
    "megatron": read_megatron,
    "deepspeed": read_deepspeed,
    "accelerate": read_accelerate,
}
FAULTS = {
    "torchtitan": (
        "torchtitan.toml",
        ("tensor_parallel_degree", "tensor_parallel_size"),
        ("seq_len = 8192", 'seq_len = "long"'),
    ),
    "megatron": ("pretrain.sh", ("--num-layers", "--number-of-layers"), ("--num-layers 32", "--num-layers many")),
    "deepspeed": ("ds_config.json", ('"stage"', '"stages"'), ('"stage": 3', '"stage": "three"')),
    "accelerate": ("accelerate.yaml", ("num_machines", "num_nodes"), ("fsdp_version: 2", "fsdp_version: two")),
}
"""A key that the tool does not know and a value of a wrong type, as replacements in one file of the first plan."""


def export(folder, target, words):
    assert main(["export", *words.split(), "--to", target, "--out", str(folder)]) == 0
    return int(words.split()[1].partition("x")[0])


@pytest.mark.parametrize(("target", "words"), [(target, words) for target in EXPORTS for words in EXPORTS[target]])
def test_the_tool_accepts_the_export(target, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    READERS[target](tmp_path, export(tmp_path, target, words), monkeypatch)


RECIPES = (*EXPORTS["torchtitan"][:-1], "qwen3-30b-a3b 16xh100-sxm --dp-shard 16 --ep 8 --no-compile")
"""Main has no Mixtral, so that its recipe has a placeholder to edit."""


@pytest.mark.parametrize("words", RECIPES)
def test_torchtitan_main_loads_the_recipe(words, tmp_path):
    done = read_recipe(tmp_path, export(tmp_path, "torchtitan-recipe", f"{words} --engine torchtitan"))
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("tensor_parallel_degree", "tensor_parallel_size"), ("max_context_length=8192", "max_context_length='long'")],
)
def test_torchtitan_main_refuses_an_unknown_key_and_a_wrong_type(right, wrong, tmp_path):
    num_processes = export(tmp_path, "torchtitan-recipe", f"{RECIPES[0]} --engine torchtitan")
    recipe = tmp_path / "torchtitan_recipe.py"
    assert right in recipe.read_text()
    recipe.write_text(recipe.read_text().replace(right, wrong))
    done = read_recipe(tmp_path, num_processes)
    assert done.returncode
    assert right.partition("=")[0] in done.stderr or wrong in done.stderr


@pytest.mark.parametrize("target", EXPORTS)
@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(drawn=plans() | runnable_plans())
def test_the_tool_accepts_every_plan_that_export_writes(target, drawn):
    plan = plain(drawn, target)
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        try:
            files = () if plan is None else export_plan(plan, to=target)
        except InexpressibleError:
            return
        monkeypatch.chdir(folder)
        for file in files:
            Path(file.name).write_text(file.text)
        if files:
            READERS[target](Path(folder), plan.layout.world_size, monkeypatch)


@pytest.mark.parametrize("tool", ["torchtitan", "deepspeed", "accelerate", "trl"])
def test_the_version_that_exports_name_is_the_one_that_reads_them(tool):
    assert f"{version(tool)}.".startswith(f"{TOOLS[tool].version}.")


def test_torchtitan_has_every_model_that_exports_name():
    models = Path(find_spec("torchtitan").submodule_search_locations[0]).joinpath("models")
    for name, flavor in FLAVORS.values():
        assert f'    "{flavor}": ' in models.joinpath(name, "__init__.py").read_text()


@pytest.mark.parametrize(("target", "fault"), [(target, fault) for target in EXPORTS for fault in (1, 2)])
def test_the_tool_refuses_an_unknown_key_and_a_wrong_type(target, fault, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    num_processes = export(tmp_path, target, EXPORTS[target][0])
    file = tmp_path / FAULTS[target][0]
    whole, (old, wrong) = file.read_text(), FAULTS[target][fault]
    assert old in whole
    file.write_text(whole.replace(old, wrong))
    with pytest.raises((Exception, SystemExit)):
        READERS[target](tmp_path, num_processes, monkeypatch)


MANIFESTS = (
    *(("export", "--to", target, *EXPORTS[target][-1].split()) for target in EXPORTS),
    ("train", "llama-3.1-8b", "16xh100-sxm", "--dp-shard", "16", "--checkpoint-every", "100"),
    ("train", "llama-3.1-8b", "8xmi300x", "--dp-shard", "8"),
)


def read_manifests(path):
    """Every document of a file by its kind, read by its API's own model; an unknown key does not come back."""
    models = import_module("kubeflow_trainer_api.models")
    kinds = {
        "JobSet": models.JobsetV1alpha2JobSet,
        "TrainJob": models.TrainerV1alpha1TrainJob,
        "ConfigMap": models.IoK8sApiCoreV1ConfigMap,
    }
    documents = {document["kind"]: document for document in yaml.safe_load_all(path.read_text())}
    for kind, document in documents.items():
        assert kinds[kind].from_dict(document).to_dict() == document
    return documents


@pytest.mark.parametrize("words", MANIFESTS, ids=lambda words: " ".join(words[:3]))
def test_kubernetes_accepts_what_starts_a_plan(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--launcher", "kubernetes", "--out", "run"]) == 0
    validate = import_module("kubernetes_validate").validate
    jobset = read_manifests(tmp_path / "run" / "jobset.yaml")["JobSet"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "node"}}
    job["spec"] = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    validate(job, KUBERNETES, strict=True)
    train_job = read_manifests(tmp_path / "run" / "trainjob.yaml")["TrainJob"]["spec"]
    assert train_job["trainer"]["numNodes"] == job["spec"]["completions"]
    refusal = import_module("kubernetes_validate").ValidationError
    with pytest.raises(refusal, match="'two' is not of type 'integer'"):
        validate({**job, "spec": {**job["spec"], "completions": "two"}}, KUBERNETES, strict=True)
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["resource"] = container.pop("resources")
    with pytest.raises(refusal, match="'resource' was unexpected"):
        validate(job, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("name", "right", "wrong", "refusal"),
    [
        ("trainjob.yaml", "numNodes:", "nodes:", AssertionError),
        ("trainjob.yaml", "numNodes: ", "numNodes: two # ", ValueError),
        ("jobset.yaml", "replicatedJobs:", "replicated:", AssertionError),
        ("jobset.yaml", "completions: ", "completions: two # ", ValueError),
    ],
)
def test_an_unknown_key_and_a_wrong_type_of_a_job_are_noticed(name, right, wrong, refusal, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*MANIFESTS[0], "--launcher", "kubernetes", "--out", "run"]) == 0
    path = tmp_path / "run" / name
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, wrong))
    with pytest.raises(refusal):
        read_manifests(path)
