"""Plan files (``shardwise.plan/1``): the one document that travels through the whole loop.

Everything is optional but ``model``, ``cluster`` and ``recipe.seq_len``. What is left open is filled by
``rules.defaults`` and said in ``Plan.assumptions``.
"""

from shardwise.plan_file.read import PlanSource, read_plan, read_plan_lines, read_plans
from shardwise.plan_file.write import plan_to_json
from shardwise.rules.defaults import recipe_assumptions

__all__ = ["PlanSource", "plan_to_json", "read_plan", "read_plan_lines", "read_plans", "recipe_assumptions"]
