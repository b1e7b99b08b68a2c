"""Bytes per parameter under torch's FSDP and DDP, which several engines use."""

from collections.abc import Mapping

from shardwise.engines.profile import StateBytes
from shardwise.recipe import Precision

TORCH_STATES: Mapping[Precision, StateBytes] = {
    "fp32": StateBytes(
        weight_bytes=4, gradient_bytes=4, master_bytes=0, moment_bytes=4, compute_bytes=4, reduce_bytes=4
    ),
    "bf16-mixed": StateBytes(
        weight_bytes=4, gradient_bytes=4, master_bytes=0, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
    "fp16-mixed": StateBytes(
        weight_bytes=4, gradient_bytes=4, master_bytes=0, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
    "fp8-mixed": StateBytes(
        weight_bytes=4, gradient_bytes=4, master_bytes=0, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
    "bf16": StateBytes(
        weight_bytes=2, gradient_bytes=2, master_bytes=0, moment_bytes=2, compute_bytes=2, reduce_bytes=2
    ),
}
"""torch keeps fp32 parameters and casts; in pure bf16 the optimizer's states follow the parameters' dtype."""
