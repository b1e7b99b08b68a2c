"""What a schedule, an optimizer or an engine is stands in its record: nobody else asks for its name."""

import ast

from habits.source_tree import SOURCE, parsed_files
from shardwise.engines.table import ENGINES
from shardwise.optimizers import OPTIMIZERS
from shardwise.schedules.table import SCHEDULE_KINDS

NAMES = frozenset((*ENGINES, *OPTIMIZERS, *SCHEDULE_KINDS))
OTHER_NAMES = frozenset(("sharding", "trainer"))
"""Fields whose values are spelled like engines: how states are divided, and who wrote a log."""
TEACHING = "course"
"""Lessons compare named schedules and engines with the papers that describe them."""


def asked_names(tree: ast.AST) -> list[str]:
    """Names of records that a comparison is made with."""
    return [
        constant.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and not (isinstance(node.left, ast.Attribute) and node.left.attr in OTHER_NAMES)
        for side in (node.left, *node.comparators)
        for constant in ast.walk(side)
        if isinstance(constant, ast.Constant) and constant.value in NAMES
    ]


def test_nobody_compares_with_the_name_of_a_record():
    found = {
        str(path.relative_to(SOURCE)): names
        for path, tree in parsed_files()
        if path.relative_to(SOURCE).parts[0] != TEACHING and (names := asked_names(tree))
    }
    assert found == {}


def test_a_comparison_with_a_name_is_found():
    assert asked_names(ast.parse('layout.schedule in ("gpipe", "1f1b") or "muon" == recipe.optimizer')) == [
        "gpipe",
        "1f1b",
        "muon",
    ]
    assert asked_names(ast.parse('profile.sharding == "megatron"')) == []
