"""fp16 skips a step whose gradients overflow, as if its batch had never been, and goes on with half the loss scale."""

import json
import math
from dataclasses import replace

import pytest
import torch

from shardwise.train import passes
from shardwise.train.feed import open_feed
from shardwise.train.job import CheckpointSpec, OptimizerSpec
from shardwise.train.loop import make_trainer
from shardwise.train.mesh import make_mesh
from shardwise.train.metrics import METRICS_FILE
from shardwise.train.parameters import local_part
from shardwise.train.scaling import GROWTH_STEPS, INITIAL_RATIO, MAX_SKIPPED_IN_A_ROW, LossScale
from shardwise.train.worker import MEASUREMENT_FILE, LossError, require_number, run_job
from train.models import make_job
from train.ranks import run_ranks
from train.step_records import step_record

pytestmark = pytest.mark.runs

CPU = torch.device("cpu")
TOO_MUCH = 2.0**60
NUM_STEPS, BAD = 5, 2
WARM = OptimizerSpec(learning_rate=1e-3, num_warmup_steps=4)
CASES = {
    "fsdp": ({"dp_shard": 2}, {}),
    "whole states": ({"dp_replicate": 2, "zero_stage": 0}, {}),
    "zero 1": ({"dp_shard": 2, "zero_stage": 1}, {}),
    "tp": ({"tp": 2}, {}),
    "pp": ({"pp": 2}, {"chunk_layers": (2, 2)}),
    "optimizer on the host": ({"dp_shard": 2}, {"offload": "optimizer"}),
    "everything on the host": ({"dp_shard": 2}, {"offload": "parameters"}),
    "adamw-8bit": ({"dp_shard": 2}, {"optimizer": "adamw-8bit"}),
    "muon": ({"dp_shard": 2}, {"optimizer": "muon"}),
    "lion": ({"dp_shard": 2}, {"optimizer": "lion"}),
    "adapters": ({"dp_shard": 2}, {"adapter": "lora", "lora_targets": "all-linear"}),
    "adafactor": ({"dp_shard": 2}, {"optimizer": "adafactor"}),
}


def _trainer(job):
    mesh = make_mesh(job.layout, device_type="cpu")
    feed = open_feed(job, data_parallel_rank=mesh.data_parallel_rank, vocab_size=256, device=CPU)
    return make_trainer(job, mesh, device=CPU, source=feed)


def _overflowing(rank, world_size, trainer):
    """Make step ``BAD`` overflow, on the last rank alone."""
    plain = trainer.passes.run

    def run(batches, *, unit_ratio):
        is_bad = trainer.progress.step == BAD and rank == world_size - 1
        return plain(batches, unit_ratio=unit_ratio * TOO_MUCH if is_bad else unit_ratio)

    trainer.passes.run = run


def _state(trainer):
    """Bytes of this rank's part of every weight and moment, and every count."""
    states = trainer.states()
    found = {}
    for name in ("model", "optimizer"):
        for key, value in states[name].state_dict().items():
            found[f"{name}.{key}"] = local_part(value).tolist() if isinstance(value, torch.Tensor) else value
    return found


def _with_and_without_the_batch(rank, job, world_size):
    """What a run says and holds that meets an overflow, and one that never reads that batch."""
    trainer = _trainer(job)
    _overflowing(rank, world_size, trainer)
    before, sums, rates = {}, [], []
    for step in range(NUM_STEPS):
        if step == BAD:
            before = _state(trainer)
        sums.append(trainer.step())
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        if step == BAD:
            assert _state(trainer) == before
    assert not math.isfinite(float(sums.pop(BAD).gradient_norm))
    rates.pop(BAD)
    scale = trainer.scale
    trainer.source.close()
    other, others, other_rates = _trainer(job), [], []
    for step in range(NUM_STEPS):
        if step == BAD:
            other.source.next_step()
            other.scale.ratio /= 2
            continue
        others.append(other.step())
        other_rates.append(other.optimizer.param_groups[0]["lr"])
    other.source.close()
    assert _state(trainer) == _state(other)
    assert _numbers(sums) == _numbers(others)
    assert rates == other_rates
    return scale.ratio, scale.num_skipped_steps, scale.num_skipped_in_a_row, _numbers(sums)


def _numbers(sums):
    return [(float(one.loss), float(one.gradient_norm)) for one in sums]


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_overflows_once_is_a_run_without_that_batch(name):
    """Losses, norms, weights, moments, counts and learning rates; every rank skips what overflows on one."""
    layout, choices = CASES[name]
    job = replace(make_job(layout=layout, precision="fp16-mixed", num_steps=NUM_STEPS, **choices), optimizer=WARM)
    first, second = run_ranks(2, _with_and_without_the_batch, job, 2)
    assert first == second
    assert first[:3] == (INITIAL_RATIO / 2, 1, 0)
    assert all(math.isfinite(number) for pair in first[3] for number in pair)


def _run(_rank, job, bad_steps):
    """The records of a run whose passes overflow in some steps, and the error that ends it."""
    plain, step = passes.PlainPasses.run, [_first_step(job)]

    def run(self, batches, *, unit_ratio):
        factor = TOO_MUCH if step[0] in bad_steps else 1.0
        step[0] += 1
        return plain(self, batches, unit_ratio=unit_ratio * factor)

    passes.PlainPasses.run = run
    try:
        _, records = run_job(job, device=CPU)
    except LossError as error:
        return error.code, error.message, error.fix
    return [(r.step, r.loss, r.num_skipped_steps, r.num_skipped_in_a_row, r.loss_scale_ratio) for r in records]


