"""Who sits where: the ranks of a layout by pipeline stage, data-parallel copy and slice of each matrix."""

from collections.abc import Iterator

from shardwise.layout import Layout
from shardwise.render.svg_canvas import MARGIN, WIDTH, Drawing, framed, text, titled

LABEL_WIDTH = 150.0
HEAD_HEIGHT = 22.0
ROW_HEIGHT = 40.0
GAP = 6.0


def placement_svg(layout: Layout) -> str:
    """Draw a row for each data-parallel rank, in it a group of boxes for each stage, in that a box for each rank."""
    title = f"Who sits where: {layout.pp} stages, {layout.data_parallel_size} data-parallel ranks, tp={layout.tp}"
    note = (
        "Boxes that touch are slices of the same matrices; boxes below each other reduce gradients together; a rank "
        "passes activations to the box beside it in the next stage."
    )
    body = Drawing(elements=tuple(_boxes(layout)), height=HEAD_HEIGHT + ROW_HEIGHT * layout.data_parallel_size)
    return framed([titled(title, note, body)], label=title)


def _boxes(layout: Layout) -> Iterator[str]:
    stage_width = (WIDTH - 2 * MARGIN - LABEL_WIDTH) / layout.pp
    box_width = (stage_width - 4 * GAP) / layout.tp
    for stage in range(layout.pp):
        left = MARGIN + LABEL_WIDTH + stage * stage_width
        yield text(left, HEAD_HEIGHT - 8, f"stage {stage}", extra="font-weight='bold'")
        for data in range(layout.data_parallel_size):
            top = HEAD_HEIGHT + data * ROW_HEIGHT
            if stage == 0:
                yield text(MARGIN, top + 20, f"data-parallel rank {data}", style="soft")
            for tensor in range(layout.tp):
                rank = (stage * layout.data_parallel_size + data) * layout.tp + tensor
                x = left + tensor * box_width
                yield (
                    f"<rect x='{x:.1f}' y='{top:.1f}' width='{box_width:.1f}' height='{ROW_HEIGHT - GAP:.1f}' "
                    "class='bubble'/>"
                )
                words = f"rank {rank}, slice {tensor}"
                yield text(x + box_width / 2, top + 20, words, anchor="middle")
