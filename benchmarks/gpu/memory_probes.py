"""Single-GPU probes: the context, cuBLAS workspaces, what a block saves, what the loss and the optimizers hold.

``python3 benchmarks/gpu/memory_probes.py --out probes.jsonl``; one JSON line per probe, ``--tiny`` without a GPU.
"""

import argparse
import json
import subprocess
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from decoder import Block, Shape, rotary_table
from memory_build import _recomputed
from memory_configs import HIDDEN_2048, HIDDEN_4096, HIDDEN_4096_MHA, TINY, MemoryRun
from memory_meter import StepRecorder, allocated_bytes, clean, outside_allocator_bytes
from memory_runs import environment
from torch import Tensor, nn

Record = dict[str, object]


def _smi_used_mib() -> int | None:
    try:
        text = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=30, check=True,
        ).stdout  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return int(text.splitlines()[0])


def probe_context(device: torch.device, _tiny: bool) -> Record:
    """Device memory before CUDA starts, with an empty context, and as kernels and libraries are loaded."""
    readings: Record = {"smi_before_mib": _smi_used_mib()}
    if device.type != "cuda":
        return readings
    kept: list[object] = []

    def read(name: str) -> None:
        torch.cuda.synchronize(device)
        readings[name] = {
            "outside_allocator_bytes": outside_allocator_bytes(device),
            "allocated_bytes": allocated_bytes(device),
            "smi_used_mib": _smi_used_mib(),
        }

    kept.append(torch.empty(1, device=device))
    read("empty_tensor")
    x = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16, requires_grad=True)
    read("random_tensor")
    y = x @ x
    read("matmul_forward")
    y.sum().backward()
    read("matmul_backward")
    F.linear(x, x, bias=x[0]).sum().backward()
    read("linear_with_bias")
    q = torch.randn(1, 8, 1024, 128, device=device, dtype=torch.bfloat16, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    read("flash_attention")
    return readings


def probe_cublas(device: torch.device, _tiny: bool) -> Record:
    """Workspace the allocator hands to cuBLAS in the main thread and in the autograd thread."""
    clean(device)
    x = torch.randn(256, 256, device=device, dtype=torch.bfloat16, requires_grad=True)
    start = allocated_bytes(device)
    y = x @ x
    forward = allocated_bytes(device) - start - y.untyped_storage().nbytes()
    y.backward(y.detach())
    backward = allocated_bytes(device) - start - 3 * y.untyped_storage().nbytes()
    return {"after_forward_bytes": forward, "after_backward_bytes_upper": backward}


def _make_block(kind: str, shape: Shape, seq_len: int, device: torch.device) -> tuple[nn.Module, tuple[object, ...]]:
    if kind == "decoder":
        with torch.device(device):
            block = Block(shape)
        return block, (rotary_table(head_dim=shape.head_dim, seq_len=seq_len, device=device),)
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=shape.hidden_size, intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_attention_heads, num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim, attn_implementation="sdpa", vocab_size=96,
    )  # fmt: skip
    with torch.device(device):
        layer, rotary = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)
    return layer.train(), (rotary,)


def _call(kind: str, block: nn.Module, x: Tensor, extra: tuple[object, ...]) -> Tensor:
    if kind == "decoder":
        return block(x, *extra)
    position_ids = torch.arange(x.shape[1], device=x.device)[None]
    return block(x, position_embeddings=extra[0](x, position_ids), position_ids=position_ids)


