"""Recipes in Python: a function that returns a call of config dataclasses, as newer torchtitan versions have them.

Nothing is run. Constants, whole-number products, names that the file sets, calls of the file's other recipes and
assignments to fields are worked out; whatever else a recipe says stays as its own text and is not understood.
"""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from shardwise.errors import PlanError
from shardwise.exchange.facts import MAX_FACTS, Document, Fact, FactValue

ROOT = "Trainer.Config"
MAX_CALLS = 64
"""Recipes that one recipe calls, directly or not."""
UNREAD = object()
"""An expression that is not worked out and stays as its own text."""
OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(slots=True)
class _Call:
    """A call of a config dataclass or of a function that makes one, with its arguments by name."""

    name: str
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class _File:
    """The functions of one file, and how many of them one recipe has called so far."""

    functions: dict[str, ast.FunctionDef]
    num_calls: int = 0


def read_recipes(text: str, *, file: str) -> tuple[Document, ...]:
    """One document a recipe of a Python file, in the order in which they stand.

    Raises:
        PlanError: the file is not Python, or is nested more deeply than any recipe.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PlanError(f"{file} is not Python: {str(error)[:120]}", code="plan-syntax", fix="mend that line") from None
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    imports = {
        name.asname or name.name: one.module or ""
        for one in tree.body
        if isinstance(one, ast.ImportFrom)
        for name in one.names
    }
    try:
        return tuple(_recipes(functions, imports, file))
    except RecursionError:
        raise PlanError(
            f"{file} is nested more deeply than any recipe",
            code="plan-syntax",
            fix="give the recipe alone",
        ) from None


def _recipes(functions: dict[str, ast.FunctionDef], imports: Mapping[str, str], file: str) -> Iterator[Document]:
    """A document for every function that returns a config, with no more facts than are needed to refuse the file."""
    for name in functions:
        recipe, place = _returned(_File(functions=functions), name), f"{file}:{name}"
        if isinstance(recipe, _Call) and recipe.name.endswith(ROOT):
            facts = islice(_facts(recipe, imports, place), MAX_FACTS)
            yield Document(file=file, facts=(Fact(key="config", value=name, place=place), *facts))


def _returned(file: _File, name: str) -> object:
    """The value that a function without arguments returns; ``None`` where it returns none that is plain."""
    file.num_calls += 1
    if file.num_calls > MAX_CALLS:
        return None
    values: dict[str, object] = {}
    for statement in file.functions[name].body:
        if isinstance(statement, ast.Return):
            return None if statement.value is None else _value(file, values, statement.value)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            _assign(values, statement.targets[0], _value(file, values, statement.value))
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            _assign(values, statement.target, _value(file, values, statement.value))
        elif not isinstance(statement, ast.Expr | ast.Assert | ast.Import | ast.ImportFrom | ast.FunctionDef):
            for value in values.values():
                if isinstance(value, _Call):
                    value.arguments.setdefault(f"line {statement.lineno}", ast.unparse(statement)[:60])
    return None


def _assign(values: dict[str, object], target: ast.expr, value: object) -> None:
    """``name = value``, or ``config.section.key = value`` for a config that a name stands for."""
    path: list[str] = []
    while isinstance(target, ast.Attribute):
        path.insert(0, target.attr)
        target = target.value
    if not isinstance(target, ast.Name):
        return
    if not path:
        values[target.id] = value
        return
    owner = values.get(target.id)
    for part in path[:-1]:
        owner = owner.arguments.setdefault(part, _Call(name="")) if isinstance(owner, _Call) else None
    if isinstance(owner, _Call):
        owner.arguments[path[-1]] = value


def _value(file: _File, values: Mapping[str, object], node: ast.expr) -> object:
    """The value of an expression, or its text where it is none that is plain."""
    found: object = UNREAD
    match node:
        case ast.Constant():
            found = node.value
        case ast.Name():
            found = values.get(node.id, UNREAD)
        case ast.Attribute():
            owner = _value(file, values, node.value)
            found = owner.arguments.get(node.attr, UNREAD) if isinstance(owner, _Call) else UNREAD
        case ast.List() | ast.Tuple():
            found = [_value(file, values, one) for one in node.elts]
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            found = {ast.unparse(key).strip("'\""): _value(file, values, one) for key, one in pairs if key is not None}
        case ast.UnaryOp(op=ast.USub()):
            number = _value(file, values, node.operand)
            found = -number if isinstance(number, int | float) else UNREAD
        case ast.BinOp():
            found = _computed(node.op, _value(file, values, node.left), _value(file, values, node.right))
        case ast.Call():
            found = _called(file, values, node)
    return ast.unparse(node)[:60] if found is UNREAD else found


def _computed(kind: ast.operator, first: object, second: object) -> object:
    operation = OPERATIONS.get(type(kind))
    if operation is None or not (isinstance(first, int) and isinstance(second, int)):
        return UNREAD
    if max(abs(first), abs(second)) > 2**60 or (second == 0 and isinstance(kind, ast.FloorDiv)):
        return UNREAD
    return operation(first, second)


def _called(file: _File, values: Mapping[str, object], node: ast.Call) -> object:
    name = ast.unparse(node.func)
    if name in file.functions and not node.args and not node.keywords:
        return _returned(file, name)
    given = {str(index): _value(file, values, one) for index, one in enumerate(node.args)}
    named = {one.arg: _value(file, values, one.value) for one in node.keywords if one.arg is not None}
    return _Call(name=name, arguments={**given, **named})


def _facts(call: _Call, imports: Mapping[str, str], place: str) -> Iterator[Fact]:
    """The leaves of a recipe, and the kind of every part that is chosen by its class."""
    for key, value in call.arguments.items():
        yield from _part(value, key, imports, place)


def _part(value: object, key: str, imports: Mapping[str, str], place: str) -> Iterator[Fact]:
    shown = f"{place}.{key}"
    if isinstance(value, _Call):
        if (value.name and not value.name.isidentifier()) or (value.name in imports and value.name[:1].islower()):
            yield Fact(key=f"{key}.kind", value=value.name, place=shown)
            module = imports.get(value.name, "")
            if module:
                yield Fact(key=f"{key}.module", value=module, place=shown)
        for name, item in value.arguments.items():
            yield from _part(item, f"{key}.{name}", imports, place)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _part(item, f"{key}.{name}", imports, place)
    elif isinstance(value, list) and any(isinstance(item, _Call | Mapping | list) for item in value):
        for index, item in enumerate(value):
            yield from _part(item, f"{key}.{index}", imports, place)
    else:
        yield Fact(key=key, value=_scalars(value), place=shown)


def _scalars(value: object) -> FactValue:
    if isinstance(value, list):
        return tuple(_scalars(item) for item in value)
    return value if value is None or isinstance(value, int | float | str) else str(value)[:60]
