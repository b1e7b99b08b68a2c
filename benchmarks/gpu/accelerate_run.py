"""Train one configuration with Accelerate and FSDP2 over the transformers model, eager, as its users do.

    torchrun --standalone --nproc-per-node 4 accelerate_run.py --model 1b --seq-len 4096 --micro-batch-size 1 \
        --name 1b-4096 --out accelerate.jsonl
"""

import argparse
import itertools
import json
import sys
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from train_models import MODELS

WARM_UP_STEPS = 4


def main() -> int:
    """Train and write the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from transformers import AutoConfig, AutoModelForCausalLM

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        reshard_after_forward=True,
        activation_checkpointing=arguments.recompute,
    )
    accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)
    fields = dict(MODELS[arguments.model])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with accelerator.device:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.config.use_cache = False
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    torch.cuda.reset_peak_memory_stats()
    shape = (arguments.micro_batch_size, arguments.seq_len)
    events = []
    for _ in range(arguments.steps):
        ids = torch.randint(0, config.vocab_size, shape, device=accelerator.device)
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        events.append(event)
    torch.cuda.synchronize()
    seconds = [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(events)]
    step_s = median(seconds[WARM_UP_STEPS - 1 :])
    peaks = torch.tensor([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()], device="cuda")
    dist.all_reduce(peaks, op=dist.ReduceOp.MAX)
    if accelerator.is_main_process:
        line = {
            "name": arguments.name,
            "engine": "accelerate, FSDP2, transformers, eager",
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "step_s": step_s,
            "steps_s": seconds,
            "tokens_per_s_per_gpu": shape[0] * shape[1] / step_s,
            "peak_allocated_bytes": int(peaks[0]),
            "peak_reserved_bytes": int(peaks[1]),
        }
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    accelerator.end_training()
    return 0


if __name__ == "__main__":
    sys.exit(main())
