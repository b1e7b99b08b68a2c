"""Reads the numbers out of an out-of-memory message, whatever framework version wrote it."""

import re
from dataclasses import dataclass
from typing import Literal

from shardwise.errors import PlanError
from shardwise.units import GB, GIB, KIB, MB, MIB, Bytes

__all__ = ["OomMessage", "Size", "parse_oom", "parse_size"]

MessageFamily = Literal["torch-2", "torch-1", "mps", "cpu", "xla"]

UNIT_BYTES = {
    "bytes": 1,
    "byte": 1,
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024 * GIB,
    "kb": 1000,
    "mb": MB,
    "gb": GB,
    "tb": 1000 * GB,
    "k": KIB,
    "m": MIB,
    "g": GIB,
}
MOST_BYTES = 1e18
MAX_TEXT_CHARS = 1_000_000

_NUMBER = r"(\d{1,18}(?:\.\d{1,9})?)"
_SIZE = _NUMBER + r"\s*(bytes|byte|KiB|MiB|GiB|TiB|KB|MB|GB|TB|K|M|G|B)\b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size as it was printed: the value and how far rounding may have moved it."""

    num_bytes: Bytes
    """The printed value."""
    tolerance_bytes: Bytes
    """Half a unit of the last printed digit; 0 when the text is exact."""
    text: str

    @property
    def low_bytes(self) -> Bytes:
        """Smallest size that prints like this."""
        return max(0, self.num_bytes - self.tolerance_bytes)

    @property
    def high_bytes(self) -> Bytes:
        """Largest size that prints like this."""
        return self.num_bytes + self.tolerance_bytes

    def contains(self, num_bytes: float) -> bool:
        """Whether a size would be printed like this."""
        return self.low_bytes <= num_bytes <= self.high_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OomMessage:
    """What an out-of-memory message says; ``None`` where it does not say it."""

    family: MessageFamily
    request: Size
    """Bytes asked of the device. The CUDA allocator asks in steps of 2 MiB (20 MiB for requests of 1-10 MiB)."""
    is_rounded_up: bool
    """Whether ``request`` is the allocator's rounded figure and not the tensor's own."""
    device_index: int | None = None
    capacity: Size | None = None
    free: Size | None = None
    process: Size | None = None
    """Device memory of this process, context and communicators included."""
    allocated: Size | None = None
    """Bytes of live tensors."""
    unallocated: Size | None = None
    """Bytes that the allocator holds and no tensor uses: cache and fragments."""
    reserved: Size | None = None
    private_pools: Size | None = None
    """Bytes in the pools of CUDA graphs."""
    allowed: Size | None = None
    """The limit set by ``set_per_process_memory_fraction``."""
    other_processes: tuple[Size, ...] = ()

    @property
    def unallocated_bytes(self) -> Bytes | None:
        """Reserved minus allocated, however the message states it."""
        if self.unallocated is not None:
            return self.unallocated.num_bytes
        if self.reserved is not None and self.allocated is not None:
            return max(0, self.reserved.num_bytes - self.allocated.num_bytes)
        return None

    @property
    def outside_allocator_bytes(self) -> Bytes | None:
        """Device memory of this process outside the framework's allocator: context, NCCL, other libraries."""
        if self.process is None or self.allocated is None or self.unallocated_bytes is None:
            return None
        pools = self.private_pools.num_bytes if self.private_pools else 0
        return max(0, self.process.num_bytes - self.allocated.num_bytes - self.unallocated_bytes - pools)


def parse_size(text: str) -> Size:
    """A size such as ``2.00 GiB``, ``512MiB`` or ``8589934592`` with the rounding its digits imply.

    A bare number is bytes and exact. ``GB`` is 1e9 and ``GiB`` is 2**30.

    >>> parse_size("2.00 GiB").num_bytes, parse_size("2.00 GiB").tolerance_bytes
    (2147483648, 5368710)
    """
    bare = text.strip().replace("_", "").replace(",", "")
    if bare.isdecimal() and len(bare) < 20:
        return Size(num_bytes=int(bare), tolerance_bytes=0, text=text.strip())
    match = re.fullmatch(_SIZE, text.strip(), flags=re.IGNORECASE)
    if match is None:
        raise PlanError(
            f"{text.strip()[:40]!r} is not a size in bytes",
            code="allocation-size",
            fix="write bytes, such as 34359738368, or a size with its unit, such as '32.00 GiB'",
        )
    return _size(match.group(1), match.group(2))


def parse_oom(text: str) -> OomMessage:
    """The numbers of the first out-of-memory message in a log.

    Understands torch 1.x and 2.x for CUDA, HIP, XPU and NPU, Apple's MPS, the CPU allocator, and XLA.
    """
    flat = " ".join(text[:MAX_TEXT_CHARS].split())
    for read in (_read_mps, _read_torch_2, _read_torch_1, _read_cpu, _read_xla, _read_bare):
        message = read(flat)
        if message is not None:
            return message
    raise PlanError(
        f"no out-of-memory message found in {len(text)} characters of text",
        code="oom-text",
        fix="paste the line that holds 'Tried to allocate ... GiB', or give the size with --allocation-bytes",
    )


