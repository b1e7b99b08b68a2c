"""The training loop."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer
from torch.profiler import record_function

from shardwise.measure.phase_marks import OPTIMIZER
from shardwise.train.adamw import OnePassAdamW
from shardwise.train.build import Built, build_model
from shardwise.train.checkpoint.checkpointer import Stateful
from shardwise.train.draws import begin_draws
from shardwise.train.feed import Feed
from shardwise.train.foreign import ForeignModule
from shardwise.train.gradients import (
    StepSums,
    scale_gradients,
    sum_part_gradients,
    sum_step,
    sum_tied_gradients,
)
from shardwise.train.job import Job
from shardwise.train.mesh import Mesh, pipeline_ends
from shardwise.train.metrics import Clock, StepRecord
from shardwise.train.optimizers import (
    ModelStates,
    OptimizerStates,
    make_optimizer,
    set_learning_rates,
)
from shardwise.train.parameters import (
    Trained,
    send_gradients,
    take_updates,
    tied_ends,
    trained_parameters,
    untrained_states,
)
from shardwise.train.passes import Passes, make_passes
from shardwise.train.routing import RoutingSums
from shardwise.train.sampling import Sampler, sample_object
from shardwise.train.scaling import LossScale
from shardwise.train.validation import Validation, Validator, make_validator, perplexity

GARBAGE_STEPS = 50


@dataclass(slots=True, kw_only=True)
class Progress:
    """How far the run is; part of every checkpoint."""

    step: int = 0

    def state_dict(self) -> dict[str, int]:
        """Finished steps."""
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from there."""
        self.step = int(state["step"])


@dataclass(slots=True, kw_only=True)
class Trainer:
    """Everything one rank needs to do a step."""

    job: Job
    mesh: Mesh
    device: torch.device
    built: Built
    trained: tuple[Trained, ...]
    optimizer: Optimizer
    passes: Passes
    source: Feed
    scale: LossScale
    progress: Progress = field(default_factory=Progress)
    learning_rate: float = 0.0
    """Learning rate of the newest step, for parameters that have no rate of their own."""
    routing: RoutingSums | None = None
    """The record of all ranks' routers in the newest step, where the job asks for it."""
    parts: Mapping[ProcessGroup, list[nn.Parameter]] = field(default_factory=dict)
    """Parameters of which every rank of a group knows a part of the gradient."""
    ends: ProcessGroup | None = None
    """Ranks of the first and the last stage, when both hold the token table and this rank is on one of the two."""
    is_stop_requested: Callable[[], bool] = lambda: False
    """Whether this rank was asked to stop after the step it is in."""
    sampler: Sampler | None = None
    """Looks into some of the steps."""
    validator: Validator | None = None
    """Looks at other data after some of the steps."""

    def states(self) -> dict[str, Stateful]:
        """Every state that a checkpoint holds, by name."""
        also: dict[str, Stateful] = {"scale": self.scale} if self.scale.is_active else {}
        if self.validator is not None:
            also["validation"] = self.validator.state
        return also | {
            "model": ModelStates(self.trained, self.built.halves, untrained=self._untrained()),
            "optimizer": OptimizerStates(self.trained, self.optimizer),
            "data": self.source,
            "progress": self.progress,
        }

    def _untrained(self) -> dict[str, Tensor]:
        """Tensors of the model that are not trained; a run of adapters reads them from the weights it began with."""
        return untrained_states(self.built.decoders) if self.job.recipe.adapter == "none" else {}

    def step(self) -> StepSums:
        """One optimizer step."""
        batches = self.source.next_step()
        # Dividing by the tokens expected keeps gradients in range; the true divisor is known after the step's sums.
        unit_ratio = self.scale.ratio / self.job.tokens_per_step
        begin_draws(self.mesh, device=self.device, seed=self.job.seed, step=self.progress.step)
        loss_sum, num_tokens = self.passes.run(batches, unit_ratio=unit_ratio)
        with record_function(OPTIMIZER):
            sums = self._take_gradients(loss_sum, num_tokens, unit_ratio)
            # As a scheduler that waits for torch.amp.GradScaler: only steps that were taken move the schedule on.
            num_taken = self.progress.step - self.scale.num_skipped_steps
            self.learning_rate = set_learning_rates(
                self.optimizer, self.job.optimizer, step=num_taken, num_steps=self.job.num_steps
            )
            watch = self.built.watch
            self.routing = watch.end_step() if watch is not None else None
            if self.scale.accepts(loss=sums.loss, gradient_norm=sums.gradient_norm):
                self._update(sums.gradient_factor)
                if watch is not None and self.routing is not None:
                    watch.move_biases(self.routing.load)
            self._drop_gradients()
        self.progress.step += 1
        return sums

    def _update(self, factor: Tensor) -> None:
        """The optimizer's step; AdamW multiplies gradients itself, which saves a pass over them."""
        if isinstance(self.optimizer, OnePassAdamW):
            self.optimizer.begin(factor)
        else:
            scale_gradients(self.trained, factor)
        send_gradients(self.trained)
        if self.device.type == "cuda" and self.job.recipe.offload == "optimizer":
            torch.cuda.current_stream().synchronize()
        self.optimizer.step()
        take_updates(self.trained)

    def _take_gradients(self, loss_sum: Tensor, num_tokens: Tensor, unit_ratio: float) -> StepSums:
        for group, parameters in self.parts.items():
            sum_part_gradients(parameters, group)
        sum_tied_gradients(tied_ends(self.built.decoders), self.ends)
        for entry in self.trained:
            entry.take_gradient()
        return sum_step(
            self.trained,
            loss_sum=loss_sum,
            num_tokens=num_tokens,
            unit_ratio=unit_ratio,
            max_grad_norm=self.job.optimizer.max_grad_norm,
            is_stopping=self.is_stop_requested(),
        )

    def _drop_gradients(self) -> None:
        for entry in self.trained:
            entry.parameter.grad = None
            entry.local.grad = None


