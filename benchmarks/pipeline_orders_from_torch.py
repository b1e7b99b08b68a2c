"""Write the orders that ``torch.distributed.pipelining`` makes, for the tests to compare ours with.

Run with a Python that has torch (2.13 made the committed files; the package itself never imports it):

    python benchmarks/pipeline_orders_from_torch.py tests/schedules/data

One process plays every rank with the fake process group; only ``pipeline_order`` of the schedule classes is read.
``pipeline_orders.txt`` holds small orders in full, ``pipeline_order_digests.csv`` a digest of many more.
"""

import csv
import hashlib
import logging
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import PipelineStage
from torch.testing._internal.distributed.fake_pg import FakeStore

CLASSES = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "looped-bfs": schedules.ScheduleLoopedBFS,
    "zb-h1": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "dualpipev": schedules.ScheduleDualPipeV,
}
SINGLE = ("gpipe", "1f1b")
V_SHAPED = ("zbv", "dualpipev")
DEGREES = (2, 3, 4, 5, 8, 11, 16)
CHUNKS = (2, 3, 4)
FULL_TEXT = {(2, 1), (2, 2), (4, 1), (4, 2), (3, 3)}


def main(folder: Path) -> None:
    """Write both files."""
    logging.disable(logging.WARNING)
    full, digests = [f"# torch {torch.__version__}\n"], []
    for name in CLASSES:
        for pp in DEGREES:
            with_group(pp)
            for vpp in (1,) if name in SINGLE else (2,) if name in V_SHAPED else CHUNKS:
                for m in micro_batch_counts(pp):
                    lines = order_lines(name, pp, vpp, m)
                    if lines is None:
                        continue
                    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
                    digests.append((name, pp, vpp, m, digest))
                    if (pp, vpp) in FULL_TEXT and m in (pp, 2 * pp, 2 * pp + 1, 10):
                        full.append(f"{name} pp={pp} vpp={vpp} m={m}\n" + "".join(f"{line}\n" for line in lines))
            dist.destroy_process_group()
    (folder / "pipeline_orders.txt").write_text("\n".join(full), encoding="utf-8")
    with (folder / "pipeline_order_digests.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("schedule", "pp", "vpp", "num_microbatches", "sha256_16"))
        writer.writerows(digests)


def with_group(pp: int) -> None:
    """A fake process group of ``pp`` ranks."""
    dist.init_process_group(backend="fake", rank=0, world_size=pp, store=FakeStore())


def micro_batch_counts(pp: int) -> list[int]:
    """Few, just enough, odd and many micro-batches."""
    return sorted({1, 2, 3, pp, pp + 1, 2 * pp - 1, 2 * pp, 2 * pp + 1, 10, 3 * pp, 5 * pp, 31, 64})


def order_lines(name: str, pp: int, vpp: int, num_microbatches: int) -> list[str] | None:
    """A line per rank, or ``None`` where torch refuses the combination."""
    indices = (0, 2 * pp - 1) if name in V_SHAPED else tuple(range(0, pp * vpp, pp))
    stages = [PipelineStage(torch.nn.Identity(), index, pp * vpp, torch.device("cpu")) for index in indices]
    try:
        made = CLASSES[name](stages[0] if name in SINGLE else stages, num_microbatches, loss_fn=loss)
    except (ValueError, AssertionError):
        return None
    orders = made._get_pipeline_order() if name in SINGLE else made.pipeline_order
    return [" ".join(texts(orders[rank])) for rank in range(pp)]


def texts(order: list) -> list[str]:
    """The passes of a rank; idle slots and gradient reductions left out."""
    return [
        str(action).removesuffix("OVERLAP_F_B")
        for action in order
        if action is not None and action.computation_type.value != "REDUCE_GRAD"
    ]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Never called."""
    return (output - target).sum()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
