"""Updates under the next forward pass give bit for bit what updating everything at once gives."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from shardwise.train import late_updates
from shardwise.train.late_updates import HostLane, LateUpdates, StreamLane
from shardwise.train.unit_entries import UnitEntries
from train.models import MIXTRAL, make_job
from train.world_member import run

CASES = {
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}, {}),
    "zero 1": (2, {"dp_shard": 2, "zero_stage": 1}, {}),
    "zero 2": (2, {"dp_shard": 2, "zero_stage": 2}, {}),
    "fsdp": (2, {"dp_shard": 2}, {}),
    "fsdp that gathers two ahead": (2, {"dp_shard": 2, "prefetch_units": 2}, {}),
    "fsdp that gathers nothing ahead": (2, {"dp_shard": 2, "prefetch_units": 0}, {}),
    "spread and exchanged": (
        2,
        {"dp_shard": 2, "spread_vocabulary": True, "exchange_gradients": True},
        {"precision": "bf16-mixed"},
    ),
    "tp": (2, {"tp": 2, "sequence_parallel": True}, {}),
    "pipeline": (2, {"pp": 2}, {"chunk_layers": (2, 2)}),
    "interleaved": (2, {"pp": 2, "vpp": 2, "schedule": "interleaved"}, {"chunk_layers": (1, 1, 1, 1)}),
    "zbv": (2, {"pp": 2, "schedule": "zbv"}, {"chunk_layers": (1, 1, 1, 1)}),
    "zbv under fsdp": (
        2,
        {"pp": 2, "schedule": "zbv"},
        {"chunk_layers": (1, 1, 1, 1), "precision": "bf16-mixed"},
    ),
    "replicated, cast": (2, {"dp_shard": 2, "zero_stage": 0}, {"precision": "bf16-mixed"}),
    "experts": (2, {"dp_shard": 2, "ep": 2}, {"model": MIXTRAL}),
    "full recomputation": (2, {"dp_shard": 2}, {"recompute": "full"}),
    "lora": (2, {"dp_shard": 2}, {"adapter": "lora", "lora_targets": "all-linear"}),
    "fp16": (2, {"dp_shard": 2}, {"precision": "fp16-mixed"}),
    "sgd": (2, {"dp_shard": 2}, {"optimizer": "sgd-momentum"}),
    "lion": (2, {"dp_shard": 2}, {"optimizer": "lion"}),
    "adamw-8bit": (2, {"dp_shard": 2}, {"optimizer": "adamw-8bit"}),
    "adafactor": (2, {"dp_shard": 2}, {"optimizer": "adafactor"}),
}


@pytest.mark.parametrize("name", CASES)
def test_late_updates_give_the_same_curve_bit_for_bit(worlds, name):
    size, layout, choices = CASES[name]
    curves = [
        worlds[size].run(run, make_job(layout={**layout, "late_updates": is_late}, num_steps=4, **choices))
        for is_late in (True, False)
    ]
    assert curves[0] == curves[1]


class Lane(HostLane):
    """Writes down what happens when."""

    def __init__(self, said):
        self.said = said

    def run(self, work):
        work()
        return self.said[-1]

    def wait(self, end):
        self.said.append(f"wait for {end}")


@pytest.fixture
def late():
    """Four units of one weight each, and what is said of them."""
    said = []
    modules = [nn.Identity() for _ in range(4)]
    entries = [SimpleNamespace(local=nn.Parameter(torch.zeros(1))) for _ in modules]

    def update():
        (held,) = [number for number, entry in enumerate(entries) if entry.local.grad is not None]
        said.append(f"update {held}")

    units = [UnitEntries(module=module, entries=(entry,)) for module, entry in zip(modules, entries, strict=True)]
    updates = LateUpdates(units, update=update, lane=Lane(said), num_gathered_ahead=0)
    for entry in entries:
        entry.local.grad = torch.ones(1)
    updates.begin()
    return SimpleNamespace(updates=updates, modules=modules, entries=entries, said=said)


def test_a_unit_waits_for_its_own_update_and_two_more_are_under_way(late):
    late.modules[0](torch.zeros(1))
    assert late.said == ["update 0", "update 1", "update 2", "wait for update 0"]
    late.modules[1](torch.zeros(1))
    assert late.said[4:] == ["update 3", "wait for update 1"]


def test_gradients_are_held_until_what_follows_waits_for_their_update(late):
    assert all(entry.local.grad is None for entry in late.entries)
    assert len(late.updates.held_gradients) == 4
    late.modules[0](torch.zeros(1))
    assert len(late.updates.held_gradients) == 3


def test_settling_updates_all_that_is_left_once(late):
    late.modules[0](torch.zeros(1))
    late.updates.settle()
    late.updates.settle()
    assert [word for word in late.said if word.startswith("update")] == [f"update {n}" for n in range(4)]
    assert not late.updates.held_gradients


def test_every_stream_that_may_own_a_gradient_waits_until_it_was_read(monkeypatch):
    """An allocator short of memory asks only the stream that a freed block was made on whether it is idle."""
    said = []

    class End:
        """In place of an event, which needs a GPU."""

    def stream(name):
        return SimpleNamespace(wait_event=lambda _end: said.append(name))

    names = ("all_gather_copy_in_stream", "reduce_scatter_stream", "all_reduce_stream")
    state = SimpleNamespace(_comm_ctx=SimpleNamespace(**{name: stream(name) for name in names}))
    cuda = SimpleNamespace(Event=End, current_stream=lambda: stream("computing"))
    monkeypatch.setattr(late_updates.torch, "cuda", cuda)
    lane = StreamLane.__new__(StreamLane)
    lane.roots = [SimpleNamespace(_get_fsdp_state=lambda: state)]
    lane.wait(End())
    assert said == ["computing", *names]
