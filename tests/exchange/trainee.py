"""A user's program: it trains a tiny model with DeepSpeed or Accelerate as exported files say, on a native run's data.

``torchrun --standalone --nproc-per-node 2 trainee.py TOOL FOLDER JOB WEIGHTS LOSSES``. The data, their order and the
numbers of the optimizer are those of the run folder's job; sharding, batch and precision are those of the tool's files.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from shardwise.train.feed import open_feed
from shardwise.train.job import read_job


def optimizer_of(model, spec):
    decaying = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": decaying, "weight_decay": spec.weight_decay_fraction}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=spec.learning_rate, betas=(spec.beta_1_fraction, spec.beta_2_fraction))


def with_deepspeed(folder, model, optimizer):
    """What runs a micro-batch forward and backward, and what takes a step after the last of them."""
    import deepspeed

    config = json.loads((folder / "ds_config.json").read_text())
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    assert engine.zero_optimization_stage() == config["zero_optimization"]["stage"]

    def one(batch):
        loss = loss_of(engine, batch)
        engine.backward(loss)
        engine.step()
        return loss

    return one, config["gradient_accumulation_steps"]


def with_accelerate(folder, model, optimizer):
    """FSDP 2 from the variables that ``accelerate launch`` hands over; by itself Accelerate shards on GPUs alone."""
    import yaml
    from accelerate import Accelerator, PartialState
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    words = ["--config_file", str(folder / "accelerate.yaml"), "trainee.py"]
    parsed = _validate_launch_command(launch_command_parser().parse_args(words))[0]
    own = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    os.environ.update({**prepare_multi_gpu_env(parsed), **own})
    steps = yaml.safe_load((folder / "training_arguments.yaml").read_text())["gradient_accumulation_steps"]
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps, fsdp_plugin=FullyShardedDataParallelPlugin())
    assert accelerator.is_fsdp2
    model, optimizer = accelerator.prepare(model, optimizer)
    assert all(isinstance(parameter, torch.distributed.tensor.DTensor) for parameter in model.parameters())

    def one(batch):
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)  # as TrainingArguments does by default
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return one, steps


def loss_of(model, batch):
    logits = model(input_ids=batch.inputs, use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1).float(), batch.labels.flatten())


def main(tool, folder, job, weights, losses):
    job = read_job(Path(job))
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32, attn_implementation="sdpa")
    model.train()
    run = {"deepspeed": with_deepspeed, "accelerate": with_accelerate}[tool]
    one, num_microbatches = run(Path(folder), model, optimizer_of(model, job.optimizer))
    assert num_microbatches == job.num_microbatches
    rank, world_size = dist.get_rank(), dist.get_world_size()
    assert world_size == job.layout.data_parallel_size
    feed = open_feed(job, data_parallel_rank=rank, vocab_size=job.vocab_size, device=torch.device("cpu"))
    found = []
    for _ in range(job.num_steps):
        mean = sum(one(batch).detach() for batch in feed.next_step()) / num_microbatches
        dist.all_reduce(mean)
        found.append(float(mean) / world_size)
    feed.close()
    if rank == 0:
        Path(losses).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
