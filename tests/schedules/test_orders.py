"""Orders of passes, operation by operation, against torch's own and against published pictures."""

import csv
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import LayoutError
from shardwise.schedules.actions import order_text
from shardwise.schedules.make import make_schedule
from shardwise.schedules.shape import ScheduleShape

DATA = Path(__file__).parent / "data"
NAMES = ("gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zbv", "dualpipev")


def lines_of(name, pp, vpp, m, **rest):
    schedule = make_schedule(ScheduleShape(name=name, pp=pp, vpp=vpp, num_microbatches=m, **rest))
    return [order_text(order) for order in schedule.orders]


def as_torch_prints(name, lines):
    """torch 2.13 prints the forwards of 1F1B's last rank one micro-batch too high (``1F1 1B0 1F2 1B1``).

    It runs them as ours: ``_step_microbatches`` counts from 0, ``_get_pipeline_order`` (a picture) from 1.
    """
    if name != "1f1b":
        return lines
    words = [word.split("F") for word in lines[-1].split()]
    shifted = [f"{word[0]}F{int(word[1]) + 1}" if len(word) == 2 else word[0] for word in words]
    return [*lines[:-1], " ".join(shifted)]


def full_orders():
    blocks = (DATA / "pipeline_orders.txt").read_text(encoding="utf-8").split("\n\n")
    return [block.strip().splitlines() for block in blocks if not block.startswith("#")]


def digests():
    with (DATA / "pipeline_order_digests.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("block", full_orders(), ids=lambda block: block[0])
def test_every_pass_is_where_torch_runs_it(block):
    name, *degrees = block[0].split()
    pp, vpp, m = (int(degree.partition("=")[2]) for degree in degrees)
    assert as_torch_prints(name, lines_of(name, pp, vpp, m)) == block[1:]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zbv", "dualpipev"])
def test_many_more_orders_have_the_digest_of_torchs(name):
    """929 combinations of 2 to 16 ranks, 1 to 4 chunks and 1 to 64 micro-batches."""
    rows = [row for row in digests() if row["schedule"] == name]
    assert len(rows) >= 30
    wrong = [row for row in rows if digest_of_ours(row) != row["sha256_16"]]
    assert wrong == []


def digest_of_ours(row):
    name = row["schedule"]
    lines = as_torch_prints(name, lines_of(name, int(row["pp"]), int(row["vpp"]), int(row["num_microbatches"])))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def test_megatrons_rounds_of_three_with_five_micro_batches():
    """The example beside ``get_schedule_table`` in Megatron-LM: PP2, VP2, rounds of 3, 5 micro-batches."""
    first, last = lines_of("interleaved", 2, 2, 5, num_microbatches_per_round=3)
    forwards = [word for word in first.split() if "F" in word]
    assert forwards == ["0F0", "0F1", "0F2", "2F0", "2F1", "2F2", "0F3", "0F4", "2F3", "2F4"]
    assert first.split()[:6] == ["0F0", "0F1", "0F2", "2F0", "2F1", "2F2"]
    assert last.split()[:5] == ["1F0", "1F1", "1F2", "3F0", "3B0"]


def test_one_forward_more_in_front_when_megatron_overlaps_expert_communication():
    plain = lines_of("interleaved", 4, 2, 8)[3].split()
    ahead = lines_of("interleaved", 4, 2, 8, num_extra_warmup=1)[3].split()
    assert [plain.index("7B0"), ahead.index("7B0")] == [5, 6]


def test_the_papers_zb_h1_and_zb_h2_on_four_ranks():
    """arXiv:2401.10241 figure 3: ZB-H1 has 4, 3, 2, 1 forwards in front, ZB-H2 has 7, 5, 3, 1."""
    for name, in_front in (("zb-h1", [4, 3, 2, 1]), ("zb-h2", [7, 5, 3, 1])):
        orders = make_schedule(ScheduleShape(name=name, pp=4, num_microbatches=8)).orders
        kinds = [[action.kind for action in order] for order in orders]
        assert [kind.index("input_backward") for kind in kinds] == in_front


@given(name=st.sampled_from(NAMES), pp=st.integers(1, 6), vpp=st.integers(1, 3), m=st.integers(1, 20))
def test_every_pass_of_every_chunk_runs_exactly_once_on_its_rank(name, pp, vpp, m):
    m = max(m, 2 * pp) if name == "dualpipev" else m
    if name in ("interleaved", "zb-h1") and m > pp:
        m -= m % pp
    schedule = make_schedule(ScheduleShape(name=name, pp=pp, vpp=vpp, num_microbatches=m))
    seen = set()
    for rank, order in enumerate(schedule.orders):
        for action in order:
            assert schedule.rank_of_chunk[action.chunk] == rank
            halves = ("input_backward", "weight_backward") if action.kind == "backward" else (action.kind,)
            for half in halves:
                assert (half, action.chunk, action.micro_batch) not in seen
                seen.add((half, action.chunk, action.micro_batch))
    assert len(seen) == 3 * schedule.num_chunks * m


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"name": "1f1b", "pp": 0, "num_microbatches": 4}, "schedule-range"),
        ({"name": "dualpipev", "pp": 4, "num_microbatches": 7}, "schedule-microbatches"),
        (
            {"name": "interleaved", "pp": 4, "vpp": 2, "num_microbatches": 9, "num_microbatches_per_round": 4},
            "schedule-microbatches",
        ),
    ],
)
def test_what_no_order_can_be_written_for_is_refused(wanted, code):
    with pytest.raises(LayoutError) as caught:
        make_schedule(ScheduleShape(**wanted))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (0, "0F0 0F1 0F2 7F4 7I4 7W4 7F5 (0F3;7B5) (7F6;0B0) 7B6 (7F7;0B1) 7B7 0I2 0W2 0I3 0W3"),
        (1, "1F0 6F4 1F1 6F5 1F2 6B4 (6F6;1B0) (1F3;6B5) (6F7;1B1) 6B6 1B2 6I7 1I3 6W7 1W3"),
        (2, "5F4 2F0 5F5 2F1 5F6 2B0 (2F2;5B4) (5F7;2B1) (2F3;5B5) 2B2 5B6 2I3 5I7 2W3 5W7"),
        (3, "4F4 4F5 4F6 3F0 3I0 3W0 3F1 (4F7;3B1) (3F2;4B4) 3B2 (3F3;4B5) 3B3 4I6 4W6 4I7 4W7"),
    ],
)
def test_dualpipe_runs_deepseeks_eight_steps(rank, expected):
    """Four ranks, eight micro-batches, by hand from the steps of ``dualpipe.py``: nF0, nF0F1, nB1W1F1, nF0B1F1B0, ...

    Chunks 0 to 3 are the model on ranks 0 to 3 for micro-batches 0 to 3, chunks 4 to 7 the model on ranks 3 to 0 for
    micro-batches 4 to 7.
    """
    assert lines_of("dualpipe", 4, 2, 8)[rank] == expected


@pytest.mark.parametrize(("pp", "m"), [(3, 12), (4, 9), (4, 6)])
def test_dualpipe_needs_an_even_number_of_ranks_and_enough_pairs(pp, m):
    with pytest.raises(LayoutError) as caught:
        make_schedule(ScheduleShape(name="dualpipe", pp=pp, num_microbatches=m))
    assert caught.value.code == "schedule-microbatches"
