"""Each claim of the course texts with its verdict; what is right is computed here, not written down."""

from math import ceil

from shardwise.claims import Cell, Claim, Unit, Verdict
from shardwise.course.formulas import (
    activations,
    collective_volume,
    data_parallel_traffic,
    flop_counts,
    kernel_time,
    model_states,
    pipeline_bubbles,
    pipeline_in_flight,
    scaling,
)
from shardwise.course.unweighted_average import averaged_over_shards, derivative_ratio, whole_batch
from shardwise.families import read_model
from shardwise.formulas import offload_time, run_cost, seed
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.predict.memory import predict_memory
from shardwise.units import GIB

LESSON = "scaling lesson"
MODELS_PAGE = "mental models page"
JOURNEY = "distributed training page"
WEEK = "week 14 page"
ARCHITECTURES = "architectures page"

Row = tuple[str, Cell, Cell, Unit, Verdict, str]
"""Claim, what is said, what comes out, unit, verdict, note."""
SHAPE = {"seq_len": 2048, "micro_batch_size": 1, "hidden_size": 4096}
GPU_80_BYTES = 80e9
LLAMA_3_FLOP = 3.8e25
"""6 N D of 405B and 15.6T tokens: arXiv:2407.21783, section 3.4."""
BILLED_HOURS = 30.84e6
"""Llama-3.1-405B: meta-llama/llama-models, models/llama3_1/MODEL_CARD.md."""
DEEPSEEK_HOURS = 2.788e6
"""DeepSeek-V3: arXiv:2412.19437, table 1."""


def all_claims() -> tuple[Claim, ...]:
    """Text by text, in reading order."""
    groups: tuple[tuple[str, tuple[Row, ...]], ...] = (
        (f"{LESSON}, the problem", _problem()),
        (f"{LESSON}, why distribution is required", _distribution()),
        (f"{LESSON}, strategies", _strategies()),
        (f"{LESSON}, FSDP and ZeRO", _sharding()),
        (f"{LESSON}, precision and 3D", _precision()),
        (f"{LESSON}, programs", _programs()),
        (f"{LESSON}, exercises", _exercises()),
        (MODELS_PAGE, _mental_models()),
        (JOURNEY, _journey()),
        (WEEK, _week()),
        (ARCHITECTURES, _architectures()),
    )
    return tuple(
        Claim(says=says, source=source, said=said, computed=computed, unit=unit, verdict=verdict, note=note)
        for source, rows in groups
        for says, said, computed, unit, verdict, note in rows
    )


