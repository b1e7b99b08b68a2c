"""The training configurations that are measured: models, layouts and recipes, by suite."""

from dataclasses import dataclass, field, replace
from typing import Any

from train_models import MODELS

from shardwise.train.job import Tuning


@dataclass(frozen=True)
class TrainRun:
    """One configuration."""

    name: str
    model: str = "1b"
    layout: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    num_steps: int = 8
    num_microbatches: int = 1
    engine: str = "native"
    masks_documents: bool = False
    """Reads short documents of bytes that do not see each other, instead of synthetic tokens."""

    def plan(self, *, gpu: str, world_size: int, is_tiny: bool) -> dict[str, object]:
        """The configuration as a plan file; dp_shard takes the GPUs the layout leaves over."""
        layout = dict(self.layout)
        divided = 1
        for axis in ("dp_replicate", "tp", "cp", "pp"):
            divided *= layout.get(axis, 1)
        layout.setdefault("dp_shard", world_size // divided)
        recipe: dict[str, Any] = {
            "seq_len": 4096,
            "micro_batch_size": 1,
            "precision": "bf16-mixed",
            "compile": False,
            **self.recipe,
        }
        if is_tiny:
            recipe.update(seq_len=64, precision="fp32")
        copies = layout["dp_shard"] * layout.get("dp_replicate", 1)
        recipe["global_batch_size"] = self.num_microbatches * recipe["micro_batch_size"] * copies
        cluster = f"{world_size}x{gpu}"
        plan = {"model": MODELS[self.model], "cluster": cluster, "recipe": recipe, "layout": layout}
        return plan if self.engine == "native" else {**plan, "engine": self.engine}


SEQUENCE = {"tp": 2, "sequence_parallel": True}

SMOKE = (
    TrainRun("fsdp", recipe={"micro_batch_size": 2}),
    TrainRun("fsdp compile", recipe={"micro_batch_size": 2, "compile": True}),
    TrainRun("zero 0, replicated", layout={"zero_stage": 0}),
    TrainRun("ddp bf16", layout={"zero_stage": 0}, recipe={"precision": "bf16"}),
    TrainRun("zero 1", layout={"zero_stage": 1}, num_microbatches=2),
    TrainRun("zero 2", layout={"zero_stage": 2}, num_microbatches=2),
    TrainRun("fsdp x2 micro-batches", num_microbatches=2),
    TrainRun("hsdp", layout={"dp_replicate": 2}),
    TrainRun("tp2 fsdp2", layout={"tp": 2}),
    TrainRun("tp2 sp fsdp2", layout=SEQUENCE),
    TrainRun("tp2 sp fsdp2 compile", layout=SEQUENCE, recipe={"compile": True}),
    TrainRun("tp4 sp", layout={"tp": 4, "sequence_parallel": True}),
    TrainRun("cp2 fsdp2", layout={"cp": 2}),
    TrainRun("cp2 fsdp2 compile", layout={"cp": 2}, recipe={"compile": True}),
    TrainRun("cp4", layout={"cp": 4}, recipe={"seq_len": 8192}),
    TrainRun("pp2 fsdp2", layout={"pp": 2}, num_microbatches=4),
    TrainRun("pp4", layout={"pp": 4}, num_microbatches=8),
    TrainRun("pp2 interleaved", layout={"pp": 2, "vpp": 2, "schedule": "interleaved"}, num_microbatches=4),
    TrainRun("pp2 tp2 sp", layout={"pp": 2, **SEQUENCE}, num_microbatches=4),
    TrainRun("full recompute", recipe={"recompute": "full", "micro_batch_size": 4}),
    TrainRun("full recompute compile", recipe={"recompute": "full", "micro_batch_size": 4, "compile": True}),
    TrainRun("selective recompute", recipe={"recompute": "selective", "micro_batch_size": 2}),
    TrainRun("selective recompute compile", recipe={"recompute": "selective", "micro_batch_size": 2, "compile": True}),
    TrainRun("offload parameters", recipe={"offload": "parameters"}, num_steps=5),
    TrainRun("moe fsdp", model="moe"),
    TrainRun("moe ep4", model="moe", layout={"ep": 4}),
    TrainRun("moe ep2 fsdp", model="moe", layout={"ep": 2}),
    TrainRun("moe ep2 tp2", model="moe", layout={"ep": 2, **SEQUENCE}),
    TrainRun("prefetch 2", layout={"prefetch_units": 2}),
    TrainRun("bf16 reduce", recipe={"reduce_dtype": "bf16"}),
    TrainRun("pp2 zb-h1", layout={"pp": 2, "schedule": "zb-h1"}, num_microbatches=4),
    TrainRun("pp2 zbv", layout={"pp": 2, "schedule": "zbv"}, num_microbatches=4),
    TrainRun("pp2 dualpipev", layout={"pp": 2, "schedule": "dualpipev"}, num_microbatches=4),
)


GATHERED = {"spread_vocabulary": False, "exchange_gradients": False}
SPREAD = {"exchange_gradients": False}
EXCHANGED: dict[str, Any] = {}
"""What the plan does by itself."""


def _peer(model: str, seq_len: int, micro_batch_size: int, recompute: str) -> TrainRun:
    """As ``against_peers.sh`` names it."""
    return TrainRun(
        f"{model}-{seq_len}-{recompute}",
        model=model,
        recipe={"seq_len": seq_len, "micro_batch_size": micro_batch_size, "recompute": recompute, "compile": True},
        num_steps=14,
    )


PEERS = (
    _peer("8b", 8192, 1, "full"),
    _peer("1b", 4096, 2, "none"),
    _peer("3b", 8192, 1, "selective"),
    _peer("8b", 8192, 1, "selective"),
    _peer("3b", 4096, 2, "selective"),
    _peer("8b", 4096, 2, "selective"),
    _peer("1b", 4096, 8, "full"),
    _peer("3b", 4096, 4, "full"),
    _peer("3b", 8192, 2, "full"),
    _peer("8b", 4096, 2, "full"),
)
VARIANTS = tuple(
    replace(
        _peer(*case),
        name=f"{_peer(*case).name} {name}",
        layout=layout,
        tuning=Tuning(saves_elementwise=name == "gathered"),
    )
    for case, names in (
        (("3b", 4096, 2, "selective"), "gathered spread exchanged"),
        (("1b", 4096, 2, "none"), "gathered spread exchanged"),
        (("8b", 8192, 1, "full"), "spread exchanged"),
    )
    for name, layout in (("gathered", GATHERED), ("spread", SPREAD), ("exchanged", EXCHANGED))
    if name in names.split()
)
"""One choice of the runtime after the other, everything else equal."""
COMPILED = {"compile": True, "recompute": "selective"}
EAGER = {"recompute": "selective"}


def _models() -> tuple[TrainRun, ...]:
    """Three sizes and two lengths under the layouts of the results page."""
    layouts: dict[str, dict[str, Any]] = {
        "fsdp": {},
        "hsdp": {"dp_replicate": 2},
        "tp2 fsdp2": SEQUENCE,
        "cp2 fsdp2": {"cp": 2},
        "pp2 fsdp2": {"pp": 2},
        "ddp": {"zero_stage": 0},
    }
    return tuple(
        TrainRun(
            f"{model} {seq_len} {name} {'compiled' if recipe is COMPILED else 'eager'}",
            model=model,
            layout=layout,
            recipe={"seq_len": seq_len, **recipe},
            num_microbatches=4 if "pp" in layout else 1,
            num_steps=8,
        )
        for model, seq_len in (("8b", 8192), ("1b", 4096), ("3b", 4096), ("8b", 4096), ("3b", 8192))
        for name, layout in layouts.items()
        for recipe in (COMPILED, EAGER)
        if not (model != "1b" and name == "ddp")
    )


OFFLOADS = (
    TrainRun(
        "8b 8192 offload parameters",
        model="8b",
        recipe={"seq_len": 8192, "offload": "parameters", "recompute": "full"},
        num_steps=5,
    ),
)
FULL = {"recompute": "full"}
CALIBRATED = (
    TrainRun("1b 4096 fsdp eager", recipe={"micro_batch_size": 2}, num_steps=7),
    TrainRun("1b 4096 ddp eager", layout={"zero_stage": 0}, num_steps=7),
    TrainRun("8b 8192 fsdp full eager", model="8b", recipe={"seq_len": 8192, **FULL}, num_steps=6),
    TrainRun("3b 4096 fsdp selective compiled", model="3b", recipe=COMPILED, num_steps=7),
    TrainRun("3b 8192 hsdp selective eager", "3b", {"dp_replicate": 2}, {"seq_len": 8192, **EAGER}, num_steps=6),
    TrainRun("3b 4096 tp2 fsdp2 selective eager", "3b", SEQUENCE, EAGER, num_steps=6),
    TrainRun("3b 4096 pp2 fsdp2 eager", "3b", {"pp": 2}, num_microbatches=4, num_steps=6),
    TrainRun("1b 8192 cp2 fsdp2 eager", layout={"cp": 2}, recipe={"seq_len": 8192, "micro_batch_size": 2}, num_steps=6),
    TrainRun("8b 4096 fsdp selective eager", model="8b", recipe=EAGER, num_steps=6),
    TrainRun("8b 8192 tp2 fsdp2 full eager", "8b", SEQUENCE, {"seq_len": 8192, **FULL}, num_steps=6),
    TrainRun("1b 8192 fsdp full eager", recipe={"seq_len": 8192, "micro_batch_size": 2, **FULL}, num_steps=7),
    TrainRun("8b 8192 fsdp selective compiled", model="8b", recipe={"seq_len": 8192, **COMPILED}, num_steps=6),
    TrainRun("8b 8192 cp2 fsdp2 full eager", "8b", {"cp": 2}, {"seq_len": 8192, **FULL}, num_steps=6),
    TrainRun("8b 4096 pp2 fsdp2 full eager", "8b", {"pp": 2}, FULL, num_microbatches=4, num_steps=6),
    TrainRun(
        "1b 4096 tp2 fsdp2 compiled", layout=SEQUENCE, recipe={"micro_batch_size": 2, "compile": True}, num_steps=7
    ),
    TrainRun("3b 8192 fsdp eager", model="3b", recipe={"seq_len": 8192}, num_steps=6),
)
"""Predicted before and after ``shardwise calibrate``; the first twelve hold every strategy, size and length."""
NONE_COMPILED = {"compile": True, "recompute": "none"}
UNSEEN = (
    TrainRun(
        "1b 2048 fsdp none compiled", recipe={"seq_len": 2048, "micro_batch_size": 4, **NONE_COMPILED}, num_steps=7
    ),
    TrainRun("3b 4096 zero 1 none compiled", "3b", {"zero_stage": 1}, NONE_COMPILED, num_microbatches=2, num_steps=6),
    TrainRun("3b 8192 tp2 full compiled", "3b", SEQUENCE, {"seq_len": 8192, **FULL, "compile": True}, num_steps=6),
    TrainRun(
        "1b 8192 pp2 selective compiled",
        "1b",
        {"pp": 2},
        {"seq_len": 8192, **COMPILED},
        num_microbatches=4,
        num_steps=6,
    ),
    TrainRun(
        "3b 2048 hsdp none eager", "3b", {"dp_replicate": 2}, {"seq_len": 2048, "micro_batch_size": 2}, num_steps=6
    ),
    TrainRun("8b 2048 fsdp none compiled", "8b", {}, {"seq_len": 2048, **NONE_COMPILED}, num_steps=6),
    TrainRun(
        "1b 4096 zero 2 full eager",
        "1b",
        {"zero_stage": 2},
        {"micro_batch_size": 4, **FULL},
        num_microbatches=2,
        num_steps=6,
    ),
    TrainRun("3b 16384 cp2 full compiled", "3b", {"cp": 2}, {"seq_len": 16384, **FULL, "compile": True}, num_steps=6),
    TrainRun("3b 4096 fsdp kept none compiled", "3b", {"reshard_after_forward": False}, NONE_COMPILED, num_steps=6),
    TrainRun("1b 4096 tp2 none eager", "1b", SEQUENCE, {"micro_batch_size": 4}, num_steps=6),
    TrainRun("8b 4096 tp2 selective compiled", "8b", SEQUENCE, COMPILED, num_steps=6),
    TrainRun("1b 4096 ddp bf16 compiled", "1b", {"zero_stage": 0}, {"precision": "bf16", "compile": True}, num_steps=7),
)
"""Other lengths, batches and combinations than ``CALIBRATED``, for a model that has settled by then."""
ADAPTED = {"adapter": "lora", "lora_targets": "all-linear", "recompute": "selective", "compile": True}
FINETUNE = (
    TrainRun("1b lora eager", recipe={**ADAPTED, "compile": False}),
    TrainRun("1b lora", recipe=ADAPTED),
    TrainRun("1b qlora eager", recipe={**ADAPTED, "adapter": "qlora", "compile": False}),
    TrainRun("1b qlora", recipe={**ADAPTED, "adapter": "qlora"}),
    TrainRun("1b fp8 eager", recipe={"precision": "fp8-mixed"}),
    TrainRun("1b bf16 compiled", recipe={"compile": True}),
    TrainRun("1b fp8", recipe={"precision": "fp8-mixed", "compile": True}),
    TrainRun("1b adamw-8bit", recipe={"optimizer": "adamw-8bit", "compile": True}),
    TrainRun("1b lion", recipe={"optimizer": "lion", "compile": True}),
    TrainRun("1b muon", recipe={"optimizer": "muon", "compile": True}),
    TrainRun("1b offload optimizer", recipe={"offload": "optimizer", "compile": True}, num_steps=5),
    TrainRun("1b offload activations", recipe={"activation_offload": True, "compile": True}, num_steps=5),
    TrainRun("1b tp2 full", layout=SEQUENCE, recipe={"micro_batch_size": 2, "recompute": "full", "compile": True}),
    TrainRun("moe ep2 selective", model="moe", layout={"ep": 2}, recipe=COMPILED),
    TrainRun("moe ep2 selective eager", model="moe", layout={"ep": 2}, recipe=EAGER),
    TrainRun("1b documents eager", masks_documents=True),
    TrainRun("1b documents", recipe={"compile": True}, masks_documents=True),
    TrainRun("8b lora", model="8b", recipe=ADAPTED),
    TrainRun("8b qlora", model="8b", recipe={**ADAPTED, "adapter": "qlora"}),
    TrainRun("8b fp8", model="8b", recipe={"precision": "fp8-mixed", "recompute": "full", "compile": True}),
)
"""What was tried on CPUs alone: fine-tuning, fp8, optimizers of our own, attention within documents."""
QUANTISED = {**ADAPTED, "adapter": "qlora", "recompute": "full"}
TWICE_8192 = {"seq_len": 8192, "micro_batch_size": 2, "compile": True}
RECOMPUTED = (
    TrainRun("8b qlora 4096 twice full", "8b", recipe={**QUANTISED, "micro_batch_size": 2}),
    TrainRun("3b fp8 8192 twice full", "3b", recipe={**TWICE_8192, **FULL, "precision": "fp8-mixed"}),
    TrainRun("mistral qlora 8192 full", "mistral-7b", recipe={**QUANTISED, "seq_len": 8192}),
    TrainRun("3b bf16 8192 twice full", "3b", recipe={**TWICE_8192, **FULL}),
    TrainRun("8b qlora 4096 none", "8b", recipe={**QUANTISED, "recompute": "none"}),
    TrainRun(
        "8b qlora 4096 twice 16 layers", "8b", recipe={**QUANTISED, "micro_batch_size": 2, "recompute_layers": 16}
    ),
    TrainRun("3b fp8 4096 twice selective", "3b", recipe={**COMPILED, "micro_batch_size": 2, "precision": "fp8-mixed"}),
    TrainRun("8b lora 4096 twice full", "8b", recipe={**QUANTISED, "adapter": "lora", "micro_batch_size": 2}),
)
"""What compiled blocks keep of products in 4 and 8 bits, with bf16 as a control."""
FORMATS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp8": {"precision": "fp8-mixed"},
    "lora": {"adapter": "lora", "lora_targets": "all-linear"},
    "qlora": {"adapter": "qlora", "lora_targets": "all-linear"},
}


