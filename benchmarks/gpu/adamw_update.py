"""What an AdamW update of four blocks of Llama-3.1-8B over two ranks takes, one JSON line a variant.

PYTHONPATH=src python benchmarks/gpu/adamw_update.py --out update.jsonl
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from shardwise.train.kernels import adamw

HIDDEN, KEYS, INNER = 4096, 1024, 14336
BLOCKS, REPEATS = 4, 3
BETAS = (0.9, 0.95)


class Update:
    """The states of a few blocks' shards over two ranks, and ways to update them."""

    def __init__(self) -> None:
        block = [(HIDDEN, HIDDEN // 2)] * 2 + [(KEYS, HIDDEN // 2)] * 2 + [(INNER, HIDDEN // 2)] * 3
        sizes = block * BLOCKS
        self.weights = [torch.nn.Parameter(torch.randn(s, device="cuda") * 0.02) for s in sizes]
        for weight in self.weights:
            weight.grad = torch.randn_like(weight) * 1e-3
        self.moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in self.weights]
        self.scalars = torch.tensor([1.0, 3e-4, 1.0], device="cuda")
        self.fused = torch.optim.AdamW(self.weights, lr=3e-4, betas=BETAS, fused=True)
        self.num_elements = sum(w.numel() for w in self.weights)

    def torch_scaled(self) -> None:
        """torch's kernel, which clips as well."""
        self.fused.grad_scale = torch.ones((), device="cuda")
        self.fused.found_inf = torch.zeros((), device="cuda")
        self.fused.step()

    def torch_plain(self) -> None:
        """torch's kernel for gradients as they are."""
        for name in ("grad_scale", "found_inf"):
            if hasattr(self.fused, name):
                delattr(self.fused, name)
        self.fused.step()

    def ours(self) -> None:
        """Our kernel."""
        for weight, moments in zip(self.weights, self.moments, strict=True):
            adamw(
                weight.detach(),
                weight.grad,
                moments,
                self.scalars,
                betas=BETAS,
                decayed_fraction=3e-5,
                epsilon=1e-8,
            )


def seconds(work: Callable[[], object]) -> float:
    """The median of a few runs, after one that warms up."""
    work()
    found = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) / 1000)
    return median(found)


def difference() -> dict[str, float]:
    """How far our kernel is from torch's after some steps of the same gradients."""
    torch.manual_seed(0)
    theirs = torch.nn.Parameter(torch.randn(1000, 1003, device="cuda"))
    own = theirs.detach().clone()
    mean, square = torch.zeros_like(own), torch.zeros_like(own)
    fused = torch.optim.AdamW([theirs], lr=3e-4, betas=BETAS, weight_decay=0.1, fused=True)
    for step in range(1, 11):
        gradient = torch.randn_like(own) * 1e-3
        theirs.grad = gradient.clone()
        fused.step()
        corrections = (1 - BETAS[0] ** step, 1 - BETAS[1] ** step)
        scalars = torch.tensor([1.0, 3e-4 / corrections[0], corrections[1] ** 0.5], device="cuda")
        adamw(own, gradient, (mean, square), scalars, betas=BETAS, decayed_fraction=3e-5, epsilon=1e-8)
    state = fused.state[theirs]
    return {
        "weights": float((own - theirs).abs().max()),
        "means": float((mean - state["exp_avg"]).abs().max()),
        "squares_ratio": float(((square - state["exp_avg_sq"]).abs() / state["exp_avg_sq"]).max()),
        "equal_fraction": float((own == theirs).float().mean()),
    }


def main() -> int:
    """Time every variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    states = Update()
    lines: list[dict[str, object]] = [{"difference": difference(), "num_elements": states.num_elements}]
    with torch.no_grad():
        for name, work in (
            ("torch, scaled", states.torch_scaled),
            ("torch", states.torch_plain),
            ("ours", states.ours),
        ):
            alone_s = seconds(work)
            lines.append({"name": name, "alone_s": alone_s, "bytes_per_s": states.num_elements * 28 / alone_s})
    with arguments.out.open("a", encoding="utf-8") as file:
        for line in lines:
            print(line)
            file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