def _problem() -> tuple[Row, ...]:
    flash = activations.selective_recompute_activation_bytes(**SHAPE)
    eager = activations.block_activation_bytes(num_attention_heads=32, **SHAPE)
    seed_layer = seed.activation_bytes_per_layer(**SHAPE)
    states = {count: ceil(count * 70e9 / GPU_80_BYTES) for count in (12, 16)}
    return (
        ("7B's weights take 14 GB in FP16", 14e9, seed.weight_bytes(num_params=7e9), "decimal_bytes", "right", ""),
        ("7B's two Adam moments take 28 GB", scaling.opening_adam_bytes(num_params=7e9),
         seed.optimizer_bytes(num_params=7e9), "decimal_bytes", "loose", "in 16 bits; in fp32, as its table says, 56"),
        ("7B's gradients take 14 GB", 14e9, seed.gradient_bytes(num_params=7e9), "decimal_bytes", "right",
         "in 16 bits; frameworks that reduce in fp32 keep 28"),
        ("7B has 56 GB of states before any activation", scaling.opening_state_bytes(num_params=7e9),
         scaling.model_state_bytes(num_params=7e9), "decimal_bytes", "loose",
         "both moments in 16 bits; its own table has them in fp32 (12 bytes a parameter), and training keeps 16"),
        ("56 of 80 GB leave 24 GB for activations", 24e9, GPU_80_BYTES - 7e9 * 16, "decimal_bytes", "wrong",
         "with 16 bytes a parameter 7B does not fit at all; and 1 to 3 GB of a card are never free"),
        ("a layer's activations are about 64 MB", float(seed_layer), flash, "decimal_bytes", "loose",
         f"four tensors; a layer keeps 17 of that width, and {eager / 1e6:.0f} MB with attention scores"),
        ("32 layers need 2 GB a sample", 2e9, 32 * flash, "decimal_bytes", "loose",
         f"2.15 GB by four tensors a layer; {32 * eager / 1e9:.1f} GB with attention scores"),
        ("a batch of 8 needs 16 GB", 16e9, 8.0 * 32 * seed_layer, "decimal_bytes", "loose",
         f"17.2 by four tensors a layer, really {8 * 32 * flash / 1e9:.0f} GB without recomputation"),
        ("a batch of 12 blows up 24 GB", 24e9, 12.0 * 32 * seed_layer, "decimal_bytes", "loose",
         f"24 GiB by four tensors a layer; really {12 * 32 * flash / 1e9:.0f}: {ceil(24e9 / 32 / flash)} samples do"),
        ("70B weighs 140 GB", 140e9, seed.weight_bytes(num_params=70e9), "decimal_bytes", "right", ""),
        ("70B's weights need 2 A100", 2, ceil(seed.weight_bytes(num_params=70e9) / GPU_80_BYTES), "count", "right", ""),
        ("with optimizer and gradients 70B needs 3 GPUs or more", 3, states[12], "count", "wrong",
         f"{states[12]} at 12 bytes a parameter, {states[16]} at 16, before any activation"),
    )  # fmt: skip


def _distribution() -> tuple[Row, ...]:
    sizes = (("GPT-2 124M", 124e6, 1.5e9), ("Llama 3 8B", 8e9, 96e9), ("70B", 70e9, 840e9), ("405B", 405e9, 4860e9))
    totals: tuple[Row, ...] = tuple(
        (f"{name} has {said / 1e9:g} GB of states", said, scaling.model_state_bytes(num_params=num_params),
         "decimal_bytes", "right", f"at 12 bytes a parameter; {16 * num_params / 1e9:,.4g} GB with the master copy")
        for name, num_params, said in sizes
    )  # fmt: skip
    columns: tuple[Row, ...] = tuple(
        (f"{name}: {said_weights:g} GB of weights, and as much of gradients", said_weights * 1e9,
         seed.weight_bytes(num_params=num_params), "decimal_bytes", "right", "in 16 bits each")
        for (name, num_params, _), said_weights in zip(sizes, (0.248, 16, 140, 810), strict=True)
    ) + tuple(
        (f"{name}: {said_moments:g} GB of Adam states", said_moments * 1e9, seed.optimizer_bytes(num_params=num_params),
         "decimal_bytes", "right", "both moments in fp32")
        for (name, num_params, _), said_moments in zip(sizes, (0.992, 64, 560, 3240), strict=True)
    )  # fmt: skip
    with_master = scaling.min_gpus(total_bytes=16 * 405e9)
    years = run_cost.run_days(
        gpu_hours=run_cost.gpu_hours(total_flop=LLAMA_3_FLOP, peak_flop_per_s=400e12, mfu_fraction=1.0), num_gpus=92
    ) / 365.25  # fmt: skip
    return (
        *columns,
        *totals,
        ("70B's Adam states fill seven A100", 7, ceil(seed.optimizer_bytes(num_params=70e9) / GPU_80_BYTES), "count",
         "right", "to the last byte, with room for nothing else"),
        ("405B needs at least 61 H100", 61, scaling.min_gpus(total_bytes=scaling.model_state_bytes(num_params=405e9)),
         "count", "right", f"at 12 bytes a parameter; {with_master} with the master copy"),
        ("Meta used 16,384 GPUs because it had to", "for memory",
         f"92 GPUs hold the states and would train {years:.0f} years", "", "wrong", "they were needed for time"),
    )  # fmt: skip


