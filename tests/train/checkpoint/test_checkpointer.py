import os
import resource
import signal
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint.checkpointer import CheckpointRequest, DistributedCheckpointer
from shardwise.train.checkpoint.folder import CheckpointFolder, find_checkpoint
from shardwise.train.draws import seed_of_step
from train.ranks import RankFailedError, run_ranks

WIDTH = 24
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Weights:
    def __init__(self, model):
        self.model = model

    def state_dict(self):
        return get_model_state_dict(self.model)

    def load_state_dict(self, state):
        set_model_state_dict(self.model, state)


class Moments:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        return get_optimizer_state_dict(self.model, self.optimizer, options=FLAT)

    def load_state_dict(self, state):
        set_optimizer_state_dict(self.model, self.optimizer, state, options=FLAT)


class Place:
    def __init__(self):
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


class Run:
    """A small model with dropout under FSDP2 (or HSDP), trained on data made from a global position."""

    def __init__(self, request, *, replicas=1, width=WIDTH):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(width, 3 * width), nn.Dropout(0.1), nn.ReLU(), nn.Linear(3 * width, width))
        world_size = dist.get_world_size()
        mesh = init_device_mesh("cpu", (replicas, world_size // replicas), mesh_dim_names=("dp_replicate", "dp_shard"))
        if replicas == 1:
            mesh = mesh["dp_shard"]
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.place = Place()
        self.states = {
            "model": Weights(self.model),
            "optimizer": Moments(self.model, self.optimizer),
            "data": self.place,
        }
        self.checkpointer = DistributedCheckpointer(request)

    def without_dropout(self):
        self.model[1].p = 0.0
        return self

    def steps(self, first, last, *, global_batch_size=8):
        losses = []
        for step in range(first, last):
            rows = torch.randn(global_batch_size, WIDTH, generator=torch.Generator().manual_seed(self.place.position))
            self.place.position += global_batch_size
            mine = rows.chunk(dist.get_world_size())[dist.get_rank()]
            torch.manual_seed(seed_of_step(seed=1, stage=0, copy=dist.get_rank(), step=step))
            loss = (self.model(mine) - mine).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            total = loss.detach().clone()
            dist.all_reduce(total)
            losses.append(float(total) / dist.get_world_size())
            self.checkpointer.after_step(step + 1, self.states)
        return losses


def _whole(rank, folder, is_async):
    """Ten steps in one go, saved after every fourth."""
    run = Run(CheckpointRequest(folder=folder, every_steps=4, is_async=is_async, num_kept=3))
    losses = run.steps(0, 10)
    run.checkpointer.finish(10, run.states)
    return losses


def _continued(rank, folder, from_step):
    run = Run(CheckpointRequest(resume_from=folder / f"step-{from_step:08d}"))
    first = run.checkpointer.load(run.states)
    return first, run.place.position, run.steps(first, 10)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_resuming_on_the_same_layout_is_bit_for_bit(tmp_path, is_async):
    """Dropout is on; what it draws follows from rank and step."""
    whole = run_ranks(2, _whole, tmp_path, is_async)[0]
    assert [checkpoint.step for checkpoint in CheckpointFolder(tmp_path).complete()] == [4, 8, 10]
    for first, position, losses in run_ranks(2, _continued, tmp_path, 4):
        assert (first, position) == (4, 32)
        assert losses == whole[4:]


def _without_dropout(rank, folder, replicas):
    request = CheckpointRequest(folder=folder, every_steps=4, num_kept=9)
    run = Run(request, replicas=replicas).without_dropout()
    losses = run.steps(0, 8)
    run.checkpointer.finish(8, run.states)
    return losses


def _continued_elsewhere(rank, folder, replicas):
    run = Run(CheckpointRequest(resume_from=folder / "step-00000004"), replicas=replicas).without_dropout()
    return run.steps(run.checkpointer.load(run.states), 8)


def test_resuming_on_other_layouts_agrees_within_rounding(tmp_path):
    """FSDP over two ranks goes on over four, as HSDP 2x2, and on one."""
    whole = run_ranks(2, _without_dropout, tmp_path, 1)[0]
    for world_size, replicas in ((4, 1), (4, 2), (1, 1)):
        losses = run_ranks(world_size, _continued_elsewhere, tmp_path, replicas)[0]
        assert losses == pytest.approx(whole[4:], rel=2e-6)


def _saved_while_changing(rank, folder):
    """Weights are overwritten right after an asynchronous save began."""
    run = Run(CheckpointRequest(folder=folder, is_async=True))
    run.steps(0, 1)
    before = run.model[0].weight.full_tensor().clone()
    run.checkpointer.save(1, run.states)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.mul_(0)
    run.checkpointer.finish(1, run.states)
    again = Run(CheckpointRequest(resume_from=folder))
    again.checkpointer.load(again.states)
    return bool((again.model[0].weight.full_tensor() == before).all())


def test_an_asynchronous_save_holds_the_state_of_the_step_it_began_in(tmp_path):
    assert run_ranks(2, _saved_while_changing, tmp_path) == [True, True]


class Counts(Place):
    """A state that has learned to count something since."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def state_dict(self):
        return {"position": self.position, "count": self.count}

    def load_state_dict(self, state):
        self.position, self.count = state["position"], state.get("count", 0)


def _loaded_by_what_counts_more(rank, folder):
    run = Run(CheckpointRequest(folder=folder))
    run.steps(0, 1)
    run.checkpointer.finish(1, run.states)
    again = Run(CheckpointRequest(resume_from=folder))
    again.states["data"] = Counts()
    again.checkpointer.load(again.states)
    return again.states["data"].position, again.states["data"].count


def test_a_checkpoint_from_before_something_was_counted_loads(tmp_path):
    assert run_ranks(2, _loaded_by_what_counts_more, tmp_path) == [(8, 0)] * 2


def _killed_while_saving(rank, folder):
    run = Run(CheckpointRequest(folder=folder, is_async=True))
    run.steps(0, 1)
    run.checkpointer.save(1, run.states)
    run.checkpointer.finish(1, run.states)
    run.checkpointer._publisher = _Slow()
    run.steps(1, 2)
    run.checkpointer.save(2, run.states)
    os.kill(os.getpid(), signal.SIGKILL)


class _Slow:
    """A publisher that has not got round to it."""

    def submit(self, function, *given):
        from concurrent.futures import Future

        return Future()


def test_ranks_killed_while_saving_leave_the_checkpoint_before(tmp_path):
    with pytest.raises(RankFailedError, match="died"):
        run_ranks(2, _killed_while_saving, tmp_path)
    assert find_checkpoint(tmp_path).step == 1
    for first, position, losses in run_ranks(2, _continued, tmp_path, 1):
        assert (first, position, len(losses)) == (1, 8, 9)


def _file_too_large(rank, folder, is_async):
    """The second save meets a limit on the size of files, which the system reports as it reports a full disk."""
    run = Run(CheckpointRequest(folder=folder, every_steps=1, is_async=is_async))
    run.steps(0, 1)
    run.checkpointer._wait()
    if rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        run.steps(1, 2)
        run.checkpointer.finish(2, run.states)
    except CheckpointError as error:
        return error.code, error.message
    return "nothing", ""


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_full_disk_on_one_rank_ends_all_and_keeps_the_last_checkpoint(tmp_path, is_async):
    answers = run_ranks(2, _file_too_large, tmp_path, is_async)
    assert [code for code, _ in answers] == ["checkpoint-disk-full"] * 2
    assert all("rank 1 could not write" in message for _, message in answers)
    assert all("step-00000001 is whole and kept" in message for _, message in answers)
    assert find_checkpoint(tmp_path).step == 1


def _saved(rank, folder):
    run = Run(CheckpointRequest(folder=folder))
    run.steps(0, 1)
    run.checkpointer.finish(1, run.states)


def _other_model(rank, folder):
    run = Run(CheckpointRequest(resume_from=folder), width=32)
    try:
        run.checkpointer.load(run.states)
    except CheckpointError as error:
        return error.message
    return "loaded"


def test_a_checkpoint_of_another_model_is_refused_by_name_and_shape(tmp_path):
    run_ranks(1, _whole, tmp_path, False)
    (message,) = run_ranks(1, _other_model, tmp_path)
    assert message.startswith("model.0.weight is (72, 24) in ")
    assert message.endswith("and (96, 32) in this run")


def _resumed(rank, folder):
    run = Run(CheckpointRequest(resume_from=folder))
    try:
        run.checkpointer.load(run.states)
    except CheckpointError as error:
        return error.code, error.message
    return "loaded", ""


def test_one_wrong_byte_of_a_tensor_is_found_by_all_ranks(tmp_path):
    """With a number in place of a number, no reader would notice: a parameter would be NaN."""
    run_ranks(2, _saved, tmp_path)
    path = find_checkpoint(tmp_path).path / "__1_0.distcp"
    content = path.read_bytes()
    assert run_ranks(2, _resumed, tmp_path) == [("loaded", "")] * 2
    place = next(
        place
        for index, place in FileSystemReader(path.parent).read_metadata().storage_data.items()
        if index.fqn == "model.0.weight" and place.relative_path == path.name
    )
    middle = place.offset + place.length // 2
    path.write_bytes(content[:middle] + b"\xff\xff\xc0\x7f" + content[middle + 4 :])
    for code, message in run_ranks(2, _resumed, tmp_path):
        assert code == "checkpoint-damaged"
        assert f"step 1 is damaged: {path} holds other bytes of model.0.weight than were written" in message


def test_training_goes_on_while_an_asynchronous_save_is_written(tmp_path):
    """A save returns before its files are complete: it is the writing that takes long, not the copy."""
    (order,) = run_ranks(1, _order_of_events, tmp_path)
    assert order == ["save returned", "step done", "published"]


def _order_of_events(rank, folder):
    run = Run(CheckpointRequest(folder=folder, is_async=True))
    run.steps(0, 1)
    events = []
    publish = CheckpointFolder.publish

    is_step_done = threading.Event()

    def late(self, step, **named):
        is_step_done.wait(300)
        events.append("published")
        return publish(self, step, **named)

    CheckpointFolder.publish = late
    run.checkpointer.save(1, run.states)
    events.append("save returned")
    run.steps(1, 2)
    events.append("step done")
    is_step_done.set()
    run.checkpointer.finish(1, run.states)
    return events
