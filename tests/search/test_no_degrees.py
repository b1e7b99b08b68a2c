"""Bounds that leave no layout say which of them contradict each other, and each fix that they name has layouts."""

import pytest

from shardwise.errors import LayoutError
from shardwise.search import IntRange, SearchBounds
from shardwise.search.space import Space


def only(*degrees):
    return IntRange(low=min(degrees), high=max(degrees), values=degrees)


def refusal_of(question, **bounds):
    with pytest.raises(LayoutError) as refusal:
        Space(question=question, bounds=SearchBounds(**bounds)).degrees()
    assert refusal.value.code == "search-bounds"
    return refusal.value.message, refusal.value.fix


ONES = {"cp": only(1), "dp_replicate": only(1), "dp_shard": only(1)}
CASES = [
    (
        {"tp": only(8), "pp": only(2)},
        "tp=8 * pp=2 = 16 is more than 8 GPUs",
        "allow tp=1,2,4, or allow pp=1, or take a multiple of 16 GPUs",
    ),
    ({"tp": only(3)}, "tp=3 allows no degree that divides 8 GPUs", "allow degrees that divide 8: 1, 2, 4, 8"),
    (
        {"tp": IntRange(low=4, high=8), "pp": only(4, 8)},
        "no product of degrees with tp=4..8, pp=4,8 divides 8 GPUs",
        "allow tp=1,2, or allow pp=1,2",
    ),
    (
        {"tp": only(2), "pp": only(2), **ONES},
        "tp=2 * cp=1 * pp=2 * dp_replicate=1 * dp_shard=1 = 4 is less than 8 GPUs, "
        "and no degree is left for the others",
        "allow tp=4, or allow cp=2, or allow pp=4, or allow dp_replicate=2, or allow dp_shard=2, or take 4 GPUs",
    ),
    (
        {"stage_layers": (8, 8, 8, 8), "tp": only(4)},
        "tp=4 * pp=4 of stage_layers = 16 is more than 8 GPUs",
        "allow tp=1,2, or give stage_layers 1,2 stages, or take a multiple of 16 GPUs",
    ),
    (
        {"tp": only(8), "vpp": only(2)},
        "no product of degrees with tp=8, pp=2.. of vpp=2 divides 8 GPUs",
        "allow tp=1,2,4",
    ),
    (
        {"pp": only(1), "vpp": only(2)},
        "vpp=2 needs a pipeline, and pp=1 is none",
        "allow pp=2 or more, or leave out vpp and schedule",
    ),
    (
        {"pp": only(1), "schedule": ("zbv", "interleaved")},
        "schedule=zbv,interleaved needs a pipeline, and pp=1 is none",
        "allow pp=2 or more, or leave out vpp and schedule",
    ),
]


@pytest.mark.parametrize(("bounds", "message", "fix"), CASES)
def test_what_conflicts_is_named_with_what_would_not(make_question, bounds, message, fix):
    assert refusal_of(make_question(), **bounds) == (message, fix)


def test_degrees_that_do_not_divide_are_told_from_too_many(make_question):
    message, _ = refusal_of(make_question(cluster="3xdgx-h100", global_batch_size=24), tp=only(4), cp=only(4))
    assert message == "tp=4 * cp=4 = 16 does not divide 24 GPUs"


def test_one_gpu_is_no_pipeline(make_question):
    message, fix = refusal_of(make_question(cluster="1xh100-sxm"), vpp=only(2))
    assert message == "vpp=2 needs a pipeline, and 1 GPU is one stage"
    assert fix == "take more GPUs, or leave out vpp and schedule"
