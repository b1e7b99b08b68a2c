"""The lessons that train on simulated ranks: their figures, and the sizes they refuse."""

import pytest

from shardwise.course.lessons import LessonRequest, find_lesson
from shardwise.course.lessons.data import demo
from shardwise.errors import SimulationError

NAMES = ("data", "accumulate", "fsdp", "zero", "tensor", "context", "expert")


def made(name, **asked):
    return find_lesson(name).load().make_lesson(LessonRequest(**asked))


def table(lesson, title):
    return next(one for one in lesson.tables if one.title.startswith(title))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_every_check_holds_for_other_numbers_of_ranks(name, num_ranks):
    lesson = made(name, num_ranks=num_ranks, seed=7)
    assert [check.what for check in lesson.checks if not check.holds] == []
    assert lesson.steps


@pytest.mark.parametrize("name", NAMES)
def test_the_walk_begins_forward_and_ends_with_the_optimizer(name):
    steps = made(name).steps
    assert steps[0].title.startswith("forward")
    assert steps[-1].title.startswith(("optimizer", "forward: all-gather weights"))


def test_the_demo_of_the_seed_prints_its_figures():
    for ranks in (1, 2, 4, 8):
        loss, gradient = demo(ranks, is_weighted=False)
        assert f"{loss:.4f}" == "30.2175"
        assert f"{(gradient**2).sum() ** 0.5:.4f}" == "53.0517"


@pytest.mark.parametrize(("ranks", "error"), [(3, 0.0130), (24, 0.1085)])
def test_averaging_uneven_parts_alike_is_wrong_by_known_shares(ranks, error):
    rows = table(made("data"), "The scaling lesson's demo").rows
    row = next(row for row in rows if row[0] == ranks)
    assert row[3] == pytest.approx(error, abs=5e-5)
    assert row[4] < 1e-14


def test_uneven_parts_averaged_alike_miss_the_gradient_by_percents():
    rows = {row[0]: row for row in table(made("data"), "An uneven batch").rows}
    assert rows["weighted by tokens"][4] < 1e-12
    assert rows["every rank alike"][4] > 0.01


def test_accumulation_saves_reductions_only_where_whole_gradients_are_kept():
    rows = {row[0]: row for row in table(made("accumulate", num_microbatches=4), "What rank 0").rows}
    reductions = {name: row[2] for name, row in rows.items()}
    assert reductions == {
        "DDP, reduced once": 1,
        "DDP, reduced every time": 4,
        "ZeRO-1 (Megatron)": 1,
        "ZeRO-2 (DeepSpeed)": 4,
        "FSDP2": 12,
        "FSDP2, kept gathered": 12,
        "FSDP2, reduced once": 3,
    }
    assert rows["DDP, reduced every time"][4] == pytest.approx(4.0, rel=1e-3)
    assert rows["ZeRO-2 (DeepSpeed)"][4] == pytest.approx(2.5, rel=1e-3)


def test_fully_sharded_holds_a_share_and_sends_half_as_much_again():
    rows = {row[0]: row for row in table(made("fsdp", num_ranks=4, num_hidden_layers=16), "What rank 0 holds").rows}
    assert rows["FSDP"][1] * 4 == rows["DDP"][1]
    assert rows["FSDP"][3] / rows["DDP"][3] == pytest.approx(1.5, abs=0.02)
    assert rows["FSDP, kept gathered"][3] == pytest.approx(rows["DDP"][3], rel=1e-3)


def test_replicas_send_only_a_shard_between_them():
    rows = {row[0]: row for row in table(made("fsdp", num_ranks=4), "What rank 0 holds").rows}
    assert rows["HSDP, 2 replicas"][4] == pytest.approx(rows["DDP"][1] / 4 / 2, rel=1e-3)
    assert rows["FSDP"][4] == 0


def test_the_walk_gathers_computes_and_frees_each_block():
    texts = [step.title for step in made("fsdp", num_hidden_layers=2).steps]
    first = texts.index("forward: all-gather block")
    assert texts[first : first + 3] == [
        "forward: all-gather block",
        "forward: forward of block 0",
        "forward: free block 0",
    ]
    last = len(texts) - 1 - texts[::-1].index("backward: reduce-scatter block")
    assert texts[last - 2 : last] == ["backward: backward of block 0", "backward: free block 0"]


def test_each_stage_divides_one_state_more():
    rows = table(made("zero", num_ranks=4), "What rank 0 holds").rows
    whole = rows[0][2]
    assert [tuple(cell / whole for cell in row[2:5]) for row in rows] == [
        (1, 1, 2),
        (1, 1, 0.5),
        (1, 0.25, 0.5),
        (0.25, 0.25, 0.5),
    ]


def test_shards_would_clip_by_other_norms_than_the_model():
    rows = table(made("zero"), "Clipping").rows
    assert rows[0][1] ** 2 == pytest.approx(sum(row[1] ** 2 for row in rows[1:]))
    assert len({row[2] for row in rows}) > 2


def test_sequence_parallelism_keeps_less_and_sends_as_much_forward():
    plain, divided = table(made("tensor"), "Two ways").rows
    assert plain[1] == divided[1]
    assert divided[3] < plain[3] / 2


def test_contiguous_parts_are_uneven_and_zigzag_parts_are_not():
    rows = table(made("context", num_ranks=4, seq_len=64), "Which tokens").rows
    assert [row[4] for row in rows] == [1.0] * 4
    assert rows[3][2] > 6 * rows[0][2]


def test_the_ring_sends_twice_as_much_backward():
    rows = {row[0]: row for row in table(made("context"), "Three ways").rows}
    assert rows["ring (Megatron)"][4] == 2 * rows["ring (Megatron)"][3]


def test_a_smaller_capacity_drops_more():
    dropped = [row[3] for row in table(made("expert"), "512 tokens").rows]
    assert dropped == sorted(dropped)
    assert dropped[0] == 0.0
    assert dropped[-1] > 0.5


@pytest.mark.parametrize(
    ("name", "asked", "fix"),
    [
        ("data", {"num_ranks": 1}, "use --num-ranks 2"),
        ("data", {"num_ranks": 4, "global_batch_size": 3}, "use --global-batch-size 4"),
        ("fsdp", {"hidden_size": 30}, "use --hidden-size 32"),
        ("tensor", {"num_ranks": 3, "num_attention_heads": 4}, "use --num-attention-heads 3"),
        (
            "tensor",
            {"num_ranks": 4, "num_attention_heads": 12, "num_key_value_heads": 3},
            "use --num-key-value-heads 4",
        ),
        ("tensor", {"num_ranks": 4, "num_attention_heads": 8, "num_key_value_heads": 3}, "use --num-attention-heads 9"),
        ("context", {"num_ranks": 4, "seq_len": 30}, "use --seq-len 32"),
        ("expert", {"num_ranks": 4, "num_experts": 6}, "use --num-experts 8"),
        ("zero", {"zero_stage": 4}, "use --zero-stage 3"),
        ("expert", {"num_experts": 2, "num_experts_per_tok": 3, "num_ranks": 2}, "use --num-experts-per-tok 2"),
    ],
)
def test_impossible_sizes_name_the_nearest_that_can(name, asked, fix):
    with pytest.raises(SimulationError) as refused:
        made(name, **asked)
    assert refused.value.fix == fix