def _cell(model: str, number_format: str, recompute: str, **recipe: Any) -> TrainRun:
    """A way to recompute in one number format, compiled unless ``recipe`` says otherwise."""
    chosen = {"compile": True, **FORMATS[number_format], "recompute": recompute, **recipe}
    words = [f"{model} {number_format} {recompute}", *(f"{key}={value}" for key, value in recipe.items())]
    return TrainRun(" ".join(words), model, recipe=chosen, num_steps=7)


CELLS = (
    *(
        _cell("1b", number_format, recompute, micro_batch_size=2)
        for number_format in FORMATS
        for recompute in ("none", "selective", "full")
    ),
    _cell("1b", "bf16", "none", micro_batch_size=2, optimizer="adamw-8bit"),
    _cell("1b", "bf16", "full", micro_batch_size=2, recompute_layers=6),
    *(_cell("1b", name, "full", micro_batch_size=2, compile=False) for name in ("bf16", "fp8", "lora", "qlora")),
    *(_cell("8b", name, "full") for name in FORMATS),
    _cell("8b", "qlora", "full", micro_batch_size=2),
    _cell("8b", "qlora", "full", seq_len=2048),
    _cell("3b", "bf16", "full", seq_len=8192, micro_batch_size=2),
)
"""What recomputation keeps in each number format, on one GPU."""
TWO_SMALL_CARDS = (
    _cell("70b", "qlora", "full", seq_len=2048, offload="parameters"),
    _cell("70b", "qlora", "none", seq_len=2048, offload="parameters", activation_offload=True),
)
"""QLoRA of 70B on two cards of 24 GB, by ranks that are imagined."""
PEFT = {"adapter": "lora", "lora_targets": "all-linear", "precision": "bf16", "compile": False}
WHOLE = {"zero_stage": 0}


