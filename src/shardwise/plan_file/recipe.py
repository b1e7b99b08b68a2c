"""Recipe files (``shardwise.recipe/1``): a plan under ``plan``, and beside it what a run needs besides its plan."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shardwise.errors import PlanError, ShardwiseError
from shardwise.plan_file.text import is_there
from shardwise.plan_file.values import shown

__all__ = ["PLAN_PART", "RECIPE_SCHEMA", "is_recipe", "naming", "plan_of_recipe"]

RECIPE_SCHEMA = "shardwise.recipe/1"
PLAN_PART = "plan"
"""The key that tells a recipe from a plan, which has no such part."""


def is_recipe(tree: Mapping[str, object]) -> bool:
    """Whether a document is a recipe, or was meant as one."""
    return PLAN_PART in tree or tree.get("schema") == RECIPE_SCHEMA


def plan_of_recipe(tree: Mapping[str, object], folder: Path | None) -> Mapping[str, object] | Path:
    """What a recipe has under ``plan``: a plan, or the path of a plan file, which is looked for beside the recipe.

    Raises:
        PlanError: it is neither, or the recipe is of another version.
    """
    schema = tree.get("schema", RECIPE_SCHEMA)
    if schema != RECIPE_SCHEMA:
        raise PlanError(
            f"the schema is {shown(schema)}, but this program reads recipes of {RECIPE_SCHEMA}",
            code="plan-schema",
            fix=f'write schema: "{RECIPE_SCHEMA}", or leave it out',
        )
    part = tree.get(PLAN_PART)
    if isinstance(part, Mapping):
        return part
    if isinstance(part, str) and part:
        beside = (folder or Path()) / part
        return beside if is_there(beside) else Path(part)
    raise PlanError(
        f"plan is {shown(part)}, neither a plan nor the path of one",
        code="plan-missing-key",
        fix="write plan: plan.json, or plan: with model, cluster and recipe under it",
    )


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Within, an error says in which file, and where in it, the fault is."""
    try:
        yield
    except ShardwiseError as error:
        raise type(error)(f"{place}: {error.message}", code=error.code, fix=error.fix) from None
