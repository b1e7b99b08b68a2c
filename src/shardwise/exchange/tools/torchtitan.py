"""torchtitan: sections of a TOML file, or ``--section.key`` on a line. One table for both, and for export."""

from collections.abc import Iterator

from shardwise.exchange.names import Claim, Readers, View
from shardwise.schedules.table import SCHEDULE_KINDS

CHUNKS: dict[str, int] = {name: kind.num_chunks or 2 for name, kind in SCHEDULE_KINDS.items()}
"""Stages of a rank by schedule."""


def _work_out(view: View) -> Iterator[Claim]:
    pp = view.number("parallelism.pipeline_parallel_degree") or 1
    local = "training.local_batch_size" if "training.local_batch_size" in view.by_key else "training.batch_size"
    share = view.number(local)
    if share is not None and pp > 1:
        piece = "parallelism.pipeline_parallel_microbatch_size"
        yield view.claim("micro_batch_size", view.number(piece) or 1, piece, local)
        yield view.claim("rank_share", share, local)
    elif share is not None:
        yield view.claim("micro_batch_size", share, local)
        yield view.claim("rank_share", share, local)
    total = view.number("training.global_batch_size")
    if total is not None and total > 0:
        yield view.claim("global_batch_size", total, "training.global_batch_size")
    yield from _sharding(view, pp)
    yield _precision(view)
    if pp > 1:
        # Schedules of several stages a rank get two of them, unless the layers of a stage say otherwise.
        key = "parallelism.pipeline_parallel_schedule"
        yield view.claim("vpp", CHUNKS.get(str(view.tool.ours(key, view.text(key))), 1), key)
    yield view.claim("engine", "torchtitan", *view.by_key)
    if view.number("parallelism.tensor_parallel_degree") not in (None, 1):
        yield view.claim("sequence_parallel", True, "parallelism.tensor_parallel_degree")
    else:
        yield view.claim("sequence_parallel", False, "parallelism.tensor_parallel_degree")
    if view.value("model.flavor") is not None:
        yield view.claim("model", f"{view.value('model.name')} {view.value('model.flavor')}", "model.flavor")


def _sharding(view: View, pp: int) -> Iterator[Claim]:
    """Weights are sharded over dp_shard and cp; after the forward pass they stay whole in pipelines, by default."""
    key = "parallelism.fsdp_reshard_after_forward"
    reshards = {"always": True, "never": False}.get(view.text(key), pp == 1)
    is_ddp = (
        view.number("parallelism.data_parallel_shard_degree") == 1
        and (view.number("parallelism.data_parallel_replicate_degree") or 1) > 1
        and (view.number("parallelism.context_parallel_degree") or 1) == 1
    )
    if is_ddp:
        yield view.claim("zero_stage", 0, "parallelism.data_parallel_shard_degree")
    elif view.text(key) == "never":
        yield view.claim("zero_stage", 2, key)
    else:
        yield view.claim("zero_stage", 3, key)
        yield view.claim("reshard_after_forward", reshards, key)


def _precision(view: View) -> Claim:
    key = "model.converters"
    if "float8" in view.text(key) or "mx" in view.text(key):
        return view.claim("precision", "fp8-mixed", key)
    if view.text("training.dtype") == "bfloat16":
        return view.claim("precision", "bf16", "training.dtype")
    is_fp32 = view.text("training.mixed_precision_param") == "float32"
    return view.claim("precision", "fp32" if is_fp32 else "bf16-mixed", "training.mixed_precision_param")


def _recipe(view: View) -> Iterator[Claim]:
    """Batches are tokens, and what the recipe in Python says has to be looked up by its name."""
    yield view.claim("engine", "torchtitan", *view.by_key)
    yield from _sharding(view, view.number("parallelism.pipeline_parallel_degree") or 1)
    length = view.number("training.max_context_length")
    tokens = view.number("training.num_tokens_per_microbatch_per_dp_rank")
    if length and tokens and tokens % length == 0:
        yield view.claim("micro_batch_size", tokens // length, "training.num_tokens_per_microbatch_per_dp_rank")
    step = view.number("training.num_tokens_per_train_step")
    if length and step and step > 0 and step % length == 0:
        yield view.claim("global_batch_size", step // length, "training.num_tokens_per_train_step")


READERS: Readers = {"torchtitan": _work_out, "torchtitan-recipe": _recipe}
