"""The case that rules about surroundings look at, and the record of what they find."""

from dataclasses import dataclass
from typing import Literal

from shardwise.launch.surroundings import Surroundings
from shardwise.plan import Plan

__all__ = ["Case", "LintFinding", "Severity", "version_numbers"]

Severity = Literal["error", "warning", "note"]


def version_numbers(text: str) -> tuple[int, ...]:
    """``2.11.0+cu130`` as ``(2, 11, 0)``; empty for what is no version."""
    parts = text.partition("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit())


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """One thing about the surroundings that will be felt."""

    rule: str
    severity: Severity
    """``error``: the run cannot work; ``warning``: it will be slow or may hang; ``note``: good to know."""
    claim: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The plan, the machine and the options that rules look at."""

    plan: Plan
    here: Surroundings
    is_on_gpu: bool
    is_device_asked: bool = True
    """Whether somebody said what trains; otherwise GPUs do where there are any."""
    saves_states: bool = False
    packages: tuple[str, ...] = ("torch",)
    """Packages that ranks import."""

    def variable(self, name: str) -> str:
        """An environment variable; empty when it is not set."""
        return self.here.variables.get(name, "")

    @property
    def num_local_ranks(self) -> int:
        """Processes of a machine whose GPUs are all in use; the last machine of an uneven cluster starts fewer."""
        return min(self.plan.layout.world_size, self.plan.cluster.node.gpus_per_node)

    @property
    def divides_states(self) -> bool:
        """Whether parameters are gathered and gradients scattered while other things compute."""
        return self.plan.layout.state_shard_size > 1 and self.plan.layout.zero_stage >= 2

    def torch_before(self, *wanted: int) -> bool:
        """Whether the installed torch is older than a version; false where there is none."""
        installed = version_numbers(self.here.versions.get("torch", ""))
        return bool(installed) and installed < wanted
