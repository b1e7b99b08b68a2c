"""Real processes with a gloo group between them, for tests: each runs one function and gives back what it returns."""

import importlib.util
import inspect
import os
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from train.preload import forks

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
TIMEOUT_S = 900
EXIT_S = 30
"""How long a rank that has answered may take to end before it is killed, which is no failure."""
GLOO_TIMEOUT = timedelta(seconds=600)


class RankFailedError(AssertionError):
    """A rank raised or died."""


def run_ranks(world_size: int, function: Callable[..., Any], *given: Any) -> list[Any]:
    """What ``function(rank, *given)`` returned on every rank."""
    with tempfile.TemporaryDirectory() as folder:
        processes, receivers = _start(world_size, function, given, folder)
        try:
            answers = [_receive(receiver, rank) for rank, receiver in enumerate(receivers)]
        finally:
            for process in processes:
                process.join(timeout=EXIT_S)
                process.kill()
                process.join()
    failed = [text for is_good, text in answers if not is_good]
    if failed:
        raise RankFailedError("\n".join(failed))
    return [value for _, value in answers]


def start_ranks(world_size: int, function: Callable[..., Any], *given: Any) -> list[Any]:
    """The processes of ranks that run ``function(rank, *given)``; what becomes of them is the caller's."""
    processes, receivers = _start(world_size, function, given, tempfile.mkdtemp(prefix="ranks-"))
    for process, receiver in zip(processes, receivers, strict=True):
        process.answer = receiver  # kept open as long as the process is looked at
    return processes


def _start(world_size, function, given, folder):
    context = forks()
    place = (inspect.getfile(function), function.__name__)
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    processes = [
        context.Process(target=_run, args=(rank, world_size, f"{folder}/store", pipes[rank][1], place, given))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    for _, sender in pipes:
        sender.close()
    return processes, [receiver for receiver, _ in pipes]


def _receive(receiver, rank):
    if not receiver.poll(TIMEOUT_S):
        return False, f"rank {rank} gave no answer in {TIMEOUT_S} s"
    try:
        return receiver.recv()
    except EOFError:
        return False, f"rank {rank} died"


def _load(path, name):
    """A function by the file it stands in: pytest's names for test modules mean nothing in another process."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _run(rank, world_size, store, sender, place, given):
    import torch
    import torch.distributed as dist

    os.environ.update(ENVIRONMENT, RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{Path(store)}", rank=rank, world_size=world_size, timeout=GLOO_TIMEOUT
    )
    try:
        sender.send((True, _load(*place)(rank, *given)))
    except BaseException as error:  # noqa: BLE001 - reported to the test
        import traceback

        sender.send((False, f"rank {rank}: {error!r}\n{traceback.format_exc()}"))
    finally:
        sender.close()
        dist.destroy_process_group()
