"""Train one configuration with torchtitan 0.2.2 as its users do, and write one JSON line beside ours.

    torchrun --standalone --nproc-per-node 4 titan_run.py --name 8b-8192-full --out titan.jsonl -- \
        --model.flavor ours_8b --training.seq_len 8192 ...

Everything after ``--`` is torchtitan's own command line. Nothing of torchtitan is changed: sizes it has no flavour for
are added to its table, its loader is put aside for the tokens that our runs train on, and its trainer is watched: a
CUDA event after each step, the losses it logs, the allocator's peaks at the end.
"""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from shardwise.train.data import SampleOrder, open_samples
from shardwise.train.data.batches import Batch, GlobalBatches
from shardwise.train.job import DataSpec

WARM_UP_STEPS = 4
LOGGED_STEPS = 14
"""torchtitan logs the first step and every so many; a log waits for the GPU."""
VOCAB_SIZE = 128256


def add_flavors() -> None:
    """The models of ``train_suites.py`` in torchtitan's words."""
    from torchtitan.models.llama3 import llama3_args
    from torchtitan.models.llama3.model.args import TransformerModelArgs

    shared = {"n_kv_heads": 8, "vocab_size": 128256, "rope_theta": 500000}
    llama3_args["ours_1b"] = TransformerModelArgs(
        dim=2048, n_layers=16, n_heads=32, ffn_dim_multiplier=1.5, multiple_of=256, **shared
    )
    llama3_args["ours_3b"] = TransformerModelArgs(dim=3072, n_layers=28, n_heads=24, multiple_of=256, **shared)
    llama3_args["ours_8b"] = llama3_args["8B"]
    from torchtitan.models.moe import MoEArgs
    from torchtitan.models.qwen3 import qwen3_args
    from torchtitan.models.qwen3.model.args import Qwen3ModelArgs

    experts = MoEArgs(num_experts=32, num_shared_experts=0, top_k=4, score_func="softmax", route_norm=True)
    experts.score_before_experts = False
    qwen3_args["ours_moe-3b"] = Qwen3ModelArgs(
        dim=2048,
        n_layers=16,
        n_heads=16,
        n_kv_heads=4,
        head_dim=128,
        hidden_dim=6144,
        moe_enabled=True,
        moe_inter_dim=768,
        moe_args=experts,
    )


def write_inputs(folder: Path) -> None:
    """A tokenizer of bytes and a folder of JSON lines, which torchtitan needs before it trains."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data").mkdir(exist_ok=True)
    alphabet = {chr(code): code - 32 for code in range(32, 127)}
    vocabulary = {**alphabet, "<|begin_of_text|>": 95, "<|end_of_text|>": 96}
    special = [
        {
            "id": vocabulary[name],
            "content": name,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for name in ("<|begin_of_text|>", "<|end_of_text|>")
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocabulary,
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    with (folder / "data" / "train.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(256):
            codes = torch.randint(97, 123, (20000,), generator=generator).tolist()
            file.write(json.dumps({"text": "".join(map(chr, codes))}) + "\n")


def our_batches(seq_len: int, micro_batch_size: int, num_batches: int) -> list[Batch]:
    """What this data-parallel rank trains on when our runtime runs the same configuration."""
    samples = open_samples(DataSpec(source="synthetic"), seq_len=seq_len, vocab_size=VOCAB_SIZE)
    order = SampleOrder(num_samples=samples.num_samples, seed=0, is_shuffled=True)
    source = GlobalBatches(
        samples, order=order, dp_rank=dist.get_rank(), dp_size=dist.get_world_size(), micro_batch_size=micro_batch_size
    )
    return list(itertools.islice(source, num_batches))


def main() -> int:
    """Train and write the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--inputs", type=Path, default=Path("/tmp/titan-inputs"))
    parser.add_argument("--ranks-imagined", type=int, help="one process as rank 0 of so many, for its memory alone")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if os.environ.get("LOCAL_RANK", "0") == "0" and not (arguments.inputs / "data" / "train.jsonl").exists():
        write_inputs(arguments.inputs)
    while not (arguments.inputs / "data" / "train.jsonl").exists():
        pass
    from torchtitan.config import ConfigManager
    from torchtitan.tools.logging import init_logger
    from torchtitan.train import Trainer

    class Watched(Trainer):
        """torchtitan's trainer with an event after each step."""

        def batch_generator(self, data_iterable: object) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
            del data_iterable
            training = self.job_config.training
            num_batches = training.steps * self.gradient_accumulation_steps
            batches = our_batches(training.seq_len, training.local_batch_size, num_batches)
            for batch in batches:
                self.ntokens_seen += batch.labels.numel()
                self.metrics_processor.ntokens_since_last_log += batch.labels.numel()
                self.metrics_processor.data_loading_times.append(0.0)
                yield {"input": batch.inputs}, batch.labels

        def train_step(self, data_iterator: object) -> None:
            super().train_step(data_iterator)
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.events.append(event)

    if arguments.ranks_imagined:
        one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(arguments.ranks_imagined)}
        os.environ.update(one, NGPU=str(arguments.ranks_imagined))
        words += ["--comm.mode", "fake_backend"]
    init_logger()
    add_flavors()
    config = ConfigManager().parse_args(
        [
            "--model.name",
            "llama3",
            "--model.hf_assets_path",
            str(arguments.inputs),
            "--training.dataset",
            "c4_test",
            "--training.dataset_path",
            str(arguments.inputs / "data"),
            "--metrics.log_freq",
            str(LOGGED_STEPS),
            *words,
        ]
    )
    trainer = Watched(config)
    trainer.events, losses, peaks = [], {}, [(0, 0)]
    log = trainer.metrics_processor.log

    def log_and_keep(step: int, loss: float, *values: float, **more: object) -> None:
        # A log sets the allocator's peaks back, so they are read before.
        peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
        losses[step] = float(loss)
        log(step, loss, *values, **more)

    trainer.metrics_processor.log = log_and_keep
    trainer.train()
    torch.cuda.synchronize()
    seconds = [a.elapsed_time(b) / 1000 for a, b in zip(trainer.events, trainer.events[1:], strict=False)]
    step_s = median(seconds[WARM_UP_STEPS - 1 :])
    peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
    worst = torch.tensor(peaks, device="cuda").amax(dim=0)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        training, world = config.training, dist.get_world_size()
        ranks = trainer.parallel_dims.dp_replicate * trainer.parallel_dims.dp_shard
        sequences = training.local_batch_size * ranks * trainer.gradient_accumulation_steps
        line = {
            "name": arguments.name,
            "engine": "torchtitan 0.2.2",
            "words": words,
            "ranks_imagined": arguments.ranks_imagined,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "losses_by_step": losses,
            "step_s": step_s,
            "steps_s": seconds,
            "tokens_per_s_per_gpu": sequences * training.seq_len / step_s / world,
            "peak_allocated_bytes": int(worst[0]),
            "peak_reserved_bytes": int(worst[1]),
        }
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    trainer.close()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
