"""Times whole GPT blocks in fp16, forward and with backward, in bursts and held for seconds.

``python3 benchmarks/gpu/kernel_blocks.py --out DIR`` writes blocks.csv in about 60 s: what a sum of kernels must meet
once kernels follow each other as in training.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from kernel_alignment import best_us
from torch import Tensor, nn

LAYERS = 4
HELD_S = 2.5
SHAPES = (
    (1024, 16, 8, 1024),
    (2304, 24, 6, 1024),
    (4096, 32, 3, 1024),
    (6144, 48, 1, 1024),
    (4096, 32, 6, 2048),
    (2560, 20, 8, 2048),
    (8192, 64, 4, 2048),
    (3072, 32, 8, 2048),
)
"""Hidden size, heads, sequences, tokens of a sequence."""


class Block(nn.Module):
    """Two norms, fused QKV, biases, dropout after both branches; attention flash or in separate kernels."""

    def __init__(self, hidden: int, heads: int, is_flash: bool) -> None:
        super().__init__()
        self.heads, self.is_flash = heads, is_flash
        self.norm_1, self.norm_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x_BSD: Tensor) -> Tensor:  # noqa: N803  shapes in names
        """``(B, S, D)`` to ``(B, S, D)``."""
        b, s, h = x_BSD.shape
        q, k, v = (z.transpose(1, 2) for z in self.qkv(self.norm_1(x_BSD)).view(b, s, 3, self.heads, -1).unbind(2))
        if self.is_flash:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            attended = F.dropout(torch.softmax(q @ k.transpose(-1, -2), -1), 0.1) @ v
        y_BSD = x_BSD + F.dropout(self.out(attended.transpose(1, 2).reshape(b, s, h)), 0.1)  # noqa: N806
        return y_BSD + F.dropout(self.down(F.gelu(self.up(self.norm_2(y_BSD)))), 0.1)


def block_line(hidden: int, heads: int, sequences: int, tokens: int, is_flash: bool) -> str:
    """Microseconds of one block: forward, forward and backward, and the latter held for seconds."""
    blocks = nn.Sequential(*[Block(hidden, heads, is_flash) for _ in range(LAYERS)]).to("cuda", torch.float16)
    x = torch.randn(sequences, tokens, hidden, device="cuda", dtype=torch.float16, requires_grad=True)
    gradient = torch.randn_like(x)

    def forward() -> None:
        with torch.no_grad():
            blocks(x)

    def both() -> None:
        blocks.zero_grad(set_to_none=True)
        blocks(x).backward(gradient)

    forward_us, both_us = best_us(forward) / LAYERS, best_us(both) / LAYERS
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < HELD_S:
        both()
        calls += 1
        if calls % 8 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    held_us = (time.perf_counter() - start) / calls / LAYERS * 1e6
    attention = "flash" if is_flash else "separate"
    return f"{hidden},{heads},{sequences},{tokens},{attention},{forward_us:.1f},{both_us:.1f},{held_us:.1f}"


def main() -> None:
    """All shapes, with both attentions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    folder: Path = parser.parse_args().out
    lines = ["hidden_size,heads,sequences,seq_len,attention,forward_us,both_us,held_us"]
    for shape in SHAPES:
        for is_flash in (False, True):
            lines.append(block_line(*shape, is_flash))
            print(lines[-1], flush=True)
    (folder / "blocks.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
