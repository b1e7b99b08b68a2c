"""The job that a plan and what was asked on the command line amount to."""

import json
from dataclasses import dataclass, field, replace

from shardwise.engines.table import OWN_ENGINE
from shardwise.errors import PlanError
from shardwise.launch.model_config import model_config
from shardwise.launch.support import GAPS
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.rules import find_errors
from shardwise.rules.changes import describe_changes
from shardwise.step.layer_placement import num_chunks, pipeline_stages
from shardwise.step.native_engine import exchanges_gradients, is_native_engine, spreads_vocabulary
from shardwise.train.data import open_samples, prepare_samples
from shardwise.train.data.validation import open_validation, validation_data
from shardwise.train.job import (
    CheckpointSpec,
    DataSpec,
    DeviceKind,
    Implementation,
    Job,
    OptimizerSpec,
    RoutingSpec,
    Tuning,
    ValidationSpec,
    WatchSpec,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What a plan does not say about a run."""

    num_steps: int = 10
    seed: int = 0
    is_deterministic: bool = False
    device: DeviceKind = "auto"
    is_on_gpu: bool = True
    """Whether ranks find GPUs; on CPUs MFU is left out, as the plan's peak is that of a GPU."""
    implementation: Implementation = "auto"
    timeout_s: float = 600.0
    num_restarts: int = 0
    data: DataSpec = field(default_factory=DataSpec)
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    tuning: Tuning = field(default_factory=Tuning)
    watch: WatchSpec = field(default_factory=lambda: WatchSpec(is_memory_sampled=True))
    validation: ValidationSpec = field(default_factory=ValidationSpec)
    routing: RoutingSpec = field(default_factory=RoutingSpec)


def require_native(plan: Plan) -> None:
    """Return when the plan is one that our native engine trains.

    Raises:
        PlanError: it is for another engine, whose memory and speed would be another's.
    """
    if not is_native_engine(plan):
        raise PlanError(
            f"the plan is for {plan.engine}, but what trains it here is the native runtime",
            code="train-engine",
            fix=_way_to_native(replace(plan, engine=OWN_ENGINE)),
        )


def _way_to_native(plan: Plan) -> str:
    """The fields to set so that the native engine trains the plan, and those that only the other engine can choose."""
    changes = dict(change for refusal in find_errors(plan) for change in refusal.neighbour)
    first = describe_changes(tuple({**changes, "engine": OWN_ENGINE}.items()))
    return ", and ".join([f"{first} in the plan", *(gap.fix for gap in GAPS if gap.is_asked(plan))])


def make_job(plan: Plan, request: TrainRequest, *, prediction: Prediction | None, run_folder: str) -> Job:
    """The job of a plan; names and catalogues are resolved here, so that workers need neither."""
    throughput = prediction.throughput if prediction else None
    return Job(
        layout=_resolved(plan),
        recipe=plan.recipe,
        num_microbatches=plan.num_microbatches,
        model_config_json=json.dumps(dict(model_config(plan.model)), sort_keys=True),
        run_folder=run_folder,
        num_steps=request.num_steps,
        chunk_layers=_chunk_layers(plan),
        implementation=request.implementation,
        timeout_s=request.timeout_s,
        num_restarts=request.num_restarts,
        device=request.device,
        seed=request.seed,
        is_deterministic=request.is_deterministic,
        data=request.data,
        checkpoint=request.checkpoint,
        optimizer=_optimizer(plan, request),
        tuning=request.tuning,
        watch=request.watch,
        validation=request.validation,
        routing=request.routing,
        model_flop_per_token=throughput.model_flop_per_step / plan.tokens_per_step if throughput else 0.0,
        peak_flop_per_s=throughput.peak_flop_per_s if throughput and _is_planned_device(plan, request) else None,
        mfu_convention=throughput.mfu_convention if throughput else "",
    )


def _is_planned_device(plan: Plan, request: TrainRequest) -> bool:
    """Whether the plan's peak may be that of what trains."""
    gpu = plan.cluster.gpu
    return request.is_on_gpu or gpu.vendor == "host" or gpu.confidence == "user"


def _resolved(plan: Plan) -> Layout:
    """The layout with what the engine does by itself written out: workers know neither model nor cluster."""
    spreads, exchanges = spreads_vocabulary(plan), exchanges_gradients(plan)
    return replace(plan.layout, spread_vocabulary=spreads, exchange_gradients=exchanges)


def prepare_data(job: Job) -> tuple[str, ...]:
    """Tokenise what the job reads unless it was before, so that its processes only map it; returns what to say of it.

    Raises:
        DataError: the data cannot be used; better said before processes start.
    """
    seq_len, vocab_size = job.recipe.seq_len, job.vocab_size
    said = prepare_samples(job.data, seq_len=seq_len, vocab_size=vocab_size)
    if not job.data.is_synthetic:
        num_samples = open_samples(job.data, seq_len=seq_len, vocab_size=vocab_size).num_samples
        num_epochs = job.num_steps * job.global_batch_size / num_samples
        said += (
            f"an epoch is {num_samples:,} sequences of {seq_len:,} tokens: {job.num_steps:,} steps of "
            f"{job.global_batch_size:,} read {num_epochs:,.2f} epochs",
        )
    if job.validation.every_steps:
        if job.validation.source is not None:
            said += prepare_samples(validation_data(job), seq_len=seq_len, vocab_size=vocab_size)
        num_samples = open_validation(job).num_samples
        said += (
            f"validation: {num_samples:,} sequences of {seq_len:,} tokens every {job.validation.every_steps} steps",
        )
    return said


def _optimizer(plan: Plan, request: TrainRequest) -> OptimizerSpec:
    """What was asked for; a plan that does not clip is never clipped."""
    return request.optimizer if plan.recipe.clip_gradients else replace(request.optimizer, max_grad_norm=0.0)


def _chunk_layers(plan: Plan) -> tuple[int, ...]:
    if plan.layout.pp == 1:
        return ()
    counts = [0] * num_chunks(plan.layout)
    for stage in pipeline_stages(model=plan.model, layout=plan.layout):
        for chunk in stage.chunks:
            counts[chunk.index] = chunk.num_layers
    return tuple(counts)
