"""Continues prompts while a model trains: greedily, by the forward that trains it, which keeps no keys and values.

Every rank computes the same prompts, so that layouts that divide matrices work as in training. Every new token costs a
forward over sequences of ``seq_len``, the shape that blocks are compiled for; a few tokens of a few prompts are meant.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from shardwise.train.build import Built
from shardwise.train.data.chat import stop_tokens
from shardwise.train.data.prompts import Prompt, read_prompts
from shardwise.train.data.request import tokenizer_of
from shardwise.train.data.tokenizer import Tokenizer
from shardwise.train.failure.full_disk import writing
from shardwise.train.job import Job

__all__ = ["GENERATIONS_FILE", "Generator", "open_generator"]

GENERATIONS_FILE = "generations.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """Continues the prompts of a job."""

    job: Job
    built: Built
    prompts: tuple[Prompt, ...]
    tokenizer: Tokenizer
    stops: tuple[int, ...]
    """Tokens that end an answer."""
    device: torch.device

    def run(self, step: int) -> None:
        """Write a line for each prompt into the run folder; every rank calls it."""
        size = self.job.recipe.micro_batch_size
        groups = [self.prompts[start : start + size] for start in range(0, len(self.prompts), size)]
        written = [tokens for group in groups for tokens in self._continued(group, size)]
        if dist.get_rank() != 0:
            return
        path = self.job.folder / GENERATIONS_FILE
        lines = [
            json.dumps({"step": step, "prompt": prompt.text, "text": self.tokenizer.decode(tokens)})
            for prompt, tokens in zip(self.prompts, written, strict=True)
        ]
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def _continued(self, prompts: tuple[Prompt, ...], size: int) -> list[list[int]]:
        """The new tokens after each of at most ``size`` prompts, a micro-batch of them, up to where an answer ends."""
        seq_len = self.job.recipe.seq_len
        stops = torch.tensor(self.stops, dtype=torch.int64, device=self.device)
        rows = [*prompts, *[prompts[-1]] * (size - len(prompts))]
        ids_BS = torch.zeros(len(rows), seq_len, dtype=torch.int64)
        for row, prompt in enumerate(rows):
            ids_BS[row, : len(prompt.tokens)] = torch.tensor(prompt.tokens)
        lengths_B = torch.tensor([len(prompt.tokens) for prompt in rows])
        starts, has_ended_B = lengths_B.tolist(), torch.zeros(len(rows), dtype=torch.bool)
        ids_BS, lengths_B, has_ended_B = (part.to(self.device) for part in (ids_BS, lengths_B, has_ended_B))
        for _ in range(self.job.validation.max_new_tokens):
            has_ended_B |= lengths_B >= seq_len
            if has_ended_B.all():
                break
            next_B = self._next(ids_BS, lengths_B - 1)
            has_ended_B |= torch.isin(next_B, stops)
            place_B = lengths_B.clamp(max=seq_len - 1)
            kept_B = ids_BS.gather(1, place_B.unsqueeze(1)).squeeze(1)
            ids_BS.scatter_(1, place_B.unsqueeze(1), torch.where(has_ended_B, kept_B, next_B).unsqueeze(1))
            lengths_B += ~has_ended_B
        ends = lengths_B.tolist()
        return [ids_BS[row, starts[row] : ends[row]].tolist() for row in range(len(prompts))]

    def _next(self, ids_BS: torch.Tensor, last_B: torch.Tensor) -> torch.Tensor:
        """The likeliest token after the last one of each row."""
        places = {}
        if self.job.data.masks_documents:
            places["document_places_BS"] = torch.arange(ids_BS.size(1), device=self.device).expand_as(ids_BS)
        found: torch.Tensor = self.built.chunks[0](ids_BS, None, next_after_B=last_B, **places)
        return found


def open_generator(job: Job, built: Built, *, device: torch.device) -> Generator | None:
    """The generator of a job; ``None`` where the job has no prompts."""
    if job.validation.prompts is None:
        return None
    tokenizer = tokenizer_of(job.data)
    prompts = read_prompts(Path(job.validation.prompts), tokenizer=tokenizer, seq_len=job.recipe.seq_len)
    stops = stop_tokens(tokenizer)
    return Generator(job=job, built=built, prompts=prompts, tokenizer=tokenizer, stops=stops, device=device)
