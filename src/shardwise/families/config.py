"""One ``config.json`` with its family's defaults filled in, read through checked, typed accessors."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import NamedTuple, NoReturn

from shardwise.errors import ModelError

Flag = bool | str
"""Either the answer, or the name of the config field that holds it."""

Number = int | float

NestedFields = Mapping[str, Mapping[str, str]]
"""Fields of nested objects and our names for them, by the name of the object."""

SPELLINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("hidden_size", ("n_embd", "n_embed", "d_model", "dim")),
    ("num_hidden_layers", ("n_layer", "n_layers", "num_layers", "encoder_layers")),
    ("num_attention_heads", ("n_head", "n_heads", "num_heads", "encoder_attention_heads")),
    ("num_key_value_heads", ("num_kv_heads", "n_head_kv", "kv_n_heads")),
    ("intermediate_size", ("n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "encoder_ffn_dim", "hidden_dim")),
    ("head_dim", ("d_kv", "kv_channels")),
    ("max_position_embeddings", ("n_positions", "max_seq_len", "seq_length", "context_length", "n_ctx")),
    ("hidden_act", ("hidden_activation", "activation_function", "activation", "mlp_hidden_act", "afn")),
    ("num_experts", ("num_local_experts", "n_routed_experts", "moe_num_experts")),
    ("num_experts_per_tok", ("moe_k", "moe_topk", "moe_top_k", "num_experts_per_token", "top_k_experts")),
    ("n_shared_experts", ("num_shared_experts", "moe_num_shared_experts", "num_shared_expert")),
    ("attention_dropout", ("attn_pdrop", "attention_probs_dropout_prob")),
    (
        "hidden_dropout",
        ("resid_pdrop", "hidden_dropout_prob", "residual_dropout", "resid_dropout", "dropout", "dropout_rate"),
    ),
)
"""The names families use for one thing; the first is ours. The first spelling with a value wins."""

MOST_LAYERS = 100_000
LARGEST_BY_FIELD: Mapping[str, int] = {
    "num_hidden_layers": MOST_LAYERS,
    "num_decoder_layers": MOST_LAYERS,
    "decoder_layers": MOST_LAYERS,
    "vocab_size": 100_000_000,
    "max_position_embeddings": 2**31,
    "sliding_window": 2**31,
    "attention_chunk_size": 2**31,
}
LARGEST_COUNT = 10_000_000
"""More than any model anyone has described; larger values are typing mistakes or attacks."""
LARGEST_NUMBER = 1e30
ABSENT = object()
"""A value that no file holds."""
NO_NUMBERS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""Python's words for numbers that are none, and the words in JSON files."""


class NumberLimits(NamedTuple):
    """The numbers that a field takes, both ends included."""

    lowest: float
    highest: float
    words: str


TRAINED_NUMBERS: Mapping[str, NumberLimits] = {
    "rms_norm_eps": NumberLimits(0, LARGEST_NUMBER, "0 or more"),
    "initializer_range": NumberLimits(0, 1, "from 0 to 1"),
    "rope_theta": NumberLimits(1, LARGEST_NUMBER, "at least 1"),
}
"""Fields that every run reads and no parameter count does; where a family has them, they must be numbers."""


