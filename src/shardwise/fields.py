"""Each field of a plan is described once, beside the field, for all code that reads, checks, offers or explains it."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, MISSING, dataclass, field, fields, replace
from dataclasses import Field as RecordField
from functools import cache
from math import isinf
from types import NoneType
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin

__all__ = [
    "ABOUT",
    "ENGINES_OWN",
    "MANY_LAYERS",
    "MAX_COUNT",
    "NULL",
    "Field",
    "Kind",
    "Needs",
    "Value",
    "end_text",
    "field_named",
    "plan_field",
    "plan_fields",
]

NULL = "null"
"""The value of an option that takes back what a file says, as a file spells it."""
Kind = Literal["amount", "choice", "choices", "count", "counts", "flag", "record", "text", "texts"]
Value: TypeAlias = int | float | str | bool | tuple[int, ...] | tuple[str, ...] | None
Default = TypeVar("Default")

ABOUT = "about"
"""The key of a :class:`Field` in the metadata of a dataclass field."""
ANY_EXAMPLE = "8"
"""A number that most fields can have."""
MAX_COUNT = 2**20
MANY_LAYERS = 65536
"""More than any model has."""
ENGINES_OWN = "the engine's"
_KINDS: Mapping[object, Kind] = {bool: "flag", int: "count", float: "amount", str: "choice"}
_KINDS_OF_MANY: Mapping[object, Kind] = {int: "counts", str: "choices"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Another field of the same record: while it has its default, nothing reads the field that needs it."""

    name: str
    value: str
    """A value of the other field with which this one is read."""
    words: str
    """What an option does nothing without, as the sentence ends: ``without --adapter``."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a plan. Its record says what comes first here; the rest follows from annotation and default."""

    help: str
    """The sentence that ``--help`` prints."""
    _: KW_ONLY
    left_out: str = "{}"
    """What a plan has that leaves it out, as ``--help`` says it; ``{}`` stands for the default."""
    offered_by: str = ""
    """Engines that read it, as ``--help`` says it, where not all do."""
    lowest: float = 1
    """The smallest number allowed; it and ``highest`` are in the range."""
    highest: float = MAX_COUNT
    rest: int | None = None
    """A number out of range that a plan file may hold: it asks for what is left of the world."""
    choices: tuple[str, ...] = ()
    """Values that it may have; where the record does not say so, those that the annotation lists."""
    example: str = ANY_EXAMPLE
    synonyms: tuple[str, ...] = ()
    """Names that other tools have for it; when somebody writes one, the fix names ours."""
    instead_of_zero: str = ""
    """The setting that says what a zero might have meant; the fix names it."""
    is_length: bool = False
    """It is a length of sequences, whose option takes 128K as 131,072."""
    needs: Needs | None = None

    name: str = ""
    kind: Kind = "record"
    default: Value = None
    is_required: bool = False
    """It has no default."""

    @property
    def option(self) -> str:
        """The option of a command that sets it."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def low_fix(self) -> str:
        """The number to write instead of one that is too small: the field's example, or its lowest allowed value."""
        return self.example if self.example != ANY_EXAMPLE else end_text(self.lowest)

    @property
    def range_text(self) -> str:
        """Both ends, as a sentence says them.

        >>> Field("", lowest=0, highest=3).range_text, Field("", lowest=0, highest=float("inf")).range_text
        ('0 to 3', '0 and above')
        """
        lowest, highest = end_text(self.lowest), end_text(self.highest)
        return f"{lowest} and above" if isinf(self.highest) else f"{lowest} to {highest}"


def end_text(end: float) -> str:
    """One end of a range: a whole number without a point, however large it is.

    >>> end_text(1048576.0), end_text(0.5)
    ('1048576', '0.5')
    """
    return repr(end) if isinf(end) or end != int(end) else str(int(end))


def plan_field(
    default: Default,
    help: str,
    *,
    left_out: str = "{}",
    offered_by: str = "",
    lowest: float = 1,
    highest: float = MAX_COUNT,
    rest: int | None = None,
    choices: tuple[str, ...] = (),
    example: str = ANY_EXAMPLE,
    synonyms: tuple[str, ...] = (),
    instead_of_zero: str = "",
    needs: Needs | None = None,
) -> Default:
    """A field with its default and what :class:`Field` says of it; one without is ``field(metadata={ABOUT: ...})``."""
    about = Field(
        help,
        left_out=left_out,
        offered_by=offered_by,
        lowest=lowest,
        highest=highest,
        rest=rest,
        choices=choices,
        example=example,
        synonyms=synonyms,
        instead_of_zero=instead_of_zero,
        needs=needs,
    )
    return field(default=default, metadata={ABOUT: about})


@cache
def plan_fields(record: type) -> tuple[Field, ...]:
    """The fields of a record that a plan file may hold, in its order, each with what follows from its annotation."""
    return tuple(_completed(one) for one in fields(record) if ABOUT in one.metadata)


def field_named(record: type, name: str) -> Field:
    """The field of a record that has this name."""
    return next(one for one in plan_fields(record) if one.name == name)


def _completed(one: RecordField[Any]) -> Field:
    """What the record says of a field, with its name, its default, and what its annotation says."""
    about: Field = one.metadata[ABOUT]
    kind, values = _kind(one.type)
    numbers = [value for value in values if isinstance(value, int)]
    return replace(
        about,
        name=one.name,
        kind=kind,
        choices=about.choices or tuple(str(value) for value in values),
        lowest=min(numbers, default=about.lowest),
        highest=max(numbers, default=about.highest),
        default=None if one.default is MISSING else one.default,
        is_required=one.default is MISSING,
    )


def _kind(annotation: object) -> tuple[Kind, tuple[object, ...]]:
    """What an annotation holds, and the values that it lists; what is no value is a record.

    >>> _kind(int | None), _kind(Literal["no", "yes"]), _kind(tuple[int, ...] | None)
    (('count', ()), ('choice', ('no', 'yes')), ('counts', ()))
    """
    if NoneType in get_args(annotation):
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
    is_many = get_origin(annotation) is tuple
    single = get_args(annotation)[0] if is_many else annotation
    values = get_args(single) if get_origin(single) is Literal else ()
    base = type(values[0]) if values else single
    if base is str and not values:
        return "texts" if is_many else "text", ()
    return (_KINDS_OF_MANY if is_many else _KINDS).get(base, "record"), values
