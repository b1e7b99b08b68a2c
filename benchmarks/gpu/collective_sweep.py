"""Times NCCL collectives by size, and products and collectives that run at the same time.

``torchrun --standalone --nproc-per-node 2 benchmarks/gpu/collective_sweep.py --out collectives.csv``
``size_bytes`` is the payload as in nccl-tests: the whole buffer of every rank for an all-reduce or all-to-all, the
gathered buffer for an all-gather, the buffer before reduction for a reduce-scatter, the message for send-receive.
"""

import argparse
import csv
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from collective_memory import _exchange
from memory_build import device_of_rank
from timing import _wall_s

Row = dict[str, object]
FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


def _actions(size_bytes: int, dtype: torch.dtype, device: torch.device) -> dict[str, Callable[[int], object]]:
    size = dist.get_world_size()
    count = max(size, size_bytes // dtype.itemsize)
    whole = torch.ones(count, device=device, dtype=dtype)
    other = torch.empty_like(whole)
    shard = torch.ones(count // size, device=device, dtype=dtype)
    return {
        "all_reduce": lambda _: dist.all_reduce(
            whole, op=dist.ReduceOp.AVG if device.type == "cuda" else dist.ReduceOp.SUM
        ),
        "all_gather": lambda _: dist.all_gather_into_tensor(other, shard),
        "reduce_scatter": lambda _: dist.reduce_scatter_tensor(shard, whole),
        "all_to_all": lambda _: dist.all_to_all_single(other, whole),
        "send_recv": lambda _: _exchange(whole, None),
        "one_way_send": lambda _: _one_way(whole),
    }


def _one_way(x: torch.Tensor) -> None:
    """Rank 0 sends, rank 1 receives: a pipeline boundary."""
    if dist.get_rank() == 0:
        dist.send(x, 1)
    elif dist.get_rank() == 1:
        dist.recv(x, 0)


def _agreed_s(action: Callable[[int], object], device: torch.device, count: int) -> float:
    """The slowest rank's median, after a common start."""
    for index in range(3):
        action(index)
    times = []
    for _ in range(3):
        dist.barrier()
        times.append(_wall_s(action, count, device) / count)
    slowest = torch.tensor(statistics.median(times), device=device, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def collective_rows(device: torch.device, tiny: bool) -> Iterator[Row]:
    """Every collective, 1 KiB to 1 GiB."""
    size = dist.get_world_size()
    for exponent in range(10, 14 if tiny else 31):
        size_bytes = 2**exponent
        count = 50 if size_bytes <= 2**20 else max(5, 2**27 // size_bytes)
        for dtype, name in ((torch.bfloat16, "bf16"), (torch.float32, "fp32")):
            actions = _actions(size_bytes, dtype, device)
            for op, action in actions.items():
                if name == "fp32" and op not in ("all_reduce", "reduce_scatter"):
                    continue
                seconds = _agreed_s(action, device, count)
                factor = FACTORS.get(op, size / (size - 1)) * (size - 1) / size
                yield {
                    "op": op, "dtype": name, "num_ranks": size, "size_bytes": size_bytes, "time_s": f"{seconds:.4e}",
                    "algorithm_bytes_per_s": f"{size_bytes / seconds:.4g}",
                    "bus_bytes_per_s": f"{factor * size_bytes / seconds:.4g}",
                }  # fmt: skip


def contention_rows(device: torch.device, tiny: bool) -> Iterator[Row]:
    """Seconds per product and per collective, alone and together on two streams."""
    if device.type != "cuda":
        return
    m, n, k = (64, 64, 64) if tiny else (4096, 14336, 4096)
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    w = torch.randn(n, k, device=device, dtype=torch.bfloat16)
    side = torch.cuda.Stream(device)
    for op in ("all_gather", "reduce_scatter", "all_reduce"):
        action = _actions(2**28, torch.bfloat16, device)[op]
        product_s = _agreed_s(lambda _: x @ w.t(), device, 200)
        collective_s = _agreed_s(action, device, 60)
        num_collectives = max(1, round(200 * product_s / collective_s))

        def both(_index: int, action: Callable[[int], object] = action, count: int = num_collectives) -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for index in range(count):
                    action(index)
            for _ in range(200):
                x @ w.t()
            torch.cuda.current_stream().wait_stream(side)

        together_s = _agreed_s(both, device, 1)
        yield {
            "op": op, "num_ranks": dist.get_world_size(), "size_bytes": 2**28,
            "m": m, "n": n, "k": k, "num_products": 200,
            "num_collectives": num_collectives, "product_s": f"{product_s:.4e}", "collective_s": f"{collective_s:.4e}",
            "together_s": f"{together_s:.4e}",
            "slowdown_ratio": f"{together_s / max(200 * product_s, num_collectives * collective_s):.3f}",
        }  # fmt: skip


def _write(path: Path, rows: Iterator[Row]) -> None:
    kept = list(rows)
    if dist.get_rank() == 0 and kept:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(kept[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
        print(f"{path.name}: {len(kept)} rows", flush=True)


def main() -> None:
    """Run both sweeps; rank 0 writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    device = device_of_rank()
    options = {}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        options = {"device_id": device}
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", **options)
    out = Path(args.out)
    _write(out, collective_rows(device, args.tiny))
    _write(out.with_name(f"{out.stem}-contention.csv"), contention_rows(device, args.tiny))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
