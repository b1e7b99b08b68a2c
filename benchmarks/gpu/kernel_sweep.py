"""Times the kernels of a transformer step on one GPU and writes CSV tables.

``python3 benchmarks/gpu/kernel_sweep.py --out DIR`` writes gemm.csv, attention.csv and bandwidth.csv;
``--share 0/4`` does the first quarter of the work, so that four GPUs can divide it.

GEMM layouts, for a linear layer ``y[M,N] = x[M,K] W[N,K]^T``: ``forward`` is TN, ``dgrad`` (``dy W``) NN,
``wgrad`` (``dy^T x``) NT. ``m n k`` are always the forward's.
"""

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from decoder import rotary_table, rotate
from timing import graph_s, loop_s
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.nn.attention import SDPBackend, sdpa_kernel

L2_BYTES = 50 * 2**20
MAX_FLOP = 6e12
Row = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Where, until when and which part of the work."""

    device: torch.device
    tiny: bool
    share: slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """The matrix sizes of one public model."""

    model: str
    hidden_size: int
    intermediate_size: int
    query_size: int
    key_value_size: int
    vocab_size: int = 128256


MODELS = (
    Widths(model="llama-3.1-8b", hidden_size=4096, intermediate_size=14336, query_size=4096, key_value_size=1024),
    Widths(model="llama-3.1-70b", hidden_size=8192, intermediate_size=28672, query_size=8192, key_value_size=1024),
    Widths(model="llama-3.2-1b", hidden_size=2048, intermediate_size=8192, query_size=2048, key_value_size=512),
    Widths(model="llama-2-7b", hidden_size=4096, intermediate_size=11008, query_size=4096, key_value_size=4096,
           vocab_size=32000),
    Widths(model="qwen3-32b", hidden_size=5120, intermediate_size=25600, query_size=8192, key_value_size=1024,
           vocab_size=151936),
    Widths(model="llama-3.2-3b", hidden_size=3072, intermediate_size=8192, query_size=3072, key_value_size=1024),
    Widths(model="llama-2-13b", hidden_size=5120, intermediate_size=13824, query_size=5120, key_value_size=5120,
           vocab_size=32000),
    Widths(model="llama-3.1-405b", hidden_size=16384, intermediate_size=53248, query_size=16384, key_value_size=1024),
    Widths(model="gpt-3-175b", hidden_size=12288, intermediate_size=49152, query_size=12288, key_value_size=12288,
           vocab_size=51200),
)  # fmt: skip


def linears(widths: Widths, tp: int) -> Iterator[tuple[int, int]]:
    """``(out, in)`` of every linear layer of one tensor-parallel rank, fused and not."""
    h, f, q, kv = widths.hidden_size, widths.intermediate_size, widths.query_size, widths.key_value_size
    yield f // tp, h
    yield h, f // tp
    yield q // tp, h
    yield h, q // tp
    yield kv // tp, h
    yield (q + 2 * kv) // tp, h
    yield 2 * f // tp, h
    yield widths.vocab_size // tp, h


def gemm_shapes() -> list[tuple[int, int, int]]:
    """Every ``(m, n, k)`` once, the commonest models and degrees first."""
    shapes: dict[tuple[int, int, int], None] = {}
    for tp in (1, 8, 2, 4):
        for widths in MODELS:
            for n, k in linears(widths, tp):
                for m in (4096, 8192, 2048, 16384, 1024):
                    if 2.0 * m * n * k <= MAX_FLOP:
                        shapes[m, n, k] = None
    return list(shapes)


def _copies(num_bytes: int) -> int:
    """Input sets needed so that the rotation does not fit in the cache."""
    return max(1, min(8, 2 * L2_BYTES // num_bytes + 1))


def time_gemm(shape: tuple[int, int, int], layout: str, device: torch.device) -> float:
    """Seconds of one bf16 product with bf16 output, on random data."""
    m, n, k = shape
    copies = _copies(2 * (m * k + n * k + m * n))
    make = partial(torch.randn, device=device, dtype=torch.bfloat16)
    sets = [(make(m, k), make(n, k), make(m, n)) for _ in range(copies)]

    def run(index: int) -> None:
        x, w, y = sets[index % copies]
        if layout == "forward":
            torch.mm(x, w.t(), out=y)
        elif layout == "dgrad":
            torch.mm(y, w, out=x)
        else:
            torch.mm(y.t(), x, out=w)

    # Outputs replace inputs of other layouts only; one layout per set keeps operands random.
    return graph_s(run, device=device)


def time_fp8(shape: tuple[int, int, int], fast: bool, device: torch.device) -> float:
    """Seconds of one fp8 (e4m3, per-tensor scales) product with bf16 output."""
    m, n, k = shape
    copies = _copies(m * k + n * k + 2 * m * n)
    one = torch.ones((), device=device)
    sets = [
        (
            torch.randn(m, k, device=device).to(torch.float8_e4m3fn),
            torch.randn(n, k, device=device).to(torch.float8_e4m3fn),
        )
        for _ in range(copies)
    ]

    def run(index: int) -> Tensor:
        x, w = sets[index % copies]
        return torch._scaled_mm(x, w.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return graph_s(run, device=device)


def gemm_rows(sweep: Sweep, deadline_s: float) -> Iterator[Row]:
    """bf16 products of every shape and layout, then fp8 forwards of the two commonest models."""
    device = sweep.device
    shapes = [(16, 32, 48)] if sweep.tiny else gemm_shapes()
    fp8_widths = {linear for widths in MODELS[:2] for tp in (1, 8) for linear in linears(widths, tp)}
    fp8 = [s for s in shapes if s[1:] in fp8_widths and s[0] in (2048, 8192)] if device.type == "cuda" else []
    fp8_deadline_s = deadline_s - (12 if fp8 else 0)
    for shape in shapes[sweep.share]:
        for layout in ("forward", "dgrad", "wgrad"):
            if time.perf_counter() > fp8_deadline_s:
                break
            yield _gemm_row(shape, layout, "bf16", time_gemm(shape, layout, device))
    for shape in fp8[sweep.share]:
        for fast in (True, False):
            if time.perf_counter() > deadline_s:
                return
            yield _gemm_row(shape, "forward", "fp8-fast" if fast else "fp8", time_fp8(shape, fast, device))


def _gemm_row(shape: tuple[int, int, int], layout: str, dtype: str, seconds: float) -> Row:
    m, n, k = shape
    flop = 2 * m * n * k
    rate = round(flop / seconds / 1e9) * 1e9
    return {
        "dtype": dtype,
        "layout": layout,
        "m": m,
        "n": n,
        "k": k,
        "time_s": f"{seconds:.4e}",
        "flop_per_s": f"{rate:.4g}",
    }


def sustained_rows(device: torch.device, tiny: bool) -> Iterator[Row]:
    """One product repeated for seconds: what clocks and power leave of the short-burst rate."""
    for shape in [(16, 32, 48)] if tiny else [(8192, 8192, 8192), (8192, 14336, 4096)]:
        m, n, k = shape
        x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        w = torch.randn(n, k, device=device, dtype=torch.bfloat16)
        y = torch.empty(m, n, device=device, dtype=torch.bfloat16)
        run = partial(_product, x, w, y)
        for target_s in (0.01, 0.1, 0.02 if tiny else 2.0):
            seconds = loop_s(run, device=device, target_s=target_s, repeats=1)
            yield _gemm_row(shape, f"forward-sustained-{target_s:g}s", "bf16", seconds)


def _product(x: Tensor, w: Tensor, y: Tensor, _index: int) -> None:
    torch.mm(x, w.t(), out=y)


def attention_rows(sweep: Sweep, deadline_s: float) -> Iterator[Row]:
    """Attention forward and backward by sequence, head size, heads, mask and kernel."""
    heads = [(32, 8, 128), (32, 8, 64), (8, 1, 128), (64, 8, 128), (32, 32, 128), (16, 16, 64)]
    lengths = [32] if sweep.tiny else [4096, 8192, 2048, 16384, 1024, 32768, 512]
    kernels = ["flash", "cudnn"] if sweep.device.type == "cuda" else ["math"]
    cases = [
        ((max(1, 8192 // seq_len), num_heads, num_kv, seq_len, head_dim), kernel, causal)
        for (num_heads, num_kv, head_dim), seq_len in product(heads, lengths)
        for kernel in kernels
        for causal in ((True, False) if seq_len <= 8192 else (True,))
    ]
    for shape, kernel, causal in cases[sweep.share]:
        if time.perf_counter() > deadline_s:
            return
        try:
            seconds = _time_attention(shape, kernel, causal, sweep.device)
        except RuntimeError as error:
            print(f"attention {kernel} {shape}: {str(error)[:150]}", flush=True)
            continue
        yield _attention_row(shape, kernel, causal, seconds)


def _time_attention(
    shape: tuple[int, int, int, int, int], kernel: str, causal: bool, device: torch.device
) -> tuple[float, float]:
    batch, num_heads, num_kv, seq_len, head_dim = shape
    make = partial(torch.randn, device=device, dtype=torch.bfloat16)
    q = make(batch, seq_len, num_heads, head_dim).transpose(1, 2).requires_grad_()
    k, v = (make(batch, seq_len, num_kv, head_dim).transpose(1, 2).requires_grad_() for _ in range(2))
    backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}[
        kernel
    ]
    call = partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal, enable_gqa=num_kv != num_heads)
    with sdpa_kernel(backend):
        forward_s = loop_s(lambda _: call(), device=device)
        out = call()
        grad = torch.randn_like(out)
        backward_s = loop_s(
            lambda _: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True), device=device, target_s=0.03
        )
    return forward_s, backward_s


def _attention_row(
    shape: tuple[int, int, int, int, int], kernel: str, causal: bool, seconds: tuple[float, float]
) -> Row:
    batch, num_heads, num_kv, seq_len, head_dim = shape
    full_flop = 4 * batch * num_heads * seq_len * seq_len * head_dim
    flop = full_flop / 2 if causal else full_flop
    return {
        "kernel": kernel, "causal": causal, "batch": batch, "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv, "seq_len": seq_len, "head_dim": head_dim,
        "forward_s": f"{seconds[0]:.4e}", "backward_s": f"{seconds[1]:.4e}",
        "forward_flop_per_s": f"{flop / seconds[0]:.4g}", "backward_flop_per_s": f"{2.5 * flop / seconds[1]:.4g}",
    }  # fmt: skip


def _backward_of(call: Callable[[], Tensor], inputs: tuple[Tensor, ...]) -> Callable[[int], object]:
    out = call()
    grad = torch.randn_like(out)
    return lambda _: torch.autograd.grad(out, inputs, grad, retain_graph=True)


def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _float_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels)


def _elementwise(
    device: torch.device, num_tokens: int, hidden_size: int
) -> Iterator[tuple[str, float, Callable[[int], object]]]:
    """``(name, bytes each element pass must move at least, action)``; bytes count each tensor once."""
    make = partial(torch.randn, device=device, dtype=torch.bfloat16)
    t, h = num_tokens, hidden_size
    f = h * 7 // 2
    x, y = make(t, h, requires_grad=True), make(t, h)
    weight = torch.ones(h, device=device, dtype=torch.bfloat16, requires_grad=True)
    yield "rmsnorm-forward", 4.0 * t * h, lambda _: F.rms_norm(x, (h,), weight)
    yield "rmsnorm-backward", 6.0 * t * h, _backward_of(lambda: F.rms_norm(x, (h,), weight), (x, weight))
    yield "residual-add", 6.0 * t * h, lambda _: x.detach() + y
    gate, up = make(t, f, requires_grad=True), make(t, f, requires_grad=True)
    yield "swiglu-forward", 6.0 * t * f, lambda _: _swiglu(gate, up)
    yield "swiglu-backward", 10.0 * t * f, _backward_of(lambda: _swiglu(gate, up), (gate, up))
    q = make(1, t, h // 128, 128, requires_grad=True)
    table = rotary_table(head_dim=128, seq_len=t, device=device)
    yield "rotary-complex-forward", 4.0 * t * h, lambda _: rotate(q, table)
    yield "rotary-complex-backward", 4.0 * t * h, _backward_of(lambda: rotate(q, table), (q,))
    yield "cast-fp32-to-bf16", 6.0 * t * h, partial(_cast, torch.randn(t, h, device=device))
    compiled = torch.compile(_swiglu, dynamic=False)
    yield "swiglu-compiled-forward", 6.0 * t * f, lambda _: compiled(gate, up)
    yield "swiglu-compiled-backward", 10.0 * t * f, _backward_of(lambda: compiled(gate, up), (gate, up))


def _cast(x: Tensor, _index: int) -> Tensor:
    return x.to(torch.bfloat16)


def _losses(
    device: torch.device, num_tokens: int, vocab_size: int
) -> Iterator[tuple[str, float, Callable[[int], object]]]:
    logits = torch.randn(num_tokens, vocab_size, device=device, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(vocab_size, (num_tokens,), device=device)
    size = float(num_tokens * vocab_size)
    for name, loss in (("", _float_loss), ("-compiled", torch.compile(_float_loss, dynamic=False))):
        call = partial(loss, logits, labels)
        yield f"cross-entropy{name}-forward", 2 * size, lambda _, call=call: call()
        out = call()
        backward = partial(torch.autograd.grad, out, (logits,), retain_graph=True)
        yield f"cross-entropy{name}-backward", 4 * size, lambda _, backward=backward: backward()


def _optimizers(device: torch.device, num_params: int) -> Iterator[tuple[str, float, Callable[[int], object]]]:
    for dtype, name, bytes_per_param in ((torch.float32, "fp32", 28), (torch.bfloat16, "bf16", 14)):
        for kernel in ("fused", "foreach"):
            params = [torch.randn(num_params // 16, device=device, dtype=dtype) for _ in range(16)]
            for p in params:
                p.grad = torch.randn_like(p)
            optimizer = torch.optim.AdamW(params, lr=1e-5, **{kernel: True})
            step = optimizer.step
            yield f"adamw-{kernel}-{name}", float(bytes_per_param * num_params), lambda _, step=step: step()


def _transfers(device: torch.device, num_bytes: int) -> Iterator[tuple[str, float, Callable[[int], object]]]:
    there = torch.empty(num_bytes, device=device, dtype=torch.uint8)
    other = torch.empty_like(there)
    yield "copy-device-to-device", 2.0 * num_bytes, lambda _: other.copy_(there)
    pinned = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    yield "copy-pinned-host-to-device", float(num_bytes), lambda _: there.copy_(pinned, non_blocking=True)
    yield "copy-device-to-pinned-host", float(num_bytes), lambda _: pinned.copy_(there, non_blocking=True)
    plain = torch.zeros(num_bytes, dtype=torch.uint8)
    yield "copy-pageable-host-to-device", float(num_bytes), lambda _: there.copy_(plain)
    small = torch.zeros(1, device=device)
    yield "launch-add-in-place", 0.0, lambda _: small.add_(1)


def bandwidth_rows(sweep: Sweep, deadline_s: float) -> Iterator[Row]:
    """Memory-bound work: seconds and bytes per second of each."""
    device, tiny = sweep.device, sweep.tiny
    sizes = [(64, 256)] if tiny else [(4096, 4096), (8192, 4096), (16384, 8192), (2048, 2048)]
    groups = [_transfers(device, 2**12 if tiny else 2**29)]
    groups += [_elementwise(device, t, h) for t, h in sizes]
    labels = [(0, 0), *sizes]
    for t, v in [(64, 96)] if tiny else [(4096, 128256), (8192, 128256), (4096, 32000)]:
        groups.append(_losses(device, t, v))
        labels.append((t, v))
    for n in [2**10] if tiny else [2**24, 2**28, 2**30]:
        groups.append(_optimizers(device, n))
        labels.append((n, 0))
    groups, labels = groups[sweep.share], labels[sweep.share]
    for group, (rows, columns) in zip(groups, labels, strict=True):
        for name, num_bytes, action in group:
            if time.perf_counter() > deadline_s:
                return
            seconds = loop_s(action, device=device, target_s=0.05)
            yield {
                "op": name, "rows": rows, "columns": columns, "bytes": int(num_bytes), "time_s": f"{seconds:.4e}",
                "bytes_per_s": f"{num_bytes / seconds:.4g}",
            }  # fmt: skip


def _write(path: Path, rows: Iterator[Row], share: str) -> None:
    count = 0
    with path.open("w", newline="") as file:
        writer = None
        for row in rows:
            if writer is None:
                writer = csv.DictWriter(file, fieldnames=[*row, "share"], lineterminator="\n")
                writer.writeheader()
            writer.writerow(row | {"share": share})
            file.flush()
            count += 1
    print(f"{path.name}: {count} rows", flush=True)


def main() -> None:
    """Run the sweeps, each within its part of the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--budget-s", type=float, default=500)
    parser.add_argument("--share", default="0/1", help="which part of the work, such as 0/4")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    functorch_config.donated_buffer = False  # backward is timed many times over one graph
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    first, step = map(int, args.share.split("/"))
    sweep = Sweep(device=device, tiny=args.tiny, share=slice(first, None, step))
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    started_s = time.perf_counter()
    _write(out / "attention.csv", attention_rows(sweep, started_s + 0.2 * args.budget_s), args.share)
    _write(out / "bandwidth.csv", bandwidth_rows(sweep, started_s + 0.4 * args.budget_s), args.share)
    _write(out / "gemm-sustained.csv", sustained_rows(device, args.tiny), args.share)
    _write(out / "gemm.csv", gemm_rows(sweep, started_s + args.budget_s), args.share)


if __name__ == "__main__":
    main()
