"""What a run reads and writes is looked at before a folder is made or a process started, dry runs included."""

import json
import shutil
from dataclasses import asdict, replace

import pytest
import torch
from safetensors.torch import save_file

from shardwise.cli.main import main
from shardwise.errors import CheckpointError
from shardwise.train.checkpoint.folder import CheckpointFolder
from shardwise.train.checkpoint.origin import FACTS, origin_facts
from shardwise.train.data import SampleOrder, open_samples
from shardwise.train.data.indexed_tokens import TokenWriter, token_dtype
from shardwise.train.data.state import state_at
from shardwise.train.decoder.config import read_config
from shardwise.train.decoder.shapes import tensor_shapes
from shardwise.train.job import DataSpec, OptimizerSpec, read_job
from shardwise.train.pretrained.files import files_by_tensor, require_whole
from train.models import LLAMA

PLAN = ["llama-3.2-1b", "1xh100-sxm", "--seq-len", "64"]
WEIGHTS = {"a": torch.zeros(3, 2), "b": torch.zeros(5)}


def train(words, capsys) -> tuple[int, dict[str, str]]:
    exit_code = main(["train", *PLAN, "--device", "cpu", "--json", "--out", "run", *words])
    return exit_code, json.loads(capsys.readouterr().out)


def saved_at(folder, step, facts=None):
    states = CheckpointFolder(folder)
    unfinished = states.begin(step)
    (unfinished / ".metadata").write_bytes(b"made up")
    (unfinished / FACTS).write_text(json.dumps({"step": step, **(facts or {})}), encoding="utf-8")
    return states.publish(step)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A folder with a checkpoint of step 400, a text, and things that are not what they are taken for."""
    monkeypatch.chdir(tmp_path)
    saved_at(tmp_path / "old" / "checkpoints", 400)
    (tmp_path / "a.txt").write_text("some text " * 9, encoding="utf-8")
    (tmp_path / "short.txt").write_text("some text", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text('{"body": "some text"}\n', encoding="utf-8")
    (tmp_path / "there").mkdir()
    (tmp_path / "cut").mkdir()
    save_file(WEIGHTS, tmp_path / "cut" / "model.safetensors")
    whole = (tmp_path / "cut" / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole[:-4])
    (tmp_path / "other").mkdir()
    save_file(WEIGHTS, tmp_path / "other" / "model.safetensors")
    writer = TokenWriter(tmp_path / "large", dtype=token_dtype(1 << 20))
    writer.add([[128_255] * 99, [128_256]])
    writer.close()
    return tmp_path


@pytest.mark.parametrize("is_dry", [False, True], ids=["started", "dry"])
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--resume", "old", "--steps", "12"], "checkpoint-steps", "is at step 400, and --steps 12 is the total"),
        (["--resume", "old", "--steps", "400"], "checkpoint-steps", "so no step is left"),
        (["--resume", "nowhere"], "checkpoint-none", "it does not exist"),
        (["--weights", "nowhere"], "pretrained-files", "is no folder"),
        (["--weights", "there"], "pretrained-files", "holds no safetensors files"),
        (["--weights", "cut"], "pretrained-files", "its header promises"),
        (["--weights", "other"], "pretrained-tensor", "other holds no tensor model.embed_tokens.weight; 145 other"),
        (["--export", "there"], "output-exists", "there exists already"),
        (["--export", "a.txt/out"], "output-path", "a.txt is no folder"),
        (["--checkpoint-every", "2", "--checkpoints", "a.txt"], "output-path", "a.txt is no folder"),
        (["--tensorboard", "a.txt/board"], "output-path", "--tensorboard: "),
        (["--data", "nowhere.txt"], "data-not-found", "nowhere.txt"),
        (["--data", "a.jsonl"], "data-field", "no text under 'text'"),
        (["--data", "tokens.bin"], "data-tokens", "tokens.idx"),
        (["--data", "short.txt"], "data-too-short", "the data have 10 tokens, and one sample takes 65"),
        (["--data", "large.bin"], "data-vocabulary", "hold token 128256, but the model knows only tokens 0 to 128255"),
        (["--data", "a.txt", "--tokenizer", "a.jsonl"], "data-tokenizer", "is not a tokenizer"),
        (["--out", "a.txt"], "train-run-folder", "is a file"),
        (["--out", "a.txt/run"], "output-path", "--out: "),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_nothing_behind(desk, words, code, says, is_dry, capsys):
    before = sorted(desk.rglob("*"))
    exit_code, said = train([*words, *(["--dry-run"] if is_dry else [])], capsys)
    assert (exit_code, said["code"]) == (2, code)
    assert says in said["error"]
    assert sorted(desk.rglob("*")) == before


@pytest.mark.parametrize("asked", [[], ["--dry-run"], ["--lint"]], ids=["started", "dry", "listed"])
def test_tokens_that_could_be_kept_nowhere_are_refused(desk, monkeypatch, asked, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(desk / "short.txt" / "cache"))
    words = ["train", *PLAN, "--device", "cpu", "--json", "--out", "run", "--data", "a.txt", *asked]
    assert main(words) == 2
    said = capsys.readouterr().out
    assert "data-cache" in said
    assert "short.txt is no folder" in said
    assert not (desk / "run").exists()


@pytest.mark.parametrize("machine", ["2xh100-sxm", "2xdgx-h100"], ids=["one node", "many nodes"])
@pytest.mark.parametrize(
    ("axis", "asked"), [("tp", ["gpt2"]), ("cp", ["llama-3.2-1b", "--implementation", "transformers"])], ids=str
)
def test_a_layout_that_divides_a_model_of_transformers_is_refused(desk, machine, axis, asked, capsys):
    words = [asked[0], machine, *asked[1:], f"--{axis}", "2", "--seq-len", "64", "--dry-run", "--json", "--out", "run"]
    before = sorted(desk.rglob("*"))
    assert main(["train", *words]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["code"] == "train-transformers-layout"
    assert f"{axis} divide the inside of a model, which our trainer does not do to " in said["error"]
    assert sorted(desk.rglob("*")) == before


@pytest.fixture
def made(desk, monkeypatch, capsys):
    """A folder with a checkpoint of step 4 that says what it was made with: bytes of a.txt, AdamW, every weight."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(desk / "cache"))
    assert train(["--data", "a.txt", "--dry-run"], capsys)[0] == 0
    job = replace(read_job(desk / "run" / "job.json"), optimizer=OptimizerSpec(learning_rate=7e-5))
    request = DataSpec(source=str(desk / "a.txt"), crosses_documents=True)
    samples = open_samples(request, seq_len=64, vocab_size=256)
    data = {"seed": 0, "is_shuffled": True, "num_samples": 1, "fingerprint": samples.fingerprint}
    saved_at(desk / "made", 4, origin_facts(job, data))
    (desk / "b.txt").write_text("other text " * 9, encoding="utf-8")
    shutil.rmtree(desk / "run")
    return desk


