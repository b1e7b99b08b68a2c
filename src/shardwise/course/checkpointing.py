"""Activation checkpointing layer by layer: what is held at every moment of a step, and what runs twice."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Literal

LayerWork = Literal["forward", "recompute", "backward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerMoment:
    """One pass of one layer, and the activations held while it runs."""

    work: LayerWork
    layer: int
    held_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRun:
    """One forward and backward over all layers."""

    moments: tuple[LayerMoment, ...]

    @property
    def peak_bytes(self) -> float:
        """The most activations held at once."""
        return max(moment.held_bytes for moment in self.moments)

    @property
    def num_recomputed(self) -> int:
        """Layers whose forward ran a second time."""
        return sum(moment.work == "recompute" for moment in self.moments)

    @property
    def extra_compute_fraction(self) -> float:
        """Recomputed forwards over forward and backward: a backward counts as two forwards."""
        num_layers = sum(moment.work == "forward" for moment in self.moments)
        return self.num_recomputed / (3 * num_layers)


def run_checkpointed(*, num_hidden_layers: int, every: int, layer_bytes: float, input_bytes: float) -> CheckpointRun:
    """Keep the input of every k-th layer; in backward run the k layers after it again and free them one by one.

    Args:
        num_hidden_layers: L.
        every: k; 0 keeps the activations of all layers and recomputes nothing.
        layer_bytes: activations a layer keeps for its backward.
        input_bytes: its input alone.

    Source: Chen et al. 2016, arXiv:1604.06174, section 4 (segments of k layers).
    """
    moments = (
        _in_segments(num_hidden_layers, every, layer_bytes=layer_bytes, input_bytes=input_bytes)
        if every
        else _all_kept(num_hidden_layers, layer_bytes=layer_bytes)
    )
    return CheckpointRun(moments=tuple(moments))


def _all_kept(num_layers: int, *, layer_bytes: float) -> Iterator[LayerMoment]:
    for layer in range(num_layers):
        yield LayerMoment(work="forward", layer=layer, held_bytes=(layer + 1) * layer_bytes)
    for layer in reversed(range(num_layers)):
        yield LayerMoment(work="backward", layer=layer, held_bytes=(layer + 1) * layer_bytes)


def _in_segments(num_layers: int, every: int, *, layer_bytes: float, input_bytes: float) -> Iterator[LayerMoment]:
    """Activations of a layer that is not kept live only while it runs; its input is among them."""
    starts = range(0, num_layers, every)
    for layer in range(num_layers):
        num_kept = layer // every + 1
        yield LayerMoment(work="forward", layer=layer, held_bytes=num_kept * input_bytes)
    for start in reversed(starts):
        kept_bytes = (start // every + 1) * input_bytes
        segment = range(start, min(start + every, num_layers))
        for layer in segment:
            held = kept_bytes + (layer - start + 1) * layer_bytes
            yield LayerMoment(work="recompute", layer=layer, held_bytes=held)
        for layer in reversed(segment):
            held = kept_bytes + (layer - start + 1) * layer_bytes
            yield LayerMoment(work="backward", layer=layer, held_bytes=held)


def best_interval(*, num_hidden_layers: int, layer_bytes: float, input_bytes: float) -> int:
    """The k with the lowest peak, of equals the one nearest to ``sqrt(L input / layer)``.

    That root minimises ``L / k`` inputs and ``k`` layers; it is sqrt(L) when a layer keeps only its input.

    >>> best_interval(num_hidden_layers=64, layer_bytes=1.0, input_bytes=1.0)
    8
    >>> best_interval(num_hidden_layers=64, layer_bytes=17.0, input_bytes=1.0)
    2
    """
    root = sqrt(num_hidden_layers * input_bytes / layer_bytes)

    def rank(every: int) -> tuple[float, float]:
        run = run_checkpointed(
            num_hidden_layers=num_hidden_layers, every=every, layer_bytes=layer_bytes, input_bytes=input_bytes
        )
        return run.peak_bytes, abs(every - root)

    return min(range(1, min(num_hidden_layers, 2 * ceil(root) + 2) + 1), key=rank)