class SavedTensors:
    """Unique storages that autograd keeps, the parameters left out."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self._parameters = {p.untyped_storage().data_ptr() for p in parameters}
        self.kept: dict[int, tuple[int, str, tuple[int, ...]]] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        """Called by autograd for every tensor it saves."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._parameters:
            found = (storage.nbytes(), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            self.kept.setdefault(storage.data_ptr(), found)
        return tensor

    def as_groups(self) -> list[Record]:
        """Equal storages together, largest group first."""
        groups = sorted(Counter(self.kept.values()).items(), key=lambda item: -item[0][0] * item[1])
        return [{"bytes": b, "dtype": d, "shape": s, "count": n} for (b, d, s), n in groups if b >= 1024]


def probe_saved(
    device: torch.device,
    tiny: bool,
    *,
    kind: str,
    shape: Shape,
    precision: str,
    compiled: bool,
    recompute: str = "none",
    seq_len: int = 4096,
) -> Record:
    """What the second of two blocks saves for backward, tensor by tensor, and what it leaves allocated."""
    clean(device)
    shape, seq_len = (TINY, 32) if tiny else (shape, seq_len)
    run = MemoryRun(name="probe", recompute=recompute)
    blocks = [_make_block(kind, shape, seq_len, device) for _ in range(2)]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    modules = [_recomputed(block.to(dtype), run) for block, _ in blocks]
    if compiled:
        modules = [torch.compile(block, fullgraph=kind == "decoder", dynamic=False) for block in modules]
    extra = blocks[0][1]
    autocast = torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16-mixed" else nullcontext()
    x = torch.randn(1, seq_len, shape.hidden_size, device=device, dtype=dtype, requires_grad=True)
    first = _call(kind, modules[0], x, extra)
    first.sum().backward()
    clean_ahead = x.detach().requires_grad_()
    with autocast:
        h = _call(kind, modules[0], clean_ahead, extra)
        saved = SavedTensors(list(modules[1].parameters()))
        before = allocated_bytes(device)
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, lambda tensor: tensor):
            out = _call(kind, modules[1], h, extra)
        left = allocated_bytes(device) - before
    groups = saved.as_groups()
    denominator = seq_len * shape.hidden_size
    del out, h
    return {
        "kind": kind, "hidden_size": shape.hidden_size, "intermediate_size": shape.intermediate_size,
        "num_key_value_heads": shape.num_key_value_heads, "num_attention_heads": shape.num_attention_heads,
        "seq_len": seq_len, "precision": precision, "compile": compiled, "recompute": recompute,
        "saved_bytes": sum(g["bytes"] * g["count"] for g in groups),
        "left_allocated_bytes": left,
        "left_allocated_bytes_per_token_and_hidden": left / denominator,
        "saved": groups,
    }  # fmt: skip


def _loss_plain(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels)


def _loss_bf16(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def _loss_ignoring(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels, ignore_index=-100, reduction="sum") / labels.numel()


def probe_loss(
    device: torch.device, tiny: bool, *, name: str, loss: Callable[[Tensor, Tensor], Tensor], keep_logits: bool = False
) -> Record:
    """Bytes per logit while the loss is computed and while its gradient reaches the logits (head included)."""
    clean(device)
    num_tokens, hidden_size, vocab_size = (64, 32, 96) if tiny else (4096, 2048, 128256)
    head = torch.randn(vocab_size, hidden_size, device=device, dtype=torch.bfloat16, requires_grad=True)
    x = torch.randn(num_tokens, hidden_size, device=device, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(vocab_size, (num_tokens,), device=device)
    readings: list[Record] = []
    for _ in range(3):
        head.grad = x.grad = None
        recorder = StepRecorder(device)
        base = allocated_bytes(device)
        recorder.start()
        logits = F.linear(x, head)
        recorder.mark("head")
        value = loss(logits, labels)
        kept = logits if keep_logits else None
        del logits
        recorder.mark("loss")
        value.backward()
        recorder.mark("backward")
        recorder.finish()
        del kept
        per_logit = {
            f"{phase}_{key.removesuffix('_allocated_bytes')}": round((value_ - base) / (num_tokens * vocab_size), 3)
            for phase, record in recorder.phases.items()
            for key, value_ in record.items()
            if key.endswith("_allocated_bytes")
        }
        times = {f"{phase}_s": record.get("time_s") for phase, record in recorder.phases.items()}
        readings.append({"bytes_per_logit": per_logit} | times)
    grads = 2 * (num_tokens + vocab_size) * hidden_size / (num_tokens * vocab_size)
    return {
        "loss": name, "num_tokens": num_tokens, "hidden_size": hidden_size, "vocab_size": vocab_size,
        "input_and_head_gradient_bytes_per_logit": round(grads, 3), **readings[-1],
    }  # fmt: skip


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-5, fused=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-5, foreach=True),
    "adamw-for-loop": lambda p: torch.optim.AdamW(p, lr=1e-5, foreach=False),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=1e-5, fused=True),
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=1e-5, foreach=True),
    "sgd-momentum-fused": lambda p: torch.optim.SGD(p, lr=1e-5, momentum=0.9, fused=True),
    "sgd-momentum-foreach": lambda p: torch.optim.SGD(p, lr=1e-5, momentum=0.9, foreach=True),
    "adafactor-foreach": lambda p: torch.optim.Adafactor(p, lr=1e-5, foreach=True),
    "adafactor-for-loop": lambda p: torch.optim.Adafactor(p, lr=1e-5, foreach=False),
    "muon": lambda p: torch.optim.Muon([w for w in p if w.dim() == 2], lr=1e-5),
}