SAME = ["--resume", "made", "--data", "a.txt"]


@pytest.mark.parametrize("is_dry", [False, True], ids=["started", "dry"])
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--seed", "7"], "data-changed", "seed was 0, now it is 7"),
        (["--no-shuffle"], "data-changed", "is_shuffled was True, now it is False"),
        (["--data", "synthetic", "--data", "b.txt"], "data-changed", "fingerprint was stream/"),
        (["--seq-len", "32"], "data-changed", "num_samples was 1, now it is 2"),
        (["--data", "synthetic"], "data-changed", "num_samples was 1, now it is 1099511627776"),
        (["--optimizer", "lion"], "checkpoint-mismatch", "holds the states of adamw"),
        (["--adapter", "lora"], "checkpoint-mismatch", "holds all weights (adapter none)"),
    ],
)
def test_a_resume_that_cannot_be_the_same_run_is_refused(made, words, code, says, is_dry, capsys):
    exit_code, said = train([*SAME, *words, *(["--dry-run"] if is_dry else [])], capsys)
    assert (exit_code, said["code"]) == (2, code)
    assert says in said["error"]
    assert not (made / "run").exists()


ADAPTED = {**LLAMA, "num_hidden_layers": 1}
LORA = ["config.json", "1xh100-sxm", "--seq-len", "64", "--adapter", "lora"]


