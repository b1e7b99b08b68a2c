"""Split "64 x h100-sxm", "2x8xh100-sxm" or "dgx-h100 x2" into counts and a name."""

import re
from dataclasses import dataclass

from shardwise.catalog.hardware.names import Found, find_exactly, find_part, unknown_name
from shardwise.errors import ClusterError

MAX_TEXT = 200
_NUMBER = r"[+-]?\d[\d_,]*(?:\.\d+)?(?:e[+-]?\d+)?(?:\s*(?:\*\*|\^)\s*\d+)?|nan|[+-]?inf(?:inity)?"
_COUNT_FIRST = re.compile(rf"({_NUMBER})(?:\s*[x×*]\s*|\s+)(.+)", re.ASCII | re.IGNORECASE)
_COUNT_LAST = re.compile(rf"(.+?)(?:\s*[x×*:]\s*)({_NUMBER})", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedText:
    """A typed cluster in parts: the part or server, and the counts before it."""

    found: Found
    count: int
    gpus_per_node: int | None = None
    """Given by the form ``nodes x GPUs x part``."""


def parse_cluster_text(text: str) -> ParsedText:
    """The counts and the part of a one-line cluster description.

    Raises:
        ClusterError: ``cluster-text``, ``cluster-unknown``, ``cluster-ambiguous-gpu``, ``cluster-size``.

    >>> parse_cluster_text("64 x H100-SXM").count
    64
    """
    cleaned = " ".join(text[: MAX_TEXT * 2].split())
    if not cleaned or len(cleaned) > MAX_TEXT or not cleaned.isprintable():
        raise ClusterError(
            f"a cluster description has 1 to {MAX_TEXT} printable characters, this one has {len(cleaned)}",
            code="cluster-text",
            fix="write it like 64xh100-sxm, 8xdgx-h100 or p5.48xlarge",
        )
    found = find_exactly(cleaned)
    if found:
        return ParsedText(found=found, count=1)
    return _counted(cleaned) or _uncounted(cleaned)


def _counted(text: str) -> ParsedText | None:
    """``count x name`` or ``nodes x GPUs x name``, when the name after the count is known."""
    match = _COUNT_FIRST.fullmatch(text)
    if not match:
        return None
    written_count, rest = match.groups()
    inner = None if find_exactly(rest) else _COUNT_FIRST.fullmatch(rest)
    if inner:
        written_gpus, name = inner.groups()
        found = find_part(name, prefix=f"{written_count}x{written_gpus}x", assumes_module=True)
        if found:
            gpus_per_node = _count(written_gpus, text)
            return ParsedText(found=found, count=_count(written_count, text), gpus_per_node=gpus_per_node)
    found = find_part(rest, prefix=f"{written_count}x", assumes_module=True)
    return ParsedText(found=found, count=_count(written_count, text)) if found else None


def _uncounted(text: str) -> ParsedText:
    """A name alone, or ``name x count``."""
    found = find_part(text, assumes_module=True)
    if found:
        return ParsedText(found=found, count=1)
    match = _COUNT_LAST.fullmatch(text)
    found = find_part(match[1], prefix=f"{match[2]}x", assumes_module=True) if match else None
    if match and found:
        return ParsedText(found=found, count=_count(match[2], text))
    counted = _COUNT_FIRST.fullmatch(text)
    raise unknown_name(counted[2], prefix=f"{counted[1]}x") if counted else unknown_name(text)


def _count(written: str, text: str) -> int:
    """The count as a whole number.

    Raises:
        ClusterError: ``cluster-size`` for anything that is not one.
    """
    digits = re.sub(r"[_,\s]", "", written).lower()
    power = re.fullmatch(r"(\d{1,9})(?:\*\*|\^)(\d{1,2})", digits)
    if power:
        return int(int(power[1]) ** int(power[2]))
    exponent = re.fullmatch(r"(\d{1,9})e\+?(\d{1,2})", digits)
    if exponent:
        return int(f"{exponent[1]}{'0' * int(exponent[2])}")
    if re.fullmatch(r"[+-]?\d+", digits):
        return int(digits)
    raise ClusterError(
        f"{written!r} in {text!r} is not a whole number",
        code="cluster-size",
        fix="use a whole number, such as 8",
    )
