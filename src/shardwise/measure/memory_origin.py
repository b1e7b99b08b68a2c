"""What a block of memory is, from the code that asked for it and from how long it lived.

The stack says in which phase of a step a block was requested; its end says what it was for: what a forward pass
leaves and a backward pass releases is an activation, what a backward pass leaves for the optimizer is a gradient.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

from shardwise.ledger import MemoryComponent, Phase
from shardwise.measure.memory_snapshot import Frame

HeldBefore = Literal["before_recording"]
BlockComponent: TypeAlias = MemoryComponent | HeldBefore
BEFORE_RECORDING: HeldBefore = get_args(HeldBefore)[0]

Role = Literal["gather", "reduce", "recompute", "logits", "other"]

PLUMBING = (
    "torch/nn/modules/module.py",
    "torch/_ops.py",
    "torch/utils/_contextlib.py",
    "torch/autograd/function.py",
    "torch/_dynamo/eval_frame.py",
    "torch/nn/functional.py",
)
"""Files whose lines say nothing about who asked for memory."""
LABEL_FRAMES = 2

DEFINITIONS: tuple[tuple[str, str], ...] = (
    ("parameters", "requested before the first forward pass, and held to the end"),
    ("gradients", "requested in backward, and still held when the optimizer runs"),
    ("optimizer", "requested in the optimizer's step, and held to the end"),
    ("activations", "requested in forward or when recomputing, and released in backward"),
    ("logits", "requested by the code of the loss"),
    ("gathered_parameters", "requested by FSDP for an all-gather"),
    ("communication_buffers", "requested by FSDP or DDP for a reduction, and released before the optimizer"),
    ("temporaries", "requested and released within one phase"),
    ("before_recording", "held when the recording began: parameters, and states if steps went before"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The code that asked for a block."""

    phase: Phase | None
    """``None`` where the stack does not say: work between the phases of a step."""
    role: Role
    label: str
    """The innermost lines that are not plumbing."""


@lru_cache(maxsize=65536)
def origin_of(frames: tuple[Frame, ...]) -> Origin:
    """Read a stack, innermost line first; an empty one is autograd's thread."""
    return Origin(phase=_phase(frames), role=_role(frames), label=_label(frames))


def _phase(frames: tuple[Frame, ...]) -> Phase | None:
    if not frames or any("backward" in frame.function for frame in frames):
        return "backward"
    if any(_is_optimizer(frame) for frame in frames):
        return "optimizer"
    if any(_is_loss(frame) for frame in frames):
        return "loss"
    if any(frame.function in ("_call_impl", "forward") for frame in frames):
        return "forward"
    return None


def _is_optimizer(frame: Frame) -> bool:
    return "optim" in frame.file.rsplit("/site-packages/", 1)[-1] or "clip_grad" in frame.function


def _is_loss(frame: Frame) -> bool:
    return "cross_entropy" in frame.function or "loss" in frame.function or frame.file.endswith("/loss.py")


def _role(frames: tuple[Frame, ...]) -> Role:
    for frame in frames:
        if "all_gather" in frame.function or "unshard" in frame.function:
            return "gather"
        if "foreach_reduce" in frame.function or "_ddp_init_helper" in frame.function:
            return "reduce"
        if frame.file.endswith("torch/utils/checkpoint.py") and frame.function in ("unpack_hook", "recompute_fn"):
            return "recompute"
    return "logits" if any(_is_loss(frame) for frame in frames) else "other"


def _label(frames: tuple[Frame, ...]) -> str:
    telling = [frame for frame in frames if not frame.file.endswith(PLUMBING)][:LABEL_FRAMES]
    lines = (f"{frame.file.rsplit('/', 1)[-1]}:{frame.line_number} {frame.function}" for frame in telling)
    return " < ".join(lines) or "autograd's thread"


def component_of(origin: Origin, *, requested: Phase, released: Phase | None) -> BlockComponent:
    """The ledger's component of a block.

    Args:
        requested: the phase in which the device's step was at the request.
        released: the same at the release; ``None`` for a block that is held at the end.
    """
    if origin.role == "gather":
        return "gathered_parameters"
    is_kept = released in (None, "optimizer") and released != requested
    if origin.role == "reduce":
        return "gradients" if is_kept else "communication_buffers"
    if origin.role == "logits":
        return "logits"
    if origin.role == "recompute":
        return "activations"
    return _by_lifetime(requested, released, is_kept=is_kept)


def _by_lifetime(requested: Phase, released: Phase | None, *, is_kept: bool) -> BlockComponent:
    if requested == "load":
        return "parameters" if released is None else "temporaries"
    if requested == "optimizer":
        return "optimizer" if released is None else "temporaries"
    if requested == "backward":
        return "gradients" if is_kept or released == "forward" else "temporaries"
    return "temporaries" if released == requested else "activations"