def probe_optimizer(device: torch.device, tiny: bool, *, name: str, dtype: torch.dtype) -> Record:
    """States and peak temporaries over the weights of four blocks, as multiples of the parameter bytes."""
    clean(device)
    shape = TINY if tiny else HIDDEN_4096
    with torch.device(device):
        blocks = nn.ModuleList(Block(shape) for _ in range(4)).to(dtype)
    params = list(blocks.parameters())
    param_bytes = sum(p.numel() * p.element_size() for p in params)
    optimizer = OPTIMIZERS[name](params)
    before_state = 0
    recorder = StepRecorder(device)
    for _ in range(3):
        for p in params:
            p.grad = torch.randn_like(p)
        before_state = allocated_bytes(device)
        recorder = StepRecorder(device)
        recorder.start()
        optimizer.step()
        recorder.mark("optimizer")
        recorder.finish()
    states = [v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v)]
    state_bytes = sum(v.numel() * v.element_size() for v in states if v.device.type == device.type)
    phase = recorder.phases["optimizer"]
    largest = max(p.numel() * p.element_size() for p in params)
    return {
        "optimizer": name, "dtype": str(dtype).removeprefix("torch."), "parameter_bytes": param_bytes,
        "largest_parameter_bytes": largest, "state_bytes": state_bytes,
        "state_dtypes": sorted({f"{v.dtype}".removeprefix("torch.") for v in states}),
        "temporary_bytes": phase.get("peak_allocated_bytes", 0) - before_state, "time_s": phase.get("time_s"),
    }  # fmt: skip


def probe_clip(device: torch.device, tiny: bool) -> Record:
    """Temporaries of ``clip_grad_norm_`` over fp32 gradients."""
    clean(device)
    params = [torch.randn(64 if tiny else 2**24, device=device, requires_grad=True) for _ in range(8)]
    for p in params:
        p.grad = torch.randn_like(p)
    before = allocated_bytes(device)
    recorder = StepRecorder(device)
    recorder.start()
    torch.nn.utils.clip_grad_norm_(params, 1.0, foreach=True)
    recorder.mark("clip")
    recorder.finish()
    peak = recorder.phases["clip"].get("peak_allocated_bytes", 0)
    return {"gradient_bytes": 8 * 2**26, "temporary_bytes": peak - before}


def _probes() -> list[tuple[str, Callable[[torch.device, bool], Record]]]:
    saved: list[tuple[str, Callable[[torch.device, bool], Record]]] = []
    for kind in ("decoder", "transformers"):
        for precision in ("bf16-mixed", "bf16"):
            for compiled in (False, True):
                probe = partial(probe_saved, kind=kind, shape=HIDDEN_4096, precision=precision, compiled=compiled)
                saved.append((f"saved-{kind}-{precision}{'-compile' if compiled else ''}", probe))
    for shape, name in ((HIDDEN_2048, "h2048"), (HIDDEN_4096_MHA, "mha7b")):
        probe = partial(probe_saved, kind="decoder", shape=shape, precision="bf16", compiled=False)
        saved.append((f"saved-decoder-bf16-{name}", probe))
    for recompute in ("full", "selective"):
        for compiled in (False, True):
            probe = partial(probe_saved, kind="decoder", shape=HIDDEN_4096, precision="bf16", compiled=compiled,
                            recompute=recompute)  # fmt: skip
            saved.append((f"saved-decoder-bf16-{recompute}{'-compile' if compiled else ''}", probe))
    losses = [
        ("loss-float", partial(probe_loss, name="cross_entropy(logits.float())", loss=_loss_plain)),
        ("loss-float-kept", partial(probe_loss, name="the same, logits kept", loss=_loss_plain, keep_logits=True)),
        ("loss-bf16", partial(probe_loss, name="cross_entropy(logits)", loss=_loss_bf16)),
        ("loss-sum", partial(probe_loss, name="sum / count, ignore_index", loss=_loss_ignoring)),
        ("loss-compiled", partial(probe_loss, name="torch.compile of the first", loss=torch.compile(_loss_plain))),
    ]
    optimizers = [
        (f"optimizer-{name}-{dtype}", partial(probe_optimizer, name=name, dtype=dtype))
        for name in OPTIMIZERS
        for dtype in (torch.float32, torch.bfloat16)
    ]
    return [("context", probe_context), ("cublas", probe_cublas), *losses, *optimizers, ("clip", probe_clip), *saved]


def main() -> None:
    """Run every probe in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    with Path(args.out).open("a") as file:
        for name, probe in _probes():
            line: Record = {"schema": "shardwise.gpu-memory-probe/1", "name": name}
            try:
                line["result"] = probe(device, args.tiny)
            except Exception as error:  # noqa: BLE001  (recorded; the other probes go on)
                line["error"] = "".join(traceback.format_exception(error)[-2:])[-800:]
                print(f"{name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            line["environment"] = environment(device)
            file.write(json.dumps(line) + "\n")
            file.flush()
    print("probes done", flush=True)


if __name__ == "__main__":
    main()
