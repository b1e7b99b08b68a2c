"""One marked step in the ledger's components: traces with known answers."""

import pytest

from measure.made_up_traces import AUTOGRAD, collective, kernel, mark, trace_text
from shardwise.measure.gloo_kinds import with_asked_kinds
from shardwise.measure.phase_marks import BLOCK, FORWARD, OPTIMIZER
from shardwise.measure.rank_trace import read_rank_trace
from shardwise.measure.step_sample import SampledRun, mean_sample, sample_of, sample_of_trace

PLAIN = SampledRun()
US = 1e-6


def gpu_step():
    """Forward 10 us, recomputation 5, backward 20, optimizer 7; one gather of which 4 us are exposed; 3 us idle."""
    return [
        mark("ProfilerStep#4", 0, 100),
        mark(FORWARD, 0, 20),
        mark(BLOCK, 1, 5),
        mark(BLOCK, 31, 36, thread=AUTOGRAD),
        mark(OPTIMIZER, 60, 90),
        *kernel("gemm_forward", 10, 20, launch=2),
        *kernel("gemm_again", 20, 25, launch=32, thread=AUTOGRAD),
        *kernel("gemm_backward", 25, 45, launch=40, thread=AUTOGRAD),
        *collective("ncclDevKernel_AllGather_RING_LL(x)", 43, 49, launch=41, thread=AUTOGRAD, word="_allgather_base"),
        *kernel("adam", 52, 59, launch=51 + 10),
    ]


def sample(tmp_path, events, run=PLAIN):
    path = tmp_path / "trace-rank-0.json"
    path.write_text(trace_text(events), encoding="utf-8")
    return sample_of_trace(path, run, step=4, rank=0)


def test_computation_belongs_to_the_phase_that_launched_it(tmp_path):
    found = sample(tmp_path, gpu_step())
    parts = dict(found.components_s)
    assert found.step_s == pytest.approx(49 * US)
    assert parts["forward"] == pytest.approx(10 * US)
    assert parts["recompute"] == pytest.approx(5 * US)
    assert parts["backward"] == pytest.approx(20 * US)
    assert parts["optimizer"] == pytest.approx(7 * US)
    assert parts["exposed_communication"] == pytest.approx(4 * US)
    assert parts["other"] == pytest.approx(3 * US)
    assert sum(parts.values()) == pytest.approx(found.step_s)


def test_an_update_under_forward_costs_what_no_computation_of_forward_covers(tmp_path):
    events = [
        mark("ProfilerStep#4", 0, 100),
        mark(FORWARD, 0, 20),
        mark(OPTIMIZER, 2, 4),
        *kernel("adam", 6, 14, launch=3),
        *kernel("gemm_forward", 10, 20, launch=5),
    ]
    parts = dict(sample(tmp_path, events).components_s)
    assert parts["forward"] == pytest.approx(10 * US)
    assert parts["optimizer"] == pytest.approx(4 * US)


def test_families_say_work_and_what_of_it_is_exposed(tmp_path):
    (family,) = sample(tmp_path, gpu_step()).families
    assert (family.kind, family.num_calls) == ("all_gather", 1)
    assert family.work_s == pytest.approx(6 * US)
    assert family.exposed_s == pytest.approx(4 * US)


def test_exposed_messages_between_stages_are_the_bubble(tmp_path):
    events = [
        mark("ProfilerStep#4", 0, 100),
        *kernel("gemm", 0, 10, launch=0),
        *collective("ncclDevKernel_SendRecv(x)", 10, 16, launch=5, word="recv"),
    ]
    parts = dict(sample(tmp_path, events, SampledRun(has_pipeline=True)).components_s)
    assert parts["pipeline_bubble"] == pytest.approx(6 * US)
    assert parts["exposed_communication"] == pytest.approx(0)


@pytest.mark.parametrize(("has_offload", "name"), [(True, "offload"), (False, "other")])
def test_exposed_copies_cost_offload_only_where_there_is_some(tmp_path, has_offload, name):
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 0, "tid": 7, "ts": 10, "dur": 5, "args": {}}
    events = [mark("ProfilerStep#4", 0, 100), *kernel("gemm", 0, 10, launch=0), copy]
    parts = dict(sample(tmp_path, events, SampledRun(has_offload=has_offload)).components_s)
    assert parts[name] == pytest.approx(5 * US)


def test_the_mean_over_ranks_is_taken_part_by_part(tmp_path):
    one = sample(tmp_path, gpu_step())
    slow = sample(tmp_path, [*gpu_step(), *kernel("late", 59, 69, launch=62)])
    mean = mean_sample([one, slow])
    assert mean.step_s == pytest.approx(54 * US)
    assert dict(mean.components_s)["optimizer"] == pytest.approx(12 * US)
    assert mean.families[0].work_s == pytest.approx(6 * US)


def operator(name, start, end, *, thread=100):
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": end - start}


def host_step(*, asked=("c10d::_reduce_scatter_base_", "c10d::allreduce_")):
    """On CPUs: backward waits inside autograd's own range for a reduce-scatter, which gloo calls all-reduce."""
    return [
        mark("ProfilerStep#4", 0, 100),
        mark(FORWARD, 0, 20),
        operator("aten::linear", 5, 15),
        operator("autograd::engine::evaluate_function: MmBackward0", 20, 60),
        operator("MmBackward0", 21, 59),
        operator("aten::mm", 22, 30),
        *(operator(name, 30 + index, 31 + index) for index, name in enumerate(asked)),
        mark("gloo:all_reduce", 31, 50, thread=7),
        mark("gloo:all_reduce", 60, 64, thread=7),
    ]


def test_waiting_inside_autograd_is_no_computation(tmp_path):
    found = sample(tmp_path, host_step())
    parts = dict(found.components_s)
    assert parts["forward"] == pytest.approx(10 * US)
    assert parts["backward"] == pytest.approx(8 * US)
    assert parts["exposed_communication"] == pytest.approx(23 * US)


def test_gloo_is_called_by_what_torch_asked_of_it(tmp_path):
    kinds = {family.kind: family.work_s for family in sample(tmp_path, host_step()).families}
    assert kinds == {"reduce_scatter": pytest.approx(19 * US), "all_reduce": pytest.approx(4 * US)}


def test_gloo_keeps_its_own_names_where_the_requests_cannot_be_matched(tmp_path):
    path = tmp_path / "trace-rank-0.json"
    path.write_text(trace_text(host_step(asked=("c10d::_reduce_scatter_base_",))), encoding="utf-8")
    trace = with_asked_kinds(read_rank_trace(path))
    assert {family.kind for family in sample_of(trace, PLAIN, step=4).families} == {"all_reduce"}
