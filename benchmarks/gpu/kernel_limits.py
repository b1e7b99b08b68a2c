"""What eight-bit products hold, and what compiled blocks ask of the host: ``kernel_limits.py --out DIR``, about 60 s.

Writes power-fp8.csv and dispatch-compiled.csv with the columns of ``kernel_costs.py``.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from kernel_costs import DEVICE, LAYERS, Board, GptBlock, LlamaBlock, Row, stack_rows, write


def held(board: Board, name: str, run: Callable[[], object], flop: float) -> Row:
    """A product held for two seconds, and read over the last one."""
    run()
    torch.cuda.synchronize()
    busy, calls, start = 0.0, 0, time.perf_counter()
    while time.perf_counter() - start < 2.2:
        begin = time.perf_counter()
        for _ in range(8):
            run()
        torch.cuda.synchronize()
        if time.perf_counter() - start > 1.0:
            busy, calls = busy + time.perf_counter() - begin, calls + 8
    watt, clock = board.between(start + 1.0, time.perf_counter())
    rate = flop * calls / busy
    return {
        "name": name,
        "duty": 1.0,
        "time_us": round(busy / calls * 1e6, 2),
        "flop_per_s": f"{rate:.4g}",
        "power_w": round(watt, 1),
        "clock_mhz": round(clock, 1),
    }


def eight_bits() -> list[Row]:
    """Products of random numbers in e4m3 with one scale a tensor, and the same in bf16."""
    board, rows, one = Board(), [], torch.ones((), device=DEVICE)
    for m, n, k in ((8192, 8192, 8192), (8192, 14336, 4096), (8192, 4096, 14336), (8192, 4096, 4096)):
        a, b = (torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) for shape in ((m, k), (n, k)))
        x, w = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        flop = 2.0 * m * n * k
        for is_fast in (True, False):
            label = f"{m}x{n}x{k} fp8{' fast' if is_fast else ''}"
            rows.append(
                held(
                    board,
                    label,
                    lambda x=x, w=w, is_fast=is_fast: torch._scaled_mm(
                        x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=is_fast
                    ),
                    flop,
                )
            )
        rows.append(held(board, f"{m}x{n}x{k} bf16", lambda a=a, b=b: torch.mm(a, b.t()), flop))
    board.process.terminate()
    return rows


def compiled() -> list[Row]:
    """Blocks compiled one by one, without the limit that makes the ninth fall back to eager."""
    torch._dynamo.config.recompile_limit = 64
    rows: list[Row] = []
    for name, make in (
        ("gpt compiled", lambda: GptBlock(256, 4, True)),
        ("llama compiled", lambda: LlamaBlock(256, 4)),
    ):
        blocks = [make().to(DEVICE, torch.bfloat16) for _ in range(LAYERS)]
        for block in blocks:
            if hasattr(block, "table"):
                block.table = torch.polar(torch.ones(128, 32), torch.ones(128, 32)).to(DEVICE)
        rows += stack_rows(name, [torch.compile(block) for block in blocks], False)
    return rows


def main() -> None:
    """Both parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    write(out / "power-fp8.csv", eight_bits())
    write(out / "dispatch-compiled.csv", compiled())


if __name__ == "__main__":
    main()
