"""One block with its collectives where they happen: literal seconds that can be added up by hand."""

from dataclasses import replace

import pytest

from shardwise.predict.block_parts import Branch, Direction, Part
from shardwise.predict.block_tasks import BlockHabits, backward_tasks, forward_tasks
from shardwise.predict.block_time import block_time, block_waits_s
from shardwise.predict.tensor_parallel_tasks import TensorHabits
from shardwise.simulate.engine import Task


def part(forward_s=0.0, backward_s=0.0, weight_s=0.0, products=1):
    def direction(total_s):
        return Direction(total_s=total_s, products_s=total_s, pieces_s=total_s, num_products=products)

    return Part(forward=direction(forward_s), backward=direction(backward_s), weight_backward_s=weight_s)


def attention(**parts):
    """Norm 1, inputs 4, core 8, outputs 2 s forward; backward 1, 4 + 3, 10, 2 + 2 s."""
    default = {
        "norm": part(1.0, 1.0),
        "inputs": part(4.0, 4.0, 3.0),
        "core": part(8.0, 10.0),
        "outputs": part(2.0, 2.0, 2.0),
    }
    return Branch(name="attention", parts=default | parts)


FORWARD_S, BACKWARD_S = 15.0, 22.0


def call(kind, duration_s, *, axis="tp", name=None, ratio=1.0):
    return Task(name=name or kind, category=kind, stream=axis, duration_s=duration_s, slowdown_ratio=ratio)


def habits(*, overlaps=False, is_async=False, cp=1, ranks=4, hides_combine=False):
    tensor = TensorHabits(ranks=ranks, overlaps_gradients=overlaps, is_async=is_async)
    return BlockHabits(tensor=tensor, cp=cp, hides_combine=hides_combine)


def forward(branches, calls, own, *, compute_s=FORWARD_S):
    return block_time(forward_tasks(branches, calls, own), compute_s=compute_s)


def backward(branches, calls, own, *, compute_s=BACKWARD_S):
    return block_time(backward_tasks(branches, calls, own), compute_s=compute_s)


def exposed(run):
    return {one.name: one.exposed_s for one in run.exposed}


def names(run):
    return [task.name for task in run.tasks]


def test_a_divided_sequence_is_gathered_before_its_products_and_summed_after_them():
    run = forward([attention()], [call("all_gather", 5.0), call("reduce_scatter", 6.0)], habits())
    assert names(run) == [
        "attention norm",
        "all_gather",
        "attention inputs",
        "attention",
        "attention outputs",
        "reduce_scatter",
    ]
    assert run.duration_s == 15.0 + 5.0 + 6.0
    assert exposed(run) == {"all_gather": 5.0, "reduce_scatter": 6.0}


def test_torch_waits_for_every_collective_of_a_backward():
    run = backward([attention()], [call("all_gather", 1.0), call("reduce_scatter", 5.0)], habits())
    assert run.duration_s == 22.0 + 6.0
    assert names(run)[:3] == ["all_gather", "attention outputs", "attention outputs weights"]
    assert names(run)[-3:] == ["reduce_scatter", "attention inputs weights", "attention norm"]


def test_megatron_gathers_beside_the_input_gradient_and_reduces_beside_the_weight_gradient():
    """Gather 1, outputs 4, core 10; gather 2 under 4; reduction 5 over weights 3; norm 1: 25 with 1 + 2 exposed."""
    calls = [call("all_gather", 1.0), call("all_gather", 2.0), call("reduce_scatter", 5.0)]
    run = backward([attention()], calls, habits(overlaps=True))
    assert run.duration_s == 1.0 + 4.0 + 10.0 + 4.0 + 5.0 + 1.0
    assert exposed(run) == {"all_gather": pytest.approx(1.0), "reduce_scatter": pytest.approx(2.0)}


def test_without_a_divided_sequence_megatron_reduces_the_input_gradient_beside_the_weight_gradient():
    """All-reduce 2 under weights 3."""
    run = backward([attention()], [call("all_reduce", 2.0)], habits(overlaps=True))
    assert run.duration_s == 22.0
    assert exposed(run) == {}


