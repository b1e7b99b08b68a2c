"""Every figure of the course texts: the tables they print, reproduced, and each claim beside the right value."""

from typing import Literal

from shardwise.course.formulas import scaling
from shardwise.course.lesson import Check, Lesson, LessonTable
from shardwise.course.lessons.figure_claims import all_claims
from shardwise.course.lessons.request import LessonRequest
from shardwise.course.unweighted_average import averaged_over_shards
from shardwise.formulas import seed
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict.memory import predict_memory

OPTIONS: tuple[str, ...] = ()
MODELS = (("GPT-2 Small", 124e6), ("Llama 3 8B", 8e9), ("Llama 3 70B", 70e9), ("Llama 3 405B", 405e9))
CALCULATOR = (("7B", False, 1), ("7B", True, 8), ("70B", False, 1), ("70B", True, 8), ("70B", True, 16),
              ("405B", True, 64), ("405B", True, 128))  # fmt: skip
SIZES = {"7B": 7e9, "70B": 70e9, "405B": 405e9}
SHARDS = (1, 2, 4, 8, 3, 24)
ROUNDING = 1e-9
KEPT_FRACTION = 1e-6
"""The share of a GB that rounding to whole bytes may take."""


def make_lesson(_request: LessonRequest) -> Lesson:
    """Compute every figure twice: as the texts count, and as it is."""
    claims = all_claims()
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in ("right", "loose", "wrong")}
    return Lesson(
        name="figures",
        title="The figures of the course texts",
        what="No simulation of ranks, but their arithmetic simulated: tables as the texts print them "
        "(convention=seed: 2 + 2 + 8 bytes a parameter, decimal GB), and every claim beside the value that comes out.",
        tables=(_states_table(), _calculator_table(), _demo_table()),
        checks=_checks(),
        claims=claims,
        notes=(
            f"{len(claims)} claims: {counts['right']} right, {counts['loose']} loose, {counts['wrong']} wrong. The "
            "other simulations show most of them step by step.",
        ),
    )


def _states_table() -> LessonTable:
    rows = tuple(
        (
            name,
            seed.weight_bytes(num_params=num_params),
            seed.optimizer_bytes(num_params=num_params),
            seed.gradient_bytes(num_params=num_params),
            scaling.model_state_bytes(num_params=num_params),
            16.0 * num_params,
        )
        for name, num_params in MODELS
    )
    return LessonTable(
        title="Why distribution is required",
        head=(
            "model | weights: decimal_bytes | Adam: decimal_bytes | gradients: decimal_bytes | "
            "total: decimal_bytes | with master: decimal_bytes"
        ),
        rows=rows,
        note="total: 12 bytes a parameter, as printed; with the fp32 master copy it is 16",
    )


def _calculator_table() -> LessonTable:
    rows = []
    for model, is_sharded, gpus in CALCULATOR:
        memory = calculated(SIZES[model], is_sharded, gpus)
        rows.append(
            (
                model,
                "fsdp" if is_sharded else "none",
                gpus,
                memory.total_bytes,
                "Yes" if memory.fits else "No",
                memory.state_bytes,
                "Yes" if memory.state_bytes <= seed.GPU_BYTES else "No",
            )
        )
    return LessonTable(
        title="Memory calculator",
        head=(
            "model | sharding | GPUs: count | a GPU: decimal_bytes | fits 80GB | states alone: decimal_bytes | they fit"
        ),
        rows=tuple(rows),
        note="its activations are half of the undivided weights and are never divided, so that 70B on 16 GPUs is "
        "printed as too large although its states fit, as the text beside it says",
    )


def calculated(num_params: float, is_sharded: bool, gpus: int) -> seed.SeedMemory:
    """Memory of one GPU as the calculator counts it."""
    stage: Literal[0, 3] = 3 if is_sharded else 0
    return seed.per_gpu_memory(num_params=num_params, num_gpus=gpus, zero_stage=stage)


def _demo_table() -> LessonTable:
    rows = []
    for shards in SHARDS:
        plain, weighted = averaged_over_shards(shards), averaged_over_shards(shards, is_weighted=True)
        rows.append(
            (shards, plain.loss_ratio, plain.gradient_norm_ratio, plain.error_fraction, weighted.gradient_norm_ratio)
        )
    return LessonTable(
        title="Data parallelism: a batch of 64 over equal and unequal shards",
        head=("GPUs: count | loss: number | grad_norm: number | gradient is off: fraction | weighted: number"),
        rows=tuple(rows),
        note="the mean of means is the mean only for equal shards; weighted by samples it always is",
    )


def _checks() -> tuple[Check, ...]:
    """The formulas against the ordinary prediction under convention=seed."""
    faults = []
    for model, is_sharded, gpus in CALCULATOR:
        predicted = predict_memory(seed_plan(model, is_sharded, gpus)).worst.device_used_bytes
        faults.append(abs(predicted / calculated(SIZES[model], is_sharded, gpus).total_bytes - 1))
    weighted = [averaged_over_shards(n, is_weighted=True).error_fraction for n in SHARDS]
    return (
        Check(what="calculator against predictions under convention=seed", difference=max(faults), limit=KEPT_FRACTION),
        Check(what="weighted averages against the whole batch", difference=max(weighted), limit=ROUNDING),
    )


def seed_plan(model: str, is_sharded: bool, gpus: int) -> Plan:
    """The calculator's row as a plan."""
    return read_plan(
        {
            "model": model,
            "cluster": {"gpu": "a100-sxm-80", "gpus_per_node": min(gpus, 8), "num_nodes": max(1, gpus // 8)},
            "recipe": {"seq_len": 2048, "convention": "seed"},
            "layout": {
                "dp_shard": gpus if is_sharded else 1,
                "dp_replicate": 1 if is_sharded else gpus,
                "zero_stage": 3 if is_sharded else 0,
            },
        }
    )
