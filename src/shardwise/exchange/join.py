"""Several files as one reading: claims are set beside each other, and what follows from them is worked out once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.exchange.claims import strongest
from shardwise.exchange.names import DEFAULT, LINE, OPTION, UNREAD_RECIPE, Claim
from shardwise.fields import Value
from shardwise.schedules.table import CHUNKED_SCHEDULE

ENGINE_ORDER = ("deepspeed", "megatron", "torchtitan", "nanotron", "accelerate", "fsdp1")
"""The engine that runs the step where tools are joined: DeepSpeed under Megatron or a Trainer is DeepSpeed."""
NOWHERE = "no file asks for it"
MODEL_AXES = ("tp", "cp", "pp")


@dataclass(slots=True)
class Joined:
    """Claims by field, as far as they are joined."""

    values: dict[str, Claim]
    against: list[tuple[Claim, Claim]] = field(default_factory=list)
    unread: frozenset[str] = frozenset()
    """Fields that a file says in words nobody here understands: no default stands in for them."""

    def number(self, name: str) -> int | None:
        """A field that is a whole number; ``None`` while it is open."""
        claim = self.values.get(name)
        value = None if claim is None else claim.value
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def work_out(self, name: str, value: Value, *sources: str) -> None:
        """Set a field that is still open to what follows from others."""
        if name not in self.values and value is not None and (sources or name not in self.unread):
            strength = min((self.values[one].strength for one in sources if one in self.values), default=DEFAULT)
            places = ", ".join(sources)
            self.values[name] = Claim(
                field=name, value=value, place=f"follows from {places}" if sources else NOWHERE, strength=strength
            )

    def differ(self, stated: str, worked_out: int, *sources: str) -> None:
        """Keep a contradiction between a stated number and what others come to."""
        claim = self.values[stated]
        if claim.value != worked_out and claim.strength <= LINE:
            places = [self.values[name].place for name in sources if name in self.values and self.values[name].strength]
            other = Claim(field=stated, value=worked_out, place=" x ".join(dict.fromkeys(places)) or "defaults")
            self.against.append((claim, other))


def join(claims: Sequence[Claim], *, unread: frozenset[str] = frozenset()) -> Joined:
    """One value a field, contradictions with both claims, and whatever follows."""
    engines = [claim for claim in claims if claim.field == "engine"]
    engines.sort(key=lambda claim: (claim.strength != OPTION, _rank(claim)))
    values, against = strongest([claim for claim in claims if claim.field != "engine"])
    joined = Joined(values=values, against=against, unread=unread)
    if engines:
        joined.values["engine"] = engines[0]
    if (joined.number("dp_shard") or 0) < 1:  # -1 is what is left of the world
        joined.values.pop("dp_shard", None)
    _degrees(joined)
    _data_ranks(joined)
    _split(joined)
    _batch(joined)
    _pieces(joined)
    return joined


def _rank(claim: Claim) -> int:
    return ENGINE_ORDER.index(str(claim.value)) if claim.value in ENGINE_ORDER else len(ENGINE_ORDER)


def _degrees(joined: Joined) -> None:
    is_unread = UNREAD_RECIPE in joined.values
    for axis in MODEL_AXES if is_unread else ():
        if axis in joined.values and joined.values[axis].strength == DEFAULT:
            joined.values.pop(axis)
    for axis in ("ep",) if is_unread else (*MODEL_AXES, "ep"):
        joined.work_out(axis, 1)
    joined.work_out("offload", "none")


def _model_ranks(joined: Joined) -> int | None:
    """Ranks that work on the same sequences; Ulysses (``sp``) counts although a plan has no name for it.

    ``None`` while one of these degrees is open.
    """
    total = joined.number("sp") or 1
    for axis in MODEL_AXES:
        degree = joined.number(axis)
        if degree is None:
            return None
        total *= degree
    return total


def _data_ranks(joined: Joined) -> None:
    """World = dp x tp x cp x pp, whichever of both ends is stated."""
    ranks = _model_ranks(joined)
    if ranks is None:
        return
    shard, replicate = joined.number("dp_shard"), joined.number("dp_replicate")
    if shard is not None:
        joined.work_out("dp_replicate", 1)
        joined.work_out("dp", shard * (replicate or 1), "dp_shard", "dp_replicate")
    dp, world = joined.number("dp"), joined.number("world_size")
    if dp is not None and world is not None:
        joined.differ("world_size", dp * ranks, "dp_shard", "dp_replicate", "dp", *MODEL_AXES)
    elif dp is not None:
        joined.work_out("world_size", dp * ranks, "dp", *MODEL_AXES)
    elif world is not None and world % ranks == 0:
        joined.work_out("dp", world // ranks, "world_size", *MODEL_AXES)
    else:
        batch = [joined.number(name) for name in ("global_batch_size", "micro_batch_size", "num_microbatches")]
        stated = all(
            name in joined.values and joined.values[name].strength for name in ("micro_batch_size", "num_microbatches")
        )
        if world is None and stated and batch[0] and batch[1] and batch[2] and batch[0] % (batch[1] * batch[2]) == 0:
            joined.work_out(
                "dp", batch[0] // (batch[1] * batch[2]), "global_batch_size", "micro_batch_size", "num_microbatches"
            )
            joined.work_out("world_size", (joined.number("dp") or 1) * ranks, "global_batch_size", "micro_batch_size")


def _split(joined: Joined) -> None:
    """Data ranks into copies and shards: both stated, or all of them by the ZeRO stage."""
    dp, stage = joined.number("dp"), joined.number("zero_stage")
    shard, replicate = joined.number("dp_shard"), joined.number("dp_replicate")
    if dp is None:
        if stage is not None:
            joined.work_out("dp_replicate" if stage else "dp_shard", 1, "zero_stage")
        return
    if shard is not None and dp % shard == 0:
        joined.work_out("dp_replicate", dp // shard, "dp_shard", "world_size")
    elif replicate is not None and dp % replicate == 0:
        joined.work_out("dp_shard", dp // replicate, "dp_replicate", "world_size")
    elif stage is not None:
        joined.work_out("dp_replicate", 1 if stage else dp, "zero_stage", "world_size")
        joined.work_out("dp_shard", dp if stage else 1, "zero_stage", "world_size")


def _batch(joined: Joined) -> None:
    """Global batch = micro-batch x micro-batches x data ranks: the one that is missing, or that they disagree."""
    dp = joined.number("dp")
    if dp is None:
        return
    share = joined.number("rank_share")
    if share is not None:
        joined.work_out("global_batch_size", share * dp, "rank_share", "world_size")
    total, micro, count = (
        joined.number(name) for name in ("global_batch_size", "micro_batch_size", "num_microbatches")
    )
    stated = "num_microbatches" in joined.values and joined.values["num_microbatches"].strength > DEFAULT
    if total and micro and not stated and total % (micro * dp) == 0:
        joined.values.pop("num_microbatches", None)
        joined.work_out(
            "num_microbatches", total // (micro * dp), "global_batch_size", "micro_batch_size", "world_size"
        )
    elif total and micro and count:
        joined.differ("global_batch_size", micro * count * dp, "micro_batch_size", "num_microbatches", "world_size")
    elif micro and count:
        joined.work_out("global_batch_size", micro * count * dp, "micro_batch_size", "num_microbatches", "world_size")
    elif total and count and total % (count * dp) == 0:
        joined.work_out(
            "micro_batch_size", total // (count * dp), "global_batch_size", "num_microbatches", "world_size"
        )


def _pieces(joined: Joined) -> None:
    """Megatron's older flag counts the layers of a piece, ours the pieces of a stage."""
    layers, each, pp = joined.number("num_layers"), joined.number("layers_per_piece"), joined.number("pp") or 1
    if layers and each and layers % (pp * each) == 0:
        joined.work_out("vpp", layers // (pp * each), "num_layers", "layers_per_piece", "pp")
    elif each is None:
        joined.work_out("vpp", 1)
    if pp == 1:
        joined.values.pop("schedule", None)
    elif (joined.number("vpp") or 1) > 1:
        joined.work_out("schedule", CHUNKED_SCHEDULE, "vpp")
