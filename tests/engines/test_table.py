"""Records of engines: one for every name, and none offers what no record knows."""

from pathlib import Path
from typing import get_args

import pytest

from shardwise import engines
from shardwise.engines.table import ENGINES, EngineName, accumulates_in_fp32, state_bytes
from shardwise.layout import Layout
from shardwise.optimizers import OPTIMIZERS
from shardwise.recipe import Precision
from shardwise.schedules.table import SCHEDULES

RECORDS = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
FILES = {path.stem for path in Path(engines.__file__).parent.glob("*.py")}


def test_every_name_has_a_record_in_a_file_of_that_name():
    assert tuple(ENGINES) == get_args(EngineName)
    assert {name.replace("-", "_") for name in ENGINES} <= FILES


@RECORDS
def test_what_an_engine_offers_has_a_record(engine):
    assert engine.optimizers <= OPTIMIZERS.keys()
    assert engine.schedules | engine.forked_schedules <= set(SCHEDULES)
    assert engine.narrow_moments <= engine.optimizers


@RECORDS
def test_only_an_engine_with_pipelines_has_schedules(engine):
    assert ("pp" in engine.axes) == bool(engine.schedules)


def test_deepspeeds_pipeline_adds_bf16_gradients_up_in_fp32_below_zero_2():
    """DeepSpeed runtime/bf16_optimizer.py: 2-byte gradients and whole fp32 accumulators beside."""
    pipelined = {
        precision: state_bytes(engine="deepspeed", precision=precision, in_fp32=True).gradient_bytes
        for precision in get_args(Precision)
    }
    assert pipelined == {"fp32": 4, "bf16-mixed": 6, "fp16-mixed": 2, "bf16": 6, "fp8-mixed": 2}
    assert state_bytes(engine="deepspeed", precision="bf16").gradient_bytes == 2
    layouts = [Layout(pp=2, zero_stage=1), Layout(pp=2, zero_stage=2), Layout(zero_stage=1)]
    assert [accumulates_in_fp32("deepspeed", layout) for layout in layouts] == [True, False, False]
    assert not accumulates_in_fp32("native", layouts[0])
