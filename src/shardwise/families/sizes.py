"""A typical Llama-like shape for a bare parameter count."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite, log

from shardwise.errors import ModelError
from shardwise.units import format_count

SMALLEST_PARAMS, LARGEST_PARAMS = 1e7, 1e14
LARGEST_HIDDEN_STEPS = 128
LEAST_WIDTH_PER_LAYER, MOST_WIDTH_PER_LAYER = 24, 320
"""Published decoders have 19 to 250 of hidden size per layer."""
TOLERANCE_FRACTION = 0.01
"""How far the made shape may be from the asked count."""

_SIZE_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmbt])", re.IGNORECASE)
_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes that decide a Llama-like decoder's parameter count."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    tie_word_embeddings: bool

    @property
    def num_params(self) -> int:
        """Parameters of the decoder: ``(2|1) V h + L (2 h a d + 2 h k d + 3 h f + 2 h) + h``."""
        tables = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return tables + self.num_hidden_layers * self.params_per_layer + self.hidden_size

    @property
    def params_per_layer(self) -> int:
        """Parameters of one block."""
        hidden, head_dim = self.hidden_size, self.hidden_size // self.num_attention_heads
        attention = 2 * hidden * hidden + 2 * hidden * self.num_key_value_heads * head_dim
        return attention + 3 * hidden * self.intermediate_size + 2 * hidden


def _published(*sizes: int, tied: bool = False) -> Shape:
    vocab, hidden, layers, heads, kv_heads, width = sizes
    return Shape(
        vocab_size=vocab,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=width,
        tie_word_embeddings=tied,
    )


PUBLISHED_SHAPES = (
    _published(49_152, 576, 30, 9, 3, 1_536, tied=True),  # SmolLM 135M
    _published(49_152, 960, 32, 15, 5, 2_560, tied=True),  # SmolLM 360M
    _published(128_256, 2_048, 16, 32, 8, 8_192, tied=True),  # Llama 3.2 1B
    _published(128_256, 3_072, 28, 24, 8, 8_192, tied=True),  # Llama 3.2 3B
    _published(128_256, 4_096, 32, 32, 8, 14_336),  # Llama 3.1 8B
    _published(32_000, 5_120, 40, 40, 40, 13_824),  # Llama 2 13B
    _published(128_256, 8_192, 80, 64, 8, 28_672),  # Llama 3.1 70B
    _published(128_256, 16_384, 126, 128, 8, 53_248),  # Llama 3.1 405B
)
"""Used as they are when they have the asked count; their configs are in the catalogue."""


def size_of_text(text: str) -> float | None:
    """The parameter count a text such as ``70B`` or ``1.5b`` stands for; ``None`` when it is not a size.

    >>> size_of_text("350M")
    350000000.0
    """
    match = _SIZE_TEXT.fullmatch(text.strip())
    return float(match[1]) * _UNITS[match[2].lower()] if match else None


def sizes_of_text(text: str) -> dict[str, object] | None:
    """The model that ``70B`` describes, or ``30B-A3B`` with active parameters; ``None`` for a text that is neither.

    >>> sizes_of_text("67B-A2B")
    {'num_parameters': 67000000000.0, 'num_active_parameters': 2000000000.0}
    """
    total, dash, active = text.strip().lower().partition("-a")
    counts = [size_of_text(total), size_of_text(active) if dash else None]
    if counts[0] is None or (dash and counts[1] is None):
        return None
    names = ("num_parameters", "num_active_parameters")
    return {name: count for name, count in zip(names, counts, strict=True) if count is not None}


def shape_for(num_params: float) -> Shape:
    """A typical shape whose exact count is within 1 % of ``num_params``."""
    if not isfinite(num_params) or not SMALLEST_PARAMS <= num_params <= LARGEST_PARAMS:
        raise ModelError(
            f"a size of {num_params:.6g} parameters is outside 10 million to 100 trillion",
            code="model-size-range",
            fix='give a size such as "70B", or describe the model with a config',
        )
    published = min(PUBLISHED_SHAPES, key=lambda shape: abs(shape.num_params - num_params))
    if abs(published.num_params - num_params) <= TOLERANCE_FRACTION * num_params:
        return published
    return min(_candidates(num_params), key=_strangeness)


def assumption_for(shape: Shape) -> str:
    """The sentence that tells the user which shape was assumed."""
    tied = "tied" if shape.tie_word_embeddings else "untied"
    return (
        f"assumed a Llama-like shape of {format_count(shape.num_params)} parameters: {shape.num_hidden_layers} layers, "
        f"hidden_size {shape.hidden_size}, intermediate_size {shape.intermediate_size}, "
        f"{shape.num_attention_heads} heads, {shape.num_key_value_heads} key-value heads, "
        f"vocab_size {shape.vocab_size} ({tied})"
    )


def _candidates(num_params: float) -> Iterator[Shape]:
    """Shapes within the tolerance: heads and layers that divide well, and the width that meets the count."""
    is_small = num_params < 1e9
    hidden_step, head_dim, layer_step = (128, 64, 2) if is_small else (1_024, 128, 4)
    for hidden_size in range(hidden_step, LARGEST_HIDDEN_STEPS * hidden_step + 1, hidden_step):
        heads = hidden_size // head_dim
        kv_heads = 8 if heads % 8 == 0 else heads
        narrow = _published(_vocab_size(num_params), hidden_size, 0, heads, kv_heads, 2 * hidden_size)
        wide = replace(narrow, intermediate_size=5 * hidden_size)
        body = num_params - narrow.num_params
        fewest = max(int(body / wide.params_per_layer), hidden_size // MOST_WIDTH_PER_LAYER)
        most = min(int(body / narrow.params_per_layer), hidden_size // LEAST_WIDTH_PER_LAYER)
        for layers in range(max(layer_step, fewest // layer_step * layer_step), most + 1, layer_step):
            yield from _fitted(num_params, replace(narrow, num_hidden_layers=layers))


def _vocab_size(num_params: float) -> int:
    return 8_192 if num_params < 1e8 else 32_000 if num_params < 1e9 else 128_256


def _fitted(num_params: float, shape: Shape) -> Iterator[Shape]:
    """The shape with the feed-forward width that meets the count, if it does so within the tolerance."""
    tied = replace(shape, tie_word_embeddings=num_params < 4e9, intermediate_size=0)
    width_step = 8 if num_params < 1e8 else 64 if num_params < 3e9 else 128
    width = (num_params - tied.num_params) / (3 * shape.hidden_size * shape.num_hidden_layers)
    fitted = replace(tied, intermediate_size=max(1, round(width / width_step)) * width_step)
    if abs(fitted.num_params - num_params) <= TOLERANCE_FRACTION * num_params:
        yield fitted


def _strangeness(shape: Shape) -> float:
    """How far a shape is from Llama's proportions: about 115 of width per layer, feed-forward 3.5 times as wide."""
    aspect = shape.hidden_size / shape.num_hidden_layers
    width = shape.intermediate_size / shape.hidden_size
    target = 115.0 if shape.hidden_size >= 2_048 else 64.0
    return abs(log(aspect / target)) + 2 * abs(log(width / 3.5))
