"""The scaling lesson's own functions under their names, and its tables with what is wrong in them marked.

Arguments and results are the lesson's, so that its programs and exercises run as they are printed. Figures come from
formulas that reproduce its conventions (:mod:`shardwise.formulas.seed`, :mod:`shardwise.course.formulas.scaling`).
"""

import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.course.formulas import scaling
from shardwise.course.formulas.model_states import zero_model_state_bytes
from shardwise.course.formulas.pipeline_bubbles import bubble_over_ideal
from shardwise.course.unweighted_average import averaged_over_shards, derivative_ratio, whole_batch
from shardwise.errors import SimulationError
from shardwise.formulas import seed
from shardwise.layout import ZeroStage
from shardwise.optimizers import SeedOptimizer
from shardwise.units import GB

__all__ = [
    "memory_calculator",
    "mixed_precision_comparison",
    "run_all_demos",
    "simulate_data_parallelism",
    "simulate_pipeline_parallelism",
    "simulate_tensor_parallelism",
]

Floats = NDArray[np.float64]
Span = tuple[int, int]
STAGES: dict[str, ZeroStage] = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
OPTIMIZERS: dict[str, SeedOptimizer] = {"adam": "adam", "sgd": "sgd"}
MARK = "  ! "
"""Begins a line about what is wrong in the lines before it."""
EXACT = 1e-12


def simulate_data_parallelism(
    data: Floats, num_gpus: int, model_fn: Callable[[Floats], tuple[float, Floats]]
) -> tuple[float, Floats]:
    """Loss and gradient as the mean over shards of the means over samples.

    The result is that of the whole batch only where shards are equally large.

    Source: scaling lesson, step 1.
    """
    found = [model_fn(shard) for shard in np.array_split(data, num_gpus)]
    return float(np.mean([loss for loss, _ in found])), np.mean([gradient for _, gradient in found], axis=0)


def simulate_tensor_parallelism(input_data: Floats, weight_matrix: Floats, num_gpus: int) -> tuple[Floats, float]:
    """The product computed in slices of columns, and its largest difference to the undivided product.

    Source: scaling lesson, step 2.

    Raises:
        SimulationError: the GPUs do not divide the columns.
    """
    num_columns = weight_matrix.shape[1]
    if num_columns % num_gpus:
        raise SimulationError(
            f"{num_gpus} GPUs do not divide {num_columns} columns",
            code="simulate-size",
            fix=f"use {num_gpus * max(1, num_columns // num_gpus)} columns",
        )
    slices = np.split(weight_matrix, num_gpus, axis=1)
    output = np.concatenate([input_data @ columns for columns in slices], axis=-1)
    return output, float(np.abs(output - input_data @ weight_matrix).max())


def simulate_pipeline_parallelism(
    num_layers: int, num_stages: int, num_microbatches: int
) -> tuple[dict[tuple[int, int, str], Span], int, float]:
    """Start and end of every pass of a GPipe pipeline, its whole time, and the share of it that is idle.

    A backward takes as long as a forward, and layers that stages do not divide are dropped, both as in the lesson.

    Source: scaling lesson, step 3.
    """
    took, half = num_layers // num_stages, num_microbatches + num_stages - 1
    timeline: dict[tuple[int, int, str], Span] = {}
    for micro_batch in range(num_microbatches):
        for stage in range(num_stages):
            start = (micro_batch + stage) * took
            timeline[stage, micro_batch, "fwd"] = (start, start + took)
            start = (half + num_microbatches - 1 - micro_batch + num_stages - 1 - stage) * took
            timeline[stage, micro_batch, "bwd"] = (start, start + took)
    found = scaling.simulated_pipeline(num_layers=num_layers, num_stages=num_stages, num_microbatches=num_microbatches)
    return timeline, int(found.total_time), found.idle_fraction


def memory_calculator(  # noqa: PLR0917 - the lesson's own signature
    params_billions: float,
    precision_bytes: int = 2,
    optimizer: str = "adam",
    num_gpus: int = 1,
    sharding: str = "none",
    sequence_length: int = 2048,
    batch_size_per_gpu: int = 1,
    hidden_dim: int | None = None,
    num_layers: int | None = None,
) -> dict[str, float | int | bool | str]:
    """Decimal gigabytes of one GPU by the lesson's count: 2 + 2 + 8 bytes a parameter, four tensors a layer.

    Source: scaling lesson, step 4.
    """
    activations = None
    if hidden_dim and num_layers:
        per_layer = seed.activation_bytes_per_layer(
            seq_len=sequence_length,
            micro_batch_size=batch_size_per_gpu,
            hidden_size=hidden_dim,
            precision_bytes=precision_bytes,
        )
        activations = float(per_layer * num_layers)
    found = seed.per_gpu_memory(
        num_params=params_billions * 1e9,
        num_gpus=num_gpus,
        zero_stage=STAGES.get(sharding, 0),
        activation_bytes=activations,
        precision_bytes=precision_bytes,
        optimizer=OPTIMIZERS.get(optimizer, "none"),
    )
    return {
        "params_billions": params_billions,
        "weights_gb": found.weight_bytes / GB,
        "optimizer_gb": found.optimizer_bytes / GB,
        "gradients_gb": found.gradient_bytes / GB,
        "activations_gb": found.activation_bytes / GB,
        "per_gpu_total_gb": found.total_bytes / GB,
        "total_across_gpus_gb": found.total_bytes * num_gpus / GB,
        "fits_on_80gb": found.fits,
        "num_gpus": num_gpus,
        "sharding": sharding,
    }


