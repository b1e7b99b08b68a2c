"""What files of other tools say about a run, as text."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardwise.exchange.mistakes import Mistake
from shardwise.exchange.names import RECOMPUTE_EVERY, Claim
from shardwise.exchange.reading import ASKED, NO_FILE, Reading
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table

SHOWN = (*ASKED, RECOMPUTE_EVERY, "schedule", "sequence_parallel", "compile", "adapter", "lora_rank", "reduce_dtype")
TOOL_SAYS = {
    "silent": "the tool says nothing",
    "warns": "the tool warns",
    "hangs": "the run hangs",
    "crashes": "the run crashes",
    "refused": "the tool refuses it",
}


def reading_text(reading: Reading, mistakes: tuple[Mistake, ...], *, model_name: str, style: TextStyle = PLAIN) -> str:
    """Everything ``shardwise import`` prints."""
    return page_text(_parts(reading, mistakes, model_name), style=style)


def headline(reading: Reading, model_name: str) -> str:
    """One sentence on what run this is."""
    engine, world = reading.value("engine"), reading.value("world_size")
    degrees = [f"{name} {reading.value(name)}" for name in ("dp_replicate", "dp_shard", "tp", "cp", "pp", "ep")]
    large = [text for text in degrees if text.rpartition(" ")[2] not in ("1", "None")]
    stage = reading.value("zero_stage")
    return (
        f"{model_name or 'A model that no file names'} on {'an open number of' if world is None else world} GPUs with "
        f"{engine or 'an engine that no file names'}"
        + (f": {', '.join(large)}" if large else "")
        + (f", ZeRO {stage}" if stage else "")
    )


def _parts(reading: Reading, mistakes: tuple[Mistake, ...], model_name: str) -> Iterator[RenderableType]:
    yield Text(headline(reading, model_name), style="bold")
    for one in reading.read_as:
        yield Text(f"{one.file} was read as {one.tool} {one.version}".rstrip())
    yield Text()
    yield _known_table(reading)
    if reading.questions or not model_name:
        yield Text("\nOpen", style="bold")
        if not model_name:
            yield Padding(Text(f"model: {NO_FILE}  -> --model"), (0, 0, 0, 2))
        for question in reading.questions:
            yield Padding(Text(f"{question.field}: {question.why}  -> {question.option}"), (0, 0, 0, 2))
    for against in reading.contradictions:
        yield Text("\nContradiction", style="bold red")
        claims = f"{against.first.field} is {_said(against.first)}, and {_said(against.second)}"
        yield Padding(Text(claims), (0, 0, 0, 2))
    for mistake in mistakes:
        yield Text.assemble("\n", (f"[{mistake.code}] ", "bold red"), (mistake.place, "bold"))
        yield Padding(Text(f"{mistake.what} ({TOOL_SAYS[mistake.tool_says]})"), (0, 0, 0, 2))
        yield Padding(Text(f"-> {mistake.fix}", style="green"), (0, 0, 0, 2))
    if reading.named_files:
        yield Text(f"\nNamed by these files and not given: {', '.join(reading.named_files)}")
    if reading.not_understood:
        yield Text("\nNot understood", style="bold")
        for unread in reading.not_understood:
            yield Padding(
                Text(f"{unread.place} = {unread.value}" + (f"  -> {unread.near}?" if unread.near else "")), (0, 0, 0, 2)
            )


def _known_table(reading: Reading) -> Table:
    table = plain_table()
    for name in ("field", "value", "where it stands"):
        table.add_column(name)
    disputed = {one.first.field for one in reading.contradictions}
    for field in SHOWN:
        claim = reading.claim(field)
        if claim is not None:
            value = "see below" if field in disputed else str(claim.value)
            table.add_row(field, value, claim.place)
    return table


def _said(claim: Claim) -> str:
    return f"{claim.value} by {claim.place}"
