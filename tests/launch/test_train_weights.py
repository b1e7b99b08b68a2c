"""``shardwise train --weights`` with weights that cannot be trained from."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from launch.desk import CONFIG, LIMIT_S, lay_out

pytestmark = pytest.mark.runs


def test_weights_that_are_no_numbers_are_named_and_the_learning_rate_is_not_blamed(tmp_path):
    desk = lay_out(tmp_path)
    weights = desk / "weights"
    fields = {name: value for name, value in CONFIG.items() if name not in ("model_type", "architectures")}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **fields)).save_pretrained(weights)
    broken = AutoModelForCausalLM.from_pretrained(weights).state_dict()
    broken["model.embed_tokens.weight"][259, 7] = torch.nan  # of a token that the first step need not hold
    save_file(broken, weights / "model.safetensors", metadata={"format": "pt"})
    words = ["train", "plan1.json", "--device", "cpu", "--steps", "2", "--weights", "weights", "--out", "run", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "shardwise", *words],
        cwd=desk,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    said = json.loads(done.stdout)
    assert (done.returncode, said["code"]) == (2, "pretrained-not-finite")
    file = weights / "model.safetensors"
    assert said["error"] == f"model.embed_tokens.weight in {file} holds values that are not finite"
    assert "learning" not in said["fix"]
    assert not (desk / "run").exists(), "the next attempt may have the same name"
