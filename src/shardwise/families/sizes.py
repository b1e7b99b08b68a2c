"""A typical Llama-like shape for a bare parameter count."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, log

from shardwise.errors import ModelError
from shardwise.units import format_count

SMALLEST_PARAMS, LARGEST_PARAMS = 1e7, 1e14
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
    """Shapes within the tolerance: hidden sizes that divide well, and the width that meets the count."""
    is_small = num_params < 1e9
    vocab_size = 8_192 if num_params < 1e8 else 32_000 if is_small else 128_256
    step, head_dim = (64, 64) if is_small else (512, 128) if num_params < 1e10 else (1_024, 128)
    width_step = 8 if num_params < 1e8 else 64 if num_params < 3e9 else 128
    for hidden_size in range(step, 60 * step + 1, step) if is_small else range(2 * step, 80 * step + 1, step):
        heads = hidden_size // head_dim
        for layers in range(4, 257, 2):
            yield from _fitted(num_params, vocab_size, hidden_size, layers, heads, width_step)


def _fitted(
    num_params: float, vocab_size: int, hidden_size: int, layers: int, heads: int, width_step: int
) -> Iterator[Shape]:
    shape = _published(
        vocab_size,
        hidden_size,
        layers,
        heads,
        8 if heads % 8 == 0 else heads,
        0,
        tied=num_params < 4e9,
    )
    width = (num_params - shape.num_params) / (3 * hidden_size * layers)
    rounded = round(width / width_step) * width_step
    if not 2 * hidden_size <= rounded <= 5 * hidden_size:
        return
    fitted = _published(
        vocab_size,
        hidden_size,
        layers,
        heads,
        shape.num_key_value_heads,
        rounded,
        tied=shape.tie_word_embeddings,
    )
    if abs(fitted.num_params - num_params) <= TOLERANCE_FRACTION * num_params:
        yield fitted


def _strangeness(shape: Shape) -> float:
    """How far a shape is from Llama's proportions: about 115 of width per layer, feed-forward 3.5 times as wide."""
    aspect = shape.hidden_size / shape.num_hidden_layers
    width = shape.intermediate_size / shape.hidden_size
    target = 115.0 if shape.hidden_size >= 2_048 else 64.0
    return abs(log(aspect / target)) + 2 * abs(log(width / 3.5))
