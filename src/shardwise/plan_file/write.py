"""Write a plan as the document that reads back equal."""

import json
from dataclasses import fields

from shardwise.errors import PlanError
from shardwise.layout import Layout
from shardwise.plan import PLAN_SCHEMA, Plan
from shardwise.recipe import Recipe


def plan_to_json(plan: Plan) -> dict[str, object]:
    """The plan as the document that :func:`read_plan` turns into an equal plan; fields left open are left out.

    Raises:
        PlanError: the model or the cluster was built by hand and has no written form.
    """
    return {
        "schema": PLAN_SCHEMA,
        "model": _written_form(plan.model.spec_json, "model", plan.model.name),
        "cluster": _written_form(plan.cluster.spec_json, "cluster", plan.cluster.node.id),
        "recipe": _written_fields(plan.recipe),
        "layout": _written_fields(plan.layout),
        "engine": plan.engine,
    }


def _written_form(spec_json: str, part: str, name: str) -> object:
    if not spec_json:
        raise PlanError(
            f"the {part} {name} was built by hand and does not say what it was read from",
            code="plan-hand-made",
            fix=f"read the {part} from a name, a file or a mapping",
        )
    found: object = json.loads(spec_json)
    return found


def _written_fields(record: Recipe | Layout) -> dict[str, object]:
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None
    }
