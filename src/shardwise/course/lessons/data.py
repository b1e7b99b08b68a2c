"""Data parallelism: every rank trains on its part of the batch, and what has to be averaged with which weights."""

import numpy as np

from shardwise.claims import Claim
from shardwise.course.lesson import Check, Lesson, LessonTable, Setting
from shardwise.course.lessons.request import LessonRequest, checked, checked_seed
from shardwise.course.lessons.tiny_run import (
    EXACT,
    batch_of,
    exchange_picture,
    held_table,
    tiny_plan,
    tiny_run,
    traffic_table,
    walk,
)
from shardwise.course.numerics.arrays import Array, Weights, relative_error, worst_error
from shardwise.course.numerics.batch import divide, even_shares
from shardwise.course.numerics.reenact import Options, gradient_error, one_device, reenact
from shardwise.course.numerics.tiny_model import initial_weights, tiny_model
from shardwise.layout import Layout
from shardwise.plan import Plan

OPTIONS = ("num_ranks", "global_batch_size", "num_hidden_layers", "seq_len", "seed")
SEED_SAMPLES, SEED_INPUTS, SEED_OUTPUTS, SEED_SEED = 64, 32, 16, 42
"""The scaling lesson's demo: 64 samples, a 32 x 16 matrix, numpy seed 42."""
SEED_RANKS = (1, 2, 4, 8, 3, 24)
"""Rank counts of the demo, and two, 3 and 24, that do not divide its 64 samples."""


def make_lesson(request: LessonRequest) -> Lesson:
    """Train on uneven parts of a batch, averaged rightly and as the demo does."""
    num_ranks = checked("num_ranks", request.num_ranks, default=4, low=2, high=16)
    sequences = checked(
        "global_batch_size", request.global_batch_size, default=2 * num_ranks + 1, low=num_ranks, high=256
    )
    layers = checked("num_hidden_layers", request.num_hidden_layers, default=2, low=1, high=8)
    seq_len = checked("seq_len", request.seq_len, default=16, low=2, high=512)
    seed = checked_seed(request)
    plan = tiny_plan(
        tiny_model(num_hidden_layers=layers),
        Layout(dp_shard=num_ranks, zero_stage=0),
        seq_len=seq_len,
        micro_batch_size=2,
    )
    even = tiny_run(plan, seed=seed)
    table, checks = _uneven(plan, sequences, seed)
    return Lesson(
        name="data",
        title=f"Data parallelism over {num_ranks} ranks",
        what="A simulation in numbers: each rank has the whole model and some sequences, computes forward and "
        "backward, and an all-reduce adds the gradients. The loss is the mean over all tokens that count, so each rank "
        "divides by the tokens of the whole batch, not by its own.",
        settings=(
            Setting(name="num-ranks", value=num_ranks, unit="count"),
            Setting(name="global-batch-size", value=sequences, unit="count", meaning="of the uneven batch"),
            Setting(name="seq-len", value=seq_len, unit="count"),
            Setting(name="num-hidden-layers", value=layers, unit="count"),
        ),
        tables=(table, _demo_table(), traffic_table(even.counted), held_table(even.counted)),
        steps=walk(even.counted),
        checks=(*checks, *even.checks),
        claims=_claims(),
        pictures=(exchange_picture(even.counted, title=f"One step of {num_ranks} data-parallel ranks"),),
        notes=(
            "Parts of different size have to be weighted by what they count: tokens, not ranks. With equal parts both "
            "averages are the same, which is why the mistake is easy to miss; packing, padding and a batch that the "
            "ranks do not divide bring it out.",
        ),
    )


