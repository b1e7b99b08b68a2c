"""Job files of Kubernetes say their pods, the commands in them what runs, and ConfigMaps the files it reads."""

import pytest

from shardwise.cli.main import main
from shardwise.exchange.documents import parse_documents
from shardwise.exchange.reading import read_files, read_parsed

TRAIN_JOB = """
kind: TrainJob
spec:
  trainer:
    numNodes: 4
    resourcesPerNode: {limits: {nvidia.com/gpu: 8}}
    command: [bash, -c, "torchrun --nnodes 4 --nproc_per_node 8 train.py --per_device_train_batch_size 2"]
"""


@pytest.mark.parametrize("name", ["jobset.yaml", "trainjob.yaml"])
def test_what_export_writes_for_kubernetes_is_the_plan_again(name, tmp_path):
    words = [
        "export",
        "llama-3.1-8b",
        "16xh100-sxm",
        "--engine",
        "torchtitan",
        "--dp-shard",
        "8",
        "--tp",
        "2",
        "--to",
        "torchtitan",
    ]
    assert main([*words, "--launcher", "kubernetes", "--out", str(tmp_path / "run")]) == 0
    reading = read_files([tmp_path / "run" / name])
    said = [reading.value(field) for field in ("engine", "world_size", "dp_shard", "tp", "seq_len")]
    assert said == ["torchtitan", 16, 8, 2, 8192]
    assert reading.contradictions == ()
    assert reading.not_understood == ()


def test_a_train_job_starts_a_process_for_every_gpu_of_its_nodes():
    reading = read_parsed(parse_documents(TRAIN_JOB, name="job.yaml"))
    assert (reading.value("world_size"), reading.value("micro_batch_size")) == (32, 2)
    assert reading.contradictions == ()


@pytest.mark.parametrize(("resources", "world"), [("resourcesPerNode: {limits: {nvidia.com/gpu: 8}}", 32), ("", None)])
def test_torchrun_in_a_train_job_is_told_its_processes_by_the_job(resources, world):
    """Kubeflow Trainer sets PET_NNODES and PET_NPROC_PER_NODE, so that a bare torchrun is not one process."""
    text = TRAIN_JOB.replace("resourcesPerNode: {limits: {nvidia.com/gpu: 8}}", resources)
    text = text.replace(" --nnodes 4 --nproc_per_node 8", "")
    assert read_parsed(parse_documents(text, name="job.yaml")).value("world_size") == world


def test_a_document_that_holds_a_licence_alone_is_passed_over():
    reading = read_parsed(parse_documents(f"# Copyright\n---\n{TRAIN_JOB}---\n# the end\n", name="job.yaml"))
    assert reading.value("world_size") == 32


def test_the_variables_of_a_container_are_known_to_its_command():
    text = """
kind: PyTorchJob
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
          - env: [{name: GPUS, value: "8"}, {name: SECRET, valueFrom: {secretKeyRef: {name: a}}}]
            command: [bash, -c, "torchrun --nproc_per_node $GPUS --nnodes 2 train.py --bf16 True --max_steps $(GPUS)"]
"""
    reading = read_parsed(parse_documents(text, name="job.yaml"))
    assert reading.value("world_size") == 16
    assert reading.not_understood == ()


def test_the_variables_of_a_task_of_skypilot_are_known_to_its_run():
    text = """
resources: {accelerators: "H100:8"}
num_nodes: 2
envs: {MODEL: meta-llama/Llama-3.1-8B, TOKEN: null}
run: |
  torchrun --nnodes $SKYPILOT_NUM_NODES --nproc_per_node $SKYPILOT_NUM_GPUS_PER_NODE train.py --bf16 True \\
    --model_name_or_path $MODEL --per_device_train_batch_size 2
"""
    reading = read_parsed(parse_documents(text, name="task.yaml"))
    assert [reading.value(name) for name in ("world_size", "model")] == [16, "meta-llama/Llama-3.1-8B"]
    assert (reading.not_understood, reading.contradictions) == ((), ())
