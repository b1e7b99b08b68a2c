"""The names of memory and time components, the same for a prediction and for a measurement."""

from typing import Literal, get_args

MemoryComponent = Literal[
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "gathered_parameters",
    "communication_buffers",
    "temporaries",
    "framework",
]
TimeComponent = Literal[
    "forward",
    "backward",
    "recompute",
    "optimizer",
    "exposed_communication",
    "pipeline_bubble",
    "offload",
    "other",
]
Phase = Literal["load", "forward", "loss", "backward", "optimizer", "save"]

MEMORY_COMPONENTS: tuple[MemoryComponent, ...] = get_args(MemoryComponent)
TIME_COMPONENTS: tuple[TimeComponent, ...] = get_args(TimeComponent)
PHASES: tuple[Phase, ...] = get_args(Phase)
