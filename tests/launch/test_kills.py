"""Whatever process of a run is killed, all of them end, what died is named, and the run goes on and loses no step."""

import json
import random
import signal
import sys
from dataclasses import dataclass, field

import pytest

from launch.desk import CONFIG, LIMIT_S, lay_out, losses
from launch.killing import LOOPBACK, ON_DEATH_OF, Run, num_steps, train
from shardwise.train.checkpoint.folder import CheckpointFolder

pytestmark = pytest.mark.runs

SEED = 20261129
STEPS, EVERY = 300, 10
VICTIMS = ("rank", "torchrun", "fork server", "tracker", "launcher")


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = lay_out(tmp_path_factory.mktemp("kills"))
    plan = json.loads((folder / "plan2.json").read_text(encoding="utf-8"))
    for mode in MODES:
        recipe, layout = {**plan["recipe"], **mode.recipe}, mode.layout or plan["layout"]
        (folder / f"{mode.name}.json").write_text(
            json.dumps({**plan, "model": mode.model, "recipe": recipe, "layout": layout}), encoding="utf-8"
        )
    experts = {**CONFIG, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    experts |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    (folder / "experts").mkdir()
    (folder / "experts" / "config.json").write_text(json.dumps(experts), encoding="utf-8")
    return folder


@dataclass(frozen=True, kw_only=True)
class Mode:
    """One way of training."""

    name: str
    recipe: dict = field(default_factory=dict)
    layout: dict = field(default_factory=dict)
    model: str = "config.json"
    words: tuple = ()


MODES = (
    Mode(name="fsdp"),
    Mode(name="asynchronous", words=("--async-checkpoints",)),
    Mode(name="adapters", recipe={"adapter": "lora", "lora_rank": 4}, words=("--weights", "base")),
    Mode(name="experts", model="experts/config.json", layout={"dp_shard": 2, "ep": 2}),
    Mode(name="pipeline", layout={"pp": 2, "schedule": "1f1b"}, recipe={"micro_batch_size": 1}),
    Mode(name="replicas", layout={"dp_replicate": 2, "dp_shard": 1, "zero_stage": 0}),
    Mode(name="8-bit", recipe={"optimizer": "adamw-8bit"}),
    Mode(name="offload", recipe={"offload": "optimizer"}),
)


def goes_on_from(folder, lives):
    """The options that let a run go on from the newest checkpoint of its earlier lives."""
    for life in range(lives - 1, -1, -1):
        checkpoints = folder.parent / f"{folder.name}-{life}" / "checkpoints"
        if checkpoints.is_dir() and CheckpointFolder(checkpoints).newest() is not None:
            return ("--resume", checkpoints)
    return ()


def says_what_died(said, part, pid):
    return part in ("launcher", "terminal") or ON_DEATH_OF[part].format(pid=pid) in said


def survives(desk, mode, kills):
    """Kill one life of a run after the other; returns the losses by step, all that were seen of each.

    A life that will be killed would take a million steps: no machine is so fast that it ends by itself.
    """
    seen = {}
    for life, (part, more, chosen) in enumerate([*kills, (None, 0, 0)]):
        out = desk / f"{mode.name}-{life}"
        steps = 10**6 if part is not None else max(STEPS, max(seen) + EVERY)
        words = ("--steps", steps, "--checkpoint-every", EVERY, "--out", out, *mode.words)
        run = train(desk, f"{mode.name}.json", *words, *goes_on_from(desk / mode.name, life))
        if part is not None:
            begun = run.wait_for(lambda out=out: num_steps(out), "its first step")
            run.wait_for(lambda out=out, begun=begun, more=more: num_steps(out) >= begun + more, "the kill")
            pid = run.kill(part, chosen=chosen)
        else:
            run.process.wait(LIMIT_S)
        said, left = run.ends()
        assert not left, f"{mode.name}, {part} killed: {left} were left behind"
        assert part is None or says_what_died(said, part, pid), f"{mode.name}, {part} {pid} killed: {said}"
        for step, loss in losses(out).items():
            seen.setdefault(step, []).append(loss)
    assert run.process.returncode == 0, said
    return seen


def base_of(desk):
    """A Hugging Face checkpoint that adapters begin with."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    if not (desk / "base").exists():
        import torch

        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(LlamaConfig(**CONFIG)).save_pretrained(desk / "base")


@pytest.mark.kills
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_run_outlives_random_kills_and_loses_no_step(desk, mode):
    """Five of forty: every kind of process in random order, after a random number of steps."""
    draw = random.Random(f"{SEED} {mode.name}")
    base_of(desk)
    victims = draw.sample(VICTIMS, len(VICTIMS))
    seen = survives(desk, mode, [(part, draw.randrange(12), draw.randrange(2)) for part in victims])
    assert sorted(seen) == list(range(1, max(seen) + 1))
    assert max(seen) >= STEPS
    for step, found in seen.items():
        assert found == pytest.approx([found[0]] * len(found), rel=1e-6), f"{mode.name}: step {step} was {found}"


@pytest.mark.parametrize("part", ["torchrun", "fork server"])
def test_nothing_is_left_behind_when_a_keeper_of_the_ranks_is_killed(desk, part):
    run = train(desk, "fsdp.json", "--steps", 10**6, "--checkpoint-every", 10**6, "--out", f"keeper-{part[:4]}")
    out = desk / f"keeper-{part[:4]}"
    run.wait_for(lambda: num_steps(out) >= 2, "two steps")
    assert run.listening() == {LOOPBACK}, "nobody else has to reach a run on one machine"
    pid = run.kill(part)
    said, left = run.ends()
    assert not left
    assert says_what_died(said, part, pid), said
    assert run.process.returncode == 1
    newest = CheckpointFolder(out / "checkpoints").newest()
    assert newest.step == num_steps(out), "the ranks saved the step that they were in"
    assert f"its newest checkpoint is {newest.path}" in said


def test_nothing_is_left_behind_when_the_terminal_goes_while_ranks_start(desk):
    run = train(desk, "fsdp.json", "--steps", 10**6, "--out", "terminal")
    run.wait_for(lambda: run.processes().get("rank"), "its ranks")
    run.kill("launcher", number=signal.SIGHUP)
    assert run.ends()[1] == {}


@pytest.mark.kills
@pytest.mark.parametrize("part", VICTIMS)
def test_nothing_is_left_behind_of_a_run_that_has_not_begun(desk, part):
    """As soon as there is such a process, whatever the others are doing."""
    run = train(desk, "fsdp.json", "--steps", 30, "--out", f"early-{part[:4]}")
    run.kill(part)
    assert run.ends()[1] == {}


@pytest.mark.kills
@pytest.mark.parametrize("part", ["torchrun", "rank"])
def test_nothing_is_left_behind_of_a_script_that_nobody_follows(desk, part):
    """Here every rank was started by itself, in a session of its own."""
    out = desk / f"script-{part}"
    written = train(desk, "fsdp.json", "--steps", 10**6, "--checkpoint-every", 10**6, "--dry-run", "--out", out)
    assert written.process.wait(LIMIT_S) == 0
    run = Run([out / "run.sh"], desk)
    run.wait_for(lambda: num_steps(out) >= 2, "two steps")
    if part == "torchrun":
        run.process.kill()
    else:
        run.kill(part)
    said, left = run.ends()
    assert left == {}
    assert part == "rank" or "torchrun (process " in said


@pytest.mark.kills
@pytest.mark.parametrize("part", VICTIMS)
def test_nothing_is_left_behind_of_a_calibration(desk, part):
    run = Run(
        [sys.executable, "-m", "shardwise", "calibrate", "--device", "cpu", "--processes", 2, "--seconds", 60], desk
    )
    run.wait_for(lambda: len(run.processes().get("rank", ())) == 2, "its processes")
    run.kill(part)
    said, left = run.ends()
    assert left == {}
    named = ON_DEATH_OF[part].partition(" (")[0] if part in ON_DEATH_OF else ""
    assert part == "rank" or named in said, said
