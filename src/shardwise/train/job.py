"""The job: everything a worker process has to know, as one JSON document that the launcher writes and workers read.

The launcher resolves the plan (names, sizes, catalogues) so that a worker needs only the standard library and torch.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from shardwise.layout import Layout
from shardwise.recipe import Recipe
from shardwise.retired import without_retired
from shardwise.train.decoder.config import is_supported

JOB_SCHEMA = "shardwise.job/1"
JOB_FILE = "job.json"
Implementation = Literal["auto", "shardwise", "transformers"]
DeviceKind = Literal["auto", "cuda", "cpu"]
Packing = Literal["stream", "documents", "rows"]
LossOn = Literal["completions", "all"]
Overlong = Literal["cut", "truncate", "drop"]
ExpertLoad = Literal["none", "ratio", "counts"]
Decay = Literal["constant", "linear", "cosine", "wsd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """The training data: sources, tokenizer, packing and the share held out for validation."""

    source: str = "synthetic"
    """``synthetic``, or what :func:`~shardwise.train.data.sources.parse_source` reads."""
    more_sources: tuple[str, ...] = ()
    """Sources after the first."""
    tokenizer: str | None = None
    """A ``tokenizer.json`` or the folder of a model; ``None`` trains on bytes."""
    field: str = "text"
    """Key or column that holds the text or the messages."""
    packing: Packing = "stream"
    """``stream`` cuts all documents, joined, every seq_len tokens; ``documents`` keeps each whole and pads; ``rows``
    puts each into a sample of its own."""
    crosses_documents: bool = True
    """Let attention, positions and labels run over the ends of documents."""
    loss_on: LossOn = "completions"
    """``completions`` learns no prompt, where rows have prompts."""
    overlong: Overlong = "cut"
    """What becomes of documents longer than a sample, where each is kept whole."""
    held_out_fraction: float = 0.0
    """Share of the samples that is kept for validation."""
    seed: int = 0
    is_shuffled: bool = True

    @property
    def is_synthetic(self) -> bool:
        """Whether tokens are made up."""
        return self.source == "synthetic"

    @property
    def source_text(self) -> str:
        """All sources, as a sentence names them."""
        return " and ".join((self.source, *self.more_sources))

    @property
    def masks_documents(self) -> bool:
        """Whether attention stops at the ends of packed documents."""
        is_packed = self.packing == "documents" or (self.packing == "stream" and not self.crosses_documents)
        return not self.is_synthetic and is_packed


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    """When and where states are saved; the fields of ``checkpoint.CheckpointRequest`` and two more."""

    folder: str | None = None
    every_steps: int = 0
    is_async: bool = False
    num_kept: int = 2
    resume_from: str | None = None
    initial_weights: str | None = None
    """A Hugging Face checkpoint to start from."""
    weights_digest: str | None = None
    """Tells the initial weights from others, wherever they lie; ``None`` where the launcher did not see them."""
    accepts_random_weights: bool = False
    """Whether adapters may stand beside weights that nobody trained."""
    export_folder: str | None = None
    """Folder for the final weights as a Hugging Face checkpoint."""
    is_merged: bool = False
    """Whether adapters are added to the initial weights when they are exported."""


WARMUP_FRACTION, MOST_WARMUP_STEPS = 0.03, 100
"""Axolotl's default, which suits a fine-tuning of 100 steps and a pre-training of 100,000; transformers' Trainer, TRL
and Megatron-LM have none, torchtitan 200 steps. Source: axolotl-ai-cloud/axolotl ``core/builders/base.py``, read
2026-11-30."""


def usual_warmup_steps(num_steps: int) -> int:
    """Steps in which the learning rate rises where nobody says how many: 3 % of the run, at most 100.

    A run of up to 66 steps, which measures or tries, begins at its peak.

    >>> usual_warmup_steps(10), usual_warmup_steps(66), usual_warmup_steps(1000), usual_warmup_steps(100_000)
    (0, 1, 30, 100)
    """
    return min(int(WARMUP_FRACTION * num_steps), MOST_WARMUP_STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """Numbers of the optimizer and its schedule."""

    learning_rate: float = 3e-4
    weight_decay_fraction: float = 0.1
    beta_1_fraction: float = 0.9
    beta_2_fraction: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    num_warmup_steps: int = 0
    decay: Decay = "constant"
    num_decay_steps: int | None = None
    """Last steps of the run in which the rate of ``wsd`` falls; ``None`` is a tenth of the run."""
    min_learning_rate_ratio: float = 0.1
    """Floor of a decaying learning rate over its peak."""
    undecayed: tuple[str, ...] = ()
    """Patterns of parameter names that weight decay spares, besides vectors and what the model marks."""
    group_rates: tuple[tuple[str, float], ...] = ()
    """Patterns of parameter names, each with the peak learning rate of its parameters; the first that fits counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Choices that change speed and memory but never the numbers."""

    num_loss_chunks: int | None = None
    """Pieces of the loss; ``None`` lets the runtime keep one piece of logits small."""
    is_last_unit_kept: bool = True
    """The last block is not freed after forward: backward would gather it again at once."""
    is_embedding_kept: bool = False
    """The gathered token table stays from forward to backward instead of being gathered again at the very end."""
    saves_elementwise: bool = False
    """Compiled blocks keep what elementwise kernels make (activations, norms) instead of making it again in
    backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSpec:
    """Optional observation of a run: profiler, memory history, TensorBoard and Weights & Biases."""

    every_steps: int = 0
    """Look into every so many steps with the profiler; 0 never does."""
    is_memory_sampled: bool = False
    """Whether the allocations of one early step are recorded, which names what memory holds at its peak."""
    has_memory_snapshot: bool = False
    """Whether the history of CUDA's allocator over the first steps is written into the run folder."""
    tensorboard: str | None = None
    """Folder for TensorBoard's events."""
    wandb: str | None = None
    """Project of Weights & Biases that the run is recorded for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSpec:
    """How a run is validated while it trains: on which data, how often, and when it stops early."""

    source: str | None = None
    """Data of the same kind as the run's; ``None`` takes what :attr:`DataSpec.held_out_fraction` keeps."""
    every_steps: int = 0
    """Steps from one validation to the next; 0 never validates."""
    num_patience: int = 0
    """Validations in a row without a lower loss after which the run ends; 0 never ends it."""
    prompts: str | None = None
    """A file of prompts that the model continues at every validation."""
    max_new_tokens: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSpec:
    """How routers are taught to spread tokens over experts, and what is said of it."""

    aux_loss_ratio: float | None = None
    """Factor on the auxiliary loss of routers; ``None`` is the config's ``router_aux_loss_coef`` where its
    ``output_router_logits`` is on, and otherwise 0."""
    bias_update_ratio: float = 0.0
    """How far biases before the choice of experts move in a step; 0 leaves them as they are."""
    expert_load: ExpertLoad | None = None
    """How metrics report the load of experts; ``None`` means the ratio where a loss or biases even it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run as its workers see it."""

    layout: Layout
    """Resolved: ``spread_vocabulary`` and ``exchange_gradients`` say what is done, not what is asked for."""
    recipe: Recipe
    num_microbatches: int
    """Micro-batches per data-parallel rank and step."""
    model_config_json: str
    """The fields of a Hugging Face ``config.json``."""
    run_folder: str
    num_steps: int
    chunk_layers: tuple[int, ...] = ()
    """Blocks of each pipeline chunk in model order; empty without a pipeline."""
    implementation: Implementation = "auto"
    device: DeviceKind = "auto"
    seed: int = 0
    is_deterministic: bool = False
    """Whether equal runs give equal bits on GPUs too, by kernels that add up in one order; slower."""
    num_restarts: int = 0
    """How often a run that failed is started again where that can help."""
    timeout_s: float = 600.0
    """How long a rank waits in a collective for the others before the run is ended."""
    data: DataSpec = field(default_factory=DataSpec)
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    tuning: Tuning = field(default_factory=Tuning)
    watch: WatchSpec = field(default_factory=WatchSpec)
    validation: ValidationSpec = field(default_factory=ValidationSpec)
    routing: RoutingSpec = field(default_factory=RoutingSpec)
    model_flop_per_token: float = 0.0
    """FLOP per token for MFU: forward and backward without recomputation, as the prediction counts them."""
    peak_flop_per_s: float | None = None
    """Peak of one GPU at this precision; ``None`` leaves MFU out."""
    mfu_convention: str = ""

    @property
    def model_config(self) -> dict[str, object]:
        """The fields of the model's config."""
        fields: dict[str, object] = json.loads(self.model_config_json)
        return fields

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows."""
        return int(str(self.model_config["vocab_size"]))

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step."""
        return self.num_microbatches * self.recipe.micro_batch_size * self.layout.data_parallel_size

    @property
    def tokens_per_step(self) -> int:
        """Token positions of one optimizer step over all ranks."""
        return self.global_batch_size * self.recipe.seq_len

    @property
    def folder(self) -> Path:
        """The run folder as a path."""
        return Path(self.run_folder)


