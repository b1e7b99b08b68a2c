"""Where and with what a lab runs: what was asked for, and for the rest what suits this machine."""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shardwise.catalog.hardware.names import driver_gpu_id
from shardwise.course.labs.trial import ModelSize, Strategy, Trial
from shardwise.errors import ClusterError, PlanError
from shardwise.launch.surroundings import read_surroundings
from shardwise.plan import Plan
from shardwise.plan_file import read_plan

LabDevice = Literal["auto", "cuda", "cpu"]
CPU = "cpu"
DEFAULT_STEPS = 8
"""Three to warm up, of which the second says what memory holds; one looked into for time; and four for the median."""
PROFILED_STEP = 4


def _cpu_model(*, hidden_size: int, num_hidden_layers: int) -> Mapping[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": 3 * hidden_size,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }


CPU_MODELS: Mapping[ModelSize, object] = {
    "small": _cpu_model(hidden_size=192, num_hidden_layers=4),
    "larger": _cpu_model(hidden_size=448, num_hidden_layers=6),
}
GPU_MODELS: Mapping[ModelSize, object] = {"small": "llama-3.2-1b", "larger": "llama-3.1-8b"}
CPU_RECIPE: Mapping[str, object] = {
    "seq_len": 256,
    "micro_batch_size": 1,
    "precision": "fp32",
    "compile": False,
}
GPU_RECIPE: Mapping[str, object] = {
    "seq_len": 4096,
    "micro_batch_size": 1,
    "precision": "bf16-mixed",
    "compile": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabSetting:
    """Everything the trials of a lab have in common."""

    is_on_gpu: bool
    num_processes: int
    is_default_size: bool
    """Whether a lab may start more processes than that: nobody asked for a number, and CPUs can be shared."""
    num_cores: int
    gpu: str
    """Catalogue name of one process's device."""
    models: Mapping[ModelSize, object]
    recipe: Mapping[str, object]
    num_steps: int = DEFAULT_STEPS
    seed: int = 0

    @property
    def profiled_every(self) -> int:
        """The step whose time is looked into, once a run where there are few steps."""
        return max(PROFILED_STEP, self.num_steps // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRequest:
    """The options of ``shardwise lab``; ``None`` leaves a choice to the machine."""

    device: LabDevice = "auto"
    num_processes: int | None = None
    model: str | None = None
    larger_model: str | None = None
    gpu: str | None = None
    num_steps: int = DEFAULT_STEPS
    seed: int = 0
    recipe: Mapping[str, object] = field(default_factory=dict)


def lab_setting(request: LabRequest) -> LabSetting:
    """The request with what suits this machine.

    Raises:
        PlanError: there are no GPUs, or fewer than were asked for.
        ClusterError: the GPUs here have no known name.
    """
    here = read_surroundings()
    is_on_gpu = request.device == "cuda" or (request.device == "auto" and here.num_gpus > 0)
    wanted = request.num_processes or (here.num_gpus if is_on_gpu else 2)
    if is_on_gpu and (here.num_gpus < wanted or not here.num_gpus):
        raise PlanError(
            f"the lab wants {wanted or 'some'} GPUs, and {here.num_gpus} can be seen",
            code="lab-gpus",
            fix=f"add --processes {here.num_gpus}" if here.num_gpus else "add --device cpu",
        )
    models = GPU_MODELS if is_on_gpu else CPU_MODELS
    return LabSetting(
        is_on_gpu=is_on_gpu,
        num_processes=wanted,
        is_default_size=request.num_processes is None and not is_on_gpu,
        num_cores=here.num_cores,
        gpu=request.gpu or (_gpu_here() if is_on_gpu else CPU),
        models={
            "small": request.model or models["small"],
            "larger": request.larger_model or request.model or models["larger"],
        },
        recipe={**(GPU_RECIPE if is_on_gpu else CPU_RECIPE), **request.recipe},
        num_steps=request.num_steps,
        seed=request.seed,
    )


def plan_of(trial: Trial, setting: LabSetting) -> Plan:
    """The plan that a trial runs."""
    num_processes = trial.num_processes or setting.num_processes
    recipe = {**setting.recipe, **trial.recipe}
    sequences = int(str(recipe["micro_batch_size"])) * trial.num_microbatches * num_processes
    recipe.setdefault("global_batch_size", sequences)
    return read_plan(
        {
            "model": setting.models[trial.size],
            "cluster": f"{num_processes}x{setting.gpu}",
            "recipe": recipe,
            "layout": {**_layout(trial.strategy, num_processes), **trial.layout},
        }
    )


def _layout(strategy: Strategy, num_processes: int) -> Mapping[str, object]:
    if strategy == "ddp":
        return {"dp_replicate": num_processes, "dp_shard": 1, "zero_stage": 0}
    stages = {"zero-1": 1, "zero-2": 2, "fsdp": 3}
    return {"dp_shard": num_processes, "zero_stage": stages[strategy]}


def _gpu_here() -> str:
    """The catalogue's name of this machine's first GPU."""
    program = shutil.which("nvidia-smi")
    words = [program or "nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    said = subprocess.run(words, capture_output=True, text=True, check=False).stdout if program else ""
    name = said.partition("\n")[0].strip()
    found = driver_gpu_id(name)
    if not found:
        raise ClusterError(
            f"the GPU of this machine, '{name or 'unknown'}', has no entry in the catalogue",
            code="lab-gpu-name",
            fix="add --gpu with a name of `shardwise catalog gpus`",
        )
    return found
