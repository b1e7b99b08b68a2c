"""Time the kernels a training step is made of on one CUDA device, and write them as rows of kernel_readings.csv.

    python benchmarks/gpu_kernels.py OUT.csv

Matrix products of real layers (forward, input gradient, weight gradient; whole and as tensor-parallel shards), fused
attention, elementwise and loss kernels, the fused optimizer, launch intervals, and how far a sustained mix of large
products falls below single ones. Needs torch with CUDA; takes about two minutes.
"""

import csv
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

COLUMNS = ("kind", "name", "m", "n", "k", "time_us", "flop", "num_bytes")
MATRICES = (  # (out, in) of one rank: Llama 8B, 70B and 405B, whole and divided
    (4096, 4096),
    (1024, 4096),
    (14336, 4096),
    (4096, 14336),
    (128256, 4096),
    (8192, 8192),
    (28672, 8192),
    (8192, 28672),
    (3584, 8192),
    (8192, 3584),
    (1024, 8192),
    (8192, 1024),
    (6656, 16384),
    (16384, 6656),
    (2048, 2048),
    (8192, 2048),
    (2048, 8192),
    (1792, 4096),
    (4096, 1792),
    (512, 4096),
)
TOKENS = (2048, 4096, 8192, 16384)
rows: list[tuple[object, ...]] = []


def timed(run: Callable[[], object], *, target_s: float = 0.06) -> float:
    """Seconds of one call: enough repetitions to fill ``target_s`` after a warm-up."""
    run()
    run()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    repeats = max(3, int(target_s / max(1e-6, begin.elapsed_time(end) / 1e3)))
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def add(
    kind: str,
    name: str,
    seconds: float,
    *,
    shape: tuple[int, int, int] = (0, 0, 0),
    flop: float = 0.0,
    num_bytes: float = 0.0,
) -> None:
    """Remember one reading."""
    rows.append((kind, name, *shape, round(seconds * 1e6, 2), int(flop), int(num_bytes)))


def products() -> None:
    """Three products of every matrix; the largest head only with few tokens."""
    for out, inner in MATRICES:
        for tokens in TOKENS:
            if out * tokens > 3e9:
                continue
            x = torch.randn(tokens, inner, device="cuda", dtype=torch.bfloat16)
            w = torch.randn(out, inner, device="cuda", dtype=torch.bfloat16) * 0.02
            dy = torch.randn(tokens, out, device="cuda", dtype=torch.bfloat16)
            flop = 2 * tokens * out * inner
            add("gemm", "forward", timed(partial(torch.matmul, x, w.t())), shape=(tokens, out, inner), flop=flop)
            add("gemm", "dgrad", timed(partial(torch.matmul, dy, w)), shape=(tokens, inner, out), flop=flop)
            add("gemm", "wgrad", timed(partial(torch.matmul, dy.t(), x)), shape=(out, inner, tokens), flop=flop)


def sustained() -> None:
    """The blocks' products of Llama 8B one after the other for ten seconds: power and clocks settle."""
    tokens = 8192
    weights = [torch.randn(o, i, device="cuda", dtype=torch.bfloat16) * 0.02 for o, i in MATRICES[:4]]
    inputs = [torch.randn(tokens, i, device="cuda", dtype=torch.bfloat16) for _, i in MATRICES[:4]]
    flop = sum(2 * tokens * w.numel() for w in weights)
    for label, duration in (("cold", 0.0), ("after 10 s", 10.0)):
        stop = time.time() + duration
        while time.time() < stop:
            for x, w in zip(inputs, weights, strict=True):
                x @ w.t()
            torch.cuda.synchronize()
        seconds = timed(lambda: [x @ w.t() for x, w in zip(inputs, weights, strict=True)], target_s=0.3)
        add("sustained", label, seconds, shape=(tokens, 0, 0), flop=flop)
        if not duration:
            time.sleep(3)


def attention() -> None:
    """Causal attention, forward and backward, of torch's flash kernel and of cuDNN's."""
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        for head_dim in (128, 64):
            for length in (1024, 2048, 4096, 8192, 16384):
                one_attention(backend, head_dim, length)