def _blind(name: str, model: str, seq_len: int, batch: int, **recipe: Any) -> TrainRun:
    """One of our own runs on one GPU, compiled."""
    chosen = {"seq_len": seq_len, "micro_batch_size": batch, "compile": True, **recipe}
    return TrainRun(name, model, recipe=chosen, num_steps=9)


BLIND = (
    _blind("moe 16 experts, selective", "moe-16x2", 4096, 2, recompute="selective"),
    _blind("mixtral 8 experts, full", "mixtral-8x2", 2048, 4, recompute="full"),
    _blind("2b fp8, none", "2b", 2048, 4, precision="fp8-mixed"),
    _blind("qwen3-4b fp8, full", "qwen3-4b", 6144, 2, precision="fp8-mixed", recompute="full"),
    _blind("qwen2.5-3b lora r64, none", "qwen2.5-3b", 2048, 4, **FORMATS["lora"], lora_rank=64),
    _blind("mistral-7b qlora, full", "mistral-7b", 2048, 4, **FORMATS["qlora"], recompute="full"),
    _blind("360m, none", "360m", 2048, 16),
    _blind("olmo2-1b by transformers, none", "olmo2-1b", 4096, 2),
    _blind("pythia-1b by transformers, none", "pythia-1b", 2048, 4),
    TrainRun(
        "3b lora r8, transformers and peft, full",
        "3b",
        WHOLE,
        {**PEFT, "seq_len": 2048, "micro_batch_size": 4, "recompute": "full", "lora_rank": 8},
        engine="accelerate",
    ),
    TrainRun(
        "qwen2.5-3b lora r32, transformers, peft and Liger, full",
        "qwen2.5-3b",
        WHOLE,
        {**PEFT, "micro_batch_size": 2, "recompute": "full", "lora_rank": 32, "liger_kernels": True},
        engine="accelerate",
    ),
    TrainRun(
        "2b bf16, transformers, none",
        "2b",
        WHOLE,
        {"seq_len": 2048, "micro_batch_size": 2, "precision": "bf16", "fused_optimizer": True},
        engine="accelerate",
    ),
)
"""Shapes that nothing here was measured with, predicted before they ran (``benchmarks/blind_runs.py``)."""
ONE_GPU_COMPILED = (
    _blind("1b 4096 none", "1b", 4096, 2),
    _blind("3b 4096 selective", "3b", 4096, 2, recompute="selective"),
    _blind("8b 4096 full", "8b", 4096, 1, recompute="full"),
    _blind("3b 8192 full", "3b", 8192, 2, recompute="full"),
    _blind("2b 2048 none", "2b", 2048, 8),
    _blind("qwen3-4b 4096 full", "qwen3-4b", 4096, 2, recompute="full"),
    _blind("1b 8192 selective", "1b", 8192, 2, recompute="selective"),
)
"""Dense compiled runs of one GPU, predicted with and without a calibration of that GPU."""
DENSE_UNSEEN = (
    _blind("qwen3-8b 8192 full", "qwen3-8b", 8192, 1, recompute="full"),
    _blind("mistral-7b 4096 selective", "mistral-7b", 4096, 1, recompute="selective"),
    _blind("2b 16384 full", "2b", 16384, 1, recompute="full"),
    _blind("160m 1024 none", "160m", 1024, 32),
)
UNSEEN_KINDS = (
    *DENSE_UNSEEN,
    _blind("olmoe full", "olmoe", 4096, 2, recompute="full"),
    *BLIND[:1],
    *BLIND[3:6],
    *BLIND[8:9],
)
"""Ten more shapes: dense ones, which a calibration predicts as well, and those of ``BLIND`` that never ran."""
PROBED = (
    TrainRun("gpt2-xl", "gpt2-xl", recipe={"seq_len": 1024, "micro_batch_size": 8, "compile": True}, num_steps=16),
)
"""Runs that are looked into."""
BARE = {"compile": True, "recompute": "none"}
EXPERTS = (
    TrainRun("moe-3b 4096 x 8", "moe-3b", recipe={**BARE, "micro_batch_size": 8}, num_steps=16),
    TrainRun("moe-3b 4096 x 2", "moe-3b", recipe={**BARE, "micro_batch_size": 2}, num_steps=16),
    TrainRun("moe-3b 4096 x 8 selective", "moe-3b", recipe={**COMPILED, "micro_batch_size": 8}, num_steps=8),
    TrainRun("moe-3b 4096 x 8 full", "moe-3b", recipe={**COMPILED, **FULL, "micro_batch_size": 8}, num_steps=8),
    TrainRun("gpt2-xl 1024 x 8", "gpt2-xl", recipe={**BARE, "seq_len": 1024, "micro_batch_size": 8}, num_steps=16),
)
"""Mixtures of experts, and a model that transformers builds, on one GPU."""
TUNED = {"micro_batch_size": 2, "compile": True, **FULL}
TUNING = (
    TrainRun("lora", "8b", recipe={**TUNED, **FORMATS["lora"]}, num_steps=10),
    TrainRun("qlora", "8b", recipe={**TUNED, **FORMATS["qlora"]}, num_steps=10),
    TrainRun("whole", "qwen-1.5b", recipe={**BARE, "micro_batch_size": 4}, num_steps=10),
    TrainRun("fp8", "3b", recipe={**TUNED, **FORMATS["fp8"], "seq_len": 8192}, num_steps=10),
    TrainRun("experts", "moe-3b", recipe={**BARE, "micro_batch_size": 8}, num_steps=10),
)
"""What ``beside_others.sh`` trains with us and with another program in turn, on one GPU."""
SUITES: dict[str, tuple[TrainRun, ...]] = {
    "tuning": TUNING,
    "experts": EXPERTS,
    "cells": CELLS,
    "two-small-cards": TWO_SMALL_CARDS,
    "blind": BLIND,
    "one-gpu-compiled": ONE_GPU_COMPILED,
    "dense-unseen": DENSE_UNSEEN,
    "unseen-kinds": UNSEEN_KINDS,
    "probed": PROBED,
    "smoke": SMOKE,
    "peers": PEERS,
    "models": _models(),
    "offload": OFFLOADS,
    "calibrated": CALIBRATED,
    "unseen": UNSEEN,
    "finetune": FINETUNE,
    "variants": VARIANTS,
    "recomputed": RECOMPUTED,
}
