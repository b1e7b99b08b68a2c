"""Surfaces parse, call and render: no product or quotient of quantities in ``cli/`` and any ``render/``."""

import ast

from habits.source_tree import SOURCE, parsed_files

GEOMETRY = {
    "bars.py",
    "front_picture.py",
    "svg_canvas.py",
    "svg_curves.py",
    "svg_front.py",
    "svg_gantt.py",
    "svg_lesson.py",
    "svg_memory.py",
    "svg_memory_profile.py",
    "svg_messages.py",
    "svg_phases.py",
    "svg_placement.py",
    "svg_reconciliation.py",
    "svg_scatter.py",
    "svg_steps.py",
    "svg_shares.py",
    "svg_timeline.py",
    "text_front.py",
    "text_lesson_pictures.py",
    "text_table.py",
}
"""Files that work out where things stand on a page."""
ARITHMETIC = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)


def is_text_or_path(node: ast.AST) -> bool:
    """A blank repeated, or a path joined."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def arithmetic(tree: ast.AST) -> list[str]:
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ARITHMETIC)
        and not (is_text_or_path(node.left) or is_text_or_path(node.right))
    ]


def test_surfaces_do_not_compute():
    inside = [
        (path, tree)
        for path, tree in parsed_files()
        if {"cli", "render"} & set(path.relative_to(SOURCE).parts) and path.name not in GEOMETRY
    ]
    assert len(inside) > 20
    assert [f"{path.name}: {found}" for path, tree in inside for found in arithmetic(tree)] == []


def test_a_product_is_found():
    tree = ast.parse("pad = ' ' * 3\nfile = folder / 'a.json'\ncost = gpu_hours * usd_per_gpu_hour")
    assert arithmetic(tree) == ["gpu_hours * usd_per_gpu_hour"]
