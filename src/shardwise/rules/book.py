"""All rules, in the order they are checked and shown."""

from collections.abc import Mapping
from types import MappingProxyType

from shardwise.engines.table import ENGINES, EngineName
from shardwise.rules import (
    adapters,
    attention,
    engine_limits,
    experts,
    idle_fields,
    microbatches,
    offload,
    overlap,
    own_ways,
    pipeline,
    precision,
    ranges,
    recompute_modules,
    sequence,
    tensor,
    world,
    zero_stages,
)
from shardwise.rules.rule import Rule

RANGE_RULES: tuple[Rule, ...] = ranges.RULES
"""Checked first; when one is broken no other rule can be evaluated."""

RULES: tuple[Rule, ...] = (
    *world.RULES,
    *tensor.RULES,
    *sequence.RULES,
    *attention.RULES,
    *pipeline.RULES,
    *experts.RULES,
    *microbatches.RULES,
    *precision.RULES,
    *zero_stages.RULES,
    *offload.RULES,
    *overlap.RULES,
    *own_ways.RULES,
    *adapters.RULES,
    *idle_fields.RULES,
    *engine_limits.RULES,
    *recompute_modules.RULES,
)


def _by_engine(rules: tuple[Rule, ...]) -> Mapping[EngineName, tuple[Rule, ...]]:
    return MappingProxyType(
        {engine: tuple(rule for rule in rules if rule.engines is None or engine in rule.engines) for engine in ENGINES}
    )


_RULES_OF_ENGINE = _by_engine(RULES)
_ERRORS_OF_ENGINE = _by_engine(tuple(rule for rule in (*RANGE_RULES, *RULES) if rule.severity == "error"))


def rules_of(engine: EngineName) -> tuple[Rule, ...]:
    """The rules that hold for an engine, without those about ranges."""
    return _RULES_OF_ENGINE[engine]


def error_rules(engine: EngineName) -> tuple[Rule, ...]:
    """The rules an engine's plan must keep to run as written, those about ranges first."""
    return _ERRORS_OF_ENGINE[engine]
