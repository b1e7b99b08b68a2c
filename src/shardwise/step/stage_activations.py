"""Activations, logits and backward temporaries of a stage as tensors of the inventory."""

from collections.abc import Iterator, Sequence

from shardwise.columns import either, least, most, negated, rounded
from shardwise.ledger import MemoryComponent
from shardwise.step.inventory import Tensor, present
from shardwise.step.loss import (
    asked_loss,
    logits_bytes,
    loss_bytes,
    num_liger_pieces,
    num_own_pieces,
    own_piece_bytes,
)
from shardwise.step.stage_context import StageContext
from shardwise.units import Bytes

RESIDENT_LAYERS_WITH_OFFLOAD = 2
"""Blocks whose activations stay on the device while the others are on the host: the running one and the next."""


def kept_per_run(context: StageContext) -> tuple[Bytes, ...]:
    """Bytes every run of blocks keeps per micro-batch: recomputed blocks what is left to them, others everything."""
    totals: list[Bytes] = []
    for run, held in enumerate(context.held_runs):
        whole = (held.count - held.num_recomputed) * context.blocks[run].whole
        totals.append(held.num_recomputed * context.kept_bytes(run) + whole)
    return tuple(totals)


def waiting_activations(context: StageContext, *, kept_bytes: Bytes) -> Tensor:
    """Activations that the other micro-batches in flight keep for backward, ``kept_bytes`` each."""
    timeline = context.timeline
    return Tensor(
        name="activations of other micro-batches in flight",
        component="activations",
        num_bytes=resident(context, rounded(most(0.0, context.held.in_flight_micro_batches - 1) * kept_bytes)),
        first_use=timeline.forward,
        last_use=timeline.backward_end - 1,
    )


def activation_tensors(context: StageContext, totals: Sequence[Bytes]) -> Iterator[Tensor]:
    """Activations that the running micro-batch keeps for backward, and the tensors that a running block adds.

    Args:
        context: the stage.
        totals: what every run of blocks keeps (:func:`kept_per_run`).
    """
    timeline = context.timeline
    for run, held in enumerate(context.held_runs):
        moments = timeline.runs[run]
        one = totals[run] // held.count
        kept = resident(context, totals[run])
        rest = most(0, kept - one)
        name = f"kept by blocks[{run}]"
        for num_bytes, last_use in ((rest, moments.first_backward), (kept - rest, moments.last_backward)):
            yield Tensor(
                name=name, component="activations", num_bytes=num_bytes, first_use=timeline.forward, last_use=last_use
            )
        live = live_bytes(context, run)
        working = context.temporaries[run]
        for moment in moments.inside:
            yield Tensor(
                name=f"recomputed inside blocks[{run}]",
                component="activations",
                num_bytes=live,
                first_use=moment,
                last_use=moment,
            )
            yield Tensor(
                name=f"gradients of activations in blocks[{run}]",
                component="temporaries",
                num_bytes=working,
                first_use=moment,
                last_use=moment,
            )


def live_bytes(context: StageContext, run: int) -> Bytes:
    """Bytes that recomputing one block of a run brings back while it goes backward.

    Further copies are of what fp32 adapters widen, which are added to dense matrices, not to routed experts.
    """
    live = context.revived_bytes(run) + (context.live_block_copies - 1) * context.blocks[run].dense
    return live * (context.held_runs[run].num_recomputed > 0)


def resident(context: StageContext, num_bytes: Bytes) -> Bytes:
    """Bytes that stay on the device when activations are offloaded; all of them otherwise."""
    layers = most(1, context.held.num_layers)
    left = num_bytes * least(RESIDENT_LAYERS_WITH_OFFLOAD, layers) // layers
    return either(context.plan.recipe.activation_offload, left, num_bytes)


def offloaded_activation_bytes(context: StageContext, *, kept_bytes: Bytes) -> Bytes:
    """Host bytes of one rank's offloaded activations, over all micro-batches in flight, ``kept_bytes`` each."""
    total = rounded(context.held.in_flight_micro_batches * kept_bytes)
    return total - resident(context, total)


