"""What a run begins with, as a record and in words: said at its start and its end, and kept in its measurement.

Weights that were drawn at random and tokens that were made up give losses that look like any other; the numbers of the
optimizer are said whether they were given or not.
"""

from shardwise.train.job import Job

__all__ = ["beginning", "said_at_the_start", "words_of"]

STEPS_BY_THE_RATE = ("adamw", "adamw-8bit", "lion")
"""Optimizers that move a weight by about the learning rate, whatever its gradient."""
BF16_BITS = 8
"""Significant bits of a bf16 number: half the distance to the next one is between 1/512 and 1/256 of it."""


def beginning(job: Job) -> dict[str, object]:
    """Where weights, adapters and tokens of a job come from, each with a path or ``None``, and the same in words."""
    weights_path, adapters_path = _paths(job)
    has_adapters, is_synthetic = job.recipe.adapter != "none", job.data.is_synthetic
    return {
        "weights": "random" if weights_path is None else "checkpoint",
        "weights_path": weights_path,
        "adapters": None if not has_adapters else "random" if adapters_path is None else "checkpoint",
        "adapters_path": adapters_path,
        "tokens": "synthetic" if is_synthetic else "files",
        "tokens_path": None if is_synthetic else job.data.source_text,
        "in_words": words_of(job),
    }


def words_of(job: Job) -> dict[str, str]:
    """A summary's words on ``weights``, ``adapters`` that are not new, ``tokens`` and the ``optimizer``, by name."""
    weights_path, adapters_path = _paths(job)
    weights = f"random, drawn from seed {job.seed} (no --weights)"
    if weights_path is not None:
        weights = f"go on from {weights_path}" if weights_path == job.checkpoint.resume_from else weights_path
    elif job.recipe.adapter != "none":
        weights = f"{weights}: adapters beside them fit no other model"
    made_up = f"synthetic, made up from seed {job.data.seed} (no --data PATH): the loss says nothing about text"
    return {
        "weights": weights,
        **({"adapters": f"go on from {adapters_path}"} if adapters_path else {}),
        "tokens": made_up if job.data.is_synthetic else _tokens(job),
        "optimizer": _optimizer(job),
    }


def said_at_the_start(job: Job) -> str:
    """One line, for before the first step; it says as well where the learning rate never reaches its peak."""
    said = [f"{name}: {words}" for name, words in words_of(job).items()]
    num_rising, num_steps = job.optimizer.num_warmup_steps, job.num_steps
    if num_rising > num_steps:
        said.append(
            f"learning rate: still rising at the end, as --warmup-steps {num_rising:,} exceed {num_steps:,} steps"
        )
    return "; ".join(said)


def _tokens(job: Job) -> str:
    by = job.data.tokenizer
    return job.data.source_text if by is None else f"{job.data.source_text}, by the tokenizer in {by}"


def _optimizer(job: Job) -> str:
    """Numbers that decide what is learned, given or not."""
    spec = job.optimizer
    floor = "" if spec.decay == "constant" else f" to {spec.min_learning_rate_ratio:g} of it"
    return (
        f"{job.recipe.optimizer}, learning rate {spec.learning_rate:g} ({spec.decay}{floor}) after"
        f" {spec.num_warmup_steps:,} steps of warm-up, weight decay {spec.weight_decay_fraction:g}{_rounded_away(job)}"
    )


def _rounded_away(job: Job) -> str:
    """A clause that names the weights no update moves, where there are no fp32 ones to add it to."""
    if job.recipe.precision != "bf16" or job.recipe.optimizer not in STEPS_BY_THE_RATE:
        return ""
    bound = job.optimizer.learning_rate * 2 ** (BF16_BITS + 1)
    return f"; in pure bf16 no weight above {bound:.2g} moves, as its updates are rounded away (bf16-mixed moves all)"


def _paths(job: Job) -> tuple[str | None, str | None]:
    """Paths of the weights and of the adapters; a checkpoint of adapters holds no weights beneath them."""
    spec = job.checkpoint
    if job.recipe.adapter != "none":
        return spec.initial_weights, spec.resume_from
    return spec.resume_from or spec.initial_weights, None
