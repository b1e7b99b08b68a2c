"""A rule of validity: a name, a predicate, a sentence, and where to look for a plan that keeps it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shardwise.engines.table import EngineName
from shardwise.plan import Plan
from shardwise.rules.refusal import Changes, Severity

FIGURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "world_size": ("dp_replicate", "dp_shard", "tp", "cp", "pp"),
        "data_parallel_size": ("dp_replicate", "dp_shard"),
        "stage_replica_size": ("dp_shard", "tp", "cp"),
        "num_microbatches": ("global_batch_size", "micro_batch_size", "dp_replicate", "dp_shard"),
    }
)
"""Properties of a layout or a plan that a rule may name as one number, and the fields that they are made of. There are
far fewer such numbers in a search than combinations of the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. ``breaks`` is cheap (a search calls it for every layout); the rest runs only for a broken rule."""

    name: str
    severity: Severity = "error"
    engines: tuple[EngineName, ...] | None = None
    """Engines that the rule holds for; ``None`` means all of them."""
    why: str
    """Why the rule exists, for the documentation."""
    source: str
    """The publication or file where the rule can be checked."""
    reads: tuple[str, ...] | None = None
    """Fields of the layout and the recipe, or ``FIGURES``, that ``breaks`` looks at, so that a search asks once per
    combination of their values. Required for errors; ``None``, for warnings only, means that it may look at any.
    ``tests/search/test_validity.py`` watches what is really read."""
    breaks: Callable[[Plan], bool]
    """Whether a plan breaks the rule."""
    message: Callable[[Plan], str]
    candidates: Callable[[Plan], Iterable[Changes]] | tuple[Changes, ...]
    """Changes that may mend the plan, nearest first, or what finds them. They are verified before they are shown."""
    advice: str = ""
    """A second way out that no field of the plan expresses."""

    def candidates_for(self, plan: Plan) -> Iterable[Changes]:
        """The changes that may mend a plan, nearest first."""
        return self.candidates if isinstance(self.candidates, tuple) else self.candidates(plan)
