"""The torchrun command of a job, and the environment it wants."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import shardwise
from shardwise.exchange.starting import RENDEZVOUS_PORT, script_head
from shardwise.layout import Layout
from shardwise.train.beginning import said_at_the_start
from shardwise.train.job import JOB_FILE, Job, uses_transformers

SCRIPT_FILE = "run.sh"
WORKER = "shardwise.train.worker"
TORCHRUN = "torch.distributed.run"
PATIENT_TORCHRUN = "shardwise.train.patient_torchrun"
SCRIPTED_TORCHRUN = "shardwise.train.scripted_torchrun"
FORKED_TORCHRUN = "shardwise.train.forked_torchrun"
MODELS_OF_OTHERS = "transformers.models.auto.modeling_auto"
DETERMINISTIC_VARIABLES = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NCCL_NVLS_ENABLE": "0",
    "TORCHINDUCTOR_DETERMINISTIC": "1",
}
"""Environment variables that ``--deterministic`` sets. cuBLAS splits a matmul alike in every run, NCCL adds up in its
ranks and not in the switch, where the order is free, and the compiler chooses no kernel by how long it took.
``train/determinism.py`` does the rest.

Source: docs.nvidia.com/cuda/cublas, "Results Reproducibility"; torch 2.11 ``_inductor/config.py``; Megatron-LM
``training/arguments.py`` (``--deterministic-mode`` takes no NVLS).
"""


def torchrun_words(job: Job, *, num_nodes: int, is_uneven: bool = False, torchrun: str = TORCHRUN) -> list[str]:
    """The command, for this machine alone or for one of many nodes.

    Where nodes hold different numbers of GPUs, each starts as many processes as it has, which torchrun calls ``gpu``.
    The rendezvous is always c10d: torchrun's default one does not survive a restarted worker (pytorch/pytorch#135712).
    """
    per_node = job.layout.world_size // num_nodes
    given = (str(job.folder / JOB_FILE),)
    if num_nodes == 1:
        return local_words(WORKER, given, num_processes=per_node, torchrun=torchrun)
    words = [sys.executable, "-m", torchrun, f"--nnodes={num_nodes}", "--rdzv-backend=c10d"]
    words += [f"--rdzv-endpoint=$HEAD_NODE:{RENDEZVOUS_PORT}", "--rdzv-id=$RUN_ID"]
    words.append(f"--nproc-per-node={'gpu' if is_uneven else per_node}")
    return [*words, "-m", WORKER, *given]


def local_words(worker: str, given: Sequence[str], *, num_processes: int, torchrun: str = TORCHRUN) -> list[str]:
    """torchrun on this machine; every process starts by itself."""
    return [
        *(sys.executable, "-m", torchrun, "--standalone", f"--nproc-per-node={num_processes}"),
        *("-m", worker, *given),
    ]


def forked_words(worker: str, given: Sequence[str], *, num_processes: int, imported: Sequence[str] = ()) -> list[str]:
    """torchrun on this machine; processes are forked from one that has imported the worker and ``imported``."""
    return [sys.executable, "-m", FORKED_TORCHRUN, ",".join((worker, *imported)), str(num_processes), *given]


def starting_words(job: Job, *, forks: bool) -> list[str]:
    """The words of the command that starts a job on this machine."""
    if not forks:
        return torchrun_words(job, num_nodes=1, torchrun=PATIENT_TORCHRUN)
    return forked_words(
        WORKER,
        (str(job.folder / JOB_FILE),),
        num_processes=job.layout.world_size,
        imported=(MODELS_OF_OTHERS,) if uses_transformers(job) else (),
    )


def environment(layout: Layout, *, inherited: Mapping[str, str]) -> dict[str, str]:
    """Variables that the processes' environment adds to the inherited one; the user's own variables win."""
    source = str(Path(shardwise.__file__).resolve().parents[1])
    path = os.pathsep.join(part for part in (source, inherited.get("PYTHONPATH", "")) if part)
    wanted = {
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }
    if layout.tp > 1 and layout.dp_shard == layout.cp == 1:
        # Tensor parallelism alone wants one queue, so that a collective starts before the product behind it.
        wanted["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return {"PYTHONPATH": path, **_not_set(wanted, inherited)}


def job_environment(job: Job, *, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that the ranks of a job get: those of its layout, recipe and options."""
    wanted = {"CUDA_LAUNCH_BLOCKING": "1"} if job.recipe.blocking_launches else {}
    wanted |= DETERMINISTIC_VARIABLES if job.is_deterministic else {}
    return environment(job.layout, inherited=inherited) | _not_set(wanted, inherited)


def _not_set(wanted: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if name not in inherited}


def command_text(job: Job, *, num_nodes: int, is_uneven: bool = False) -> str:
    """The command as a shell script; each of several nodes runs it.

    It takes the Python that wrote it, in an environment that nobody has to activate; where that is not installed, as in
    a container, it takes the one on the path.
    """
    added = job_environment(job, inherited={})
    python, *words = torchrun_words(job, num_nodes=num_nodes, is_uneven=is_uneven, torchrun=SCRIPTED_TORCHRUN)
    line = " \\\n  ".join(['"$PYTHON"', *(word if word.startswith("--rdzv") else shlex.quote(word) for word in words)])
    lines = [
        *(f"export {name}={shlex.quote(value)}" for name, value in added.items()),
        f'PYTHON="${{PYTHON:-{python}}}"',
        '[ -x "$PYTHON" ] || PYTHON=python3',
        f"echo {shlex.quote(said_at_the_start(job))} >&2",
        f"exec {line}",  # a signal to the script reaches torchrun
    ]
    return script_head(num_nodes=num_nodes) + "\n".join(lines) + "\n"
