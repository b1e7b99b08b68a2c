"""Patterns of parameter names in a job's optimizer: each has to fit a parameter that trains."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from shardwise.errors import RecipeError
from shardwise.train.job import Job

__all__ = ["require_patterns"]

WEIGHT = ".weight"


def require_patterns(job: Job, names: Iterable[str] | None) -> None:
    """Return when every pattern of ``--undecayed`` and ``--group-rate`` fits the name of a parameter that trains.

    Args:
        job: what is run.
        names: of the model's parameters; ``None`` where nobody knows them here.

    Raises:
        RecipeError: one fits none and would be ignored.
    """
    patterns = (*job.optimizer.undecayed, *(pattern for pattern, _ in job.optimizer.group_rates))
    if not patterns or names is None:
        return
    trained = [*names] if job.recipe.adapter == "none" else [*_factor_names(names)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in trained):
            raise RecipeError(
                f"'{pattern}' fits the name of no parameter that trains",
                code="train-pattern",
                fix=f"write names such as {trained[-1]}, with * for any letters: *{trained[-1].split('.')[-2]}*",
            )


def _factor_names(names: Iterable[str]) -> Iterable[str]:
    """Names of the two factors that each matrix may have beside it."""
    stems = [name.removesuffix(WEIGHT) for name in names if name.endswith(WEIGHT)]
    return (f"{stem}.{factor}{WEIGHT}" for stem in stems for factor in ("lora_A", "lora_B"))