def _first_step(job):
    resumed = job.checkpoint.resume_from
    return int(resumed.rpartition("-")[2]) if resumed else 0


def fp16_job(folder, *, num_steps, **spec):
    job = make_job(layout={"dp_shard": 2}, precision="fp16-mixed", num_steps=num_steps)
    return replace(job, run_folder=str(folder), checkpoint=CheckpointSpec(folder=str(folder / "states"), **spec))


@pytest.mark.parametrize("from_step", [2, 3, 4], ids=["before the overflow", "right after it", "later"])
def test_scale_and_counts_go_on_after_a_resume(tmp_path, from_step):
    job = fp16_job(tmp_path, num_steps=6, every_steps=1, num_kept=9)
    whole = run_ranks(2, _run, job, [2])[0]
    assert [skipped for _, _, skipped, _, _ in whole] == [0, 0, 1, 1, 1, 1]
    assert [scale for *_, scale in whole] == [INITIAL_RATIO] * 2 + [INITIAL_RATIO / 2] * 4
    again = tmp_path / "again"
    again.mkdir()
    resumed = fp16_job(again, num_steps=6, resume_from=str(tmp_path / "states" / f"step-{from_step:08d}"))
    assert run_ranks(2, _run, resumed, [2]) == [whole[from_step:]] * 2


def test_a_skipped_step_is_counted_in_metrics_and_measurement(tmp_path):
    run_ranks(2, _run, fp16_job(tmp_path, num_steps=4), [0, 1])
    lines = [json.loads(line, parse_constant=_no_json) for line in (tmp_path / METRICS_FILE).read_text().splitlines()]
    assert [line["gradient_norm"] is None for line in lines] == [True, True, False, False]
    assert [line["num_skipped_steps"] for line in lines] == [1, 2, 2, 2]
    assert [line["num_skipped_in_a_row"] for line in lines] == [1, 2, 0, 0]
    measured = json.loads((tmp_path / MEASUREMENT_FILE).read_text())
    assert measured["loss_scale"] == {"ratio": INITIAL_RATIO / 4, "num_skipped_steps": 2, "num_steps": 4}


def _no_json(word):
    raise AssertionError(f"{word} is no JSON")


def test_a_run_that_always_overflows_ends_with_one_sentence(tmp_path):
    job = fp16_job(tmp_path, num_steps=2 * MAX_SKIPPED_IN_A_ROW, every_steps=10)
    first, second = run_ranks(2, _run, job, range(1000))
    assert first == second
    code, message, fix = first
    assert code == "train-loss-scale"
    assert message == ("gradients overflowed fp16 in steps 1 to 32, and the loss scale fell to 1.53e-05")
    newest = tmp_path / "states" / "step-00000030"
    again = f"go on with --resume {newest} with --precision bf16-mixed"
    assert fix == f"{again}, or before step 1 with a lower --learning-rate"


def test_a_short_run_that_trained_nothing_says_so_instead_of_exporting(tmp_path):
    code, message, _ = run_ranks(1, _run, replace(fp16_job(tmp_path, num_steps=3), layout=make_job().layout), range(9))[
        0
    ]
    assert code == "train-loss-scale"
    assert message.startswith("gradients overflowed fp16 in all 3 steps, so nothing was trained")


def _scaled(*, ratio=8.0, **counts):
    return LossScale(is_active=True, ratio=ratio, **counts)


def _accept(scale, *, loss=1.0, norm=1.0):
    return scale.accepts(loss=torch.tensor(loss), gradient_norm=torch.tensor(norm))


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ["loss", "norm"])
def test_whatever_is_no_number_skips_the_step(name, number):
    scale = _scaled()
    assert not _accept(scale, **{name: number})
    assert (scale.ratio, scale.num_skipped_steps, scale.num_skipped_in_a_row) == (4.0, 1, 1)


def test_the_scale_doubles_after_a_stretch_of_good_steps_that_no_overflow_broke():
    scale = _scaled()
    for _ in range(GROWTH_STEPS - 1):
        assert _accept(scale)
    _accept(scale, norm=math.inf)
    for _ in range(GROWTH_STEPS - 1):
        assert _accept(scale)
    assert scale.ratio == 4.0
    assert _accept(scale)
    assert (scale.ratio, scale.num_good_steps, scale.num_skipped_steps) == (8.0, 0, 1)


def test_other_precisions_take_every_step_and_a_loss_that_is_no_number_still_ends_them():
    scale = LossScale.of("bf16-mixed")
    assert _accept(scale, norm=math.nan)
    assert scale == LossScale.of("bf16-mixed")
    with pytest.raises(LossError, match="the loss of step 3 is nan"):
        require_number(step_record(step=3, loss=math.nan), spec=CheckpointSpec())


def test_a_checkpoint_without_counts_counts_none():
    scale = _scaled(num_skipped_steps=3)
    scale.load_state_dict({"ratio": 2.0, "num_good_steps": 7})
    assert scale == _scaled(ratio=2.0, num_good_steps=7)
