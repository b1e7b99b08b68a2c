"""Plan files (``shardwise.plan/1``): the one document that travels through the whole loop.

Everything is optional but ``model``, ``cluster`` and ``recipe.seq_len``. What is left open is filled by
``rules.defaults`` and said in ``Plan.assumptions``.
"""

from shardwise.plan import Plan
from shardwise.plan_file.read import PlanSource, ReadFile, read_plan, read_tree
from shardwise.plan_file.recipe import PLAN_PART, RECIPE_SCHEMA, is_recipe, naming
from shardwise.rules.defaults import recipe_assumptions

plan_to_json = Plan.to_dict
__all__ = [
    "PLAN_PART",
    "RECIPE_SCHEMA",
    "PlanSource",
    "ReadFile",
    "is_recipe",
    "naming",
    "plan_to_json",
    "read_plan",
    "read_tree",
    "recipe_assumptions",
]
