"""Kernels of one device: matrix products, attention, elementwise work, the optimizer, copies, launches, disk."""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor

from shardwise.train.adamw import OnePassAdamW
from shardwise.train.calibrate.clock import Action, Desk, graph_s, loop_s
from shardwise.train.torch_private import foreach_norm

Row = Mapping[str, object]
Shape = tuple[int, int, int]
UPDATE_BYTES_PER_ELEMENT = {"cuda": 32, "cpu": 40}
"""Bytes of an fp32 update as the inventory counts them: 28 of AdamW and 4 of the norm; on CPUs 8 more of the scaling of
gradients, which our kernel on GPUs does while it reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductGrid:
    """Sizes that linear layers are timed at."""

    tokens: tuple[int, ...]
    widths: tuple[int, ...]
    tables: tuple[Shape, ...]
    """Sizes of products with a table of tokens."""
    max_flop: float


GRIDS = {
    "cuda": ProductGrid(
        tokens=(4096, 16384, 1024),
        widths=(4096, 2048, 8192, 1024, 16384),
        tables=((8192, 131072, 4096),),
        max_flop=3e12,
    ),
    "cpu": ProductGrid(
        tokens=(256, 1024),
        widths=(256, 512, 128, 1024, 64, 2048),
        tables=((512, 4096, 256), (256, 32768, 128)),
        max_flop=1.2e9,
    ),
}
FIRST_SHAPES = 12


def product_shapes(desk: Desk) -> list[Shape]:
    """``(tokens, out features, in features)``: a grid in powers of two, its middle first."""
    if desk.is_tiny:
        return [(64, 64, 64), (64, 128, 64)]
    grid = GRIDS[desk.device.type]
    shapes = [
        (m, n, k) for m, n, k in product(grid.tokens, grid.widths, grid.widths) if 2.0 * m * n * k <= grid.max_flop
    ]
    close = sorted(shapes, key=lambda shape: shape[1] / shape[2] > 8 or shape[2] / shape[1] > 8)
    return [*close[:FIRST_SHAPES], *grid.tables, *close[FIRST_SHAPES:]]


def product_rows(shape: Shape, desk: Desk) -> Iterator[Row]:
    """One linear layer's three products, each as its kernel computes it."""
    tokens, out_features, in_features = shape
    size = desk.dtype.itemsize
    copies = desk.copies(size * (tokens * in_features + out_features * in_features + tokens * out_features))
    make = partial(torch.randn, device=desk.device, dtype=desk.dtype)
    sets = [
        (make(tokens, in_features), make(out_features, in_features), make(tokens, out_features)) for _ in range(copies)
    ]
    kernels = {
        "forward": (tokens, out_features, in_features, lambda x, w, y: torch.mm(x, w.t(), out=y)),
        "dgrad": (tokens, in_features, out_features, lambda x, w, y: torch.mm(y, w, out=x)),
        "wgrad": (out_features, in_features, tokens, lambda x, w, y: torch.mm(y.t(), x, out=w)),
    }
    for name, (m, n, k, kernel) in kernels.items():
        # Results feed the next kernel, so values grow: start each pass from fresh ones.
        for x, w, y in sets:
            for tensor in (x, w, y):
                tensor.normal_()
        duration_s = graph_s(lambda index, kernel=kernel: kernel(*sets[index % copies]), desk)  # type: ignore[misc]
        yield {"product_pass": name, "dtype": desk.dtype_name, "m": m, "n": n, "k": k, "duration_s": duration_s}


ATTENTION_HEADS = {"cuda": ((32, 8, 128), (32, 8, 64)), "cpu": ((8, 4, 32), (8, 8, 64))}
ATTENTION_LENGTHS = {"cuda": (4096, 8192, 2048, 16384, 1024), "cpu": (256, 512, 128, 1024)}
ATTENTION_TOKENS = {"cuda": 8192, "cpu": 512}


