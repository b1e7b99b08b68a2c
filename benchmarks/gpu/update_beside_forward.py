"""What an AdamW update costs by itself and beside the forward pass of Llama-3.1-8B's blocks, one JSON line a variant.

    PYTHONPATH=src python benchmarks/gpu/update_beside_forward.py --out update.jsonl

The difference to the forward pass alone is what an update under it costs.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from shardwise.train.kernels import adamw

TOKENS, HIDDEN, KEYS, INNER, HEADS = 8192, 4096, 1024, 14336, 32
BLOCKS, REPEATS = 4, 3
BETAS = (0.9, 0.95)


class Forward:
    """Products, attention and elementwise kernels of a few blocks."""

    def __init__(self) -> None:
        def made(*size: int) -> Tensor:
            return torch.randn(*size, device="cuda", dtype=torch.bfloat16) * 0.02

        self.x, self.norm = made(TOKENS, HIDDEN), made(HIDDEN)
        self.qkv = [made(HIDDEN, HIDDEN), made(KEYS, HIDDEN), made(KEYS, HIDDEN)]
        self.out, self.gate, self.up = made(HIDDEN, HIDDEN), made(INNER, HIDDEN), made(INNER, HIDDEN)
        self.down = made(HIDDEN, INNER)
        self.block = torch.compile(self._block, dynamic=False)

    def _block(self, x: Tensor) -> Tensor:
        h = F.rms_norm(x, (HIDDEN,), self.norm)
        q, k, v = (F.linear(h, w).view(1, TOKENS, -1, 128).transpose(1, 2) for w in self.qkv)
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.CUDNN_ATTENTION]):
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + F.linear(a.transpose(1, 2).reshape(TOKENS, HIDDEN), self.out)
        h = F.rms_norm(x, (HIDDEN,), self.norm)
        return x + F.linear(F.silu(F.linear(h, self.gate)) * F.linear(h, self.up), self.down)

    def __call__(self) -> None:
        """One pass."""
        x = self.x
        for _ in range(BLOCKS):
            x = self.block(x)


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


def beside(
    forward: Callable[[], None], work: Callable[[], object], *, rounds: int, priority: int
) -> Callable[[], None]:
    """Forward passes on a stream of this priority with one update beside them on another."""
    main, side = torch.cuda.Stream(priority=priority), torch.cuda.Stream()

    def run() -> None:
        current = torch.cuda.current_stream()
        for stream in (main, side):
            stream.wait_stream(current)
        with torch.cuda.stream(side):
            work()
        with torch.cuda.stream(main):
            for _ in range(rounds):
                forward()
        for stream in (main, side):
            current.wait_stream(stream)

    return run


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
    forward, states = Forward(), Update()
    rounds = 6

    def passes() -> None:
        for _ in range(rounds):
            forward()

    lines: list[dict[str, object]] = [{"difference": difference(), "num_elements": states.num_elements}]
    print(lines[0], flush=True)
    with torch.no_grad():
        alone_s = seconds(passes)
        variants: dict[str, Callable[[], object]] = {"torch, scaled": states.torch_scaled, "torch": states.torch_plain}
        variants["ours"] = states.ours
        for name, work in variants.items():
            line: dict[str, object] = {"name": name, "alone_s": seconds(work), "forward_s": alone_s}
            line["bytes_per_s"] = states.num_elements * 28 / float(str(line["alone_s"]))
            for priority in (0, -1):
                both_s = seconds(beside(forward, work, rounds=rounds, priority=priority))
                line[f"cost_s, priority {priority}"] = both_s - alone_s
            lines.append(line)
            print(
                {k: round(v * 1000, 3) if k.endswith("_s") or "cost" in k else v for k, v in line.items()}, flush=True
            )
        again_s = seconds(passes)
        lines.append({"forward_again_s": again_s})
        print(lines[-1])
    with arguments.out.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