def mixed_precision_comparison(params_billions: float) -> dict[str, float]:
    """Model states in fp32, in 16 bits with a master copy, and as the lesson counts mixed precision.

    Source: scaling lesson, step 5.
    """
    found = scaling.mixed_precision_comparison(num_params=params_billions * 1e9)
    return {
        "fp32_total_gb": found.fp32_bytes / GB,
        "fp16_with_master_gb": found.mixed_with_master_bytes / GB,
        "mixed_bf16_gb": found.mixed_bytes / GB,
        "savings_vs_fp32": found.saved_fraction,
    }


def run_all_demos() -> None:
    """Print the lesson's five tables; a line that begins with ``!`` says what is wrong above it."""
    demos = (
        ("DATA PARALLELISM SIMULATION", _data()),
        ("TENSOR PARALLELISM SIMULATION", _tensor()),
        ("PIPELINE PARALLELISM SIMULATION", _pipeline()),
        ("MEMORY CALCULATOR", _memory()),
        ("MIXED PRECISION COMPARISON", _precision()),
    )
    rule = "=" * 70
    pages = ("\n".join((rule, title, rule, *lines)) for title, lines in demos)
    sys.stdout.write("\n\n".join(pages) + "\n")


def _data() -> Iterator[str]:
    for num_gpus in (1, 2, 4, 8):
        found = averaged_over_shards(num_gpus)
        yield f"  {num_gpus} GPUs: loss={found.loss_ratio:.4f}, grad_norm={found.gradient_norm_ratio:.4f}"
    uneven = averaged_over_shards(3)
    yield f"{MARK}right for equal shards; over 3 GPUs the gradient is off by {uneven.error_fraction:.2%}: weigh samples"
    yield (
        f"{MARK}the gradient is {derivative_ratio():.0f} times the derivative of the loss beside it "
        f"(a sum over outputs, where the loss is a mean; loss {whole_batch().loss_ratio:.4f})"
    )


def _tensor() -> Iterator[str]:
    generator = np.random.default_rng(0)
    x, weight = generator.standard_normal((4, 8192)), generator.random((8192, 8192))
    worst = 0.0
    for num_gpus in (1, 2, 4, 8):
        output, error = simulate_tensor_parallelism(x, weight, num_gpus)
        worst = max(worst, error / float(np.abs(output).max()))
        yield f"  {num_gpus} GPUs: output_shape={output.shape}, max_error below 1e-12 of the largest: {worst < EXACT}"
    yield f"{MARK}zero, or a rounding where a library adds narrower slices in another order"


def _pipeline() -> Iterator[str]:
    for num_microbatches in (1, 4, 8, 16, 32):
        _, total_time, idle = simulate_pipeline_parallelism(32, 4, num_microbatches)
        yield f"  {num_microbatches:2d} micro-batches: total_time={total_time:4d}, bubble={idle:.1%}"
    over_ideal = bubble_over_ideal(pp=4, num_microbatches=16)
    yield f"{MARK}the text's 'about 19%' with 16 micro-batches is idle time over ideal time, {over_ideal:.2%}"
    yield f"{MARK}a backward takes about two forwards, not one: times are too short, shares of equal stages the same"


def _memory() -> Iterator[str]:
    yield f"  {'Model':>8} {'Sharding':>8} {'GPUs':>5} {'Per-GPU':>10} {'Fits 80GB':>10} {'with master':>12}"
    yield "  " + "-" * 63
    for params, sharding, num_gpus in _CONFIGS:
        found = memory_calculator(params, num_gpus=num_gpus, sharding=sharding)
        fits = "Yes" if found["fits_on_80gb"] else "No"
        states = zero_model_state_bytes(num_params=params * 1e9, dp_shard=num_gpus, zero_stage=STAGES[sharding])
        per_gpu, whole = found["per_gpu_total_gb"], states / GB + float(found["activations_gb"])
        yield f"  {params:>6}B {sharding:>8} {num_gpus:>5} {per_gpu:>8.1f}GB {fits:>10} {whole:>10.1f}GB"
    yield f"{MARK}no fp32 master copy: real mixed precision keeps 16 bytes a parameter, not 12 (last column)"
    yield f"{MARK}activations are half of the weights whatever the batch, and no sharding divides them here"
    yield f"{MARK}an 80 GB card shows 79.2 GiB, of which the CUDA context and libraries take some"


_CONFIGS: Sequence[tuple[int, str, int]] = (
    (7, "none", 1),
    (7, "fsdp", 8),
    (70, "none", 1),
    (70, "fsdp", 8),
    (70, "fsdp", 16),
    (405, "fsdp", 64),
    (405, "fsdp", 128),
)


def _precision() -> Iterator[str]:
    for params in (7, 13, 70, 405):
        found = mixed_precision_comparison(params)
        yield (
            f"  {params}B: FP32={found['fp32_total_gb']:.0f}GB, Mixed BF16={found['mixed_bf16_gb']:.0f}GB, "
            f"Savings={found['savings_vs_fp32']:.0%}"
        )
    seven = mixed_precision_comparison(7)
    saved = 1 - seven["fp16_with_master_gb"] / seven["fp32_total_gb"]
    kept = seven["fp16_with_master_gb"]
    yield f"{MARK}with the master copy that it needs, 7B keeps {kept:.0f}GB: {saved:.0%} of the states are saved"
