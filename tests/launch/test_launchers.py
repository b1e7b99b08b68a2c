"""What starts a plan on every node: Slurm's batch file keeps exit codes and requeues, manifests name the first pod."""

import os
import signal
import subprocess
import time
from dataclasses import replace

import pytest
import yaml

from launch.desk import LIMIT_S
from shardwise.cli.main import main
from shardwise.launch.launchers import Start, launcher_files

START = Start(name="llama-3.1-8b", script="launch.sh", num_nodes=2, gpus_per_node=8, gpu_vendor="NVIDIA")
COMMANDS = {
    "scontrol": 'if [ "$1" = show ]; then echo node-a; echo node-b; else echo "$@" >> said; fi',
    "scancel": 'echo "$@" >> said; kill -TERM "$(cat step)"',
    "srun": 'echo $$ > step; echo "$HEAD_NODE $RUN_ID $*" >> said; {behaviour}',
}
"""Stand-ins for Slurm's commands; each writes down what it was asked."""


@pytest.fixture
def job(tmp_path):
    """Starts the batch file where srun does what it is told, with what was said in a file."""
    whole = launcher_files(START, "slurm")[0].text

    def started(behaviour, *, ran_s=3600):
        (tmp_path / "job.sbatch").write_text(whole.replace("is_asked=\n", f"is_asked=\nSECONDS={ran_s}\n"))
        for name, text in COMMANDS.items():
            path = tmp_path / name
            path.write_text("#!/bin/bash\n" + text.replace("{behaviour}", behaviour) + "\n")
            path.chmod(0o755)
        added = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_CPUS_ON_NODE": "96"}
        variables = {**os.environ, **added, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.Popen(["bash", "job.sbatch"], cwd=tmp_path, env=variables)

    return started


def said(folder):
    return (folder / "said").read_text().splitlines()


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_exit_code_of_the_step_is_that_of_the_job(code, job, tmp_path):
    assert job(f"exit {code}").wait(timeout=LIMIT_S) == code
    assert said(tmp_path) == ["node-a 7.0 --cpus-per-task=96 bash launch.sh"]


@pytest.mark.parametrize(("code", "ran_s", "requeued"), [(143, 3600, ["requeue 7"]), (0, 3600, []), (143, 5, [])])
def test_a_step_that_was_asked_to_stop_is_waited_for_and_requeued_if_it_got_somewhere(
    code, ran_s, requeued, job, tmp_path
):
    """Not when it was done, nor when the time limit leaves no time to train."""
    process = job(f"trap 'sleep 0.3; exit {code}' TERM; touch ready; while true; do sleep 0.05; done", ran_s=ran_s)
    while not (tmp_path / "ready").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=LIMIT_S) == code
    assert said(tmp_path)[1:] == ["--signal=TERM 7", *requeued]


def test_a_run_that_saves_nothing_is_not_requeued():
    lines = launcher_files(replace(START, saves=False), "slurm")[0].text.splitlines()
    assert "#SBATCH --no-requeue" in lines
    assert not any("--signal=B" in line for line in lines)


def test_torchrun_needs_no_file_but_the_script():
    assert launcher_files(START, "torchrun") == ()


def test_pods_meet_at_the_first_and_a_failure_of_the_run_itself_ends_the_set():
    file = launcher_files(replace(START, final_exit_codes=(1, 2, 3)), "kubernetes")[0]
    jobset = yaml.safe_load(file.text)
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = job["template"]["spec"]["containers"][0]
    assert "HEAD_NODE=llama-3-1-8b-node-0-0.llama-3-1-8b " in container["command"][2]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}}
    assert job["podFailurePolicy"]["rules"][0]["onExitCodes"] == {"operator": "In", "values": [1, 2, 3]}
    assert jobset["spec"]["failurePolicy"]["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]


def test_train_writes_the_launcher_beside_the_script_and_starts_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["llama-3.1-8b", "16xh100-sxm", "--dp-shard", "16", "--checkpoint-every", "100", "--restarts", "3"]
    assert main(["train", *words, "--out", "run", "--launcher", "slurm"]) == 0
    run = tmp_path / "run"
    assert f'srun --cpus-per-task="$SLURM_CPUS_ON_NODE" bash {run / "run.sh"} &' in (run / "job.sbatch").read_text()
    assert f"sbatch --time=24:00:00 {run / 'job.sbatch'} runs the script on every node" in capsys.readouterr().out
    assert '"num_restarts": 3' in (run / "job.json").read_text()
