"""Forward and backward of all micro-batches of one optimizer step, with or without a pipeline."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from shardwise.train.build import Built
from shardwise.train.data.batches import Batch
from shardwise.train.data_parallel import begin_micro_batch, keep_gradients_here
from shardwise.train.decoder.model import Decoder
from shardwise.train.job import Job
from shardwise.train.loss import IGNORED_LABEL
from shardwise.train.mesh import Mesh
from shardwise.train.stages import Relay, make_schedule


class Passes(Protocol):
    """Runs the micro-batches of a step and leaves gradients of the summed loss times ``unit_ratio``."""

    def run(self, batches: Sequence[Batch], *, unit_ratio: float) -> tuple[Tensor, Tensor]:
        """This rank's share of the summed loss and of the labelled tokens."""


class EvaluatingPasses(Passes, Protocol):
    """Passes that also go forward alone."""

    def evaluate(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """This rank's share of the summed loss and of the labelled tokens of some micro-batches, without gradients."""


def make_passes(built: Built, job: Job, mesh: Mesh, *, device: torch.device) -> EvaluatingPasses:
    """The passes of a layout."""
    if job.layout.pp > 1:
        return PipelinePasses(built, job, mesh, device=device)
    return PlainPasses(built, job, device=device)


class Placed:
    """Batches on this rank's device, cut to the positions this rank computes."""

    def __init__(self, built: Built, job: Job, *, device: torch.device) -> None:
        self.device = device
        self.positions = built.positions if job.layout.cp > 1 else None
        self.masks_documents = job.data.masks_documents

    def place(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Input ids and labels."""
        ids, labels = (batch.inputs, batch.labels)
        if self.positions is None:
            return ids, labels
        return ids[:, self.positions].contiguous(), labels[:, self.positions].contiguous()

    def document_places(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """Positions of all tokens in their documents as the model takes them; empty when documents see each other."""
        return {"document_places_BS": torch.cat([b.positions for b in batches])} if self.masks_documents else {}


class PlainPasses:
    """One micro-batch after the other through the whole model."""

    def __init__(self, built: Built, job: Job, *, device: torch.device) -> None:
        self.model, self.job, self.layout, self.watch = built.chunks[0], job, job.layout, built.watch
        self.placed = Placed(built, job, device=device)

    def run(self, batches: Sequence[Batch], *, unit_ratio: float) -> tuple[Tensor, Tensor]:
        """Gradients are communicated as ``begin_micro_batch`` says."""
        loss_sum = torch.zeros((), device=self.placed.device)
        num_tokens = torch.zeros((), device=self.placed.device)
        for index, batch in enumerate(batches):
            is_last = index == len(batches) - 1
            ids, labels = self.placed.place(batch)
            begin_micro_batch(self.model, self.job, is_last=is_last)
            with keep_gradients_here(self.model, is_last=is_last):
                loss = self.model(ids, labels, **self.placed.document_places([batch]))
                num_labelled = (labels != IGNORED_LABEL).sum()
                aux = self.watch.take_loss(num_labelled / self.layout.tp) if self.watch is not None else None
                ((loss if aux is None else loss + aux) * unit_ratio).backward()
            loss_sum += loss.detach()
            num_tokens += num_labelled
        return loss_sum / self.layout.tp, num_tokens / self.layout.tp

    def evaluate(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Take one micro-batch after another through the whole model."""
        sums = torch.zeros(2, device=self.placed.device, dtype=torch.float64)
        for batch in batches:
            ids, labels = self.placed.place(batch)
            loss = self.model(ids, labels, **self.placed.document_places([batch]))
            sums += torch.stack([loss.double(), (labels != IGNORED_LABEL).sum().double()])
        return sums[0] / self.layout.tp, sums[1] / self.layout.tp


class PipelinePasses:
    """All micro-batches through the stages, in the order of the schedule."""

    def __init__(self, built: Built, job: Job, mesh: Mesh, *, device: torch.device) -> None:
        self.layout, self.placed = job.layout, Placed(built, job, device=device)
        self.unit_ratio = 1.0
        decoders = [decoder for decoder in built.decoders if isinstance(decoder, Decoder)]
        self.first = next((d for d in decoders if d.model.embed_tokens is not None), None)
        self.last = next((d for d in decoders if d.lm_head is not None), None)
        self.schedule = make_schedule(built.chunks, job=job, mesh=mesh, loss=self._loss)
        self.relay = Relay(built.chunks, job=job, mesh=mesh)

    def run(self, batches: Sequence[Batch], *, unit_ratio: float) -> tuple[Tensor, Tensor]:
        """The stage with the embedding feeds the tokens, the one with the head knows the loss."""
        self.unit_ratio = unit_ratio
        placed = [self.placed.place(batch) for batch in batches]
        ids = torch.cat([ids for ids, _ in placed])
        labels = torch.cat([labels for _, labels in placed])
        inputs = (ids,) if self.first is not None else ()
        places = self.placed.document_places(batches)
        if self.last is None:
            self.schedule.step(*inputs, **places)
            zero = torch.zeros((), device=self.placed.device)
            return zero, zero
        losses: list[Tensor] = []
        self.schedule.step(*inputs, target=labels, losses=losses, **places)
        loss_sum = torch.stack([loss.detach() for loss in losses]).sum() / unit_ratio
        return loss_sum / self.layout.tp, (labels != IGNORED_LABEL).sum() / self.layout.tp

    def evaluate(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Take one micro-batch after another from stage to stage; the stage with the head knows the loss."""
        sums = torch.zeros(2, device=self.placed.device, dtype=torch.float64)
        for batch in batches:
            ids, labels = self.placed.place(batch)
            hidden = self.relay.forward(ids, **self.placed.document_places([batch]))
            if self.last is not None and self.last.lm_head is not None:
                loss = self.last.lm_head(hidden, labels)
                sums += torch.stack([loss.double(), (labels != IGNORED_LABEL).sum().double()])
        return sums[0] / self.layout.tp, sums[1] / self.layout.tp

    def _loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        assert self.last is not None and self.last.lm_head is not None  # noqa: PT018 - only the last stage asks
        return self.last.lm_head(hidden, labels) * self.unit_ratio