def _strategies() -> tuple[Row, ...]:
    return (
        ("64 GPUs with 16 samples each make 1,024", 1024,
         64 * 16, "count", "right", ""),
        ("a batch of 1,024 over 4 GPUs gives each 256 samples", 256, 1024 // 4, "count", "right", ""),
        ("Llama 3 took 16 million tokens a step", 16e6, 2048.0 * 8192, "count", "right",
         "of the late run; it began with 4 million (arXiv:2407.21783, table 4)"),
        ("4-way tensor parallelism of (8192, 8192) leaves (8192, 2048)", 2048, 8192 // 4, "count", "right", ""),
        ("70B over 8 GPUs is 8.75B each", 8.75e9, 70e9 / 8, "number", "right", ""),
        ("an all-reduce follows each matrix product", "each", "one for every column and row pair: 2 a layer and pass",
         "", "wrong", "a column-parallel product needs none when a row-parallel one follows"),
        ("NVLink has 900 GB/s and InfiniBand 50: the ratio", 18.0, 450 / 50, "ratio", "loose",
         "900 counts both directions and 50 one; one way it is 450 to 50"),
        ("a naive pipeline keeps 1/N busy: 75% idle with 4", 0.75,
         pipeline_bubbles.idle_fraction(pp=4, num_microbatches=1), "fraction", "right", ""),
        ("16 micro-batches on 4 stages leave 18.75% idle", (4 - 1) / 16,
         pipeline_bubbles.idle_fraction(pp=4, num_microbatches=16), "fraction", "loose",
         "18.75% of the ideal time, 15.8% of the step, which its own program prints"),
    )  # fmt: skip


def _sharding() -> tuple[Row, ...]:
    eight = seed.per_gpu_memory(num_params=70e9, num_gpus=8, zero_stage=3, activation_bytes=0)
    reduction = {stage: model_states.zero_reduction_ratio(dp_shard=8, zero_stage=stage) for stage in (1, 2, 3)}
    ddp = data_parallel_traffic.ddp_bytes(num_params=7e9, dp_shard=8)
    second = data_parallel_traffic.zero1_bytes(num_params=7e9, dp_shard=8, gradient_bytes=2)
    return (
        ("70B over 8 GPUs: 17.5 GB of weights on each", 17.5e9, eight.weight_bytes, "decimal_bytes", "right", ""),
        ("70B over 8 GPUs: 70 GB of Adam states on each", 70e9, eight.optimizer_bytes, "decimal_bytes", "right", ""),
        ("70B over 8 GPUs: 17.5 GB of gradients on each", 17.5e9, eight.gradient_bytes, "decimal_bytes", "right", ""),
        ("70B sharded over 8 GPUs leaves 105 GB on each", 105e9, eight.total_bytes, "decimal_bytes", "right",
         f"{16 * 70 / 8:g} GB with the master copy"),
        ("70B needs at least 16 GPUs to get below 80 GB", 16,
         scaling.min_gpus(total_bytes=scaling.model_state_bytes(num_params=70e9)), "count", "loose",
         "11 hold the states (76.4 GB each), 16 leave room for activations"),
        ("or FSDP with activation checkpointing", "fits", f"{eight.state_bytes / 1e9:g} GB are states", "", "wrong",
         "checkpointing makes activations smaller, and there are none in it"),
        ("ZeRO-1 reduces memory about 4 times", 4.0, reduction[1], "ratio", "loose",
         "on 8 GPUs; 4 is the limit for many GPUs and 16 bytes a parameter, 3 for the lesson's 12"),
        ("ZeRO-2 reduces it about 8 times", 8.0, reduction[2], "ratio", "loose", "on 8 GPUs; 8 is the limit"),
        ("ZeRO-3 reduces it N times", 8.0, reduction[3], "ratio", "right", "states only; activations stay"),
        ("ZeRO-2 communicates slightly more than data parallelism", "more", f"{second / ddp:g} times", "", "loose",
         "as much, unless gradients are reduced in every micro-batch of an accumulation"),
    )  # fmt: skip


def _precision() -> tuple[Row, ...]:
    seven = scaling.mixed_precision_comparison(num_params=7e9)
    deepseek = read_model("deepseek-v3")
    others: tuple[Row, ...] = tuple(
        (f"{size}B: FP32 {fp32} GB, mixed BF16 {mixed} GB", mixed * 1e9,
         scaling.mixed_precision_comparison(num_params=size * 1e9).mixed_with_master_bytes, "decimal_bytes", "loose",
         f"{mixed} GB without a master copy; with it as much as in FP32")
        for size, fp32, mixed in ((13, 208, 156), (70, 1120, 840), (405, 6480, 4860))
    )  # fmt: skip
    return (
        ("7B in fp32 has 112 GB of states", 112e9, seven.fp32_bytes, "decimal_bytes", "right", ""),
        ("7B in bf16 with an fp32 master copy has 84 GB", 84e9, seven.mixed_with_master_bytes, "decimal_bytes", "wrong",
         "84 GB leave the master copy out"),
        ("mixed precision saves 28 GB of 7B", seven.fp32_bytes - seven.mixed_bytes,
         seven.fp32_bytes - seven.mixed_with_master_bytes, "decimal_bytes", "loose", "by leaving out the master copy"),
        *others,
        ("mixed precision saves 25%", 0.25, 1 - seven.mixed_with_master_bytes / seven.fp32_bytes, "fraction", "loose",
         "without a master copy; with it no state is saved"),
        ("Llama 3 405B: 8 x 16 x 128 GPUs", 16384, 8 * 16 * 128, "count", "right", ""),
        ("DeepSeek V3 activates 37B of 671B parameters", 37e9, float(deepseek.num_active_params), "number", "right",
         f"{deepseek.num_active_params / 1e9:.2f}B of {deepseek.num_params / 1e9:.2f}B"),
        ("it used less than 1/8 of Meta's GPUs", "less", f"{2048 / 16384:g}", "", "wrong", "exactly an eighth"),
        ("it cost $5.6M", 5.6e6, run_cost.run_usd(gpu_hours=DEEPSEEK_HOURS, usd_per_gpu_hour=2.0), "number", "right",
         "2.788M GPU-hours at $2"),
        ("Llama 3 405B cost about $100M", 100e6, run_cost.run_usd(gpu_hours=BILLED_HOURS, usd_per_gpu_hour=3.5),
         "number", "loose", "30.84M GPU-hours: $61.7M at $2, $108M at $3.50, $100M at $3.24"),
    )  # fmt: skip


def _programs() -> tuple[Row, ...]:
    exact = whole_batch()
    off = [averaged_over_shards(shards).error_fraction for shards in (3, 24)]
    pipeline: tuple[Row, ...] = tuple(
        (f"{m} micro-batches: total time {time}, bubble {bubble}", time,
         scaling.simulated_pipeline(num_layers=32, num_stages=4, num_microbatches=m).total_time, "count", "right", "")
        for m, time, bubble in ((1, 64, "75.0%"), (4, 112, "42.9%"), (8, 176, "27.3%"), (16, 304, "15.8%"),
                                (32, 560, "8.6%"))
    )  # fmt: skip
    return (
        ("a ring all-reduce is done after N - 1 steps, N = 8", 7, collective_volume.ring_all_reduce_steps(group_size=8),
         "count", "wrong", "N - 1 to reduce and N - 1 to gather"),
        ("it moves 2 S (N - 1) / N: 14 GB on 8 GPUs", 2 * 14e9 * 7 / 8,
         collective_volume.all_reduce_bytes(payload_bytes=14e9, group_size=8), "decimal_bytes", "right", ""),
        ("the loss of 1, 2, 4 and 8 GPUs is 30.2175", 30.2175, exact.loss_ratio, "number", "right", ""),
        ("the norm of their gradients is 53.0517", 53.0517, exact.gradient_norm_ratio, "number", "right", ""),
        ("averaging over GPUs gives the gradient of the batch", "exact",
         f"off by {off[0]:.1%} with 3 GPUs and {off[1]:.1%} with 24", "", "wrong",
         "shards of unequal size must be weighted by their samples; 1, 2, 4 and 8 divide 64"),
        ("its gradient is that of the printed loss", 1.0, derivative_ratio(), "ratio", "wrong",
         "the loss is a mean over 16 outputs and the gradient is not"),
        *pipeline,
        *(_calculator_row(*row) for row in (("7B", 7e9, 1, 91.0), ("7B", 7e9, 8, 17.5), ("70B", 70e9, 1, 910.0),
                                            ("70B", 70e9, 8, 175.0), ("70B", 70e9, 16, 122.5),
                                            ("405B", 405e9, 64, 480.9), ("405B", 405e9, 128, 443.0))),
    )  # fmt: skip


def _calculator_row(name: str, num_params: float, gpus: int, said_gb: float) -> Row:
    memory = seed.per_gpu_memory(num_params=num_params, num_gpus=gpus, zero_stage=3 if gpus > 1 else 0)
    says = f"{name} on {gpus} GPU{'s' if gpus > 1 else ''} takes {said_gb:g} GB on each"
    if gpus == 1:
        return says, said_gb * 1e9, memory.total_bytes, "decimal_bytes", "right", "half of the weights as activations"
    return (says, said_gb * 1e9, memory.state_bytes, "decimal_bytes", "loose",
            "states alone; the printed figure adds half of the undivided weights as activations")  # fmt: skip


def _exercises() -> tuple[Row, ...]:
    host = seed.optimizer_bytes(num_params=70e9)
    for_states = scaling.min_gpus(total_bytes=scaling.model_state_bytes(num_params=70e9))
    on_gpus = kernel_time.gpu_adam_s(num_params=17.5e9, memory_bandwidth_bytes_per_s=3.35e12)
    slower = offload_time.cpu_adam_s(num_params=70e9, host_bandwidth_bytes_per_s=200e9) / on_gpus
    return (
        ("full checkpointing costs 33% more compute", 1 / 3,
         flop_counts.recompute_flop_ratio() - 1, "fraction", "right", "in FLOP"),
        ("1F1B has the bubble of GPipe: 4 stages, 8 micro-batches", 0.273,
         pipeline_bubbles.idle_fraction(pp=4, num_microbatches=8), "fraction", "right", ""),
        ("1F1B peaks lower than GPipe's 8 micro-batches", "lower",
         f"{pipeline_in_flight.one_f_one_b_in_flight(pp=4, stage=0, num_microbatches=8)} on the first stage", "",
         "right", ""),
        ("accumulating K micro-batches divides communication by K, with identical gradients", "always",
         "with DDP; sharded gradients are reduced in every micro-batch", "", "loose",
         "and identical only when every micro-batch has as many tokens, or is weighted by them"),
        ("a host of 512 GB holds the optimizer of 70B", 512e9, host, "decimal_bytes", "wrong",
         "560 GB of moments, 840 GB with the master copy; NVMe of 2 TB holds it, or two hosts"),
        ("with that 70B trains on 4 GPUs instead of 16: 70 GB on each", 70e9,
         scaling.offloaded_gpu_bytes(num_params=70e9, num_gpus=4), "decimal_bytes", "loose",
         f"if a host holds the optimizer; {for_states} GPUs, not 16, hold the states without offload"),
        ("offloaded optimizer steps are 30 to 50% slower", 1.5, slower, "ratio", "wrong",
         "host memory of 200 GB/s against four H100; the whole step is 30 to 50% slower when it is 20 to 30 s long"),
        ("SGD keeps 4 bytes a parameter", 4, 0, "count", "loose", "its momentum; plain SGD keeps nothing"),
    )  # fmt: skip


def _mental_models() -> tuple[Row, ...]:
    limit = [model_states.zero_reduction_ratio(dp_shard=64, zero_stage=stage) for stage in (1, 2)]
    return (
        ("ZeRO-1 about 4 times, on 64 GPUs", 4.0, limit[0], "ratio", "right", "2.9 on 8"),
        ("ZeRO-2 about 8 times, on 64 GPUs", 8.0, limit[1], "ratio", "loose", "4.3 on 8"),
    )  # fmt: skip


def _journey() -> tuple[Row, ...]:
    weights, moments = seed.weight_bytes(num_params=70e9), seed.optimizer_bytes(num_params=70e9)
    plan = read_plan(
        {
            "model": "65B",
            "cluster": {"gpu": "h100-sxm", "num_gpus": 1},
            "recipe": {"seq_len": 512, "adapter": "qlora", "recompute": "full", "global_batch_size": 1},
        }
    )
    needed = predict_memory(plan).needed_bytes
    return (
        ("70B in fp16 weighs 140 GB", 140e9, weights, "decimal_bytes", "right", ""),
        ("optimizer states are 4 times the weights", 4.0, moments / weights, "ratio", "right", "6 with a master copy"),
        ("training on one GPU ends at about 7B with QLoRA", "7B", f"65B needs {needed / GIB:.0f} GiB", "", "wrong",
         "QLoRA trained 65B on one GPU of 48 GB (Dettmers et al. 2023, arXiv:2305.14314)"),
    )  # fmt: skip


def _week() -> tuple[Row, ...]:
    flash = activations.selective_recompute_activation_bytes(**SHAPE)
    kept = activations.full_recompute_activation_bytes(**SHAPE)
    adam = seed.optimizer_bytes(num_params=1e9)
    return (
        ("Adam's states are 8 times the model", 8.0, adam / seed.weight_bytes(num_params=1e9), "ratio", "loose",
         "8 bytes a parameter: 4 times bf16 weights, 2 times fp32"),
        ("a 1B model runs out of memory under DDP", "out of memory",
         f"{model_states.zero_model_state_bytes(num_params=1e9) / 1e9:g} GB of states", "", "wrong",
         "fits cards of 24 GB, unless activations or logits fill them"),
        ("checkpointing needs 3 times less activation memory", 3.0, flash / kept, "ratio", "loose",
         "17 times less a layer with flash attention, 57 without"),
        ("it costs some 30% more compute", 0.3, flop_counts.recompute_flop_ratio() - 1, "fraction", "loose", "a third"),
        ("without BACKWARD_PRE 20 to 30% are lost", "20-30%", "depends on what a gather can hide under", "", "loose",
         "about 18% in the FSDP paper (arXiv:2304.11277); FSDP2 prefetches always"),
        ("scaling efficiency is throughput of 8 over 8 times that of 1", "always", "with the same work a GPU", "",
         "loose", "weak scaling only"),
    )  # fmt: skip


def _architectures() -> tuple[Row, ...]:
    plan = read_plan(
        {
            "model": "llama-3.1-8b",
            "cluster": "8xh100-sxm",
            "recipe": {"seq_len": 4096, "global_batch_size": 8},
            "layout": {"dp_shard": 8, "zero_stage": 3},
        }
    )
    kinds = sorted({entry.kind for entry in predict(plan).time.communication if entry.axis == "dp_shard"})
    first = pipeline_in_flight.one_f_one_b_in_flight(pp=8, stage=0, num_microbatches=64) / 8
    return (
        ("FSDP commonly uses point-to-point communication", "point-to-point", ", ".join(kinds), "", "wrong",
         "all of them collectives; the all-reduce is that of the gradient norm"),
        ("pipeline parallelism reduces activation memory", "reduces", f"{first:g} times a whole model's on stage 0", "",
         "wrong", "p micro-batches of 1/p of the layers; later stages hold less"),
    )  # fmt: skip
