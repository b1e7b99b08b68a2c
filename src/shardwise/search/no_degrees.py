"""Bounds that leave no layout: which of them contradict each other or the number of GPUs, and what would not."""

from collections.abc import Sequence
from math import prod

from shardwise.errors import LayoutError
from shardwise.rules.degrees import divisors
from shardwise.search.bounds import IntRange, SearchBounds

__all__ = ["DEGREES", "no_degrees", "range_text"]

DEGREES = ("tp", "cp", "pp", "dp_replicate", "dp_shard")
"""The degrees whose product is the number of GPUs."""
MAX_NAMED = 12
"""Degrees that a fix lists."""


def no_degrees(bounds: SearchBounds, num_gpus: int) -> LayoutError:
    """Why no product of degrees inside the bounds is the number of GPUs, and what to allow for one."""
    asked = {name: _allowed(name, bounds, num_gpus) for name in DEGREES if _is_bounded(name, bounds)}
    if bounds.needs_pipeline and not asked["pp"] and (bounds.pp is None or bounds.pp.allows(1)):
        return _no_pipeline(bounds, num_gpus)
    for name, allowed in asked.items():
        if not allowed:
            return LayoutError(
                f"{_text(name, bounds)} allows no degree that divides {num_gpus:,} GPUs",
                code="search-bounds",
                fix=f"allow degrees that divide {num_gpus}: {', '.join(map(str, divisors(num_gpus)[:MAX_NAMED]))}",
            )
    is_free = len(asked) < len(DEGREES)
    fixes = [_fitting(name, asked, bounds, num_gpus, is_free=is_free) for name in asked]
    if all(len(allowed) == 1 for allowed in asked.values()):
        product = prod(allowed[0] for allowed in asked.values())
        fixes.append(f"take {'a multiple of ' if is_free else ''}{product:,} GPUs")
    return LayoutError(
        _problem(asked, bounds, num_gpus, is_free=is_free),
        code="search-bounds",
        fix=", or ".join(filter(None, fixes)) or f"leave out one or more of {', '.join(asked)}",
    )


def range_text(limit: IntRange) -> str:
    """A limit as it is written."""
    if limit.values:
        return ",".join(str(value) for value in limit.values)
    return str(limit.low) if limit.pinned is not None else f"{limit.low}..{limit.high}"


def _problem(asked: dict[str, list[int]], bounds: SearchBounds, num_gpus: int, *, is_free: bool) -> str:
    """Why no layout keeps all of these bounds, though some degree keeps each of them, in words."""
    texts = [_text(name, bounds) for name in asked]
    if any(len(allowed) > 1 for allowed in asked.values()):
        return f"no product of degrees with {', '.join(texts)} {'divides' if is_free else 'is'} {num_gpus:,} GPUs"
    product = prod(allowed[0] for allowed in asked.values())
    if product > num_gpus:
        return f"{' * '.join(texts)} = {product:,} is more than {num_gpus:,} GPUs"
    if num_gpus % product:
        return f"{' * '.join(texts)} = {product:,} does not divide {num_gpus:,} GPUs"
    return f"{' * '.join(texts)} = {product:,} is less than {num_gpus:,} GPUs, and no degree is left for the others"


def _no_pipeline(bounds: SearchBounds, num_gpus: int) -> LayoutError:
    """Chunks or a schedule are asked for where one stage is all there may be."""
    one_stage = "pp=1 is none" if bounds.pp is not None else f"{num_gpus:,} GPU is one stage"
    return LayoutError(
        f"{_pipeline_asked(bounds)} needs a pipeline, and {one_stage}",
        code="search-bounds",
        fix=f"{'allow pp=2 or more' if bounds.pp is not None else 'take more GPUs'}, or leave out vpp and schedule",
    )


def _pipeline_asked(bounds: SearchBounds) -> str:
    """The bound that only a pipeline can keep, as it is written: chunks per rank or a schedule."""
    if bounds.vpp is not None and bounds.vpp.low > 1:
        return f"vpp={range_text(bounds.vpp)}"
    return f"schedule={','.join(bounds.schedule or ())}"


def _is_bounded(name: str, bounds: SearchBounds) -> bool:
    is_pipeline = name == "pp" and (bounds.stage_layers is not None or bounds.needs_pipeline)
    return is_pipeline or getattr(bounds, name) is not None


def _allowed(name: str, bounds: SearchBounds, num_gpus: int) -> list[int]:
    """The divisors of the number of GPUs that a degree may be."""
    limit: IntRange | None = getattr(bounds, name)
    found = [degree for degree in divisors(num_gpus) if limit is None or limit.allows(degree)]
    if name == "pp" and bounds.stage_layers is not None:
        found = [degree for degree in found if degree == len(bounds.stage_layers)]
    return [degree for degree in found if degree > 1] if name == "pp" and bounds.needs_pipeline else found


def _text(name: str, bounds: SearchBounds) -> str:
    """A bound as it was asked for."""
    limit: IntRange | None = getattr(bounds, name)
    if name == "pp" and bounds.stage_layers is not None:
        return f"pp={len(bounds.stage_layers)} of stage_layers"
    return f"{name}={range_text(limit)}" if limit is not None else f"pp=2.. of {_pipeline_asked(bounds)}"


def _fitting(name: str, asked: dict[str, list[int]], bounds: SearchBounds, num_gpus: int, *, is_free: bool) -> str:
    """The degrees with which the other bounds can stay as they are, as words; empty without."""
    others = [allowed for other, allowed in asked.items() if other != name]
    least = 2 if name == "pp" and bounds.needs_pipeline else 1
    found = [degree for degree in divisors(num_gpus) if degree >= least]
    found = [degree for degree in found if _has_product(others, num_gpus // degree, is_free=is_free)]
    degrees = ",".join(map(str, found[:MAX_NAMED]))
    if name == "pp" and bounds.stage_layers is not None:
        return f"give stage_layers {degrees} stages" if found else ""
    return f"allow {name}={degrees}" if found else ""


def _has_product(options: Sequence[list[int]], ranks: int, *, is_free: bool) -> bool:
    """Whether one option of each multiply to the ranks, or to a divisor where another degree takes the rest."""
    if not options:
        return is_free or ranks == 1
    return any(
        ranks % degree == 0 and _has_product(options[1:], ranks // degree, is_free=is_free) for degree in options[0]
    )