def _own_loss(context: StageContext) -> Iterator[Tensor]:
    """One piece of the logits; the gradients of the head and of its input are made with the loss and wait for backward.

    Source: ``train/loss.py``; Liger's fused head and loss does the same.
    """
    plan, timeline, block = context.plan, context.timeline, context.block_context
    size, shards, ranks = block.element_bytes, plan.layout.tp * context.vocabulary_ranks, context.vocabulary_ranks
    rows, tokens = -(-plan.model.vocab_size // shards), ranks * context.tokens
    asked, has_liger = plan.recipe.loss_chunks, plan.recipe.liger_kernels
    if has_liger:
        chunks = context.each(num_liger_pieces, num_tokens=tokens, vocab_size=rows, hidden_size=block.hidden_size)
    else:
        chunks = asked if asked > 1 else num_own_pieces(num_tokens=tokens, vocab_rows=rows, element_bytes=size)
    per_logit = own_piece_bytes(element_bytes=size, is_compiled=plan.recipe.compile or has_liger)
    loss = timeline.loss_forward
    piece = logits_bytes(
        tokens=tokens, vocab_size=plan.model.vocab_size, shards=shards, chunks=chunks, bytes_per_logit=per_logit
    )
    yield Tensor(name="logits and loss", component="logits", num_bytes=piece, first_use=loss, last_use=loss)
    hidden = context.tokens * block.hidden_size * size
    weights = context.states.compute_bytes * rows * block.hidden_size
    # The rows in the dtype of the product, and the tokens of all ranks.
    spread = (weights if context.states.weight_bytes > context.states.compute_bytes else 0) + ranks * hidden
    spread = spread * (ranks > 1)
    yield Tensor(
        name="head's rows and tokens", component="temporaries", num_bytes=spread, first_use=loss, last_use=loss
    )
    made: tuple[tuple[str, MemoryComponent, Bytes], ...] = (
        ("gradient of the head", "activations", 0 if context.has_adapter else weights),
        ("gradient of the head's input", "activations", ranks * hidden),
    )
    for name, component, num_bytes in made:
        yield Tensor(
            name=name, component=component, num_bytes=num_bytes, first_use=loss, last_use=timeline.head_backward
        )
        if context.held.forwards_come_first:
            yield Tensor(
                name=f"{name} of other micro-batches",
                component=component,
                num_bytes=rounded((context.held.in_flight_micro_batches - 1) * num_bytes),
                first_use=timeline.forward,
                last_use=timeline.backward_end - 1,
            )
    divided = hidden // block.sequence_shards
    gathered = hidden * (block.sequence_shards > 1)
    yield Tensor(
        name="final norm and head input",
        component="activations",
        num_bytes=2 * divided + gathered,
        first_use=loss,
        last_use=timeline.head_backward,
    )


def _earlier_outputs(context: StageContext) -> Iterator[Tensor]:
    """Outputs of the last stage that torch keeps to the end of the step.

    Source: torch 2.13 ``distributed/pipelining/stage.py`` (``output_chunks``); traced.
    """
    plan, block = context.plan, context.block_context
    divided = context.tokens * block.hidden_size * block.element_bytes // block.sequence_shards
    yield Tensor(
        name="outputs of earlier micro-batches",
        component="activations",
        num_bytes=(plan.num_microbatches - 1) * divided * (plan.layout.pp > 1),
        first_use=context.timeline.forward,
        last_use=context.timeline.backward_end,
    )


def spread_tensors(context: StageContext) -> Iterator[Tensor]:
    """Tensors in the backward of a spread vocabulary: tokens of all ranks, and gradients before their cast to fp32."""
    ranks, block, timeline = context.vocabulary_ranks, context.block_context, context.timeline
    tokens = ranks * context.tokens * block.hidden_size * block.element_bytes
    for held, at in (
        (context.held.has_head, timeline.head_backward),
        (context.held.has_embedding, timeline.backward_end),
    ):
        rows = context.states.compute_bytes * context.embedding_elements // ranks if at == timeline.backward_end else 0
        num_bytes = (tokens + rows) * held * (ranks > 1)
        yield Tensor(
            name="tokens of all ranks", component="temporaries", num_bytes=num_bytes, first_use=at, last_use=at
        )


def logit_tensors(context: StageContext) -> Iterator[Tensor]:
    """Logits and cross-entropy of one micro-batch, and the head's input."""
    if not (context.held.has_head and context.plan.model.has_head):
        return
    if context.plan.recipe.liger_kernels:
        yield from _own_loss(context)
        return
    if not context.is_native_engine:
        yield from _whole_loss(context)
        return
    yield from _earlier_outputs(context)
    yield from present(context.has_plain_loss, _whole_loss(context))
    yield from present(negated(context.has_plain_loss), _own_loss(context))


def _whole_loss(context: StageContext) -> Iterator[Tensor]:
    plan, timeline = context.plan, context.timeline
    size = context.block_context.element_bytes
    kind = asked_loss(profile=context.profile, recipe=plan.recipe)
    per_logit = context.each(loss_bytes, kind=kind, element_bytes=size, is_divided=plan.layout.tp > 1)
    chunks = plan.recipe.loss_chunks
    spans = (
        (per_logit.forward, timeline.loss_forward),
        (per_logit.backward, timeline.loss_backward),
        (per_logit.head, timeline.head_backward),
    )
    for bytes_per_logit, moment in spans:
        num_bytes = logits_bytes(
            tokens=context.tokens,
            vocab_size=plan.model.vocab_size,
            shards=plan.layout.tp,
            chunks=chunks,
            bytes_per_logit=bytes_per_logit,
        )
        yield Tensor(name="logits and loss", component="logits", num_bytes=num_bytes, first_use=moment, last_use=moment)
    hidden = context.tokens * plan.model.hidden_size * size
    # The final norm's input, the head's input (whole on every tensor-parallel rank) and, chunked, its gradient.
    copies = 2 + (chunks > 1)
    yield Tensor(
        name="final norm and head input",
        component="activations",
        num_bytes=copies * hidden,
        first_use=timeline.loss_forward,
        last_use=timeline.head_backward,
    )