def with_our_spelling(values: Mapping[str, object]) -> dict[str, object]:
    """The config with our name added beside every other name for the same thing."""
    known = dict(values)
    for ours, others in SPELLINGS:
        present = [name for name in (ours, *others) if name in values]
        if present:
            known[ours] = next((values[name] for name in present if values[name] is not None), None)
    return known


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The fields of one model: what the file gives, and under it what the family assumes."""

    model_type: str
    given: Mapping[str, object]
    """Fields that the file gives, by our names for them."""
    defaults: Mapping[str, object]
    path: str = ""
    """Place of the fields in the file, such as ``text_config.``; used in messages."""

    def with_values(self, **values: object) -> "ModelConfig":
        """This config with some fields set, for families that derive one field from others."""
        return replace(self, given={**self.given, **values})

    def without(self, *names: str) -> "ModelConfig":
        """This config with some fields empty, for families that do not read them."""
        return self.with_values(**dict.fromkeys(names)) if names else self

    def value(self, name: str) -> object:
        """The field as it is, ``None`` when neither the file nor the family has it."""
        return self.given[name] if name in self.given else self.defaults.get(name)

    def is_given(self, name: str) -> bool:
        """Whether the file itself gives a value."""
        return self.given.get(name) is not None

    def count(self, name: str) -> int:
        """A whole number of at least one."""
        number = self.optional_count(name)
        if number is None:
            self.refuse_missing(name, "a whole number")
        return number

    def count_or(self, name: str, otherwise: int) -> int:
        """A whole number of at least one, or ``otherwise`` when nobody gives it."""
        number = self.optional_count(name)
        return otherwise if number is None else number

    def optional_count(self, name: str) -> int | None:
        """A whole number of at least one, or ``None``."""
        value = self.value(name)
        if value is None:
            return None
        number = self._whole(name, value)
        if number < 1:
            self.refuse_range(name, number, "at least 1")
        return number

    def count_or_zero(self, name: str) -> int:
        """A whole number that may be zero, which is also what a missing field means."""
        value = self.value(name)
        if value is None:
            return 0
        number = self._whole(name, value)
        if number < 0:
            self.refuse_range(name, number, "0 or more")
        return number

    def counts(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers, or ``None``."""
        value = self.value(name)
        return None if value is None else tuple(self._whole(name, entry) for entry in self._entries(name, value))

    def words(self, name: str) -> tuple[str, ...] | None:
        """A list of words, or ``None``."""
        value = self.value(name)
        if value is None:
            return None
        entries = tuple(self._entries(name, value))
        return tuple(entry if isinstance(entry, str) else self.refuse_type(name, entry, "words") for entry in entries)

    def text(self, name: str) -> str:
        """A field that has to be a word."""
        value = self.value(name)
        if value is None:
            self.refuse_missing(name, "a word")
        return value if isinstance(value, str) else self.refuse_type(name, value, "a word")

    def text_or(self, name: str, otherwise: str) -> str:
        """A word, or ``otherwise`` when nobody gives it."""
        return otherwise if self.value(name) is None else self.text(name)

    def flag(self, flag: Flag) -> bool:
        """A yes or no: the flag itself, or the config field it names. Missing means no."""
        if isinstance(flag, bool):
            return flag
        value = self.value(flag)
        if value is None:
            return False
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        return self.refuse_type(flag, value, "true or false")

    def fraction(self, name: str) -> float:
        """A probability from 0 up to, not including, 1. Missing means 0."""
        number = self.number(name, otherwise=0.0)
        if not 0 <= number < 1:
            self.refuse_range(name, number, "from 0 up to 1")
        return number

    def number(self, name: str, *, otherwise: float) -> float:
        """A finite number, or ``otherwise`` when nobody gives it."""
        value = self.value(name)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, Number) or not abs(value) < LARGEST_NUMBER:
            self.refuse_type(name, value, "a finite number")
        return float(value)

    def required_number(self, name: str, limits: "NumberLimits") -> float:
        """A finite number within its limits; null is none."""
        if self.value(name) is None:
            self.refuse_missing(name, "a finite number")
        number = self.number(name, otherwise=limits.lowest)
        if not limits.lowest <= number <= limits.highest:
            self.refuse_range(name, number, limits.words)
        return number

    def nested(self, *names: str) -> Mapping[str, object] | None:
        """The first of the nested objects that is there, or ``None``."""
        for name in names:
            value = self.value(name)
            if isinstance(value, Mapping):
                return {str(key): entry for key, entry in value.items()}
            if value is not None:
                self.refuse_type(name, value, "an object")
        return None

    def refuse_missing(self, name: str, wanted: str) -> NoReturn:
        """Say that a field is needed: it is not there, or it is null."""
        if name in self.given:
            self.refuse_type(name, None, wanted)
        raise ModelError(
            f"the {self.model_type} config has no {self.path}{name}, and the family has no default for it",
            code="model-field-missing",
            fix=f'add "{self.path}{name}" to the config',
        )

    def refuse_type(self, name: str, value: object, wanted: str) -> NoReturn:
        """Say that a field is of the wrong kind."""
        field = self._place_of(name, value)
        raise ModelError(
            f"{field} is {_short(value)}, but it must be {wanted}",
            code="model-field-type",
            fix=f"write {field} as {wanted}",
        )

    def refuse_range(self, name: str, number: Number, wanted: str) -> NoReturn:
        """Say that a number is outside what can be."""
        field = self._place_of(name, number)
        raise ModelError(
            f"{field} is {_short(number)}, but it must be {wanted}",
            code="model-field-range",
            fix=f"set {field} to a value that is {wanted}",
        )

    def _place_of(self, name: str, value: object) -> str:
        """Where the field stands, as the file spells it."""
        others = dict(SPELLINGS).get(name, ())
        return self.path + next((other for other in others if self.given.get(other, ABSENT) == value), name)

    def _whole(self, name: str, value: object) -> int:
        if isinstance(value, float) and isfinite(value) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse_type(name, value, "a whole number")
        largest = LARGEST_BY_FIELD.get(name, LARGEST_COUNT)
        if value > largest:
            self.refuse_range(name, value, f"at most {largest:,}")
        return value

    def _entries(self, name: str, value: object) -> Sequence[object]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            self.refuse_type(name, value, "a list")
        if len(value) > MOST_LAYERS:
            self.refuse_range(name, len(value), "at most 100,000 entries long")
        return value


def _short(value: object) -> str:
    """The value as a file has it, cut where it is long; numbers that are none arrive as words."""
    text = NO_NUMBERS.get(value) if isinstance(value, str) else None
    if text is None:
        text = json.dumps(value, default=repr, ensure_ascii=not str(value).isprintable())
    return text if len(text) <= 40 else f"{text[:37]}..."


def with_nested_fields(config: ModelConfig, nested_fields: NestedFields) -> ModelConfig:
    """The config with the fields of its nested objects among its own, in our spelling."""
    found: dict[str, object] = {}
    for name, fields in nested_fields.items():
        nested = config.nested(name) or {}
        found |= {ours: nested[theirs] for theirs, ours in fields.items() if theirs in nested}
    return config.with_values(**found)