def make_trainer(
    job: Job, mesh: Mesh, *, device: torch.device, source: Feed, given: ForeignModule | None = None
) -> Trainer:
    """Build the model (or take the one that is given), its optimizer and its passes."""
    built = build_model(job, mesh, device=device, given=given)
    steps_on_host = job.recipe.offload == "optimizer"
    trained = trained_parameters(built.decoders, mesh, halves=built.halves, steps_on_host=steps_on_host)
    optimizer = make_optimizer(trained, job)
    passes = make_passes(built, job, mesh, device=device)
    return Trainer(
        job=job,
        mesh=mesh,
        device=device,
        built=built,
        trained=trained,
        optimizer=optimizer,
        passes=passes,
        source=source,
        validator=make_validator(job, mesh, built, passes, device),
        scale=LossScale.of(job.recipe.precision),
        parts=_parts(built),
        ends=pipeline_ends(mesh) if job.model_config.get("tie_word_embeddings") else None,
    )


def _parts(built: Built) -> dict[ProcessGroup, list[nn.Parameter]]:
    found: dict[ProcessGroup, list[nn.Parameter]] = {}
    for part in built.part_gradients:
        found.setdefault(part.group, []).append(part.owner.get_parameter(part.name))
    return found


def train(
    trainer: Trainer,
    *,
    on_step: Callable[[StepRecord], None],
    wants_record: Callable[[int], bool],
    after_step: Callable[[int], None],
) -> None:
    """Steps until the job's number is reached or a rank was asked to stop.

    Records come one step late, except for steps after which ``wants_record`` says they are needed at once: a state is
    saved only when the loss that led to it is known to be a number.
    """
    job, clock = trainer.job, Clock(trainer.device)
    for entry in trainer.trained:
        entry.refresh_host()
    collect_garbage_together(0)
    start = clock.now()
    waiting: Callable[[], tuple[StepRecord, bool]] | None = None
    validator = trainer.validator
    is_stopping = validator is not None and validator.is_patience_over
    while trainer.progress.step < job.num_steps and not is_stopping:
        sums, watched_s = _take_step(trainer)
        collect_garbage_together(trainer.progress.step)
        end = clock.now()
        found = _validated(trainer)
        ready = [waiting] if waiting is not None else []
        seconds = partial(clock.seconds, start, end) if watched_s is None else partial(float, watched_s)
        waiting = _record_later(trainer, sums, seconds, found)
        if wants_record(trainer.progress.step) or found is not None:
            ready, waiting = [*ready, waiting], None
        start = end if found is None else clock.now()
        for read in ready:
            record, was_asked = read()
            is_stopping = is_stopping or was_asked
            on_step(record)
        after_step(trainer.progress.step)
        is_stopping = is_stopping or (validator is not None and validator.is_patience_over)
    if waiting is not None:
        on_step(waiting()[0])
    gc.enable()


