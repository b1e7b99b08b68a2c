"""Every engine by name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from shardwise.engines import accelerate, deepspeed, fsdp1, fsdp2, hai_llm, megatron, native, torchtitan
from shardwise.engines.engine import Engine
from shardwise.engines.profile import EngineProfile, StateBytes
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


def state_bytes(
    *, engine: EngineName, precision: Precision, zero_stage: int = 3, is_pipelined: bool = False
) -> StateBytes:
    """Bytes per parameter of every model state of an engine at a precision, before sharding."""
    facts = ENGINES[engine]
    pipelined = facts.pipelined_states.get(precision) if is_pipelined and zero_stage <= 1 else None
    return pipelined or facts.states[precision]
