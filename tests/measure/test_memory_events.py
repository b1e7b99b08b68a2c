"""Allocations of one step, replayed: traces with known answers."""

import json

import pytest

from measure.made_up_traces import AUTOGRAD, MAIN, mark
from shardwise.measure.memory_events import memory_sample
from shardwise.measure.phase_marks import BLOCK, FORWARD, LOSS, OPTIMIZER

HELD = {"parameters": 1000, "optimizer": 2000}
MARKS = [
    mark(FORWARD, 10, 40),
    mark("FSDP::all_gather (layers.0)", 11, 13),
    mark(LOSS, 30, 40),
    mark("FSDP::post_backward_reduce (layers.0)", 50, 55, thread=AUTOGRAD),
    mark(OPTIMIZER, 60, 70),
]


class Allocations:
    """Events as the profiler writes them, with the total that it keeps."""

    def __init__(self, *, device_type=0, total=0):
        self.device_type, self.total, self.events = device_type, total, []

    def __call__(self, moment, address, num_bytes, *, thread=MAIN):
        self.total += num_bytes
        facts = {"Addr": address, "Bytes": num_bytes, "Total Allocated": self.total, "Device Type": self.device_type}
        self.events.append({"ph": "i", "name": "[memory]", "tid": thread, "ts": moment, "args": facts})


def sample(tmp_path, allocations, *, device="cpu", held=HELD, marks=()):
    path = tmp_path / "memory.json"
    path.write_text(json.dumps({"traceEvents": [*MARKS, *marks, *allocations.events]}), encoding="utf-8")
    return memory_sample(path, device=device, held_bytes=held)


@pytest.fixture
def one_step():
    """300 gathered, 50 kept, 20 dropped within forward, 70 of logits; backward makes 40 that stay, 30 that go."""
    take = Allocations()
    take(12, 1, 300)
    take(15, 2, 50)
    take(16, 3, 20)
    take(17, 3, -20)
    take(31, 4, 70)
    take(39, 4, -70)
    take(41, 5, 30, thread=AUTOGRAD)
    take(42, 6, 500, thread=AUTOGRAD)
    take(43, 6, -500, thread=AUTOGRAD)
    take(51, 7, 40, thread=AUTOGRAD)
    take(52, 5, -30, thread=AUTOGRAD)
    take(53, 2, -50, thread=AUTOGRAD)
    take(54, 1, -300, thread=AUTOGRAD)
    take(61, 8, 10)
    take(62, 8, -10)
    take(65, 7, -40)
    return take


def test_the_peak_is_named_component_by_component(tmp_path, one_step):
    found = sample(tmp_path, one_step)
    assert (found.peak_bytes, found.peak_phase) == (3880, "backward")
    assert dict(found.components_bytes) == {
        "parameters": 1000,
        "optimizer": 2000,
        "gathered_parameters": 300,
        "activations": 50,
        "communication_buffers": 30,
        "temporaries": 500,
    }


def test_every_phase_has_its_own_peak(tmp_path, one_step):
    phases = dict(sample(tmp_path, one_step).phases_bytes)
    assert phases == {"forward": 3370, "loss": 3420, "backward": 3880, "optimizer": 3050}


def test_every_component_has_a_high_water_mark_of_its_own(tmp_path, one_step):
    most = dict(sample(tmp_path, one_step).most_bytes)
    assert (most["activations"], most["logits"], most["gradients"], most["temporaries"]) == (50, 70, 40, 500)
    assert (most["parameters"], most["optimizer"]) == (1000, 2000)


def test_what_a_block_computes_again_is_an_activation_until_backward_drops_it(tmp_path):
    take = Allocations()
    take(15, 1, 5)
    take(45, 2, 60, thread=AUTOGRAD)
    take(45.5, 3, 7, thread=AUTOGRAD)
    take(46, 3, -7, thread=AUTOGRAD)
    take(52, 2, -60, thread=AUTOGRAD)
    assert dict(sample(tmp_path, take, marks=[mark(BLOCK, 44, 47, thread=AUTOGRAD)]).most_bytes)["activations"] == 65


def test_what_outlives_backward_is_a_gradient(tmp_path):
    take = Allocations()
    take(15, 1, 5)
    take(51, 7, 40, thread=AUTOGRAD)
    take(65, 7, -40)
    assert dict(sample(tmp_path, take).components_bytes)["gradients"] == 40


def test_the_gradient_that_the_loss_makes_is_kept_for_backward_and_then_a_gradient(tmp_path):
    """90 made beside 70 of logits; the first event of backward hands it over, the optimizer frees it."""
    take = Allocations()
    take(15, 1, 5)
    take(31, 4, 70)
    take(35, 7, 90)
    take(39, 4, -70)
    take(45, 2, 1000, thread=AUTOGRAD)
    take(46, 2, -1000, thread=AUTOGRAD)
    take(53, 1, -5, thread=AUTOGRAD)
    take(65, 7, -90)
    found = sample(tmp_path, take)
    assert dict(found.most_bytes)["activations"] == 95
    assert dict(found.most_bytes)["gradients"] == 90
    assert (dict(found.components_bytes)["activations"], dict(found.components_bytes)["gradients"]) == (5, 90)
    assert sum(dict(found.components_bytes).values()) == found.peak_bytes == 3000 + 1095


def test_states_that_the_first_step_makes_are_the_optimizers(tmp_path):
    take = Allocations()
    take(15, 1, 5)
    take(61, 2, 700)
    take(62, 3, 60)
    take(63, 3, -60)
    take(64, 1, -5)
    found = sample(tmp_path, take, held={"parameters": 1000})
    assert dict(found.components_bytes) == {"parameters": 1000, "optimizer": 700, "temporaries": 60, "activations": 5}


def test_a_free_that_was_not_recorded_shows_when_its_place_is_used_again(tmp_path):
    take = Allocations()
    take(15, 1, 100)
    take(16, 1, 30)
    assert sample(tmp_path, take).peak_bytes == 3100


def test_what_a_thread_of_gloo_freed_counts_until_the_second_block_after_it(tmp_path):
    """600 sent and freed unseen, 10 and 20 after it, and 500 later: 3,530 at most, not 4,130."""
    take = Allocations()
    take(15, 1, 600)
    take(16, 2, 10)
    take(17, 3, 20)
    take(35, 4, 500)
    take(45, 4, -500)
    take(46, 2, -10)
    take(47, 3, -20)
    found = sample(tmp_path, take)
    assert found.peak_bytes == 3000 + 610
    assert dict(found.phases_bytes)["loss"] == 3530


def test_a_gpu_counts_from_what_its_allocator_held(tmp_path):
    """512 bytes of it have no name; the batch of the step before, 12 of them, is freed first."""
    take = Allocations(device_type=1, total=3512)
    take(11, 99, -12)
    take(15, 1, 100)
    found = sample(tmp_path, take, device="cuda")
    assert found.peak_bytes == 3600
    assert dict(found.components_bytes) == {
        "parameters": 1000,
        "optimizer": 2000,
        "activations": 100,
        "temporaries": 500,
    }


def test_a_trace_without_allocations_of_the_device_says_nothing(tmp_path, one_step):
    assert sample(tmp_path, one_step, device="cuda") is None
