"""Times products whose sizes are no multiple of eight, the pieces of unfused attention, and dropout in the fused one.

``python3 benchmarks/gpu/kernel_alignment.py --out DIR`` writes alignment.csv in about 40 s.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

ROWS = 8192
REPEATS = 20


def normal(*shape: int) -> Tensor:
    """Random numbers in fp16."""
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


def best_us(run: Callable[[], object]) -> float:
    """Microseconds of one call: the best of three loops."""
    for _ in range(4):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(REPEATS):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / REPEATS * 1e3)
    return min(times)


class Table:
    """Rows of the result, printed as they come."""

    def __init__(self) -> None:
        self.lines = ["kind,name,groups,m,n,k,time_us"]

    def add(self, kind: str, name: str, shape: tuple[int, int, int, int], run: Callable[[], object]) -> None:
        """Time one kernel; ``shape`` is groups, m, n, k."""
        self.lines.append(",".join([kind, name, *map(str, shape), f"{best_us(run):.2f}"]))
        print(self.lines[-1], flush=True)


def products(table: Table, n: int, k: int) -> None:
    """Forward, input gradient and weight gradient of one matrix."""
    x, w, y = normal(ROWS, k), normal(n, k), normal(ROWS, n)
    table.add("gemm", "forward", (1, ROWS, n, k), lambda: x @ w.t())
    table.add("gemm", "dgrad", (1, ROWS, k, n), lambda: y @ w)
    table.add("gemm", "wgrad", (1, n, k, ROWS), lambda: y.t() @ x)


def unfused_attention(table: Table, head_dim: int, groups: int = 64, length: int = 2048) -> None:
    """The three batched products of scores and values."""
    q, k, p = normal(groups, length, head_dim), normal(groups, length, head_dim), normal(groups, length, length)
    table.add("bmm", "scores", (groups, length, length, head_dim), lambda: q @ k.transpose(1, 2))
    table.add("bmm", "values", (groups, length, head_dim, length), lambda: p @ k)
    table.add("bmm", "tvalues", (groups, length, head_dim, length), lambda: p.transpose(1, 2) @ k)


def memory_bound(table: Table, rows: int = 64 * 2048, width: int = 2048) -> None:
    """Kernels over scores or activations, forward and backward, and a copy beside them."""
    x, gradient = normal(rows, width).requires_grad_(), normal(rows, width)
    norm = torch.nn.LayerNorm(width, device="cuda", dtype=torch.float16)
    kernels: tuple[tuple[str, Callable[[], Tensor]], ...] = (
        ("softmax", lambda: torch.softmax(x, -1)),
        ("dropout", lambda: F.dropout(x, 0.1)),
        ("gelu", lambda: F.gelu(x)),
        ("add", lambda: x + gradient),
        ("layernorm", lambda: norm(x)),
        ("bias", lambda: x + norm.bias),
    )
    for name, run in kernels:
        table.add("memory", name, (1, rows, width, 1), run)
        out = run()
        table.add(
            "memory",
            f"{name}.backward",
            (1, rows, width, 1),
            lambda out=out: torch.autograd.grad(out, x, gradient, retain_graph=True),
        )
    target = torch.empty_like(gradient)
    table.add("memory", "copy", (1, rows, width, 1), lambda: target.copy_(gradient))


def flash_attention(table: Table, head_dim: int, length: int, dropout: float) -> None:
    """Fused causal attention of 16,384 tokens and 32 heads."""
    sequences = 16384 // length
    q, k, v = (normal(sequences, 32, length, head_dim).requires_grad_() for _ in range(3))

    def run() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)

    shape = (sequences * 32, length, length, head_dim)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        table.add("attention", f"flash dropout {dropout}", shape, run)
        out = run()
        gradient = torch.randn_like(out)
        table.add(
            "attention",
            f"flash dropout {dropout} backward",
            shape,
            lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True),
        )


def main() -> None:
    """All tables into one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    folder: Path = parser.parse_args().out
    table = Table()
    for vocab in (50304, 50264, 50260, 50258, 50257):
        for hidden in (2048, 4096):
            products(table, vocab, hidden)
    for width in (4096, 4104, 4100, 4098, 4097):
        products(table, width, 4096)
        products(table, 4096, width)
    for head_dim in (64, 80, 96, 112, 120, 128, 256, 448, 450, 452, 456, 464, 224, 225, 226, 228):
        unfused_attention(table, head_dim)
    memory_bound(table)
    for head_dim in (64, 128):
        for length in (2048, 8192):
            for dropout in (0.0, 0.1):
                flash_attention(table, head_dim, length, dropout)
    (folder / "alignment.csv").write_text("\n".join(table.lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