def attention_shapes(desk: Desk) -> list[tuple[int, int, int, int, int]]:
    """``(sequences, heads, key and value heads, head size, tokens)``."""
    if desk.is_tiny:
        return [(1, 4, 2, 32, 64)]
    kind = desk.device.type
    cases = product(ATTENTION_LENGTHS[kind], ATTENTION_HEADS[kind])
    return [(max(1, ATTENTION_TOKENS[kind] // seq_len), *heads, seq_len) for seq_len, heads in cases]


def attention_row(shape: tuple[int, int, int, int, int], desk: Desk) -> Row:
    """One causal attention core with torch's own choice of kernel, in the order of the training runtime."""
    sequences, num_heads, num_key_value_heads, head_dim, seq_len = shape
    make = partial(torch.randn, device=desk.device, dtype=desk.dtype)
    q = make(sequences, seq_len, num_heads, head_dim).transpose(1, 2).requires_grad_()
    k, v = (make(sequences, seq_len, num_key_value_heads, head_dim).transpose(1, 2).requires_grad_() for _ in range(2))
    call = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=num_key_value_heads != num_heads)
    forward_s = loop_s(lambda _: call(), desk)
    out = call()
    gradient = torch.randn_like(out)
    backward_s = loop_s(lambda _: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), desk)
    return {
        "num_sequences": sequences,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_key_value_heads,
        "head_dim": head_dim,
        "seq_len": seq_len,
        "dtype": desk.dtype_name,
        "forward_s": forward_s,
        "backward_s": backward_s,
    }


def move_sizes(desk: Desk) -> list[int]:
    """Numbers of elements that elementwise work is timed at."""
    if desk.is_tiny:
        return [2**12]
    return [2**24, 2**26, 2**22, 2**20] if desk.is_cuda else [2**17, 2**20, 2**15, 2**22, 2**13]


def move_row(num_elements: int, desk: Desk) -> Row:
    """The sum of two tensors: two read, one written."""
    size = desk.dtype.itemsize
    copies = desk.copies(3 * size * num_elements)
    sets = [[torch.ones(num_elements, device=desk.device, dtype=desk.dtype) for _ in range(3)] for _ in range(copies)]
    duration_s = graph_s(lambda index: torch.add(*sets[index % copies][:2], out=sets[index % copies][2]), desk)
    return {"num_bytes": 3 * size * num_elements, "duration_s": duration_s}


def optimizer_sizes(desk: Desk) -> list[int]:
    """Numbers of trained elements of one rank that an update is timed at."""
    if desk.is_tiny:
        return [2**12]
    return [2**28, 2**24] if desk.is_cuda else [2**20, 2**22]


def optimizer_row(num_elements: int, desk: Desk) -> Row:
    """Our trainer's AdamW, which scales gradients, and the norm of these, over sixteen tensors."""
    parts = [torch.randn(num_elements // 16, device=desk.device) for _ in range(16)]
    for part in parts:
        part.grad = torch.randn_like(part)
    gradients = [part.grad for part in parts if part.grad is not None]
    optimizer = OnePassAdamW([{"params": parts}], lr=1e-5, betas=(0.9, 0.95))
    factor = torch.full((), 0.5, device=desk.device)

    def step(_index: int) -> None:
        foreach_norm(gradients, 2.0)
        optimizer.begin(factor)
        optimizer.step()

    duration_s = loop_s(step, desk)
    return {"num_bytes": UPDATE_BYTES_PER_ELEMENT[desk.device.type] * num_elements, "duration_s": duration_s}


def launch_s(desk: Desk) -> float:
    """Host time of one small kernel, measured where the host is slower than the device."""
    small = torch.zeros(16, device=desk.device)
    count = 200 if desk.is_tiny else 2000
    small.add_(1)
    if desk.is_cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        small.add_(1)
    return (time.perf_counter() - started) / count


def copy_rates(desk: Desk) -> Row:
    """Bytes per second between pinned memory of the host and the device; nothing where they are one."""
    if not desk.is_cuda:
        return {}
    num_bytes = 2**20 if desk.is_tiny else 2**28
    there = torch.empty(num_bytes, device=desk.device, dtype=torch.uint8)
    here = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
    actions: dict[str, Action] = {
        "host_to_device_bytes_per_s": lambda _: there.copy_(here, non_blocking=True),
        "device_to_host_bytes_per_s": lambda _: here.copy_(there, non_blocking=True),
    }
    return {name: num_bytes / loop_s(action, desk) for name, action in actions.items()}


def disk_rates(folder: Path, desk: Desk) -> Row:
    """Bytes per second of a checkpoint's file: written through to the disk, and read once the cache gave it up."""
    num_bytes = 2**20 if desk.is_tiny else 2**28 if desk.is_cuda else 2**26
    content = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8)
    path = folder / f"disk-{os.getpid()}.bin"
    started = time.perf_counter()
    with path.open("wb") as file:
        file.write(_bytes_of(content))
        file.flush()
        os.fsync(file.fileno())
        written_s = time.perf_counter() - started
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    started = time.perf_counter()
    path.read_bytes()
    read_s = time.perf_counter() - started
    path.unlink()
    return {"disk_write_bytes_per_s": num_bytes / written_s, "disk_read_bytes_per_s": num_bytes / read_s}


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.numpy())
