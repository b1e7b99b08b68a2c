"""Micro-batches in flight of every schedule."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwise.schedules.table import SCHEDULE_KINDS, SCHEDULES
from shardwise.step.in_flight import in_flight_micro_batches


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp", "expected"),
    [
        ("gpipe", 4, 1, [16, 16, 16, 16]),
        ("1f1b", 4, 1, [4, 3, 2, 1]),
        ("interleaved", 4, 2, [5.5, 4.5, 3.5, 2.5]),
        ("interleaved", 4, 4, [4.75, 4.25, 3.75, 3.25]),
        ("interleaved", 8, 2, [11.5, 10.5, 9.5, 8.5, 7.5, 6.5, 5.5, 4.5]),
        ("zb-h1", 4, 1, [4, 4, 4, 4]),
        ("zb-h2", 4, 1, [7, 7, 7, 7]),
        ("zbv", 4, 1, [4, 4, 4, 4]),
        ("dualpipev", 4, 1, [4.5, 4.5, 4.5, 4.5]),
    ],
)
def test_worst_moments_of_each_stage_with_sixteen_micro_batches(schedule, pp, vpp, expected):
    """arXiv:2104.04473 section 2.2, arXiv:2401.10241 section 2.3 and an event simulation of each schedule."""
    found = [
        in_flight_micro_batches(schedule=schedule, stage=stage, pp=pp, vpp=vpp, num_microbatches=16)
        for stage in range(pp)
    ]
    assert found == expected


def test_a_longer_round_keeps_more_micro_batches():
    """arXiv:2104.04473, section 2.2: (v - 1) g + 2 (p - stage - 1) + 1 chunks of half a stage, 12 with g = 5."""
    found = [
        in_flight_micro_batches(schedule="interleaved", stage=stage, pp=4, vpp=2, num_microbatches=10, num_per_round=5)
        for stage in range(4)
    ]
    assert found == [6, 5, 4, 3]


def in_closed_form(schedule, stage, pp, vpp, m):
    """GPipe keeps every micro-batch; 1F1B ``p - stage``; interleaved 1F1B ``(v - 1) g + 2 (p - stage - 1) + 1`` chunks
    of 1/v stage each, with g micro-batches a round; zero-bubble schedules, which put weight gradients off, p or 2p - 1;
    DualPipeV ``p + 1/2``, and DualPipe ``p + 1`` of a rank's two chunks, each 1/p of the model.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Qi et al. 2024, arXiv:2401.10241, section 2.3 and
        table 4; deepseek-ai/DualPipe README.
    """
    if schedule == "interleaved":
        per_round = m // max(1, m // pp)
        return min(m * vpp, (vpp - 1) * per_round + 2 * (pp - stage - 1) + 1) / vpp
    full = {
        "gpipe": m,
        "1f1b": pp - stage,
        "zb-h1": pp,
        "zb-h2": 2 * pp - 1,
        "zbv": pp,
        "dualpipev": pp + 0.5,
        "dualpipe": (pp + 1) / 2,
    }
    return float(min(m, full[schedule]))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_the_order_of_the_passes_keeps_is_what_the_papers_count(schedule):
    kind = SCHEDULE_KINDS[schedule]
    for pp in range(2, 17, kind.model_copies):
        for vpp in range(1, 5) if kind.runs_in_rounds else (1,):
            for m in range(1, 4 * pp + 1):
                for stage in range(pp):
                    kept = in_flight_micro_batches(schedule=schedule, stage=stage, pp=pp, vpp=vpp, num_microbatches=m)
                    assert kept == in_closed_form(schedule, stage, pp, vpp, m), (pp, vpp, m, stage)


@given(
    schedule=st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipev"]),
    pp=st.integers(1, 16),
    num_microbatches=st.integers(1, 64),
    data=st.data(),
)
def test_never_more_than_there_are_and_never_less_than_part_of_one(schedule, pp, num_microbatches, data):
    stage = data.draw(st.integers(0, pp - 1))
    vpp = 2 if schedule == "interleaved" else 1
    alive = in_flight_micro_batches(schedule=schedule, stage=stage, pp=pp, vpp=vpp, num_microbatches=num_microbatches)
    assert 1 / vpp <= alive <= num_microbatches or pp == 1


@given(
    schedule=st.sampled_from(SCHEDULES),
    pp=st.integers(2, 9),
    vpp=st.integers(1, 4),
    num_microbatches=st.integers(1, 40),
)
def test_no_stage_keeps_more_than_the_stages_before_it(schedule, pp, vpp, num_microbatches):
    """Where gradients of weights wait, every stage keeps as many: ``fullest_stages`` relies on both."""
    assume(schedule != "dualpipe" or pp % 2 == 0)
    kept = [
        in_flight_micro_batches(schedule=schedule, stage=stage, pp=pp, vpp=vpp, num_microbatches=num_microbatches)
        for stage in range(pp)
    ]
    assert kept == sorted(kept, reverse=True)
    assert not SCHEDULE_KINDS[schedule].puts_weights_off or len(set(kept)) == 1
