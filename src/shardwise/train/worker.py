"""What every process that torchrun starts runs: ``python -m shardwise.train.worker RUN_FOLDER/job.json``."""

import json
import math
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist

from shardwise.train.allocator_history import AllocatorHistory, allocator_history
from shardwise.train.beginning import words_of
from shardwise.train.checkpoint.checkpointer import CheckpointRequest, DistributedCheckpointer
from shardwise.train.checkpoint.continued import continued
from shardwise.train.checkpoint.folder import CheckpointFolder, find_checkpoint
from shardwise.train.checkpoint.lineage import Lineage
from shardwise.train.checkpoint.origin import origin_facts, require_continuable
from shardwise.train.determinism import determinism
from shardwise.train.failure.classify import LossError
from shardwise.train.failure.full_disk import writing
from shardwise.train.failure.keepers import RESTART_VARIABLE, TORCHRUN_VARIABLE
from shardwise.train.failure.watch import RankWatch, WatchLimits
from shardwise.train.feed import open_feed
from shardwise.train.group import join_group
from shardwise.train.job import CheckpointSpec, Job, read_job, uses_transformers
from shardwise.train.lease import LIFE_VARIABLE, Lease, LeaseError, join, require_free, seen, take
from shardwise.train.loop import Trainer, make_trainer, train
from shardwise.train.lora import target_names, transposed_names
from shardwise.train.measuring import held_bytes, make_sampler, measurement_object
from shardwise.train.mesh import make_mesh, pick_device
from shardwise.train.metrics import Recorder, StepLog, StepRecord
from shardwise.train.parameters import base_parameters, kept_buffers, quantised_layers
from shardwise.train.precision import use_fast_kernels
from shardwise.train.pretrained.adapter import AdapterSettings, adapter_tensors, export_adapter
from shardwise.train.pretrained.companions import Companions
from shardwise.train.pretrained.conversion import conversion_of
from shardwise.train.pretrained.export import DTYPES, ExportedModel, export_checkpoint
from shardwise.train.pretrained.load import load_pretrained, load_quantised
from shardwise.train.pretrained.merge import export_merged
from shardwise.train.scaling import MAX_SKIPPED_IN_A_ROW
from shardwise.train.step_lines import StepLines
from shardwise.train.wandb_run import WandbRun

MEASUREMENT_FILE = "measurement.json"
LATER_RATIO = 1.5
"""Time-out of the second of two watches, over the job's. gloo says by itself which wait ran out, so the process
group comes first on CPUs; NCCL's watchdog kills the process that waits, so on GPUs ours comes first and says why."""
EXPORTED_DTYPES = {"fp32": "float32", "fp16-mixed": "float16"}


def main(words: list[str]) -> int:
    """Train the job in the file that is named; a failure leaves its reason in the run folder and ends the process."""
    job = read_job(Path(words[0]))
    if LIFE_VARIABLE not in os.environ:  # a script starts it, maybe again; a launcher says itself where to go on
        job = continued(job)
    is_cuda = pick_device(job.device, local_rank=0).type == "cuda"
    limits = WatchLimits(hang_s=job.timeout_s if is_cuda else LATER_RATIO * job.timeout_s)
    rank = int(os.environ.get("RANK", "0"))
    watch = RankWatch(job.folder, rank=rank, limits=limits)
    try:
        watch.lease = _own_lease(job, rank=rank)
        watch.start()
        _train_in_group(job, watch)
    except LeaseError as error:  # nothing is written into a folder that belongs to another run
        sys.stderr.write(f"rank {rank}: {error.message}\n")
        return error.exit_code
    except BaseException as error:  # noqa: BLE001 - the process ends here, with the reason written down
        watch.fail(error)
    watch.finish()
    if watch.lease is not None:
        watch.lease.release()
    return 0


def _own_lease(job: Job, *, rank: int) -> Lease | None:
    """The run's lease on its folders: rank 0 keeps it, or takes it where no launcher did; the other ranks watch it.

    ``None`` for a rank that has to hear from rank 0 first which life this is.

    Raises:
        LeaseError: another run holds a folder.
    """
    life, run_id = os.environ.get(LIFE_VARIABLE), os.environ.get(TORCHRUN_VARIABLE, "")
    if life:
        return join(job, life) if rank == 0 else seen(job, life)
    if rank == 0:
        return take(job, run_id=run_id, is_restart=os.environ.get(RESTART_VARIABLE, "0") != "0")
    require_free(job, run_id=run_id)
    return None


