"""The communication pattern of a lesson: ranks side by side, time downwards, one arrow a message."""

from collections.abc import Iterator

from shardwise.course.lesson import Message, MessagePicture, MessageRound
from shardwise.course.render.lesson_cells import cell_text, short_what
from shardwise.render.svg_canvas import MARGIN, WIDTH, Drawing, attribute, line, text, titled

LABEL_WIDTH = 90.0
TITLE_LETTER_PIXELS = 6.4
LABEL_LETTER_PIXELS = 5.6
MOST_TITLE_PIXELS = 320.0
HEAD_HEIGHT = 24.0
ROW_HEIGHT = 52.0
ARROW_HEIGHT = 34.0
MOST_ROUNDS = 48
LABEL_GAP = 5.0
"""Pixels between the sender's line and the label."""
ARROW_HEAD = 4.0


def messages_drawing(picture: MessagePicture) -> Drawing:
    """Every round a row, at most 48 of them."""
    shown = picture.rounds[:MOST_ROUNDS]
    height = HEAD_HEIGHT + ROW_HEIGHT * len(shown) + 26
    elements = [*_rank_lines(picture, HEAD_HEIGHT + ROW_HEIGHT * len(shown))]
    for number, one in enumerate(shown):
        top = HEAD_HEIGHT + ROW_HEIGHT * number
        elements.append(text(MARGIN, top + 32, one.title, style="soft"))
        for message in one.messages:
            elements += _arrow(picture, message, top)
            if _has_room(picture, one.title, short_what(message.what)):
                elements.append(_label(picture, message, top))
    elements += _legend(picture, height - 8)
    left_out = len(picture.rounds) - len(shown)
    cut = f"{left_out} further rounds are not drawn; --json has all" if left_out else ""
    return titled(
        picture.title, ". ".join(filter(None, (picture.note, cut))), Drawing(elements=tuple(elements), height=height)
    )


def _column(picture: MessagePicture, rank: int) -> float:
    """Where a rank's line stands, right of the titles of all rounds."""
    left = _title_width(picture)
    return left + (WIDTH - left - MARGIN) * (rank + 0.5) / len(picture.rank_names)


def _title_width(picture: MessagePicture) -> float:
    longest = max((len(one.title) for one in picture.rounds), default=0)
    wanted = MARGIN + TITLE_LETTER_PIXELS * longest - (WIDTH - MARGIN) / (2 * len(picture.rank_names))
    return min(MOST_TITLE_PIXELS, max(LABEL_WIDTH, wanted))


def _is_crowded(picture: MessagePicture, one: MessageRound) -> bool:
    """Whether an arrow of a round goes without a label that says more than the round's title."""
    labels = {short_what(message.what) for message in one.messages}
    return any(label not in one.title and not _has_room(picture, one.title, label) for label in labels)


def _has_room(picture: MessagePicture, title: str, label: str) -> bool:
    """Whether a label can stand beside its arrow without touching another, and says more than its round's title."""
    width = (WIDTH - _title_width(picture)) / len(picture.rank_names)
    is_said = not label.isdigit() and label in title
    return bool(label) and not is_said and 2 * LABEL_LETTER_PIXELS * len(label) < width


def _rank_lines(picture: MessagePicture, bottom: float) -> Iterator[str]:
    for rank, name in enumerate(picture.rank_names):
        x = _column(picture, rank)
        yield line((x, HEAD_HEIGHT), (x, bottom), style="grid", width=2)
        yield text(x, HEAD_HEIGHT - 8, name, anchor="middle", extra="font-weight='bold'")


def _arrow(picture: MessagePicture, message: Message, top: float) -> Iterator[str]:
    style = "add" if message.adds else "copy"
    x1, x2 = _column(picture, message.sender), _column(picture, message.receiver)
    y1, y2 = top + 12, top + 12 + ARROW_HEIGHT
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 or 1.0
    along_x, along_y = (x2 - x1) / length, (y2 - y1) / length
    back_x, back_y = x2 - 2 * ARROW_HEAD * along_x, y2 - 2 * ARROW_HEAD * along_y
    across_x, across_y = -ARROW_HEAD * along_y, ARROW_HEAD * along_x
    told = f"{picture.rank_names[message.sender]} to {picture.rank_names[message.receiver]}"
    what = f"{told}: {message.what}, {cell_text(message.num_bytes, 'bytes')}{', added' if message.adds else ''}"
    yield (
        f"<g aria-label='{attribute(what)}'><title>{attribute(what)}</title>"
        f"{line((x1, y1), (back_x, back_y), style=style, width=1.5)}"
        f"<path d='M{x2:.1f} {y2:.1f}L{back_x + across_x:.1f} {back_y + across_y:.1f}"
        f"L{back_x - across_x:.1f} {back_y - across_y:.1f}Z' class='{style}fill'/></g>"
    )


def _label(picture: MessagePicture, message: Message, top: float) -> str:
    """What a message carries, at its sender, on the side to which the arrow goes."""
    x, is_right = _column(picture, message.sender), message.receiver > message.sender
    return text(
        x + (LABEL_GAP if is_right else -LABEL_GAP),
        top + 10,
        short_what(message.what),
        style="addfill" if message.adds else "copyfill",
        anchor="start" if is_right else "end",
        extra="font-size='10'",
    )


def _legend(picture: MessagePicture, y: float) -> Iterator[str]:
    kinds = {message.adds for one in picture.rounds for message in one.messages}
    x = LABEL_WIDTH
    for adds, style, words in ((True, "add", "added by the receiver"), (False, "copy", "kept by the receiver")):
        if adds in kinds:
            yield line((x, y - 4), (x + 24, y - 4), style=style, width=2)
            yield text(x + 30, y, words, style="soft")
            x += 190
    carried = [message.what for one in picture.rounds for message in one.messages]
    if any(_is_crowded(picture, one) for one in picture.rounds):
        yield text(x, y, "where a label has no room, point at the arrow", style="soft")
        x += 290
    numbered = next((what for what in carried if short_what(what) != what), "")
    if numbered:
        yield text(x, y, f"at an arrow: which {numbered.partition(' ')[0]} it carries", style="soft")
