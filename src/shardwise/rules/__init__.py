"""Rules of validity: every one has a name, the offending numbers, and a neighbour that keeps it.

They refuse plans that no program of the named engine runs. What our own trainer cannot run although the plan is valid
stands in ``launch/support.py``, what this machine lacks in ``launch/lint.py``, sizes that a checkpoint or a mesh does
not divide in ``train/divisible.py``, and mistakes in the files of other tools in ``exchange/mistakes``.
"""

from shardwise.rules.book import RANGE_RULES, RULES
from shardwise.rules.changes import apply_changes, describe_changes
from shardwise.rules.check import find_errors, find_refusals, refusal_within, require_valid
from shardwise.rules.degrees import (
    head_tp_degrees,
    valid_cp_degrees,
    valid_ep_degrees,
    valid_expert_tp_degrees,
    valid_pp_degrees,
    valid_tp_degrees,
)
from shardwise.rules.refusal import Changes, Refusal
from shardwise.rules.rule import Rule

__all__ = [
    "RANGE_RULES",
    "RULES",
    "Changes",
    "Refusal",
    "Rule",
    "apply_changes",
    "describe_changes",
    "find_errors",
    "find_refusals",
    "head_tp_degrees",
    "refusal_within",
    "require_valid",
    "valid_cp_degrees",
    "valid_ep_degrees",
    "valid_expert_tp_degrees",
    "valid_pp_degrees",
    "valid_tp_degrees",
]
