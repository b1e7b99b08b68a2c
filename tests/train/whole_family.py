"""The probe of loading and exporting: what was trained at a learning rate of 0 is exported as it was loaded."""

import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy

from shardwise.train.checkpoint.folder import find_checkpoint
from shardwise.train.feed import open_feed
from shardwise.train.job import CheckpointSpec, Job, OptimizerSpec
from shardwise.train.pretrained.conversion import conversion_of
from shardwise.train.pretrained.export import ExportedModel, export_checkpoint
from train.models import make_job
from train.tiny_families import tiny_fields
from train.world_member import run

CPU = torch.device("cpu")
SEED = 11


def fields_without_dropout(model_type: str) -> dict:
    """The family's small config without what draws random numbers in training."""
    from transformers import AutoConfig

    fields = tiny_fields(model_type)
    whole = AutoConfig.for_model(**fields).to_dict()
    chances = [
        name for name, value in whole.items() if isinstance(value, float) and ("drop" in name or "jitter" in name)
    ]
    return fields | dict.fromkeys(chances, 0.0)


def reference(fields: dict, folder: Path, *, dtype: torch.dtype = torch.float32):
    """A model of the family as transformers builds and saves it; buffers hold values that no class begins with."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(SEED)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields), attn_implementation="eager")
    kept = made.state_dict()
    with torch.no_grad():
        for name, tensor in [*made.named_buffers(), *made.named_parameters()]:
            if name in kept and tensor.is_floating_point():
                tensor.add_(torch.randn_like(tensor) * 0.01)
    made.save_pretrained(folder / "fp32")
    again = AutoModelForCausalLM.from_pretrained(folder / "fp32", dtype=dtype, attn_implementation="eager")
    again.save_pretrained(folder / "saved", max_shard_size="100KB")
    return again.eval()


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One family, and how it is trained between loading and exporting."""

    model_type: str
    layout: dict = field(default_factory=dict)
    implementation: str = "transformers"
    precision: str = "fp32"
    changed: dict = field(default_factory=dict)
    """Fields of the config that are not those of the small one."""
    num_resumed_steps: int = 0
    """Steps after which the run goes on from its checkpoint alone, without the weights it began with."""


def differences(world, asked: Probe) -> list[str]:
    """What is wrong with a family: nothing, or one sentence for every tensor and number that differs."""
    with tempfile.TemporaryDirectory(prefix="shardwise-family-") as folder:
        return list(_differences(world, asked, Path(folder)))


def _differences(world, asked: Probe, folder: Path):
    fields = fields_without_dropout(asked.model_type) | asked.changed
    made = reference(fields, folder, dtype=torch.float32 if asked.precision == "fp32" else torch.bfloat16)
    job = _job(asked, fields, folder)
    losses = world.run(run, job)[0].losses
    if asked.num_resumed_steps:
        losses += world.run(run, _resumed(job, asked.num_resumed_steps))[0].losses
    shutil.rmtree(job.run_folder)
    saved, out = _tensors(folder / "saved"), _tensors(folder / "out")
    yield from _tensor_differences(saved, out)
    if asked.precision == "fp32":
        yield from _number_differences(made, folder, job, losses)
    table = conversion_of(fields, dtype=made.dtype) if asked.implementation == "transformers" else None
    model = ExportedModel(config=fields, dtype=str(made.dtype).removeprefix("torch."), conversion=table)
    files = export_checkpoint(find_checkpoint(folder / "run").path, folder / "parts", model, max_file_bytes=60_000)
    if len(files) < 2 or list(_tensor_differences(out, _tensors(folder / "parts"))):
        yield f"{len(files)} small files do not hold what one does"


def _job(asked: Probe, fields: dict, folder: Path) -> Job:
    attention = "flash" if asked.implementation == "shardwise" else "eager"
    choices = {"attention": attention, "seq_len": 16, "precision": asked.precision}
    job = make_job(model=fields, layout=asked.layout, num_steps=1, implementation=asked.implementation, **choices)
    places = {
        "folder": str(folder / "run"),
        "initial_weights": str(folder / "saved"),
        "export_folder": str(folder / "out"),
    }
    job = replace(job, optimizer=OptimizerSpec(learning_rate=0.0), checkpoint=CheckpointSpec(**places))
    return replace(job, checkpoint=replace(job.checkpoint, export_folder=None)) if asked.num_resumed_steps else job


def _resumed(job: Job, num_steps: int) -> Job:
    folder = Path(str(job.checkpoint.folder))
    spec = replace(
        job.checkpoint, initial_weights=None, resume_from=str(folder), export_folder=str(folder.parent / "out")
    )
    return replace(job, num_steps=job.num_steps + num_steps, checkpoint=spec)


def _number_differences(made, folder: Path, job: Job, losses: list[float]):
    from transformers import AutoModelForCausalLM

    expected_loss = _first_loss(made, job)
    if abs(losses[0] - expected_loss) > 1e-5 * expected_loss:
        yield f"the first loss is {losses[0]:.6f} instead of {expected_loss:.6f}"
    loaded, report = AutoModelForCausalLM.from_pretrained(
        folder / "out", output_loading_info=True, attn_implementation="eager"
    )
    yield from (f"from_pretrained: {kind} {sorted(names)[:2]}" for kind, names in report.items() if names)
    ids = torch.randint(3, 100, (2, 16), generator=torch.Generator().manual_seed(SEED))
    with torch.no_grad():
        expected, found = (model(input_ids=ids, use_cache=False).logits for model in (made, loaded.eval()))
    if not torch.equal(expected, found):
        yield f"logits differ by {(expected - found).abs().max().item():.2e}"


def _first_loss(made, job) -> float:
    """What the class of the family says of the job's first batch, averaged over its tokens."""
    total, num_tokens = 0.0, 0
    for rank in range(job.layout.data_parallel_size):
        feed = open_feed(job, data_parallel_rank=rank, vocab_size=job.vocab_size, device=CPU)
        for batch in feed.next_step():
            with torch.no_grad():
                logits = made(input_ids=batch.inputs, use_cache=False).logits
            total += cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="sum").item()
            num_tokens += batch.labels.ne(-100).sum().item()
        feed.close()
    return total / num_tokens


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def _tensor_differences(saved, exported):
    yield from (f"{name} is not exported" for name in sorted(saved.keys() - exported.keys()))
    yield from (f"{name} is exported" for name in sorted(exported.keys() - saved.keys()))
    for name in sorted(saved.keys() & exported.keys()):
        one, other = saved[name], exported[name]
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            yield f"{name} is {tuple(other.shape)} {other.dtype} instead of {tuple(one.shape)} {one.dtype}"
        elif not torch.equal(one, other):
            yield f"{name} has other values"