def uses_transformers(job: Job) -> bool:
    """Whether transformers builds the model: when it is asked to, or when ours would compute something else."""
    if job.implementation == "auto":
        return not is_supported(job.model_config)
    return job.implementation == "transformers"


def job_to_json(job: Job) -> dict[str, object]:
    """The job as the document that :func:`job_from_json` turns into an equal job."""
    return {"schema": JOB_SCHEMA, **asdict(job)}


def job_from_json(document: Mapping[str, Any]) -> Job:
    """The job in a parsed document, as a launcher of this or an earlier version wrote it."""
    values = {
        name: without_retired(name, value) if isinstance(value, dict) else value
        for name, value in document.items()
        if name not in ("schema", "lora_alpha_ratio")  # that of versions that always took twice the rank
    }
    layout = values["layout"]
    layout["stage_layers"] = tuple(layout["stage_layers"]) if layout["stage_layers"] is not None else None
    parts: dict[str, Any] = {
        "layout": Layout(**layout),
        "recipe": Recipe(**values["recipe"]),
        "data": DataSpec(**{**values["data"], "more_sources": tuple(values["data"].get("more_sources", ()))}),
        "checkpoint": CheckpointSpec(**values["checkpoint"]),
        "optimizer": _optimizer_spec(values["optimizer"]),
        "tuning": Tuning(**values["tuning"]),
        "watch": WatchSpec(**values.get("watch", {})),
        "validation": ValidationSpec(**values.get("validation", {})),
        "routing": RoutingSpec(**values.get("routing", {})),
        "chunk_layers": tuple(values["chunk_layers"]),
    }
    return Job(**{**values, **parts})


def _optimizer_spec(values: Mapping[str, Any]) -> OptimizerSpec:
    """The numbers of the optimizer; JSON has lists where the record has tuples."""
    rates = tuple((pattern, rate) for pattern, rate in values.get("group_rates", ()))
    return OptimizerSpec(**{**values, "undecayed": tuple(values.get("undecayed", ())), "group_rates": rates})


def read_job(path: Path) -> Job:
    """The job in a file that :func:`write_job` wrote."""
    return job_from_json(json.loads(path.read_text(encoding="utf-8")))


def write_job(job: Job) -> Path:
    """Write the job into its run folder and return the file."""
    path = job.folder / JOB_FILE
    path.write_text(json.dumps(job_to_json(job), indent=1) + "\n", encoding="utf-8")
    return path
