"""What scripts that train a suite of runs in one set of processes share: options, the loop, the file of results.

A run that fails is written with its error and ends the processes, because the other ranks may wait in a collective;
started again with the same ``--out``, a script goes on behind it.
"""

import argparse
import gc
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from train_models import TINY
from train_suites import SUITES, TrainRun

import shardwise.train.worker

COLLECTIVE_TIMEOUT = timedelta(seconds=30)
EXIT_OF_A_FAILED_RUN = 17
Line = dict[str, object]


def add_suite_options(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Which runs, where, and until when."""
    parser.add_argument("--suite", choices=sorted(SUITES), default=default)
    parser.add_argument("--only", help="comma-separated names")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpu", default="h100-sxm")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--deadline", type=float, default=0.0, help="seconds since the epoch")
    parser.add_argument("--ranks-imagined", type=int, help="one process as rank 0 of so many; nothing is communicated")


def join_processes(arguments: argparse.Namespace) -> torch.device:
    """The device of this rank, in a group that all have joined."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if arguments.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if arguments.ranks_imagined:
        imagine_ranks(arguments.ranks_imagined)
        return device
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=COLLECTIVE_TIMEOUT)
    dist.all_reduce(torch.ones(1, device=device))
    return device


def imagine_ranks(world_size: int) -> None:
    """Rank 0 of ``world_size`` in this process alone: it holds what it would hold, and what others send is not there.

    Memory is that of a real run. Losses are not, so that none is looked at; neither are times.
    """
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    shardwise.train.worker.require_number = lambda record, *, spec: None  # noqa: ARG005
    make_group = dist.new_group

    def fake_group(*given: object, backend: str | None = None, **options: object) -> object:
        del backend
        return make_group(*given, **options)  # type: ignore[arg-type]

    dist.new_group = fake_group  # type: ignore[assignment]


def train_suite(arguments: argparse.Namespace, device: torch.device, run_one: Callable[[TrainRun], bool]) -> None:
    """Every run of the suite that is not in the file yet, until the deadline; the first that fails ends the process."""
    for run in _left(arguments, device):
        if not run_one(replace(run, model=TINY[run.model]) if arguments.tiny else run):
            os._exit(EXIT_OF_A_FAILED_RUN)
        _forget(device)
    dist.destroy_process_group()


def _left(arguments: argparse.Namespace, device: torch.device) -> Iterator[TrainRun]:
    done = names_done(arguments.out)
    only = {arguments.only, *arguments.only.split(",")} if arguments.only else None
    for run in SUITES[arguments.suite]:
        if run.name in done or (only is not None and run.name not in only):
            continue
        late = torch.tensor(float(arguments.deadline and time.time() > arguments.deadline), device=device)
        dist.all_reduce(late, op=dist.ReduceOp.MAX)
        if late.item():
            return
        yield run


def _forget(device: torch.device) -> None:
    """Free what the last run left."""
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def written(line: Line, out: Path, fill: Callable[[Line], None]) -> bool:
    """Whether ``fill`` could say of a run what was measured; its line, or its error, is in the file then."""
    try:
        fill(line)
    except (Exception, torch.OutOfMemoryError) as error:  # noqa: BLE001 - a failed run is a result
        line["error"] = f"{type(error).__name__}: {error}"[:1500]
        line["where"] = traceback.format_exc()[-2500:]
        if line["name"] not in names_done(out):
            write_line(out, line)
        return False
    if dist.get_rank() == 0:
        write_line(out, line)
    return True


def names_done(out: Path) -> set[str]:
    """Runs that are in the file already."""
    if not out.exists():
        return set()
    return {json.loads(line)["name"] for line in out.read_text(encoding="utf-8").splitlines() if line.strip()}


def write_line(out: Path, line: Line) -> None:
    """Append one result; rank 0's, or that of the rank that failed first."""
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def device_name(device: torch.device) -> str:
    """What this ran on."""
    return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}" if device.type == "cuda" else "cpu"
