"""Files that have a cluster's scheduler start a plan on all of its nodes: Slurm, Kubernetes JobSet, Kubeflow TrainJob.

A launcher starts one script on every node, and tells it ``HEAD_NODE``, ``RUN_ID`` and, where asked, ``NODE_RANK``. It
lets a run that has to go save its states, and starts it again, from them. The processes of a node are the script's
business.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, get_args

from shardwise.exchange.export import TextFile
from shardwise.launch.command import SCRIPT_FILE
from shardwise.plan import Plan
from shardwise.train.job import Job

if TYPE_CHECKING:
    from yaml import SafeDumper, ScalarNode

__all__ = ["LAUNCHERS", "LauncherName", "Start", "launcher_files", "native_start", "start_of"]

LauncherName = Literal["torchrun", "slurm", "kubernetes"]
LAUNCHERS: tuple[LauncherName, ...] = get_args(LauncherName)
SAVING_S = 600
"""Seconds before the time limit, or after an eviction, in which ranks finish their step and save. The runtime's ranks
and torchrun wait as long (``train/patient_torchrun.py``)."""
MIN_RUN_S = 60
"""A job that is asked to stop earlier did nothing, and would be requeued for ever; Slurm may signal a minute early."""
MAX_RESTARTS = 10
"""How often a JobSet is started again after lost nodes and evictions."""
FINAL_EXIT_CODES = (1, 2, 3)
"""Our runtime exits with 1 after a failure of its own, 2 after a refusal, and 3 when memory did not suffice. A pod that
was evicted or killed exits with 128 or more."""
GPU_RESOURCES: Mapping[str, str] = MappingProxyType(
    {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "google": "google.com/tpu", "intel": "habana.ai/gaudi"}
)
"""The name that each vendor's device plugin gives its accelerators."""
MAX_NAME_CHARACTERS = 40
"""Names of pods, which add to that of their JobSet, are limited to 63 characters."""
ANNOTATION = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
ATTEMPT_LABEL = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a launcher starts on every node."""

    name: str
    script: str
    """The script's name, beside the launcher's files, or its absolute path on a file system that all nodes share."""
    num_nodes: int
    gpus_per_node: int
    gpu_vendor: str
    files: tuple[TextFile, ...] = ()
    """Files that the script reads beside itself, for pods that see no folder of ours."""
    saves: bool = True
    """Whether states are saved, so that a run which is started again goes on."""
    final_exit_codes: tuple[int, ...] = ()
    """Exit codes of a run that nothing mends; empty where a program's exit codes do not tell."""

    @property
    def dns_name(self) -> str:
        """The name as Kubernetes takes it.

        >>> Start(name="Llama-3.1 8B", script="run.sh", num_nodes=1, gpus_per_node=8, gpu_vendor="nvidia").dns_name
        'llama-3-1-8b'
        """
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())[:MAX_NAME_CHARACTERS].strip("-") or "train"


def start_of(plan: Plan, *, script: str, files: tuple[TextFile, ...] = ()) -> Start:
    """The start of a plan's script, on the nodes of its cluster."""
    cluster = plan.cluster
    return Start(
        name=plan.model.name,
        script=script,
        num_nodes=cluster.num_nodes,
        gpus_per_node=0 if cluster.runs_on_cpu else cluster.node.gpus_per_node,
        gpu_vendor=cluster.gpu.vendor,
        files=files,
    )


def native_start(plan: Plan, job: Job) -> Start:
    """The start of our own runtime: it retries by itself, and its exit code names failures that no retry mends."""
    start = start_of(plan, script=str(job.folder / SCRIPT_FILE))
    return replace(start, saves=job.checkpoint.every_steps > 0, final_exit_codes=FINAL_EXIT_CODES)


def launcher_files(start: Start, launcher: LauncherName) -> tuple[TextFile, ...]:
    """The files that a launcher needs; none for torchrun, which the script itself starts on each node."""
    if launcher == "slurm":
        return (TextFile(name="job.sbatch", text=sbatch_text(start)),)
    if launcher == "kubernetes":
        return (
            TextFile(name="jobset.yaml", text=jobset_text(start)),
            TextFile(name="trainjob.yaml", text=trainjob_text(start)),
        )
    return ()


def sbatch_text(start: Start) -> str:
    """A batch script of Slurm: one task a node, with all of the node's CPUs; srun gives a task one by itself.

    Only the batch script hears Slurm's signal before the time limit. It asks the step to stop, waits until the states
    are saved, and has the job put back into the queue; a job that somebody cancels is not.
    """
    asked = [f"#SBATCH --gpus-per-node={start.gpus_per_node}"] if start.gpus_per_node else []
    kept = ["#SBATCH --requeue", f"#SBATCH --signal=B:USR1@{SAVING_S}"] if start.saves else ["#SBATCH --no-requeue"]
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={start.dns_name}",
        f"#SBATCH --nodes={start.num_nodes}",
        "#SBATCH --ntasks-per-node=1",
        *asked,
        "#SBATCH --exclusive",
        "#SBATCH --output=slurm-%j.log",
        "#SBATCH --open-mode=append",
        *kept,
        "# Time limit, partition and account are options of sbatch: sbatch --time=24:00:00 --partition=NAME job.sbatch",
        "",
        'HEAD_NODE="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
        'RUN_ID="$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"  # a requeued job keeps its number',
        "export HEAD_NODE RUN_ID",
        "is_asked=",
        """trap 'is_asked=$SECONDS; scancel --signal=TERM "$SLURM_JOB_ID"' USR1  # the steps, and not this script""",
        f'srun --cpus-per-task="$SLURM_CPUS_ON_NODE" bash {shlex.quote(start.script)} &',
        "step=$!",
        'wait "$step"',
        "code=$?",
        'while kill -0 "$step" 2>/dev/null; do  # a signal ends the wait, and not the step',
        '  wait "$step"',
        "  code=$?",
        "done",
        'if [ -n "$is_asked" ] && [ "$code" -ne 0 ]; then',
        f'  if [ "$is_asked" -gt {MIN_RUN_S} ]; then scontrol requeue "$SLURM_JOB_ID"',
        f'  else echo "not requeued: of the time limit {SAVING_S} s are for saving; ask for more --time" >&2; fi',
        "fi",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"


