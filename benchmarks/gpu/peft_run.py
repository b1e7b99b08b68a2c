r"""Train one configuration with transformers, Liger and, for adapters, peft and bitsandbytes, as their users do.

    python peft_run.py --name lora --model 8b --seq-len 4096 --micro-batch-size 2 --adapter lora --recompute \
        --out peft.jsonl

Weights are random: speed and memory are what is looked at. Adapters of rank 16 stand beside every matrix of the blocks.
"""

import argparse
import itertools
import json
import sys
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import torch
from train_models import MODELS

WARM_UP_STEPS = 4
LEARNING_RATE = 3e-4


def build(arguments: argparse.Namespace) -> torch.nn.Module:
    """The model as its users build it: Liger's kernels, and adapters beside 16-bit or 4-bit matrices."""
    import liger_kernel.transformers as liger
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(MODELS[arguments.model])
    model_type = fields.pop("model_type")
    getattr(liger, f"apply_liger_kernel_to_{model_type}")()
    config = AutoConfig.for_model(model_type, **fields)
    dtype = torch.float32 if arguments.adapter == "none" else torch.bfloat16
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
    model.config.use_cache = False
    if arguments.adapter == "qlora":
        quantise(model.model.layers)
    if arguments.adapter != "none":
        from peft import LoraConfig, get_peft_model

        names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=16, target_modules=names, task_type="CAUSAL_LM"))
    if arguments.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if arguments.adapter != "none":
            model.enable_input_require_grads()
    return model


def quantise(blocks: torch.nn.Module) -> None:
    """Make every linear layer one of bitsandbytes in NF4 with doubly quantised scales."""
    import bitsandbytes as bnb

    for parent in list(blocks.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear:
                four = bnb.nn.Linear4bit(
                    child.in_features, child.out_features, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4"
                )
                four.weight = bnb.nn.Params4bit(
                    child.weight.data.cpu(), requires_grad=False, quant_type="nf4", compress_statistics=True
                )
                setattr(parent, name, four.cuda())


def main() -> int:
    """Train and write the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--seq-len", type=int, required=True)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--adapter", choices=("none", "lora", "qlora"), default="none")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    model = build(arguments).train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)
    is_cast = arguments.adapter == "none"
    shape = (arguments.micro_batch_size, arguments.seq_len)
    vocab_size = MODELS[arguments.model]["vocab_size"]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    events = []
    for _ in range(arguments.steps):
        ids = torch.randint(0, vocab_size, shape, device="cuda")
        with torch.autocast("cuda", torch.bfloat16) if is_cast else nullcontext():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        events.append(event)
    torch.cuda.synchronize()
    seconds = [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(events)]
    step_s = median(seconds[WARM_UP_STEPS - 1 :])
    line = {
        "name": arguments.name,
        "engine": f"transformers, Liger{', peft' * (not is_cast)}{', bitsandbytes' * (arguments.adapter == 'qlora')}",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "loss": float(loss),
        "step_s": step_s,
        "steps_s": seconds,
        "tokens_per_s_per_gpu": shape[0] * shape[1] / step_s,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    with arguments.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
