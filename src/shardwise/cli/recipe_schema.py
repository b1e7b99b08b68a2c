"""The JSON Schema of recipes, docs/recipe.schema.json: ``python -m shardwise.cli.recipe_schema``, or ``make docs``.

Editors complete and check recipes by it. It says what fields of plans and options of ``train`` say themselves.
"""

import json
import math
import sys

from shardwise.cli.command import find_command, make_parser
from shardwise.cli.recipe_options import recipe_sections
from shardwise.engines.table import ENGINES
from shardwise.fields import Field, plan_fields
from shardwise.layout import Layout
from shardwise.plan import PLAN_SCHEMA
from shardwise.plan_file import PLAN_PART, RECIPE_SCHEMA
from shardwise.recipe import Recipe

__all__ = ["recipe_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, object]


def recipe_schema() -> Schema:
    """The schema of a recipe: its plan, and a section for every group of options of ``train``."""
    entry = find_command("train")
    sections = recipe_sections(make_parser(entry, entry.load()))
    path: Schema = {"type": "string", "minLength": 1, "description": "path of a plan file"}
    parts: Schema = {"schema": {"const": RECIPE_SCHEMA}, PLAN_PART: {"anyOf": [_plan(), path]}}
    parts |= {name: _group(tuple(option.field for option in options)) for name, options in sections.items()}
    return {"$schema": DIALECT, "title": RECIPE_SCHEMA, **_mapping(parts), "required": [PLAN_PART]}


def _plan() -> Schema:
    named = {"type": ["string", "object"]}
    parts: Schema = {
        "schema": {"const": PLAN_SCHEMA},
        "model": {**named, "description": "name of the catalogue, path of a config.json, size, or its fields"},
        "cluster": {**named, "description": "name such as 8xh100-sxm, path of a TOML file, or its fields"},
        "recipe": {**_group(plan_fields(Recipe)), "required": ["seq_len"]},
        "layout": _group(plan_fields(Layout)),
        "engine": {"enum": [*ENGINES]},
    }
    return {**_mapping(parts), "required": ["model", "cluster", "recipe"]}


def _mapping(parts: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": parts}


def _group(fields: tuple[Field, ...]) -> Schema:
    """A section, which may be empty; a field that is null counts as left out."""
    group = _mapping({field.name: {"description": field.help, **_value(field)} for field in fields})
    return {**group, "type": ["object", "null"]}


def _value(field: Field) -> Schema:
    if field.kind == "choice":
        return {"enum": [*field.choices, None]}
    if field.kind == "choices":
        names: Schema = {"type": "array", "minItems": 1, "items": {"enum": [*field.choices]}}
        return {"anyOf": [names, {"type": ["string", "null"]}]}
    if field.kind == "texts":
        return {"type": ["string", "array", "null"], "items": {"type": "string"}}
    if field.kind == "counts":
        return {"type": ["array", "null"], "minItems": 1, "items": {"type": "integer", **_range(field)}}
    if field.kind == "amount":
        return {"type": ["number", "string", "null"], **_range(field)}
    types = {"flag": "boolean", "text": "string", "count": "integer"}
    limits = _range(field) if field.kind == "count" else {}
    value: Schema = {"type": [types[field.kind], "null"], **limits}
    return value if field.rest is None else {"anyOf": [value, {"const": field.rest}]}


def _range(field: Field) -> Schema:
    lowest: Schema = {"minimum": _end(field.lowest)}
    return lowest if math.isinf(field.highest) else {**lowest, "maximum": _end(field.highest)}


def _end(value: float) -> float:
    return int(value) if value == int(value) else value


if __name__ == "__main__":
    sys.stdout.write(json.dumps(recipe_schema(), indent=1) + "\n")