def test_what_runs_at_once_is_slowed_on_both_sides():
    """1.5 while both run: an all-reduce of 2 takes 3, in which 2 of the 3 s of weights are done; 1 is left."""
    run = backward([attention()], [call("all_reduce", 2.0, ratio=1.5)], habits(overlaps=True))
    assert run.duration_s == pytest.approx(23.0)
    assert exposed(run)["all_reduce"] == pytest.approx(1.0)


def test_frozen_weights_leave_nothing_to_hide_under():
    frozen = attention(inputs=part(4.0, 4.0), outputs=part(2.0, 2.0))
    run = backward([frozen], [call("all_reduce", 2.0)], habits(overlaps=True), compute_s=17.0)
    assert exposed(run) == {"all_reduce": 2.0}


@pytest.mark.parametrize(("hop_s", "attention_s"), [(1.5, 8.0), (3.0, 11.0)])
def test_a_ring_hides_every_hop_under_the_piece_before(hop_s, attention_s):
    """Four pieces of 2 s: hops of 1.5 s fit; with 3 s each hop is waited for, then the last piece."""
    run = forward([attention()], [call("send_recv", hop_s, axis="cp")] * 3, habits(cp=4))
    assert run.duration_s == 7.0 + attention_s
    assert names(run).count("send_recv") == 3


def test_in_backward_the_gradients_of_keys_and_values_come_home_last():
    """Two pieces of 5 s; a hop of 4 s is 2 s of keys and values, hidden, and 2 s of their gradients, after the end."""
    run = backward([attention()], [call("send_recv", 4.0, axis="cp")], habits(cp=2))
    assert run.duration_s == 22.0 + 2.0
    assert names(run).count("send_recv") == 2


def test_gathered_keys_and_values_are_needed_by_the_second_piece():
    """Own piece 2 s beside a gather of 5, then 6 s of the other three."""
    run = forward([attention()], [call("all_gather", 5.0, axis="cp")], habits(cp=4))
    assert run.duration_s == 7.0 + 5.0 + 6.0
    assert exposed(run) == {"all_gather": pytest.approx(3.0)}


def test_the_gradients_of_gathered_keys_and_values_follow_one_piece_behind():
    """Own piece 5 s over a gather of 4; the first hop of 3 s beside the other 5, and the last after it."""
    calls = [call("all_gather", 4.0, axis="cp"), *[call("send_recv", 3.0, axis="cp")] * 2]
    run = backward([attention()], calls, habits(cp=2))
    assert run.duration_s == 22.0 + 3.0
    assert exposed(run) == {"send_recv": pytest.approx(3.0)}


def test_a_compiler_that_traces_the_ring_hides_nothing():
    """Gather of 4 s, then two pieces of 5 s with a hop of 3 s after each (torch ``_maybe_wrap_tensor``)."""
    calls = [call("all_gather", 4.0, axis="cp"), *[call("send_recv", 3.0, axis="cp")] * 2]
    traced = replace(habits(cp=2), traces_context=True)
    assert backward([attention()], calls, traced).duration_s == 22.0 + 4.0 + 2 * 3.0
    assert forward([attention()], calls[:1], traced).duration_s == forward([attention()], [], traced).duration_s + 4.0


def test_ulysses_exchanges_before_and_after_attention():
    run = forward([attention()], [call("all_to_all", 3.0, axis="cp"), call("all_to_all", 1.0, axis="cp")], habits(cp=4))
    steps = [(task.name, task.duration_s) for task in run.tasks][2:5]
    assert steps == [("all_to_all", 3.0), ("attention", 8.0), ("all_to_all", 1.0)]
    assert exposed(run) == {"all_to_all": 4.0}


def routed():
    parts = {
        "norm": part(1.0, 1.0),
        "inputs": part(2.0, 2.0),
        "experts": part(10.0, 12.0, 8.0),
        "shared experts": part(4.0, 4.0, 4.0),
        "outputs": part(1.0, 1.0),
    }
    return Branch(name="feed-forward", parts=parts)


