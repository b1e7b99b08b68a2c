"""An instruction set that tests make, and what a model has learned of it."""

import json
import random
from dataclasses import replace

import torch

from shardwise.train.feed import open_feed
from shardwise.train.job import DataSpec, Job
from shardwise.train.worker import run_job
from train.models import LLAMA

BYTES = {**LLAMA, "vocab_size": 320, "num_hidden_layers": 2}
"""Room for the tokenizer of bytes, whose documents end with token 256."""
CPU = torch.device("cpu")


def write_rows(path, *, num_rows, seed=0):
    """Prompts of random letters, of many lengths, each with a completion of its own."""
    draw = random.Random(seed)
    rows = [
        {
            "prompt": "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.choice((3, 5, 17)))) + "=",
            "completion": "".join(draw.choices("0123456789", k=draw.choice((1, 2, 7)))),
        }
        for _ in range(num_rows)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return DataSpec(source=str(path), packing="documents", overlong="truncate")


def losses_after(job: Job) -> tuple[float, float]:
    """Train the job; mean losses of completions and of prompts then, over the samples of its first step."""
    trainer, _ = run_job(job, device=CPU)
    sums = {}
    for loss_on in ("completions", "all"):
        seen = replace(job, data=replace(job.data, loss_on=loss_on))
        feed = open_feed(seen, data_parallel_rank=0, vocab_size=job.vocab_size, device=CPU)
        with torch.no_grad():
            found = [trainer.built.chunks[0](batch.inputs, batch.labels) for batch in feed.next_step()]
        feed.load_state_dict({**feed.state_dict(), "position": 0})
        counts = [int((batch.labels >= 0).sum()) for batch in feed.next_step()]
        feed.close()
        sums[loss_on] = (float(sum(found)), sum(counts))
    (learned, num_learned), (both, num_both) = sums["completions"], sums["all"]
    return learned / num_learned, (both - learned) / (num_both - num_learned)


def watched(job: Job) -> tuple[list[float], list[float], list[str]]:
    """Losses of a run's steps and of its validations, and the last answers to its prompts."""
    trainer, records = run_job(job, device=CPU)
    del trainer
    found = [record.validation_loss for record in records if record.validation_loss is not None]
    path = job.folder / "generations.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    last = max((line["step"] for line in lines), default=0)
    return [r.loss for r in records], found, [line["text"] for line in lines if line["step"] == last]


def looks_twice(job: Job) -> tuple[float, float]:
    """Losses of two validations in a row of what the job has trained."""
    validator = run_job(job, device=CPU)[0].validator
    assert validator is not None, "the job does not validate"
    return validator.run(1).loss, validator.run(2).loss
