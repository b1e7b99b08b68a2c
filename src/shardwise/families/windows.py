"""Which layers attend to everything, which to a sliding window, and which carry rotary positions."""

from typing import Literal

from shardwise.families.assembly import num_layers, per_layer
from shardwise.families.config import ModelConfig

WindowRule = Literal["never", "always", "late", "periodic", "periodic_first", "chunked"]
"""``late``: layers from ``max_window_layers`` on, when ``use_sliding_window``; ``periodic``: all but every n-th;
``periodic_first``: all but the first and every n-th after it;
``chunked``: chunks of ``attention_chunk_size`` in the layers that rotate (Llama 4), taken as windows of that size."""

RotaryRule = Literal["all", "none", "windowed", "listed"]
"""``windowed``: only layers with a window, all when none has one; ``listed``: where ``no_rope_layers`` has a 1, and
without that list all but every n-th."""


def windows_of(config: ModelConfig, rule: WindowRule, *, period: int | str = 0) -> tuple[int | None, ...]:
    """The window of each layer in tokens; ``None`` where a layer attends to everything."""
    count = num_layers(config)
    if rule == "never":
        return (None,) * count
    types = config.words("layer_types")
    if types is not None:
        return tuple(window_of_type(config, word) for word in per_layer(config, "layer_types", types))
    window = sliding_window(config)
    if rule == "chunked":
        chunk = config.optional_count("attention_chunk_size")
        return tuple(chunk if is_rotary else None for is_rotary in _listed_rotary(config))
    if rule == "late":
        first = config.count_or_zero("max_window_layers") if config.flag("use_sliding_window") else count
        return tuple(window if index >= first else None for index in range(count))
    if rule in ("periodic", "periodic_first"):
        every, offset = _period(config, period), 1 if rule == "periodic" else 0
        return tuple(window if every and (index + offset) % every else None for index in range(count))
    return (window,) * count


def window_of_type(config: ModelConfig, layer_type: str) -> int | None:
    """The window a word of ``layer_types`` stands for."""
    if layer_type == "sliding_attention":
        return sliding_window(config)
    if layer_type == "chunked_attention":
        return config.optional_count("attention_chunk_size")
    return None


def sliding_window(config: ModelConfig) -> int | None:
    """The window in tokens; zero means none."""
    return config.count_or_zero("sliding_window") or None


def rotary_of(config: ModelConfig, rule: RotaryRule, windows: tuple[int | None, ...]) -> tuple[bool, ...]:
    """Whether each layer rotates queries and keys by position."""
    if rule == "windowed":
        return tuple(window is not None or not any(windows) for window in windows)
    if rule == "listed":
        return _listed_rotary(config)
    return (rule == "all",) * len(windows)


def _listed_rotary(config: ModelConfig) -> tuple[bool, ...]:
    count = num_layers(config)
    listed = config.counts("no_rope_layers")
    if listed:
        return tuple(bool(entry) for entry in (*listed, *(1,) * count)[:count])
    every = config.count("no_rope_layer_interval")
    return tuple((index + 1) % every != 0 for index in range(count))


def _period(config: ModelConfig, period: int | str) -> int:
    if isinstance(period, int):
        return period
    pattern = config.value(period)
    # EXAONE 4 writes the pattern as letters, such as "LLLG" for three local layers and a global one.
    return len(pattern) if isinstance(pattern, str) else config.count_or_zero(period)