EXCHANGES = [
    call("all_to_all", 3.0, axis="ep", name="expert dispatch"),
    call("all_to_all", 5.0, axis="ep", name="expert combine"),
]


def test_tokens_go_to_their_experts_and_back():
    run = forward([routed()], EXCHANGES, habits(), compute_s=18.0)
    assert names(run) == [
        "feed-forward norm",
        "routing",
        "shared experts",
        "expert dispatch",
        "experts",
        "expert combine",
        "combined experts",
    ]
    assert exposed(run) == {"expert dispatch": 3.0, "expert combine": 5.0}


def test_shared_experts_hide_part_of_the_way_back():
    """Combine 5 s over 4 s of shared experts."""
    run = forward([routed()], EXCHANGES, habits(hides_combine=True), compute_s=18.0)
    assert run.duration_s == 18.0 + 3.0 + 1.0
    assert exposed(run) == {"expert dispatch": pytest.approx(3.0), "expert combine": pytest.approx(1.0)}


def test_backward_goes_the_other_way():
    run = backward([routed()], EXCHANGES, habits(), compute_s=32.0)
    assert names(run)[:4] == ["combined experts", "expert combine", "experts", "expert dispatch"]


@pytest.mark.parametrize(("work_s", "call_s", "took_s"), [(8.0, 3.0, 8.0), (4.0, 6.0, 7.0)])
def test_a_gather_in_pieces_waits_for_one_piece_of_the_product(work_s, call_s, took_s):
    """max(work, call + work / 4): the last piece of four follows the whole gather."""
    branch = attention(inputs=part(work_s))
    run = forward(
        [branch],
        [call("all_gather", call_s), call("reduce_scatter", 0.0)],
        habits(is_async=True),
        compute_s=11 + work_s,
    )
    assert run.duration_s == 11.0 + took_s


def test_torchs_pass_hides_nothing_of_a_backward():
    """Gather 4 and reduction 4 are waited for, whatever the products beside them."""
    calls = [call("all_gather", 4.0), call("reduce_scatter", 4.0)]
    assert backward([attention()], calls, habits(is_async=True)).duration_s == 22.0 + 8.0


def test_user_buffers_gather_before_a_row_parallel_product_in_pieces_and_leave_the_rest_as_it_was():
    """Of the gather of 1.2 s all but what outlasts the pieces of 2 s: 0.5 s for the last of four. The others stand as
    without: 2 under the input gradient, and a reduction of 5 over weights of 3."""
    calls = [call("all_gather", 1.2), call("all_gather", 2.0), call("reduce_scatter", 5.0)]
    plain = backward([attention()], calls, habits(overlaps=True))
    pieces = backward([attention()], calls, habits(overlaps=True, is_async=True))
    assert plain.duration_s == 22.0 + 1.2 + 2.0
    assert pieces.duration_s == 22.0 + 2.0


def test_a_sum_of_several_products_is_not_reduced_in_pieces():
    """torch fuses a reduce-scatter with the one product that makes its input."""
    calls = [call("all_gather", 0.0), call("reduce_scatter", 4.0)]
    several = attention(outputs=part(4.0, 4.0, 3.0, products=3))
    one = attention(outputs=part(4.0, 4.0, 3.0, products=1))
    assert forward([several], calls, habits(is_async=True), compute_s=17.0).duration_s == 21.0
    assert forward([one], calls, habits(is_async=True), compute_s=17.0).duration_s == 17.0 + 1.0


def test_a_call_without_a_place_is_waited_for_at_the_end():
    run = forward([attention()], [call("broadcast", 2.0, axis="ep")], habits())
    assert names(run)[-1] == "broadcast"
    assert run.duration_s == 17.0


def test_a_block_whose_pieces_are_shorter_than_its_whole_products_waits_for_no_less_than_nothing():
    """16 s of products that take 15 s in pieces, and half a second of calls, one after the other."""
    run = forward([attention()], [call("all_gather", 0.5)], habits(), compute_s=16.0)
    assert run.duration_s == 16.0
    assert exposed(run) == {"all_gather": 0.0}
    assert block_waits_s(run.tasks, compute_s=16.0) == 0.0
