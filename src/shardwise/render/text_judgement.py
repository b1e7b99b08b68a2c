"""The judgement of a reported rate as text: its readings, the predicted and published rates, and likely causes."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.explain.judgement import Judgement, RateReading
from shardwise.predict.published import BestRun
from shardwise.render.answer_words import memory_words
from shardwise.render.next_lines import NOTHING_FOLLOWS, Following
from shardwise.render.question import plan_lines
from shardwise.render.screen_lines import screen_width
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.units import format_flop_per_s, format_percent


def judgement_text(
    judgement: Judgement,
    *,
    following: Following = NOTHING_FOLLOWS,
    assumed: AbstractSet[str] = frozenset(),
    style: TextStyle = PLAIN,
) -> str:
    """Return the text that ``shardwise judge`` prints, with stars at the fields of the question that nobody gave."""
    return page_text(
        [*_parts(judgement, following, assumed, screen_width(style)), *following.lines(style)], style=style
    )


def _parts(
    judgement: Judgement, following: Following, assumed: AbstractSet[str], width: int
) -> Iterator[RenderableType]:
    for finding in judgement.findings:
        yield Text(finding.claim, style="bold green")
        if finding.suggestion:
            yield Text(f"{finding.because[0].upper()}{finding.because[1:]}: {finding.suggestion}.")
    if judgement.unit != "mfu_fraction":
        yield Text(
            f"{format_percent(judgement.sparse_fraction)} is its share of the peak with sparsity, no peak of training."
        )
    if judgement.plan is None or judgement.prediction is None:
        return
    likely = judgement.readings[0]
    yield Text(_beside_prediction(judgement, likely), style="bold")
    if judgement.best is not None:
        yield Text(_best_words(judgement.best))
    if judgement.prediction.fit != "fits":
        yield Text(f"The plan that it is compared with: {memory_words(judgement.prediction)}.", style="bold")
    yield from following.remedy_parts
    yield Text()
    yield Text("Compared with")
    yield from plan_lines(judgement.plan, width, assumed=assumed)
    yield Text()
    yield _readings_table(judgement)
    yield from _cause_parts(judgement)


def _best_words(best: BestRun) -> str:
    rate = f"MFU {format_percent(best.mfu_fraction)}, {best.tokens_per_s_per_gpu:,.0f} tokens/s per GPU"
    where = (
        f"{best.model}, {best.seq_len:,} tokens a sequence, on {best.num_gpus:,} x {best.gpu}, {best.engine}, "
        f"{best.precision}"
    )
    return f"Best published of its kind: {rate}: {where} ({best.id}: {best.source})."


def _beside_prediction(judgement: Judgement, likely: RateReading) -> str:
    rate = f"{likely.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, MFU {format_percent(likely.mfu_fraction)}"
    if not likely.is_possible:
        return f"No training run comes near it: {rate} by every convention; check tokens, time and GPUs."
    band = "inside" if judgement.is_in_band else "outside"
    verdict = f"{format_percent(likely.predicted_ratio)} of the predicted rate, {band} its band"
    return f"Likeliest: {rate} ({likely.counted}, {likely.divided_by} peak): {verdict}."


def _readings_table(judgement: Judgement) -> Table:
    table = plain_table(title="What it is by each convention, the likeliest first")
    table.add_column("counted")
    table.add_column("peak")
    for heading in ("FLOP/s", "stated", "tokens/s", "MFU", "predicted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for reading in judgement.readings:
        table.add_row(
            reading.counted,
            reading.divided_by,
            format_flop_per_s(reading.stated_flop_per_s),
            format_percent(reading.stated_mfu_fraction),
            f"{reading.tokens_per_s_per_gpu:,.0f}",
            format_percent(reading.mfu_fraction) + ("" if reading.is_possible else "!"),
            format_percent(reading.predicted_ratio),
        )
    return table


def _cause_parts(judgement: Judgement) -> Iterator[RenderableType]:
    if not judgement.causes:
        return
    yield Text()
    table = plain_table(title="What would explain it, in the order to check; settings are predicted, each alone")
    table.add_column("setting or place")
    table.add_column("that is")
    for heading in ("tokens/s per GPU", "reported is"):
        table.add_column(heading, justify="right")
    for cause in judgement.causes:
        rate = "" if cause.tokens_per_s_per_gpu is None else f"{cause.tokens_per_s_per_gpu:,.0f}"
        left = "" if cause.left_ratio is None else format_percent(cause.left_ratio)
        table.add_row(cause.setting, cause.words, rate, left)
    yield table