def jobset_text(start: Start) -> str:
    """A JobSet that runs one pod on each node and starts all of them again when a node or a pod is lost."""
    name = start.dns_name
    policy: dict[str, object] = {"maxRestarts": MAX_RESTARTS if start.saves else 0}
    job: dict[str, object] = {
        "completions": start.num_nodes,
        "parallelism": start.num_nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": _pod(start)},
    }
    if start.final_exit_codes:
        codes = {"operator": "In", "values": list(start.final_exit_codes)}
        job["podFailurePolicy"] = {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
        policy["rules"] = [{"name": "ended", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]
    document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "network": {"enableDNSHostnames": True},
            "failurePolicy": policy,
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": job}}],
        },
    }
    return _yaml(*_config(start), document)


def trainjob_text(start: Start) -> str:
    """A TrainJob of Kubeflow Trainer v2 under its runtime for torch, whose variables name the first node."""
    pod = _pod(start)
    container = _container(start, head='"$PET_MASTER_ADDR"')
    mounts = container.pop("volumeMounts")
    resources = container.pop("resources", None)
    container.pop("name")
    container.pop("workingDir")
    patch = {
        "terminationGracePeriodSeconds": SAVING_S,
        "volumes": pod["volumes"],
        "containers": [{"name": "node", "volumeMounts": mounts}],
    }
    runtime = {"spec": {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": {"spec": patch}}}}]}}
    trainer = {**container, "numNodes": start.num_nodes, "numProcPerNode": start.gpus_per_node or 1}
    if resources is not None:
        trainer["resourcesPerNode"] = resources
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": start.dns_name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": trainer,
            "runtimePatches": [{"manager": "shardwise.dev/export", "trainingRuntimeSpec": {"template": runtime}}],
        },
    }
    return _yaml(*_config(start), document)


def _pod(start: Start) -> dict[str, object]:
    head = f"{start.dns_name}-node-0-0.{start.dns_name}"
    volumes: list[dict[str, object]] = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": "CLAIM"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},  # of 64 MiB otherwise, which NCCL and loaders exceed
    ]
    if start.files:
        volumes.append({"name": "files", "configMap": {"name": start.dns_name}})
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": SAVING_S,
        "containers": [_container(start, head=head)],
        "volumes": volumes,
    }


def _container(start: Start, *, head: str) -> dict[str, object]:
    """The container of a node; ``bash`` is replaced by the script, so that a signal reaches it."""
    folder = _folder(start)
    mounts = [{"name": "shared", "mountPath": folder}, {"name": "memory", "mountPath": "/dev/shm"}]
    mounts += [{"name": "files", "mountPath": f"{folder}/{file.name}", "subPath": file.name} for file in start.files]
    variables = f'export HEAD_NODE={head} RUN_ID="{start.dns_name}.$ATTEMPT"'
    said = f"{variables}; cd {shlex.quote(folder)} && exec bash {shlex.quote(start.script)}"
    container: dict[str, object] = {
        "name": "node",
        "image": "IMAGE",
        "workingDir": folder,
        "command": ["bash", "-c", said],
        "env": [
            {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": ANNOTATION}}},
            {"name": "ATTEMPT", "valueFrom": {"fieldRef": {"fieldPath": ATTEMPT_LABEL}}},
        ],
        "volumeMounts": mounts,
    }
    if start.gpus_per_node:
        resource = GPU_RESOURCES.get(start.gpu_vendor.lower(), "GPU-RESOURCE")
        container["resources"] = {"limits": {resource: start.gpus_per_node}}
    return container


def _folder(start: Start) -> str:
    """Where the shared volume is mounted: at the folder that holds a run folder, so that a job's paths are right."""
    script = Path(start.script)
    return str(script.parent.parent) if script.is_absolute() else "/shared"


def _config(start: Start) -> tuple[dict[str, object], ...]:
    """The files of an export as a ConfigMap, so that one manifest is all that has to be applied."""
    if not start.files:
        return ()
    data = {file.name: file.text for file in start.files}
    return ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": start.dns_name}, "data": data},)


def _dumper() -> "type[SafeDumper]":
    """YAML that keeps the lines of a file of an export as lines, so that its placeholders can be edited there."""
    from yaml import SafeDumper  # noqa: PLC0415 - only Kubernetes wants YAML

    class Lines(SafeDumper):
        def represent_str(self, text: str) -> "ScalarNode":
            return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Lines.add_representer(str, Lines.represent_str)
    return Lines


def _yaml(*documents: Mapping[str, object]) -> str:
    import yaml  # noqa: PLC0415 - only Kubernetes wants YAML

    head = "# Edit IMAGE, and CLAIM: a volume that all nodes can write to. Then: kubectl apply -f THIS-FILE\n"
    text: str = yaml.dump_all(documents, Dumper=_dumper(), sort_keys=False, width=120)
    return head + text