def _uneven(plan: Plan, sequences: int, seed: int) -> tuple[LessonTable, tuple[Check, ...]]:
    """Every rank's part of a batch that cannot be divided evenly, and the gradients of both averages."""
    ranks = plan.layout.dp_shard
    weights = initial_weights(plan.model, seed=seed)
    batch = batch_of(plan, seed=seed, num_sequences=sequences)
    shares = even_shares(num_sequences=sequences, data_parallel_size=ranks, num_microbatches=1)
    parts = [micro_batches[0] for micro_batches in divide(batch, shares)]
    alone = [one_device(plan, weights, [part]) for part in parts]
    whole = one_device(plan, weights, [batch])
    found = reenact(plan, weights, [batch], Options(shares=shares))
    tokens = [part.num_learned_tokens for part in parts]
    equal = mean_gradient([run.gradients for run in alone], [1] * ranks)
    weighted = mean_gradient([run.gradients for run in alone], tokens)
    rows = [
        (str(rank), len(part.tokens_BS), part.num_learned_tokens, run.losses[0], None)
        for rank, (part, run) in enumerate(zip(parts, alone, strict=True))
    ]
    means = [run.losses[0] for run in alone]
    errors = [worst_error(averaged, whole.gradients) for averaged in (weighted, equal)]
    summary = (
        ("one device", sequences, batch.num_learned_tokens, whole.losses[0], 0.0),
        ("weighted by tokens", None, None, float(np.average(means, weights=tokens)), errors[0]),
        ("every rank alike", None, None, float(np.mean(means)), errors[1]),
    )
    table = LessonTable(
        title="An uneven batch",
        head=("rank | sequences: count | tokens that count: count | mean loss: number | error of the gradient: number"),
        rows=(*rows, *summary),
        note="errors are relative to the largest gradient, of the worst weight",
    )
    return table, (
        Check(
            what="uneven parts, summed by the all-reduce: gradients against one device",
            difference=gradient_error(found, whole),
            limit=EXACT,
        ),
        Check(
            what="means of ranks weighted by their tokens: gradients against one device",
            difference=errors[0],
            limit=EXACT,
        ),
    )


def mean_gradient(gradients: list[Weights], counts: list[int]) -> Weights:
    """The mean of some gradients, each weighted."""
    return {
        key: sum((count * one[key] for count, one in zip(counts, gradients, strict=True)), start=np.zeros(()))
        / sum(counts)
        for key in gradients[0]
    }


def demo(num_ranks: int, *, is_weighted: bool) -> tuple[float, Array]:
    """The scaling lesson's demo: loss and gradient of a matrix over a split batch."""
    random = np.random.RandomState(SEED_SEED)
    samples, weight = random.randn(SEED_SAMPLES, SEED_INPUTS), random.randn(SEED_INPUTS, SEED_OUTPUTS)
    parts = np.array_split(samples, num_ranks)
    losses = [np.mean((part @ weight) ** 2) for part in parts]
    gradients = [2 * part.T @ (part @ weight) / len(part) for part in parts]
    counts = [len(part) if is_weighted else 1 for part in parts]
    return float(np.average(losses, weights=counts)), np.average(gradients, axis=0, weights=counts)


def _demo_table() -> LessonTable:
    _, whole = demo(1, is_weighted=True)
    rows = []
    for ranks in SEED_RANKS:
        loss, gradient = demo(ranks, is_weighted=False)
        norm = float(np.linalg.norm(gradient))
        error = float(np.linalg.norm(gradient - whole) / np.linalg.norm(whole))
        weighted = demo(ranks, is_weighted=True)[1]
        rows.append((ranks, loss, norm, error, relative_error(weighted, whole)))
    return LessonTable(
        title="The scaling lesson's demo: 64 samples, a 32 x 16 matrix",
        head=(
            "ranks: count | loss: number | gradient norm: number | error, ranks alike: fraction | "
            "error, weighted: number"
        ),
        rows=tuple(rows),
        note="1, 2, 4 and 8 divide 64; 3 and 24 do not",
    )


def _claims() -> tuple[Claim, ...]:
    source = "scaling lesson, step 1"
    loss, gradient = demo(8, is_weighted=False)
    whole = demo(1, is_weighted=True)[1]
    odd = demo(24, is_weighted=False)[1]
    outputs = SEED_OUTPUTS
    return (
        Claim(says="8 GPUs: loss", source=source, said=30.2175, computed=loss, unit="number", verdict="right"),
        Claim(
            says="8 GPUs: gradient norm",
            source=source,
            said=53.0517,
            computed=float(np.linalg.norm(gradient)),
            unit="number",
            verdict="loose",
            note=f"the derivative of the printed loss is {outputs} times smaller, "
            f"{np.linalg.norm(gradient) / outputs:.4f}: the loss is a mean over {outputs} outputs too",
        ),
        Claim(
            says="averaging the gradients of all GPUs gives the gradient of the batch: error on 24 GPUs",
            source=source,
            said=0.0,
            computed=float(np.linalg.norm(odd - whole) / np.linalg.norm(whole)),
            unit="fraction",
            verdict="wrong",
            note="only where every GPU has as many samples; otherwise weight by samples (or tokens)",
        ),
    )
