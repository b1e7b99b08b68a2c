"""The options of a simulation; a field that is left out takes the lesson's own default."""

from dataclasses import dataclass, fields

from shardwise.errors import SimulationError

MOST_SEED = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonRequest:
    """The options of all lessons together; each lesson says which of them it takes."""

    num_ranks: int | None = None
    """Simulated processes."""
    ranks_per_node: int | None = None
    payload_bytes: float | None = None
    """The bytes of one collective."""
    latency_s: float | None = None
    """The fixed time of one message between two ranks, whatever its size."""
    bandwidth_bytes_per_s: float | None = None
    """The bandwidth of a link in one direction."""
    pp: int | None = None
    vpp: int | None = None
    num_microbatches: int | None = None
    schedule: str | None = None
    zero_stage: int | None = None
    num_hidden_layers: int | None = None
    hidden_size: int | None = None
    seq_len: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    num_experts: int | None = None
    num_experts_per_tok: int | None = None
    model: str | None = None
    cluster: str | None = None
    seed: int | None = None
    """The seed of the random numbers."""


def given_names(request: LessonRequest) -> tuple[str, ...]:
    """The fields that were asked for."""
    return tuple(field.name for field in fields(request) if getattr(request, field.name) is not None)


def option_text(name: str) -> str:
    """A field as the command line spells it.

    >>> option_text("num_ranks")
    '--num-ranks'
    """
    return f"--{name.replace('_', '-')}"


def checked(name: str, value: int | None, *, default: int, low: int, high: int) -> int:
    """A whole number within its range, or the default when it was left out.

    Raises:
        SimulationError: it is outside; the fix is the nearest number inside.
    """
    number = default if value is None else value
    if low <= number <= high:
        return number
    raise SimulationError(
        f"{option_text(name)} {number} is outside {low} to {high}",
        code="simulate-size",
        fix=f"use {option_text(name)} {min(max(number, low), high)}",
    )


def checked_seed(request: LessonRequest) -> int:
    """The seed of the random numbers, 0 when it was left out."""
    return checked("seed", request.seed, default=0, low=0, high=MOST_SEED)