def _size(number: str, unit: str) -> Size:
    digits = number.replace(",", "")
    scale = UNIT_BYTES[unit.lower()]
    decimals = len(digits.partition(".")[2])
    value = float(digits) * scale
    if value >= MOST_BYTES:
        raise PlanError(
            f"{number[:40]} {unit} is more than any device or host has",
            code="oom-text",
            fix="paste the line that holds 'Tried to allocate ... GiB' as it was printed",
        )
    half_digit = 0 if scale == 1 else scale * 10.0**-decimals / 2
    return Size(num_bytes=round(value), tolerance_bytes=int(half_digit) + (half_digit > 0), text=f"{number} {unit}")


def _find(pattern: str, text: str) -> Size | None:
    match = re.search(pattern, text, flags=re.IGNORECASE)
    return _size(match.group(1), match.group(2)) if match else None


def _read_torch_2(text: str) -> OomMessage | None:
    head = re.search(
        rf"Tried to allocate {_SIZE}\. (?:GPU|NPU|XPU|device)? ?(\d{{1,4}})? ?has a total capaci?ty of",
        text,
        flags=re.IGNORECASE,
    )
    if head is None:
        return None
    rest = text[head.start() :]
    return OomMessage(
        family="torch-2",
        request=_size(head.group(1), head.group(2)),
        is_rounded_up=True,
        device_index=int(head.group(3)) if head.group(3) else None,
        capacity=_find(rf"total capaci?ty of {_SIZE}", rest),
        free=_find(rf"of which {_SIZE} is free", rest),
        process=_find(rf"this process has {_SIZE} memory in use", rest) or _only_process(rest),
        allocated=_find(rf"{_SIZE} is allocated by PyTorch", rest),
        unallocated=_find(rf"{_SIZE} is reserved by PyTorch but unallocated", rest),
        private_pools=_find(rf"{_SIZE} allocated in private pools", rest),
        allowed=_find(rf"{_SIZE} allowed", rest),
        other_processes=_other_processes(rest),
    )


def _process_sizes(text: str) -> tuple[Size, ...]:
    found = re.findall(rf"(?<!this )Process \d+ has {_SIZE} memory in use", text, flags=re.IGNORECASE)
    return tuple(_size(number, unit) for number, unit in found)


def _only_process(text: str) -> Size | None:
    """Memory of the only process that the message names; in a container, which hides names, it is this process."""
    found = _process_sizes(text)
    return found[0] if len(found) == 1 else None


def _other_processes(text: str) -> tuple[Size, ...]:
    found = _process_sizes(text)
    if re.search("this process has", text, flags=re.IGNORECASE):
        return found
    return () if len(found) == 1 else found


def _read_torch_1(text: str) -> OomMessage | None:
    head = re.search(
        rf"Tried to allocate {_SIZE} \((?:GPU|NPU|XPU) (\d+); {_SIZE} total capacity",
        text,
        flags=re.IGNORECASE,
    )
    if head is None:
        return None
    rest = text[head.start() :]
    return OomMessage(
        family="torch-1",
        request=_size(head.group(1), head.group(2)),
        is_rounded_up=True,
        device_index=int(head.group(3)),
        capacity=_size(head.group(4), head.group(5)),
        free=_find(rf"{_SIZE} free", rest),
        allocated=_find(rf"{_SIZE} already allocated", rest),
        reserved=_find(rf"{_SIZE} reserved in total by PyTorch", rest),
        unallocated=_find(rf"{_SIZE} cached", rest),
        allowed=_find(rf"{_SIZE} allowed", rest),
    )


def _read_mps(text: str) -> OomMessage | None:
    head = re.search(rf"MPS backend out of memory .*?Tried to allocate {_SIZE}", text, flags=re.IGNORECASE)
    if head is None:
        return None
    rest = text[head.start() :]
    return OomMessage(
        family="mps",
        request=_size(head.group(1), head.group(2)),
        is_rounded_up=False,
        allocated=_find(rf"MPS allocated: {_SIZE}", rest),
        capacity=_find(rf"max allowed: {_SIZE}", rest),
    )


def _read_cpu(text: str) -> OomMessage | None:
    request = _find(rf"you tried to allocate {_SIZE}", text)
    return OomMessage(family="cpu", request=request, is_rounded_up=False) if request else None


def _read_xla(text: str) -> OomMessage | None:
    request = _find(rf"while trying to allocate {_SIZE}", text)
    return OomMessage(family="xla", request=request, is_rounded_up=False) if request else None


def _read_bare(text: str) -> OomMessage | None:
    request = _find(rf"Tried to allocate {_SIZE}", text)
    return OomMessage(family="torch-2", request=request, is_rounded_up=True) if request else None
