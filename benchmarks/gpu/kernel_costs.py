"""Times what a kernel sweep leaves out on one GPU: host dispatch, power-limited rates, grouped and small products.

``python3 benchmarks/gpu/kernel_costs.py --out DIR`` writes dispatch.csv, power.csv and products.csv in about 90 s.

Dispatch rows run blocks on shapes so small that the host is the slower side: their time is what the host needs to issue
a block's kernels. Power rows hold one load for seconds and read the board's power and clock beside it.
"""

import argparse
import csv
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

Row = dict[str, object]
LAYERS = 16
DEVICE = torch.device("cuda")
found: list[Row] = []


class GptBlock(nn.Module):
    """LayerNorm, fused QKV with biases, unfused attention or the fused kernel, dropout, GELU."""

    def __init__(self, hidden: int, heads: int, fused_attention: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused_attention
        self.n1, self.n2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def attend(self, x: Tensor) -> Tensor:
        """``(B, S, D)`` to ``(B, S, D)``."""
        b, s, h = x.shape
        q, k, v = (t.transpose(1, 2) for t in self.qkv(x).view(b, s, 3, self.heads, -1).unbind(2))
        if self.fused:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) * (h // self.heads) ** -0.5
            mask = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
            probabilities = F.softmax(scores.masked_fill(mask, -1e4).float(), dim=-1).to(x.dtype)
            out = F.dropout(probabilities, 0.1) @ v
        return self.proj(out.transpose(1, 2).reshape(b, s, h))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, S, D)`` to ``(B, S, D)``."""
        x = x + F.dropout(self.attend(self.n1(x)), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.n2(x)))), 0.1)


class LlamaBlock(nn.Module):
    """RMSNorm, rotary positions, grouped queries on the fused kernel, SwiGLU; no biases, no dropout."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(hidden, eps=1e-5), nn.RMSNorm(hidden, eps=1e-5)
        self.q, self.o = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.k, self.v = nn.Linear(hidden, hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, 3 * hidden, bias=False)
        self.down = nn.Linear(3 * hidden, hidden, bias=False)
        self.register_buffer("table", torch.polar(torch.ones(128, hidden // heads // 2), torch.ones(128, 1)))

    def rotate(self, x: Tensor) -> Tensor:
        """Turn pairs of channels in fp32."""
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.table[None, :, None, :]).flatten(-2).type_as(x)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, S, D)`` to ``(B, S, D)``."""
        b, s, h = x.shape
        y = self.n1(x)
        q, k, v = (p(y).view(b, s, self.heads, -1) for p in (self.q, self.k, self.v))
        q, k = self.rotate(q), self.rotate(k)
        out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + self.o(out.transpose(1, 2).reshape(b, s, h))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def host_s(run: Callable[[], object], repeats: int = 9) -> float:
    """Median wall seconds of one call, with the device idle before and after."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def num_kernels(run: Callable[[], object]) -> int:
    """Kernels, copies and fills one call launches."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)


def stack_rows(name: str, blocks: list[Callable[[Tensor], Tensor]], autocast: bool) -> list[Row]:
    """Forward, backward and checkpointed passes of a stack of blocks; microseconds and kernels per block."""
    x = torch.randn(1, 128, 256, device=DEVICE, dtype=torch.float32 if autocast else torch.bfloat16, requires_grad=True)

    def forward(is_checkpointed: bool, reentrant: bool = False) -> Tensor:
        y = x
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            for block in blocks:
                y = checkpoint(block, y, use_reentrant=reentrant) if is_checkpointed else block(y)
        return y

    rows = []
    modes = (("", False, False), (" checkpoint", True, False), (" reentrant", True, True))
    for label, is_checkpointed, reentrant in modes:
        rows += two_rows(name + label, partial(forward, is_checkpointed, reentrant), torch.ones_like(x))
    return rows


def two_rows(name: str, run: Callable[[], Tensor], gradient: Tensor) -> list[Row]:
    """Forward, and what backward adds to it."""

    def whole() -> None:
        run().backward(gradient)

    for _ in range(3):
        whole()
    kept: list[Tensor] = []
    ahead, kernels = host_s(lambda: kept.append(run())), num_kernels(run)
    both, both_kernels = host_s(whole), num_kernels(whole)
    return [
        dispatch_row(name, "forward", ahead, kernels),
        dispatch_row(name, "backward", both - ahead, both_kernels - kernels),
    ]


def dispatch_row(name: str, phase: str, seconds: float, kernels: int) -> Row:
    """One line, per block."""
    return {
        "name": name,
        "phase": phase,
        "host_us_per_block": round(seconds * 1e6 / LAYERS, 2),
        "kernels_per_block": round(kernels / LAYERS, 2),
        "us_per_kernel": round(seconds * 1e6 / max(1, kernels), 3),
    }


def dispatch() -> list[Row]:
    """Host time per block, eager and under autocast."""
    rows: list[Row] = []
    makers: dict[str, Callable[[], nn.Module]] = {
        "gpt unfused attention": lambda: GptBlock(256, 4, False),
        "gpt": lambda: GptBlock(256, 4, True),
        "llama": lambda: LlamaBlock(256, 4),
    }
    for name, make in makers.items():
        blocks = [make().to(DEVICE, torch.bfloat16) for _ in range(LAYERS)]
        for block in blocks:
            if hasattr(block, "table"):
                block.table = torch.polar(torch.ones(128, 32), torch.ones(128, 32)).to(DEVICE)
        rows += stack_rows(name, blocks, False)
        wide = [block.float() for block in blocks]
        for block in wide:
            if hasattr(block, "table"):
                block.table = torch.polar(torch.ones(128, 32), torch.ones(128, 32)).to(DEVICE)
        rows += stack_rows(f"{name} autocast", wide, True)
    return rows


def sharded_rows() -> list[Row]:
    """The llama stack under FSDP2 with one rank: what a unit adds on the host."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
    torch.distributed.init_process_group("nccl", rank=0, world_size=1)
    model = nn.Sequential(*(LlamaBlock(256, 4).to(DEVICE) for _ in range(LAYERS)))
    for block in model:
        block.table = torch.polar(torch.ones(128, 32), torch.ones(128, 32)).to(DEVICE)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    x = torch.randn(1, 128, 256, device=DEVICE, requires_grad=True)
    rows = two_rows("llama fsdp2", lambda: model(x), torch.ones(1, 128, 256, device=DEVICE, dtype=torch.bfloat16))
    torch.distributed.destroy_process_group()
    return rows


class Board:
    """Reads power and clock every 50 ms in the background."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, float, float]] = []
        query = [
            "nvidia-smi",
            "--query-gpu=power.draw.instant,clocks.sm",
            "--format=csv,noheader,nounits",
            "-lms",
            "50",
        ]
        self.process = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self) -> None:
        """Keep every line the tool prints."""
        for line in self.process.stdout or ():
            try:
                watt, clock = (float(part) for part in line.split(","))
            except ValueError:
                continue
            self.lines.append((time.perf_counter(), watt, clock))

    def between(self, start: float, end: float) -> tuple[float, float]:
        """Mean watts and megahertz of an interval."""
        rows = [line for line in self.lines if start <= line[0] <= end] or [(0.0, 0.0, 0.0)]
        return statistics.mean(row[1] for row in rows), statistics.mean(row[2] for row in rows)


def power() -> list[Row]:
    """Rates held for two seconds with the board's power and clock over the last one."""
    board, rows = Board(), []
    b = partial(torch.randn, device=DEVICE, dtype=torch.bfloat16)
    a8, w8, z8 = b(8192, 8192), b(8192, 8192), torch.zeros(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    a4, w14 = b(8192, 4096), b(14336, 4096)
    big = torch.empty(2**29, device=DEVICE, dtype=torch.bfloat16)
    other = torch.empty_like(big)
    q = b(1, 32, 8192, 128)
    small_w = b(4096, 4096)
    attention = lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)  # noqa: E731

    def layer() -> None:
        for _ in range(3):
            torch.mm(a4, small_w.t())
        attention()
        F.rms_norm(a4, (4096,))
        h = torch.mm(a4, w14.t())
        F.silu(h)
        torch.mm(h, w14)

    flop_layer = 3 * 2 * 8192 * 4096**2 + 2 * 32 * 8192**2 * 128 + 2 * 2 * 8192 * 4096 * 14336
    loads: list[tuple[str, Callable[[], object], float, float]] = [
        ("8192x8192x8192", lambda: torch.mm(a8, w8.t()), 2 * 8192**3, 1.0),
        ("8192x14336x4096", lambda: torch.mm(a4, w14.t()), 2 * 8192 * 14336 * 4096, 1.0),
        ("8192x8192x8192 zeros", lambda: torch.mm(z8, z8.t()), 2 * 8192**3, 1.0),
        *((f"8192x8192x8192 duty {d}", lambda: torch.mm(a8, w8.t()), 2 * 8192**3, d) for d in (0.25, 0.5, 0.75)),
        *(
            (f"8192x14336x4096 duty {d}", lambda: torch.mm(a4, w14.t()), 2 * 8192 * 14336 * 4096, d)
            for d in (0.5, 0.75)
        ),
        ("copy", lambda: other.copy_(big), 0, 1.0),
        ("attention", attention, 2 * 32 * 8192**2 * 128, 1.0),
        ("layer forward", layer, flop_layer, 1.0),
        ("idle", lambda: time.sleep(0.01), 0, 1.0),
    ]
    for name, run, flop, duty in loads:
        run()
        torch.cuda.synchronize()
        busy, calls, start = 0.0, 0, time.perf_counter()
        while time.perf_counter() - start < 2.2:
            begin = time.perf_counter()
            for _ in range(4):
                run()
            torch.cuda.synchronize()
            spent = time.perf_counter() - begin
            if time.perf_counter() - start > 1.0:
                busy, calls = busy + spent, calls + 4
            if duty < 1:
                time.sleep(spent * (1 / duty - 1))
        watt, clock = board.between(start + 1.0, time.perf_counter())
        rows.append(
            {
                "name": name,
                "duty": duty,
                "time_us": round(busy / calls * 1e6, 2),
                "flop_per_s": f"{flop * calls / busy:.4g}",
                "power_w": round(watt, 1),
                "clock_mhz": round(clock, 1),
            }
        )
        time.sleep(0.4)
    board.process.terminate()
    return rows


def timed_us(run: Callable[[], object]) -> float:
    """Median microseconds of one call, ten of them in a graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            run()
    graph.replay()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(3):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e2)
    return statistics.median(times)


def add(kind: str, layout: str, dtype: str, shape: tuple[int, int, int, int], run: Callable[[], object]) -> None:
    """Time one product and keep it; what this version of torch cannot run is only named."""
    groups, m, n, k = shape
    try:
        time_us = timed_us(run)
    except (RuntimeError, TypeError, NotImplementedError, AttributeError) as error:
        print(kind, layout, dtype, shape, str(error)[:120], flush=True)
        torch.cuda.synchronize()
        return
    rate = 2e6 * groups * m * n * k / time_us
    row: Row = {"kind": kind, "layout": layout, "dtype": dtype, "groups": groups, "m": m, "n": n, "k": k}
    found.append({**row, "time_us": round(time_us, 2), "flop_per_s": f"{rate:.4g}"})


def products() -> list[Row]:
    """Grouped, small, accumulating and other-precision products; casts to eight bits."""
    for part in (small_products, accumulating_products, grouped_products, casts):
        part()
    return found


def small_products() -> None:
    """Few tokens in 16 bits, and tf32."""
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        torch.backends.cuda.matmul.allow_tf32 = True
        name = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "tf32"}[dtype]
        tokens = (64, 128, 256, 512) if dtype is not torch.float32 else (1024, 4096)
        for m in tokens:
            for n, k in (
                (1024, 1024),
                (4096, 1024),
                (1024, 4096),
                (2048, 2048),
                (8192, 2048),
                (4096, 4096),
                (14336, 4096),
                (4096, 14336),
                (8192, 8192),
            ):
                x, w, dy = (torch.randn(*s, device=DEVICE, dtype=dtype) for s in ((m, k), (n, k), (m, n)))
                add("gemm", "forward", name, (1, m, n, k), lambda x=x, w=w: torch.mm(x, w.t()))
                if dtype is not torch.float16:
                    add("gemm", "dgrad", name, (1, m, n, k), lambda dy=dy, w=w: torch.mm(dy, w))
                    add("gemm", "wgrad", name, (1, m, n, k), lambda dy=dy, x=x: torch.mm(dy.t(), x))


def accumulating_products() -> None:
    """Weight gradients written in fp32, and added to an fp32 buffer."""
    for m, n, k in (
        (4096, 4096, 4096),
        (8192, 4096, 4096),
        (4096, 14336, 4096),
        (8192, 8192, 8192),
        (4096, 8192, 28672),
    ):
        x, dy = (torch.randn(*s, device=DEVICE, dtype=torch.bfloat16) for s in ((m, k), (m, n)))
        total = torch.zeros(n, k, device=DEVICE)
        add(
            "gemm",
            "wgrad fp32 out",
            "bf16",
            (1, m, n, k),
            lambda dy=dy, x=x: torch.mm(dy.t(), x, out_dtype=torch.float32),
        )
        add(
            "gemm",
            "wgrad accumulate",
            "bf16",
            (1, m, n, k),
            lambda dy=dy, x=x, t=total: torch.addmm(t, dy.t(), x, out_dtype=torch.float32),
        )
        add("gemm", "wgrad then add", "bf16", (1, m, n, k), lambda dy=dy, x=x, t=total: t.add_(torch.mm(dy.t(), x)))


def grouped_products() -> None:
    """Experts' products with equal shares of the tokens, and with shares from a tenth to nearly twice the mean."""
    for groups, m, n, k in (
        (8, 512, 28672, 4096),
        (8, 1024, 14336, 4096),
        (8, 4096, 14336, 4096),
        (16, 1024, 4096, 7168),
        (32, 256, 4096, 7168),
        (64, 512, 2048, 2048),
        (64, 128, 2048, 2048),
        (128, 128, 1536, 2048),
    ):
        for label in ("", " skewed"):
            counts = torch.full((groups,), m)
            if label:
                counts = counts + torch.linspace(-0.9, 0.9, groups).mul(m).round().long() // 16 * 16
                counts[0] += groups * m - counts.sum()
            offsets = counts.cumsum(0).to(DEVICE, torch.int32)
            x, dy = (torch.randn(*s, device=DEVICE, dtype=torch.bfloat16) for s in ((groups * m, k), (groups * m, n)))
            w = torch.randn(groups, n, k, device=DEVICE, dtype=torch.bfloat16)
            shape = (groups, m, n, k)
            add(
                "grouped",
                "forward" + label,
                "bf16",
                shape,
                lambda x=x, w=w, o=offsets: torch._grouped_mm(x, w.transpose(1, 2), offs=o),
            )
            add(
                "grouped",
                "dgrad" + label,
                "bf16",
                shape,
                lambda dy=dy, w=w, o=offsets: torch._grouped_mm(dy, w, offs=o),
            )
            add(
                "grouped",
                "wgrad" + label,
                "bf16",
                shape,
                lambda dy=dy, x=x, o=offsets: torch._grouped_mm(dy.t(), x, offs=o),
            )


def casts() -> None:
    """Scaling to eight bits."""
    x = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    scale = torch.ones((), device=DEVICE)
    add("cast", "amax", "bf16", (1, 8192, 8192, 1), lambda: x.abs().amax())
    add("cast", "cast eager", "fp8", (1, 8192, 8192, 1), lambda: (x * scale).clamp(-448, 448).to(torch.float8_e4m3fn))
    amax = torch.compile(lambda t: t.abs().amax())
    cast = torch.compile(lambda t, s: (t.float() * s).clamp(-448, 448).to(torch.float8_e4m3fn))
    both = torch.compile(
        lambda t, s: (
            (t.float() * s).clamp(-448, 448).to(torch.float8_e4m3fn),
            (t.float() * s).clamp(-448, 448).to(torch.float8_e4m3fn).t().contiguous(),
        )
    )
    add("cast", "amax compiled", "bf16", (1, 8192, 8192, 1), lambda: amax(x))
    add("cast", "cast compiled", "fp8", (1, 8192, 8192, 1), lambda: cast(x, scale))
    add("cast", "cast and transpose compiled", "fp8", (1, 8192, 8192, 1), lambda: both(x, scale))


def write(path: Path, rows: list[Row]) -> None:
    """Rows as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(path.name, len(rows), flush=True)


def main() -> None:
    """Run every part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    start = time.time()
    for name, part in (
        ("power", power),
        ("products", products),
        ("dispatch", dispatch),
        ("dispatch-fsdp2", sharded_rows),
    ):
        write(out / f"{name}.csv", part())
        torch.cuda.empty_cache()
        print(f"{name} done at {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
