"""DeepSpeed's JSON, and GPT-NeoX, whose YAML holds the same blocks beside Megatron's sizes."""

from collections.abc import Iterator

from shardwise.exchange.names import Claim, Readers, View


def offload(view: View) -> Iterator[Claim]:
    """Weights on the host (stage 3 only), the optimizer alone, or neither."""
    parameters, optimizer = (f"zero_optimization.offload_{part}.device" for part in ("param", "optimizer"))
    if view.text(parameters) in ("cpu", "nvme"):
        yield view.claim("offload", "nvme" if view.text(parameters) == "nvme" else "parameters", parameters)
    elif view.text(optimizer) in ("cpu", "nvme"):
        yield view.claim("offload", "nvme" if view.text(optimizer) == "nvme" else "optimizer", optimizer)
    elif view.is_on("zero_optimization.cpu_offload"):
        yield view.claim("offload", "optimizer", "zero_optimization.cpu_offload")
    else:
        yield view.claim("offload", "none", parameters, optimizer)


def shards(view: View) -> Iterator[Claim]:
    """Data ranks over which the states are divided, where MiCS divides them over fewer than all."""
    key = "zero_optimization.mics_shard_size"
    size = view.number(key)
    if size is not None and size > 0:
        yield view.claim("dp_shard", size, key)


def precision(view: View) -> Iterator[Claim]:
    """The precision that a block switches on; without a block the JSON leaves it open, as the program may set it."""
    for key, format_name in (("bf16.enabled", "bf16-mixed"), ("fp16.enabled", "fp16-mixed")):
        if view.value(key) is True:
            yield view.claim("precision", format_name, key)
    if view.value("bf16.enabled") is False and view.value("fp16.enabled") is False:
        yield view.claim("precision", "fp32", "bf16.enabled")


def clipping(view: View, key: str) -> Iterator[Claim]:
    """Whether gradients are clipped: a norm of 0 clips none."""
    norm = view.value(key)
    if isinstance(norm, int | float) and not isinstance(norm, bool):
        yield view.claim("clip_gradients", norm > 0, key)


def _work_out(view: View) -> Iterator[Claim]:
    yield view.claim("engine", "deepspeed", *view.by_key)
    yield from offload(view)
    yield from shards(view)
    yield from precision(view)
    yield from clipping(view, "gradient_clipping")


def _neox(view: View) -> Iterator[Claim]:
    yield view.claim("engine", "deepspeed", *view.by_key)
    # 0 is a model without the pipeline module, which is one stage as well.
    yield view.claim("pp", view.number("pipe_parallel_size") or 1, "pipe_parallel_size")
    yield from offload(view)
    yield from shards(view)
    if "train_micro_batch_size_per_gpu" in view.by_key and "train_batch_size" not in view.by_key:
        yield view.claim(
            "num_microbatches", view.number("gradient_accumulation_steps") or 1, "gradient_accumulation_steps"
        )
    if "zero_optimization.stage" in view.by_key or view.is_on("checkpoint_activations"):
        is_on = view.is_on("checkpoint_activations")
        yield view.claim("recompute", "full" if is_on else "none", "checkpoint_activations")
    if "precision" not in view.by_key:
        yield from precision(view)


READERS: Readers = {"deepspeed": _work_out, "gpt-neox": _neox}
