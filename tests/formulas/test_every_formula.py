"""Laws every public formula obeys: keyword-only arguments, a source, its assumptions and a doctest."""

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

import shardwise.formulas


def formula_modules() -> list[ModuleType]:
    package = shardwise.formulas
    return [
        importlib.import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)
    ]


def public_formulas(module: ModuleType) -> Iterator[Callable[..., object]]:
    for name, member in vars(module).items():
        if inspect.isfunction(member) and not name.startswith("_") and member.__module__ == module.__name__:
            yield member


def broken_laws(formula: Callable[..., object]) -> list[str]:
    """Names of the laws a formula breaks."""
    doc = inspect.getdoc(formula) or ""
    broken = []
    kinds = {parameter.kind for parameter in inspect.signature(formula).parameters.values()}
    if kinds - {inspect.Parameter.KEYWORD_ONLY}:
        broken.append("keyword-only")
    broken.extend(law for law in ("Source:", "Assumes:", ">>>") if law not in doc)
    return broken


ALL_FORMULAS = [(module, formula) for module in formula_modules() for formula in public_formulas(module)]


@pytest.mark.parametrize("formula", [formula for _, formula in ALL_FORMULAS], ids=lambda f: f.__name__)
def test_a_formula_names_its_source_and_takes_keywords_only(formula):
    assert broken_laws(formula) == []


def test_the_walk_finds_a_formula_that_breaks_every_law():
    def positional(pp, num_microbatches):
        """Idle time."""
        return pp / num_microbatches

    assert broken_laws(positional) == ["keyword-only", "Source:", "Assumes:", ">>>"]


def test_the_walk_finds_all_subjects():
    names = {module.__name__.rsplit(".", 1)[-1] for module in formula_modules()}
    assert {"seed", "model_states", "activations", "pipeline_bubbles", "flop_counts", "goodput"} <= names
    assert len(ALL_FORMULAS) > 80


@pytest.mark.parametrize("module", formula_modules(), ids=lambda m: m.__name__.rsplit(".", 1)[-1])
def test_the_numbers_in_the_docstrings_are_right(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_doctest_runner_sees_a_wrong_number():
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(wrong, out=lambda text: None).failed == 1
