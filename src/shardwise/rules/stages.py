"""How layers can be spread over pipeline stages, as small pure functions."""

from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.step.layer_placement import chunk_owner, num_chunks, spread_layers


def placed_layers(model: ModelSpec, layout: Layout) -> tuple[int, ...]:
    """Layers of each stage: those the layout names, or as even as possible with the first and last stage short."""
    if layout.stage_layers is not None:
        return layout.stage_layers
    counts = [0] * layout.pp
    spread = spread_layers(num_layers=model.num_hidden_layers, num_chunks=num_chunks(layout))
    for chunk, layers in enumerate(spread):
        counts[chunk_owner(chunk=chunk, layout=layout)] += layers
    return tuple(counts)


def stage_layers_for_vpp(*, num_layers: int, pp: int, vpp: int) -> tuple[int, ...] | None:
    """Layers of each stage, every count a multiple of ``vpp``, the first stage short; ``None`` when there is no such.

    Megatron divides the layers of a stage evenly over its ``vpp`` chunks, so 60 layers on 8 stages with ``vpp=4``
    cannot be 7 or 8 a stage.

    Source: NVIDIA-NeMo/Megatron-Bridge pull 5884.

    >>> stage_layers_for_vpp(num_layers=60, pp=8, vpp=4)
    (4, 8, 8, 8, 8, 8, 8, 8)
    """
    groups, remainder = divmod(num_layers, vpp)
    if remainder or groups < pp:
        return None
    base, extra = divmod(groups, pp)
    return tuple(vpp * (base + (stage >= pp - extra)) for stage in range(pp))


def truncated_layers(*, num_layers: int, pp: int) -> int:
    """Layers that remain when every stage takes ``num_layers // pp`` and nobody counts the rest.

    What Megatron core did silently in 2024 (NVIDIA/Megatron-LM issue 1304); shown in the message so that a user who
    saw a smaller model recognises it.

    >>> truncated_layers(num_layers=30, pp=4)
    28
    """
    return num_layers // pp * pp
