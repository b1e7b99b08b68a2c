"""DeepSpeed and Accelerate, started from exported files, train to the losses of the native engine: make targets."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from launch.desk import CONFIG, LIMIT_S, losses

pytestmark = pytest.mark.targets
PLAN = ("--dp-shard", "2", "--seq-len", "32", "--global-batch-size", "8", "--micro-batch-size", "2")
RECIPE = ("--precision", "fp32", "--no-compile")
STEPS = 6
CLUSTER = str(Path(__file__).parents[2] / "examples" / "two-cores.toml")


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Weights that all tools begin with."""
    folder = tmp_path_factory.mktemp("exported")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**{k: v for k, v in CONFIG.items() if k != "model_type"})).save_pretrained(
        folder / "weights"
    )
    return folder


def environment():
    added = {"GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **added}


def command(desk, *words):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=desk,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture(scope="module")
def native(desk):
    """The losses of the native engine; all clip to a norm of 1, which is what DeepSpeed 0.19 does unless it is told."""
    run = ("--device", "cpu", "--steps", str(STEPS), "--learning-rate", "1e-2")
    words = ("weights/config.json", CLUSTER, *PLAN, *RECIPE, *run, "--weights", "weights", "--out", "native")
    command(desk, "-m", "shardwise", "train", *words)
    found = list(losses(desk / "native").values())
    assert found[-1] < found[0] - 0.1, "nothing was learned"
    return found


@pytest.mark.parametrize(
    ("target", "stage"), [("deepspeed", 1), ("deepspeed", 2), ("deepspeed", 3), ("accelerate", 2), ("accelerate", 3)]
)
def test_an_exported_run_has_the_losses_of_the_native_engine(target, stage, desk, native):
    name = f"{target}-{stage}"
    # Accelerate's FSDP keeps parameters gathered until the backward pass where it is told not to reshard.
    is_gathered = (target, stage) == ("accelerate", 2)
    sharding = ("--zero-stage", "3", "--no-reshard-after-forward") if is_gathered else ("--zero-stage", str(stage))
    words = ("weights/config.json", "2xh100-sxm", *PLAN, *RECIPE, *sharding)
    command(desk, "-m", "shardwise", "export", *words, "--to", target, "--out", name)
    trainee = str(Path(__file__).with_name("trainee.py"))
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", trainee)
    command(desk, *launch, target, name, "native/job.json", "weights", f"{name}.json")
    assert json.loads((desk / f"{name}.json").read_text()) == pytest.approx(native, abs=1e-5)
