"""Whether the values of a plan file are what its fields hold: one function that checks a section."""

from collections.abc import Callable, Mapping
from math import inf
from numbers import Real
from typing import NoReturn, TypeGuard

from shardwise.errors import LayoutError, PlanError, RecipeError, ShardwiseError
from shardwise.fields import Field, Kind, Value, end_text
from shardwise.plan_file.text import key_text
from shardwise.retired import without_retired

NEAR_RATIO = 0.6
"""Share of letters that a misspelt value has in common with what is proposed instead."""
_ERRORS: Mapping[str, type[ShardwiseError]] = {"recipe": RecipeError, "layout": LayoutError}


def check_fields(section: str, given: object, fields: tuple[Field, ...], *, whole: str = "a plan") -> dict[str, Value]:
    """The given values of one section, each checked; null counts as not given.

    Raises:
        RecipeError, LayoutError: naming the field's path, its value and what would be accepted.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise PlanError(
            f"{section} is {shown(given)}, not a group of fields",
            code="plan-wrong-type",
            fix=f"write {section} as a mapping, such as {{{fields[0].name}: ...}}",
        )
    rows = {field.name: field for field in fields}
    values: dict[str, Value] = {}
    for key, value in without_retired(section, given).items():
        row = rows.get(key) if isinstance(key, str) else None
        if row is None:
            refuse_unknown_key(section, key, fields, whole=whole)
        if value is not None:
            path = f"{section}.{row.name}" if section else row.name
            values[row.name] = _check(path, value, row, _ERRORS.get(section, PlanError))
    return values


def refuse_unknown_key(section: str, key: object, fields: tuple[Field, ...], *, whole: str = "a plan") -> NoReturn:
    """Raise for a key no row has, naming the row that was most likely meant."""
    from difflib import get_close_matches  # noqa: PLC0415 - only a misspelt key pays for it

    text = key_text(key)
    path = f"{section}.{text}" if section else text
    meant = next((field.name for field in fields if text.lower() in field.synonyms), None)
    near = get_close_matches(text.lower(), [field.name for field in fields], n=1, cutoff=0.5)
    if meant or near:
        fix = f"write {meant or near[0]}"
    else:
        fix = f"leave it out, or use one of {', '.join(field.name for field in fields)}"
    raise _ERRORS.get(section, PlanError)(f"{path} is not a field of {whole}", code="plan-unknown-key", fix=fix)


def shown(value: object) -> str:
    """A value as the user may have written it, cut to a readable length."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else f"{value[:57]}...")
    if value is None or isinstance(value, float):
        return "null" if value is None else repr(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**30 else "a number of more than 30 digits"
    if isinstance(value, Mapping):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def _check(path: str, value: object, row: Field, error: type[ShardwiseError]) -> Value:
    return _CHECKS[row.kind](path, value, row, error)


def _flag(path: str, value: object, row: Field, error: type[ShardwiseError]) -> bool:
    if isinstance(value, bool):
        return value
    raise error(
        f"{path} is {shown(value)}, neither true nor false",
        code="plan-wrong-type",
        fix=f"write {row.name}: true or {row.name}: false, without quotes",
    )


def _counts(path: str, value: object, row: Field, error: type[ShardwiseError]) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or len(value) == 0:
        what = "an empty list" if isinstance(value, list | tuple) else f"{shown(value)}, not a list of whole numbers"
        raise error(f"{path} is {what}", code="plan-wrong-type", fix=f"write {row.name}: [15, 16, 16, 15]")
    return tuple(_count(f"{path}[{index}]", item, row, error) for index, item in enumerate(value))


def _choice(path: str, value: object, row: Field, error: type[ShardwiseError]) -> str:
    if isinstance(value, str) and value in row.choices:
        return value
    options = ", ".join(row.choices)
    if value is False and "none" in row.choices:
        # YAML 1.1 reads an unquoted no as false.
        near = "none"
    else:
        from difflib import get_close_matches  # noqa: PLC0415 - only a misspelt value pays for it

        lowered = value.lower() if isinstance(value, str) else ""
        near = next(iter(get_close_matches(lowered, row.choices, n=1, cutoff=NEAR_RATIO)), "")
    raise error(
        f"{path} is {shown(value)}, not one of {options}",
        code="plan-unknown-choice",
        fix=f'write {row.name}: "{near}"' if near else f"write one of these names, or leave {row.name} out",
    )


def _choices(path: str, value: object, row: Field, error: type[ShardwiseError]) -> tuple[str, ...]:
    """Names out of a list, each once and in the order of the choices, however they were written."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or len(given) == 0:
        raise error(
            f"{path} is {shown(value)}, not a list of names",
            code="plan-wrong-type",
            fix=f"write {row.name}: {row.example}",
        )
    names = {
        _choice(f"{path}[{index}]", item.strip() if isinstance(item, str) else item, row, error)
        for index, item in enumerate(given)
    }
    return tuple(name for name in row.choices if name in names)


def _text(path: str, value: object, row: Field, error: type[ShardwiseError]) -> str:
    if isinstance(value, str):
        return value
    raise error(
        f"{path} is {shown(value)}, not text",
        code="plan-wrong-type",
        fix=f'write {row.name}: "{value}", in quotes'
        if isinstance(value, int | float)
        else f"write {row.name}: {row.example}",
    )


def _texts(path: str, value: object, row: Field, error: type[ShardwiseError]) -> tuple[str, ...]:
    """A list of texts; one alone stands for a list of it."""
    given = value if isinstance(value, list | tuple) else [value]
    return tuple(
        _text(f"{path}[{index}]" if given is value else path, one, row, error) for index, one in enumerate(given)
    )


def _count(path: str, value: object, row: Field, error: type[ShardwiseError]) -> int:
    number = int(value) if is_number(value) and -inf < value < inf and value == int(value) else value
    if isinstance(number, bool) or not isinstance(number, int):
        quoted = isinstance(value, str) and value.strip().lstrip("-").isdigit()
        raise error(
            f"{path} is {shown(value)}, not a whole number",
            code="plan-wrong-type",
            fix=f"write {str(value).strip()[:20]} without quotes"
            if quoted
            else f"write a number such as {row.example}",
        )
    _require_range(path, number, row, error)
    return number


def _amount(path: str, value: object, row: Field, error: type[ShardwiseError]) -> float:
    # YAML 1.1 reads 1e12 as text because it has no point.
    number = _number_in(value) if isinstance(value, str) else value
    if not is_number(number):
        raise error(
            f"{path} is {shown(value)}, not a number",
            code="plan-wrong-type",
            fix=f"write a number such as {row.example}",
        )
    _require_range(path, number, row, error)
    return float(number)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number, whichever library made it, and not a yes or no."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _number_in(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _require_range(path: str, number: float, row: Field, error: type[ShardwiseError]) -> None:
    if row.lowest <= number <= row.highest or number == row.rest:
        return
    allowed = row.range_text if row.rest is None else f"{row.range_text}, or {row.rest} for the rest"
    bound = (row.rest or row.low_fix) if number < row.lowest else end_text(row.highest)
    raise error(
        f"{path} is {shown(number)}, outside {allowed}",
        code="plan-out-of-range",
        fix=f"set {row.instead_of_zero} and leave out {row.name}"
        if number == 0 and row.instead_of_zero
        else f"write {row.name}: {bound}",
    )


_CHECKS: Mapping[Kind, Callable[[str, object, Field, type[ShardwiseError]], Value]] = {
    "amount": _amount,
    "choice": _choice,
    "choices": _choices,
    "count": _count,
    "counts": _counts,
    "flag": _flag,
    "text": _text,
    "texts": _texts,
}
"""What checks a value of each kind; a record is read by a reader of its own."""