def one_attention(backend: SDPBackend, head_dim: int, length: int) -> None:
    """Both passes over 16,384 tokens with 32 heads."""
    batch, heads = max(1, 16384 // length), 32
    shape = (batch, heads, length, head_dim)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "qkv")
    run = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
    with sdpa_kernel(backend):
        forward = timed(run)
        out = run()
        backward = timed(gradient_of(out, (q, k, v)))
    flop = 2 * batch * heads * length * length * head_dim
    name = backend.name.lower().replace("_attention", "")
    add("attention", f"{name}.forward", forward, shape=(length, length, head_dim), flop=flop)
    add("attention", f"{name}.backward", backward, shape=(length, length, head_dim), flop=2.5 * flop)


def gradient_of(out: Tensor, inputs: tuple[Tensor, ...]) -> Callable[[], object]:
    """The backward of ``out``, repeatable."""
    grad = torch.randn_like(out)
    return partial(torch.autograd.grad, out, inputs, grad, retain_graph=True)


def decomposed_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm as most model code writes it."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def elementwise() -> None:
    """Memory-bound kernels with the bytes they must move."""
    tokens, hidden, wide, vocab = 8192, 4096, 14336, 128256
    x = torch.randn(tokens, hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(hidden, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    gate, up = (torch.randn(tokens, wide, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "ab")
    fixed, size = x.detach(), x.numel()
    norm = partial(F.rms_norm, normalized_shape=(hidden,))
    add("memory", "copy", timed(fixed.clone), num_bytes=4 * size)
    add("memory", "residual", timed(partial(torch.add, fixed, fixed)), num_bytes=6 * size)
    add("memory", "rms_norm", timed(partial(norm, fixed, weight=weight.detach())), num_bytes=4 * size)
    run = gradient_of(norm(x, weight=weight), (x, weight))
    add("memory", "rms_norm.backward", timed(run), num_bytes=8 * size)
    run = partial(decomposed_norm, fixed, weight.detach())
    add("memory", "rms_norm decomposed", timed(run), num_bytes=36 * size)
    run = gradient_of(decomposed_norm(x, weight), (x, weight))
    add("memory", "rms_norm decomposed.backward", timed(run), num_bytes=64 * size)
    run = lambda: F.silu(gate.detach()) * up.detach()  # noqa: E731
    add("memory", "swiglu", timed(run), num_bytes=10 * gate.numel())
    run = gradient_of(F.silu(gate) * up, (gate, up))
    add("memory", "swiglu.backward", timed(run), num_bytes=16 * gate.numel())
    logits = torch.randn(4096, vocab, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, vocab, (4096,), device="cuda")
    run = lambda: F.cross_entropy(logits.detach().float(), labels)  # noqa: E731
    add("memory", "loss", timed(run), num_bytes=18 * logits.numel())
    run = gradient_of(F.cross_entropy(logits.float(), labels), (logits,))
    add("memory", "loss.backward", timed(run), num_bytes=18 * logits.numel())


def optimizer() -> None:
    """Fused AdamW in fp32 and the launch interval of small kernels."""
    params = [torch.nn.Parameter(torch.randn(4096, 14336, device="cuda")) for _ in range(8)]
    for parameter in params:
        parameter.grad = torch.randn_like(parameter)
    count = sum(p.numel() for p in params)
    for name, options in (("adamw fused", {"fused": True}), ("adamw foreach", {"foreach": True})):
        adam = torch.optim.AdamW(params, **options)
        add("optimizer", name, timed(adam.step), m=count, num_bytes=28 * count)
        del adam
    small = torch.ones(1024, device="cuda")
    add("launch", "queued add", timed(lambda: small.add_(1), target_s=0.2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(200):
            small.add_(1)
    add("launch", "graph of 200 adds, per kernel", timed(graph.replay, target_s=0.1) / 200)


def main(path: str) -> None:
    """Run everything and write the file."""
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    start = time.time()
    for part in (products, sustained, attention, elementwise, optimizer):
        part()
        torch.cuda.empty_cache()
        print(part.__name__, f"{time.time() - start:.0f} s", flush=True)
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    properties = torch.cuda.get_device_properties(0)
    print(properties.name, properties.multi_processor_count, torch.__version__, torch.version.cuda)


if __name__ == "__main__":
    main(sys.argv[1])