def _share_lease(job: Job, watch: RankWatch) -> None:
    """Tell the ranks of a run without a launcher which life rank 0 began."""
    said = [watch.lease.lineage.life if watch.lease is not None and dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(said, src=0)
    if watch.lease is None:
        watch.lease = seen(job, said[0])


def _train_in_group(job: Job, watch: RankWatch) -> None:
    device = pick_device(job.device, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=job.timeout_s * (LATER_RATIO if device.type == "cuda" else 1))
    join_group(device_type=device.type, timeout=timeout)
    watch.has_met = True
    _share_lease(job, watch)
    run_job(job, device=device, watch=watch)
    dist.destroy_process_group()


def run_job(job: Job, *, device: torch.device, watch: RankWatch | None = None) -> tuple[Trainer, list[StepRecord]]:
    """Train a job in an initialised process group; rank 0 writes metrics and the measurement."""
    mesh = make_mesh(job.layout, device_type=device.type)
    source = open_feed(
        job,
        data_parallel_rank=mesh.data_parallel_rank,
        vocab_size=job.vocab_size,
        device=device,
    )
    wants_history = job.watch.has_memory_snapshot and device.type == "cuda"
    with (
        determinism(is_wanted=job.is_deterministic),
        use_fast_kernels(asked=job.recipe.attention_kernel, is_deterministic=job.is_deterministic),
        allocator_history(job.folder, is_wanted=wants_history, last_step=job.num_steps) as history,
    ):
        trainer = make_trainer(job, mesh, device=device, source=source)
        records = _train_all(trainer, job, watch, history)
    source.close()
    return trainer, records


def open_checkpoints(trainer: Trainer, lease: Lease | None = None) -> DistributedCheckpointer:
    """The checkpointer that saves and loads the states of a job."""
    job, spec = trainer.job, trainer.job.checkpoint
    return DistributedCheckpointer(
        CheckpointRequest(
            folder=Path(spec.folder) if spec.folder else None,
            every_steps=spec.every_steps,
            is_async=spec.is_async,
            num_kept=spec.num_kept,
            resume_from=Path(spec.resume_from) if spec.resume_from else None,
            facts=origin_facts(job, trainer.source.state_dict()),
            lineage=lease.lineage if lease is not None else Lineage(),
            require_held=lease.require_held if lease is not None else lambda: None,
        )
    )


def _train_all(trainer: Trainer, job: Job, watch: RankWatch | None, history: AllocatorHistory) -> list[StepRecord]:
    require_continuable(job)
    lease = watch.lease if watch is not None else None
    checkpoints, states, spec = open_checkpoints(trainer, lease), trainer.states(), job.checkpoint
    if spec.initial_weights and (job.recipe.adapter != "none" or not spec.resume_from):
        # Checkpoints of adapters hold no frozen weights, so a resumed run reads them here as well.
        load_base(trainer, Path(spec.initial_weights))
    trainer.progress.step = checkpoints.load(states)
    if trainer.validator is not None and trainer.validator.state.best_step:
        checkpoints.keep_best(trainer.validator.state.best_step)
    trainer.sampler = make_sampler(trainer)
    is_writer = dist.get_rank() == 0
    recorders = _open_recorders(job, trainer.progress.step) if is_writer else ()
    guard = partial(require_number, spec=spec)
    lineage = lease.lineage if lease is not None else None
    listeners: tuple[Callable[[StepRecord], None], ...] = (guard, *(recorder.add for recorder in recorders))
    log = StepLog(job.folder, is_writer=is_writer, listeners=listeners, lineage=lineage)
    beat = _watched(trainer, watch)

    def after_step(step: int) -> None:
        history.after_step(step)
        beat(step, "saving" if checkpoints.is_due(step) else "training")
        validator = trainer.validator
        is_best = validator is not None and validator.state.best_step == step
        checkpoints.after_step(step, states, is_best=is_best)
        beat(step, "training")

    beat(trainer.progress.step, "training")
    train(trainer, on_step=log.add, wants_record=checkpoints.is_due, after_step=after_step)
    require_trained(trainer)
    beat(trainer.progress.step, "saving")
    checkpoints.finish(trainer.progress.step, states)
    _export(trainer)
    log.close()
    for recorder in recorders:
        recorder.close()
    measured = measurement_object(trainer, log.records)
    if dist.get_rank() == 0:
        path = job.folder / MEASUREMENT_FILE
        with writing(path):
            path.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return log.records


def _open_recorders(job: Job, step: int) -> tuple[Recorder, ...]:
    """Open the writers that hear of every step; TensorBoard's library is imported only where a run asks for it."""
    found: list[Recorder] = []
    if LIFE_VARIABLE not in os.environ:  # a launcher shows the steps itself
        found.append(StepLines(num_steps=job.num_steps))
    if job.watch.tensorboard:
        from shardwise.train.tensorboard import open_board  # noqa: PLC0415

        found.append(open_board(Path(job.watch.tensorboard), last_step=step))
    if job.watch.wandb:
        found.append(WandbRun(job))
    return tuple(found)


def load_base(trainer: Trainer, folder: Path) -> None:
    """Fill the model, but not its adapters, from a Hugging Face checkpoint."""
    decoders = list(trainer.built.decoders)
    table = conversion_of(trainer.job.model_config) if uses_transformers(trainer.job) else None
    filled = trainer.built.halves.filled(base_parameters(decoders))
    load_pretrained(chain(filled, kept_buffers(decoders)), folder, table)
    load_quantised(quantised_layers(decoders), folder, table)


def _watched(trainer: Trainer, watch: RankWatch | None) -> Callable[[int, str], None]:
    """Connects the trainer with what watches it; returns what tells it that something moved."""
    if watch is None:
        return lambda step, phase: None  # noqa: ARG005 - nobody watches
    watch.measure_memory = lambda: held_bytes(trainer)
    trainer.is_stop_requested = lambda: watch.is_stop_requested
    return lambda step, phase: watch.beat(step=step, phase=phase)


def require_number(record: StepRecord, *, spec: CheckpointSpec) -> None:
    """Return when the loss of a step and the norm of its gradient are numbers.

    Args:
        record: of the step.
        spec: where the run's checkpoints are, if it has any; the fix begins with the newest.

    Raises:
        LossError: one is infinite or none; every rank sees the same ones, so all stop here, before weights that such a
            gradient has reached are saved.
    """
    if record.num_skipped_in_a_row:
        _require_few_skipped(record, spec=spec)
        return
    for name, value in (("loss", record.loss), ("gradient norm", record.gradient_norm)):
        if math.isfinite(value):
            continue
        raise LossError(
            f"the {name} of step {record.step} is {value}",
            code="train-loss",
            fix=f"{_way_back(spec)} with a lower --learning-rate or more --warmup-steps",
        )


def _require_few_skipped(record: StepRecord, *, spec: CheckpointSpec) -> None:
    """Return while a smaller scale of the loss may still help."""
    if record.num_skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        first = record.step - record.num_skipped_in_a_row + 1
        raise LossError(
            f"gradients overflowed fp16 in steps {first} to {record.step}, "
            f"and the loss scale fell to {record.loss_scale_ratio:.3g}",
            code="train-loss-scale",
            fix=f"{_way_back(spec)} with --precision bf16-mixed, or before step {first} with a lower --learning-rate",
        )


def require_trained(trainer: Trainer) -> None:
    """Return when the whole run took at least one step.

    Raises:
        LossError: it would end with the weights that it began with.
    """
    scale, num_steps = trainer.scale, trainer.progress.step
    if scale.num_skipped_steps == num_steps == trainer.job.num_steps:
        raise LossError(
            f"gradients overflowed fp16 in all {num_steps} steps, so nothing was trained; the loss scale is "
            f"{scale.ratio:,g} now",
            code="train-loss-scale",
            fix="take more --steps, as each halves the scale, or set --precision bf16-mixed",
        )


def _way_back(spec: CheckpointSpec) -> str:
    """Where to begin again after weights went bad."""
    newest = CheckpointFolder(Path(spec.folder)).newest() if spec.folder else None
    if newest is not None:
        return f"go on with --resume {newest.path}"
    return f"go on with --resume {spec.resume_from}" if spec.resume_from else "no checkpoint was saved: start again"


def _export(trainer: Trainer) -> None:
    """Rank 0 writes the last checkpoint in the format of Hugging Face or of peft, and all wait for it.

    A run that was stopped exports nothing: what it saved is no finished model. One that waits for better validations
    exports the best of them.
    """
    job, spec, validator = trainer.job, trainer.job.checkpoint, trainer.validator
    has_ended = trainer.progress.step >= job.num_steps or (validator is not None and validator.is_patience_over)
    if not (spec.export_folder and spec.folder) or not has_ended:
        return
    if dist.get_rank() == 0:
        folder = Path(spec.export_folder)
        best = CheckpointFolder(Path(spec.folder)).best() if job.validation.num_patience else None
        checkpoint = (best or find_checkpoint(Path(spec.folder))).path
        companions = _companions(job)
        if spec.is_merged:
            base, factors = Path(str(spec.initial_weights)), adapter_tensors(checkpoint)
            names = transposed_names(trainer.built.decoders)
            scale = job.recipe.adapter_scale_ratio
            export_merged(factors, base, folder, scale_ratio=scale, transposed=names, companions=companions)
        elif job.recipe.adapter != "none":
            export_adapter(checkpoint, folder, _adapter_settings(trainer), companions=companions)
        else:
            export_checkpoint(checkpoint, folder, exported_model(job), companions=companions)
    dist.barrier()


def _companions(job: Job) -> Companions:
    weights, tokenizer = job.checkpoint.initial_weights, job.data.tokenizer
    return Companions(weights=Path(weights) if weights else None, tokenizer=Path(tokenizer) if tokenizer else None)


def exported_model(job: Job) -> ExportedModel:
    """Config, dtype and tensor names of the job's model when it is exported."""
    dtype = EXPORTED_DTYPES.get(job.recipe.precision, "bfloat16")
    table = conversion_of(job.model_config, dtype=DTYPES[dtype]) if uses_transformers(job) else None
    return ExportedModel(config=job.model_config, dtype=dtype, conversion=table)


def _adapter_settings(trainer: Trainer) -> AdapterSettings:
    job, recipe = trainer.job, trainer.job.recipe
    return AdapterSettings(
        rank=recipe.lora_rank,
        scale_ratio=recipe.adapter_scale_ratio,
        is_rank_stabilised=bool(recipe.use_rslora),
        dropout_fraction=recipe.lora_dropout_fraction,
        target_names=target_names(trainer.built.decoders),
        base_model=job.checkpoint.initial_weights,
        base_digest=job.checkpoint.weights_digest,
        begins_with=tuple(words_of(job).items()),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
