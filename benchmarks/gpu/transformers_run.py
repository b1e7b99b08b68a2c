"""Train one configuration of ``BLIND`` as users of transformers do: its model, peft, Liger and torch's AdamW, eager.

    PYTHONPATH=src python benchmarks/gpu/transformers_run.py --only NAME --out runs.jsonl

One GPU, no Accelerate launcher: of one process it leaves nothing but autocast, which pure bf16 does without. ``--tiny``
tries the logic on the CPU.
"""

import argparse
import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from train_models import TINY
from train_suites import SUITES, TrainRun

WARM_UP_STEPS = 4


def make_model(document: Mapping[str, Any], device: torch.device) -> torch.nn.Module:
    """The model of a plan in bf16, with its adapters, recomputation and kernels."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields, recipe = dict(document["model"]), document["recipe"]
    if recipe.get("liger_kernels"):
        from liger_kernel.transformers.monkey_patch import _apply_liger_kernel

        _apply_liger_kernel(fields["model_type"])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with device:
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    model.config.use_cache = False
    if recipe.get("adapter") == "lora":
        from peft import LoraConfig, get_peft_model

        rank = recipe["lora_rank"]
        model = get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=recipe["lora_targets"]))
    if recipe.get("recompute") == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def measure(run: TrainRun, document: Mapping[str, Any], device: torch.device) -> dict[str, object]:
    """Steps and peaks of a run."""
    recipe = document["recipe"]
    model = make_model(document, device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=recipe.get("fused_optimizer"))
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    shape, losses, events = (recipe["micro_batch_size"], recipe["seq_len"]), [], []
    for _ in range(run.num_steps + WARM_UP_STEPS):
        ids = torch.randint(0, int(document["model"]["vocab_size"]), shape, device=device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if is_cuda:
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
    if not is_cuda:
        return {"losses": [float(loss) for loss in losses]}
    torch.cuda.synchronize()
    steps = [one.elapsed_time(other) / 1e3 for one, other in itertools.pairwise(events)]
    return {
        "losses": [float(loss) for loss in losses],
        "step_s": median(steps[WARM_UP_STEPS:]),
        "steps_s": steps,
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def main() -> int:
    """Measure the run and append its line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = {run.name: run for run in SUITES["blind"] if run.engine != "native"}
    parser.add_argument("--only", choices=tuple(runs), metavar="NAME", required=True)
    parser.add_argument("--gpu", default="h200-sxm")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    run = runs[arguments.only]
    run = replace(run, model=TINY.get(run.model, "tiny")) if arguments.tiny else run
    device = torch.device("cpu" if arguments.tiny else "cuda")
    document = run.plan(gpu=arguments.gpu, world_size=1, is_tiny=arguments.tiny)
    name = "cpu" if arguments.tiny else torch.cuda.get_device_name()
    line = {"name": run.name, "device": f"{name}, torch {torch.__version__}", "plan": document}
    line["measured"] = measure(run, document, device)
    with arguments.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
