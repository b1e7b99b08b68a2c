"""The words for one step of a run, on a bar and in a log: its loss, speed and memory, and what was looked at."""

from collections.abc import Mapping

from shardwise.units import format_gib

__all__ = ["exposed_text", "speed_text", "step_text", "validation_text"]


def step_text(record: Mapping[str, object]) -> str:
    """Everything of one step in one line."""
    return speed_text(record) + exposed_text(record) + validation_text(record)


def speed_text(record: Mapping[str, object]) -> str:
    """Loss, tokens per second and GPU, MFU and memory, as far as the record has them."""
    loss, rate = record["loss"], float(str(record["tokens_per_s_per_gpu"]))
    mfu = record.get("mfu_fraction")
    said = f"loss {loss:.3f}" if isinstance(loss, float) else "no finite loss"
    said = f"{said}{_router_text(record)}{_skipped_text(record)}  {rate:,.0f} tokens/s/GPU"
    said = f"{said}  MFU {mfu:.1%}" if isinstance(mfu, float) else said
    peak = record.get("peak_allocated_bytes")
    return f"{said}  {format_gib(peak)}" if isinstance(peak, int) and peak else said  # CPUs count none


def _router_text(record: Mapping[str, object]) -> str:
    """The auxiliary loss of routers, which is no part of the loss before it; empty where none is added."""
    loss = record.get("router_aux_loss")
    return f"  router loss {loss:.3f}" if isinstance(loss, float) else ""


def _skipped_text(record: Mapping[str, object]) -> str:
    """The number of steps that fp16 skipped so far, and the loss scale; empty while none was skipped."""
    num_skipped, ratio = record.get("num_skipped_steps"), record.get("loss_scale_ratio")
    return f"  {num_skipped} skipped, scale {ratio:,g}" if num_skipped and isinstance(ratio, float) else ""


def validation_text(record: Mapping[str, object]) -> str:
    """The validation loss after a step that was followed by a validation; empty for the others."""
    loss = record.get("validation_loss")
    return f"  validation {loss:.3f}" if isinstance(loss, float) else ""


def exposed_text(record: Mapping[str, object]) -> str:
    """The words for the communication of a step that was profiled; empty for the others."""
    sample = record.get("sample")
    exposed = sample.get("exposed_communication_fraction") if isinstance(sample, Mapping) else None
    return f"  exposed {exposed:.1%}" if isinstance(exposed, float) else ""
