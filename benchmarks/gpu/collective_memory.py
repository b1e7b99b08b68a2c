"""Device memory that NCCL takes: first collective, each further group, first all-to-all, point to point.

``torchrun --standalone --nproc-per-node 2 benchmarks/gpu/collective_memory.py --out nccl.jsonl``
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from memory_build import device_of_rank
from memory_meter import allocated_bytes, outside_allocator_bytes
from memory_runs import environment

NUM_ELEMENTS = 32 * 2**20


def _exchange(x: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    """Send to the next rank, receive from the one before."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    received = torch.empty_like(x)
    operations = [
        dist.P2POp(dist.isend, x, (rank + 1) % size, group),
        dist.P2POp(dist.irecv, received, (rank - 1) % size, group),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _measure(device: torch.device, backend: str) -> list[dict[str, object]]:
    readings: list[dict[str, object]] = []
    size = dist.get_world_size()
    x = torch.ones(NUM_ELEMENTS, device=device, dtype=torch.bfloat16)
    shard = torch.empty(NUM_ELEMENTS // size, device=device, dtype=torch.bfloat16)
    other = torch.empty_like(x)

    def read(name: str, action: Callable[[], object] | None = None) -> None:
        if action is not None:
            action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        reading = {"after": name, "outside_allocator_bytes": outside_allocator_bytes(device)}
        readings.append(reading | {"allocated_bytes": allocated_bytes(device)})

    read("process group made")
    read("first all-reduce", lambda: dist.all_reduce(x))
    read("second all-reduce", lambda: dist.all_reduce(x))
    read("all-gather", lambda: dist.all_gather_into_tensor(other, shard))
    read("reduce-scatter", lambda: dist.reduce_scatter_tensor(shard, x))
    read("all-to-all", lambda: dist.all_to_all_single(other, x))
    read("send-receive", lambda: _exchange(x, None))
    for index in (2, 3, 4):
        group = dist.new_group(list(range(size)), backend=backend)
        read(f"group {index} made")
        read(f"group {index} all-reduce", lambda group=group: dist.all_reduce(x, group=group))
        read(f"group {index} all-gather", lambda group=group: dist.all_gather_into_tensor(other, shard, group=group))
        read(f"group {index} send-receive", lambda group=group: _exchange(x, group))
    return readings


def main() -> None:
    """Measure on every rank; rank 0 writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--lazy", action="store_true", help="no device_id: the communicator is made at first use")
    args = parser.parse_args()
    device = device_of_rank()
    backend = "nccl" if device.type == "cuda" else "gloo"
    before = None
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        before = outside_allocator_bytes(device)
    options = {"device_id": device} if device.type == "cuda" and not args.lazy else {}
    dist.init_process_group(backend, **options)
    record = {"before_process_group_bytes": before, "readings": _measure(device, backend)}
    records: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(records, record)
    if dist.get_rank() == 0:
        nccl_settings = {key: value for key, value in os.environ.items() if key.startswith("NCCL_")}
        line = {
            "schema": "shardwise.gpu-memory-probe/1",
            "name": "nccl-lazy" if args.lazy else "nccl",
            "result": {"num_ranks": len(records), "nccl_settings": nccl_settings, "ranks": records},
            "environment": environment(device),
        }
        with Path(args.out).open("a") as file:
            file.write(json.dumps(line) + "\n")
        print("nccl memory done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
