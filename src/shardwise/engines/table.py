"""Every engine by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from shardwise.engines import accelerate, deepspeed, fsdp1, fsdp2, hai_llm, megatron, nanotron, native, torchtitan
from shardwise.engines.engine import Engine
from shardwise.engines.profile import EngineProfile, StateBytes
from shardwise.layout import Layout
from shardwise.recipe import Precision

EngineName = Literal[
    "native",
    "torchtitan",
    "megatron",
    "deepspeed",
    "fsdp2",
    "fsdp1",
    "accelerate",
    "hai-llm",
    "nanotron",
]
OWN_ENGINE: EngineName = "native"
"""Our own trainer, which a plan gets that names no engine."""

ENGINES: Mapping[EngineName, Engine] = MappingProxyType(
    {
        "native": native.ENGINE,
        "torchtitan": torchtitan.ENGINE,
        "megatron": megatron.ENGINE,
        "deepspeed": deepspeed.ENGINE,
        "fsdp2": fsdp2.ENGINE,
        "fsdp1": fsdp1.ENGINE,
        "accelerate": accelerate.ENGINE,
        "hai-llm": hai_llm.ENGINE,
        "nanotron": nanotron.ENGINE,
    }
)


def engines_that(holds: Callable[[Engine], bool]) -> tuple[EngineName, ...]:
    """Names of the engines of which something holds.

    >>> engines_that(lambda engine: "nvme" in engine.offloads)
    ('deepspeed',)
    """
    return tuple(name for name, engine in ENGINES.items() if holds(engine))


def engine_profile(name: EngineName) -> EngineProfile:
    """The profile of a named engine."""
    return ENGINES[name].profile


def accumulates_in_fp32(engine: EngineName, layout: Layout) -> bool:
    """Whether pipelines add bf16 gradients up in fp32, as DeepSpeed's do where they keep them whole."""
    return bool(ENGINES[engine].pipelined_states) & (layout.pp > 1) & (layout.zero_stage <= 1)


def reduces_units(engine: EngineName, layout: Layout) -> bool:
    """Whether FSDP reduces gradients in another dtype than DDP does, as under Accelerate."""
    return bool(ENGINES[engine].unit_states) & (layout.zero_stage == 3)


def state_bytes(
    *, engine: EngineName, precision: Precision, in_fp32: bool = False, in_units: bool = False
) -> StateBytes:
    """Bytes per parameter of every model state of an engine at a precision, before sharding.

    Args:
        engine: runs the step.
        precision: of the recipe.
        in_fp32: whether bf16 gradients are added up in fp32 (:func:`accumulates_in_fp32`).
        in_units: whether units of FSDP are reduced (:func:`reduces_units`).
    """
    facts = ENGINES[engine]
    accumulated = facts.pipelined_states.get(precision) if in_fp32 else None
    reduced = facts.unit_states.get(precision) if in_units else None
    return accumulated or reduced or facts.states[precision]
