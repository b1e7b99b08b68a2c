"""Lines as the trainers print them, and what they mean."""

import json
from pathlib import Path

import pytest

from shardwise.errors import TraceError
from shardwise.measure.trainer_logs import read_trainer_log
from shardwise.units import GIB, MIB

LOGS = Path(__file__).parent / "data"

LIGHTNING = "epoch,step,train_loss,device/samples_per_sec,device/batches_per_sec\n0,10,2.5,,\n0,20,,64.0,4.0\n"
SMI = "timestamp, name, memory.used [MiB]\n2026/01/01 10:00:00.000, NVIDIA H100, 40000 MiB\nx, NVIDIA H100, 70000 MiB\n"


def read(tmp_path, text, name="train.log"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_trainer_log(path)


def test_torchtitan_prints_reserved_memory_and_tokens_per_gpu():
    log = read_trainer_log(LOGS / "torchtitan.log")
    assert (log.trainer, log.num_gpus, log.seq_len, log.global_batch_size) == ("torchtitan", 8, 8192, 8)
    assert [step.step for step in log.steps] == [4, 5]
    assert log.steps[1].tokens_per_s_per_gpu == 10_007
    assert log.steps[1].max_reserved_bytes == round(66.91 * GIB)
    assert log.steps[0].mfu_fraction == pytest.approx(0.1399)


def test_megatron_prints_milliseconds_and_memory_once():
    log = read_trainer_log(LOGS / "megatron.log")
    assert (log.trainer, log.num_gpus, log.seq_len, log.micro_batch_size) == ("megatron", 16, 4096, 1)
    assert log.global_batch_size == 128
    assert [step.step_s for step in log.steps] == [5.4449, 5.5338]
    assert log.steps[0].flop_per_s == pytest.approx(239.8e12)
    assert log.steps[-1].max_allocated_bytes == 40_960 * MIB


def test_deepspeed_prints_samples_and_gib():
    log = read_trainer_log(LOGS / "deepspeed.log")
    assert (log.trainer, log.global_batch_size, log.num_gpus) == ("deepspeed", 128, 8)
    assert [(step.step, step.samples_per_s) for step in log.steps] == [(17, 159.6), (50, 83.7)]
    assert log.steps[1].max_allocated_bytes == round(9.02 * GIB)


def test_the_hugging_face_trainer_prints_its_rate_at_the_end(tmp_path):
    log = read_trainer_log(LOGS / "transformers.log")
    assert (log.trainer, log.global_batch_size, log.micro_batch_size) == ("transformers", 1024, 16)
    assert log.steps[-1].step_s == pytest.approx(1.2, rel=1e-3)
    state = {
        "log_history": [{"loss": 2.5, "step": 10}, {"train_runtime": 9.0, "train_steps_per_second": 2.0, "step": 20}]
    }
    from_state = read(tmp_path, json.dumps(state), "trainer_state.json")
    assert [(step.step, step.step_s) for step in from_state.steps] == [(10, None), (20, 0.5)]


def test_lightning_writes_a_table(tmp_path):
    log = read(tmp_path, LIGHTNING, "metrics.csv")
    assert log.trainer == "lightning"
    assert [(step.step, step.loss, step.step_s) for step in log.steps] == [(10, 2.5, None), (20, None, 0.25)]


def test_nvidia_smi_tells_the_fullest_device(tmp_path):
    log = read(tmp_path, SMI, "smi.csv")
    assert (log.trainer, log.steps[0].device_used_bytes) == ("nvidia-smi", 70_000 * MIB)


DMON = """#Entity   GPUTL     FBUSD
ID
GPU 0     98        69000
GPU 1     97        70000
GPU 0     98        N/A
"""
EXPORTED = """# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",device="nvidia0"} 69000
DCGM_FI_DEV_FB_USED{gpu="1",UUID="GPU-2",device="nvidia1"} 7e4
DCGM_FI_DEV_FB_FREE{gpu="1",UUID="GPU-2",device="nvidia1"} 80000
"""


@pytest.mark.parametrize("text", [DMON, EXPORTED])
def test_dcgm_tells_the_fullest_device(tmp_path, text):
    log = read(tmp_path, text, "dcgm.txt")
    assert (log.trainer, log.steps[0].device_used_bytes) == ("dcgm", 70_000 * MIB)


@pytest.mark.parametrize("text", ["", "hello\n", "{}", "step,loss\n1,2\n", '{"step": 1'])
def test_what_no_trainer_prints_is_refused(tmp_path, text):
    with pytest.raises(TraceError) as refused:
        read(tmp_path, text)
    assert refused.value.code == "log-foreign"


GOOD = {"torchtitan.log", "megatron.log", "deepspeed.log", "transformers.log"}
WRONG = ("inf", "nan", "1e400", "-5", "9" * 400, "text", "1.2.3")
OURS = '{"step": 1, "loss": 2.5, "step_s": @, "peak_allocated_bytes": 5}\n'
TABLE = "epoch,step,train_loss,device/samples_per_sec,device/batches_per_sec\n0,10,2.5,64.0,@\n"
STATE = '{"log_history": [{"train_runtime": 9.0, "train_steps_per_second": @, "step": 20}]}'
LINE = "{'train_runtime': 9.0, 'train_steps_per_second': @, 'epoch': 1.0}\n"
SMI_LINE = "timestamp, name, memory.used [MiB]\nx, NVIDIA H100, @ MiB\n"


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("template", [OURS, TABLE, STATE, LINE])
def test_what_nobody_can_have_measured_is_refused(tmp_path, template, wrong):
    quoted = json.dumps(wrong) if template in (OURS, STATE) and not wrong.isdigit() else wrong
    for text in {template.replace("@", quoted), template.replace("@", json.dumps(wrong))}:
        with pytest.raises(TraceError) as refused:
            read(tmp_path, text)
        assert refused.value.code in ("log-number", "log-foreign")
        assert len(refused.value.message) < 400


@pytest.mark.parametrize("step", ["-1", "1.5", "null", '"x"', "true", "[]", "1e400", "9" * 400])
def test_a_step_is_a_whole_number(tmp_path, step):
    with pytest.raises(TraceError, match="number"):
        read(tmp_path, OURS.replace("@", "0.5").replace('"step": 1', f'"step": {step}'))


def test_a_loss_that_diverged_is_read(tmp_path):
    log = read(tmp_path, OURS.replace("@", "0.5").replace("2.5", "NaN"))
    assert log.steps[0].step_s == 0.5