def _take_step(trainer: Trainer) -> tuple[StepSums, float | None]:
    """Sums of the next step, and the step's own seconds where the profiler recorded it."""
    if trainer.sampler is None:
        return trainer.step(), None
    return trainer.sampler.run(trainer.progress.step + 1, trainer.step)


def _validated(trainer: Trainer) -> Validation | None:
    """What the validation after this step found, if there is one."""
    validator, step = trainer.validator, trainer.progress.step
    return validator.run(step) if validator is not None and validator.is_due(step) else None


def collect_garbage_together(step: int) -> None:
    """Look for garbage every ``GARBAGE_STEPS``, when all ranks do: one that pauses alone holds up the others."""
    if step == 0:
        gc.disable()
    if step % GARBAGE_STEPS == 0:
        gc.collect(1)


def _record_later(
    trainer: Trainer, sums: StepSums, seconds: Callable[[], float], found: Validation | None
) -> Callable[[], tuple[StepRecord, bool]]:
    """Reads the record of a step when it is called, and whether any rank was asked to stop."""
    job, step, scale = trainer.job, trainer.progress.step, replace(trainer.scale)
    values = torch.stack([sums.loss, sums.num_tokens, sums.gradient_norm, sums.num_stopping])
    values = values.to("cpu", non_blocking=True)
    routing = trainer.routing.on_host() if trainer.routing is not None else None
    rate, data_wait_s = trainer.learning_rate, trainer.source.take_waited_s()
    peaks = (0, 0)
    if trainer.device.type == "cuda":
        peaks = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())

    sampler = trainer.sampler
    sample = sampler.sample_of(step) if sampler else None

    def read() -> tuple[StepRecord, bool]:
        step_s = seconds()
        loss, tokens, norm, num_stopping = values.tolist()
        tokens_per_s = job.tokens_per_step / step_s
        per_gpu = tokens_per_s / job.layout.world_size
        record = StepRecord(
            step=step,
            loss=loss,
            gradient_norm=norm,
            learning_rate=rate,
            num_tokens=int(tokens),
            step_s=step_s,
            data_wait_s=data_wait_s,
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=per_gpu,
            mfu_fraction=per_gpu * job.model_flop_per_token / job.peak_flop_per_s if job.peak_flop_per_s else None,
            peak_allocated_bytes=peaks[0],
            peak_reserved_bytes=peaks[1],
            is_sampled=sampler is not None and step in sampler.sampled_steps,
            sample=sample_object(sample) if sample else None,
            loss_scale_ratio=scale.ratio if scale.is_active else None,
            num_skipped_steps=scale.num_skipped_steps,
            num_skipped_in_a_row=scale.num_skipped_in_a_row,
            validation_loss=found.loss if found else None,
            validation_perplexity=perplexity(found.loss) if found else None,
            **(routing.said(job.routing.expert_load) if routing else {}),
        )
        return record, num_stopping > 0

    return read