def lay_weights(folder, value):
    """A checkpoint of the adapted model, all of whose numbers are the same."""
    folder.mkdir(exist_ok=True)
    tensors = {name: torch.full(shape, value) for name, shape in tensor_shapes(read_config(ADAPTED))}
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture
def adapted(desk, capsys):
    """Two checkpoints of one shape, and adapters of step 4: of the first, and of no checkpoint."""
    (desk / "config.json").write_text(json.dumps(ADAPTED), encoding="utf-8")
    lay_weights(desk / "base", 0.5)
    lay_weights(desk / "tuned", 0.25)
    samples = open_samples(DataSpec(), seq_len=64, vocab_size=ADAPTED["vocab_size"])
    order = SampleOrder(num_samples=samples.num_samples, seed=0, is_shuffled=True)
    data = state_at(0, samples=samples, order=order)
    for name, words in {"of-base": ["--weights", "base"], "of-none": ["--random-weights"]}.items():
        assert main(["train", *LORA, *words, "--dry-run", "--device", "cpu", "--json", "--out", "run"]) == 0
        saved_at(desk / name, 4, origin_facts(read_job(desk / "run" / "job.json"), data))
        shutil.rmtree(desk / "run")
    capsys.readouterr()
    return desk


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--resume", "of-base", "--weights", "tuned"], "/tuned beneath them"),
        (["--resume", "of-base", "--random-weights"], "random weights beneath them"),
        (["--resume", "of-none", "--weights", "base"], "holds adapters of random weights, and this run has "),
    ],
    ids=str,
)
def test_adapters_go_on_beside_no_other_weights(adapted, words, says, capsys):
    assert main(["train", *LORA, *words, "--dry-run", "--device", "cpu", "--json", "--out", "run"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["code"] == "checkpoint-mismatch"
    assert says in said["error"]
    assert not (adapted / "run").exists()


def test_weights_that_were_written_over_are_other_weights_and_copied_ones_are_not(adapted, capsys):
    shutil.copytree(adapted / "base", adapted / "copy")
    lay_weights(adapted / "base", 0.125)
    resumed = ["train", *LORA, "--resume", "of-base", "--dry-run", "--device", "cpu", "--json", "--out"]
    assert main([*resumed, "run", "--weights", "base"]) == 2
    assert "others that lie there now beneath them" in json.loads(capsys.readouterr().out)["error"]
    assert main([*resumed, "other-run", "--weights", "copy"]) == 0


@pytest.mark.parametrize("machine", ["1xh100-sxm", "2xdgx-h100"], ids=["one node", "many nodes"])
@pytest.mark.parametrize("asked", [["--dry-run"], ["--lint"]], ids=str)
@pytest.mark.parametrize("adapter", ["lora", "qlora"])
def test_adapters_of_nothing_are_refused_whatever_is_asked(desk, machine, asked, adapter, capsys):
    words = ["llama-3.2-1b", machine, "--seq-len", "64", "--adapter", adapter, *asked, "--json", "--out", "run"]
    assert main(["train", *words]) == 2
    said = capsys.readouterr().out
    assert "train-random-weights" in said
    assert f"adapter {adapter} has no weights to adapt" in said
    assert not (desk / "run").exists()


@pytest.mark.parametrize("words", [[], ["--optimizer", "adamw-8bit"], ["--learning-rate", "1e-5"]], ids=str)
def test_a_resume_of_the_same_run_passes(made, words, capsys):
    exit_code, said = train([*SAME, *words, "--dry-run"], capsys)
    assert exit_code == 0, said
    rate = read_job(made / "run" / "job.json").optimizer.learning_rate
    assert rate == (float(words[1]) if "--learning-rate" in words else 7e-5), "not given, it is that of the run"


def test_the_fix_of_a_finished_run_names_the_step(desk, capsys):
    _, said = train(["--resume", "old", "--steps", "12"], capsys)
    assert said["fix"] == "set --steps above 400"


def test_a_dry_run_that_passes_writes_job_and_script(desk, capsys):
    words = ["--resume", "old", "--steps", "401", "--data", "a.txt", "--export", "exported", "--dry-run"]
    exit_code, said = train(words, capsys)
    assert exit_code == 0
    assert said["script"] == str(desk / "run" / "run.sh")
    written = sorted(path.name for path in (desk / "run").iterdir())
    assert written == ["job.json", "plan.json", "prediction.json", "recipe.json", "run.sh"]


def test_a_command_for_many_nodes_may_name_what_only_they_see(desk, capsys):
    words = ["llama-3.2-1b", "2xdgx-h100", "--dp-shard", "16", "--seq-len", "64", "--data", "/lustre/tokens.bin"]
    assert main(["train", *words, "--json", "--out", "run"]) == 0
    assert (desk / "run" / "run.sh").exists()
    assert "/lustre/tokens.bin" in (desk / "run" / "job.json").read_text(encoding="utf-8")
    capsys.readouterr()


def test_a_dry_run_says_what_it_wrote(desk, capsys):
    assert main(["train", *PLAN, "--dry-run", "--device", "cpu", "--out", "run"]) == 0
    script = desk / "run" / "run.sh"
    assert capsys.readouterr().out == (
        f"what the run reads is there and nothing was started; wrote {script}: run it here\n"
        "weights: random, drawn from seed 0 (no --weights)\n"
        "tokens: synthetic, made up from seed 0 (no --data PATH): the loss says nothing about text\n"
        "optimizer: adamw, learning rate 0.0003 (constant) after 0 steps of warm-up, weight decay 0.1\n"
    )


def test_a_dry_run_says_what_it_did_not_look_at(desk, capsys):
    config = {**LLAMA, "num_hidden_layers": 1}
    (desk / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {name: torch.full(shape, torch.nan) for name, shape in tensor_shapes(read_config(config))}
    save_file(tensors, desk / "there" / "model.safetensors")
    words = ["train", "config.json", *PLAN[1:], "--dry-run", "--weights", "there", "--out"]
    assert main([*words, "run"]) == 0
    assert "not looked at: whether the values of the weights are finite" in capsys.readouterr().out
    assert main([*words, "other-run", "--json"]) == 0
    (unseen,) = json.loads(capsys.readouterr().out)["not_looked_at"]
    assert "finite" in unseen


def test_weights_of_a_type_that_needs_scales_are_refused(desk, capsys):
    config = {**LLAMA, "num_hidden_layers": 1}
    (desk / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = dict(tensor_shapes(read_config(config)))
    tensors = {name: torch.zeros(shape, dtype=torch.float8_e4m3fn) for name, shape in shapes.items()}
    save_file(tensors, desk / "there" / "model.safetensors")
    assert main(["train", "config.json", *PLAN[1:], "--dry-run", "--weights", "there", "--out", "run", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["code"] == "pretrained-tensor"
    assert "model.embed_tokens.weight is F8_E4M3 in" in said["error"]


def test_headers_say_which_file_holds_which_tensor(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(WEIGHTS, path, metadata={"format": "pt"})
    require_whole(tmp_path)
    assert files_by_tensor(tmp_path) == {"a": path, "b": path}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 64),
        ("model.safetensors", (2).to_bytes(8, "little") + b"[]"),
        ("model.safetensors.index.json", b"\xff"),
        ("model.safetensors.index.json", b'{"weight_map": []}'),
        ("config.json", b"{"),
    ],
)
def test_a_broken_file_of_a_pretrained_model_is_named(tmp_path, name, content):
    save_file(WEIGHTS, tmp_path / "model.safetensors")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError) as refused:
        require_whole(tmp_path)
    assert refused.value.code == "pretrained-files"
    assert str(tmp_path / name) in refused.value.message


SCHEDULED = OptimizerSpec(
    learning_rate=7e-5,
    weight_decay_fraction=0.02,
    beta_1_fraction=0.8,
    beta_2_fraction=0.9,
    epsilon=1e-6,
    max_grad_norm=0.0,
    num_warmup_steps=3,
    decay="wsd",
    num_decay_steps=5,
    min_learning_rate_ratio=0.3,
    undecayed=("*q_proj*",),
    group_rates=(("*embed_tokens*", 1e-5),),
)


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ([], {}),
        (["--decay", "cosine"], {"decay": "cosine"}),
        (
            ["--decay-steps", "2", "--min-learning-rate-ratio", "0"],
            {"num_decay_steps": 2, "min_learning_rate_ratio": 0},
        ),
        (["--max-grad-norm", "2", "--undecayed", "*norm*"], {"max_grad_norm": 2.0, "undecayed": ("*norm*",)}),
        (["--group-rate", "*q_proj*=1e-6"], {"group_rates": (("*q_proj*", 1e-6),)}),
    ],
    ids=str,
)
def test_a_resume_steps_as_before_but_for_what_is_given(made, words, changed, capsys):
    """A schedule that began anew would lift the rate back to its peak."""
    _rewrite(made / "made", optimizer=SCHEDULED)
    assert train([*SAME, *words, "--dry-run"], capsys)[0] == 0
    assert read_job(made / "run" / "job.json").optimizer == replace(SCHEDULED, **changed)


def test_a_plan_that_clips_again_clips_to_the_usual_norm(made, capsys):
    _rewrite(made / "made", optimizer=SCHEDULED, clip_gradients=False)
    assert train([*SAME, "--dry-run"], capsys)[0] == 0
    assert read_job(made / "run" / "job.json").optimizer == replace(SCHEDULED, max_grad_norm=1.0)


def _rewrite(folder, *, optimizer, clip_gradients=True):
    """Make the checkpoint once more, of a run that had this optimizer."""
    facts = json.loads((next(folder.glob("step-*")) / FACTS).read_text(encoding="utf-8"))
    facts["job"] |= {"optimizer": asdict(optimizer)}
    facts["job"]["recipe"]["clip_gradients"] = clip_gradients
    shutil.rmtree(folder)
    saved_at(folder, 4, facts)
