"""The first screen of ``plan``: at most 25 lines of 80 columns with the question, the answer and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from rich.text import Text

from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.render.answer_words import (
    change_words,
    hardware_words,
    memory_words,
    published_words,
    run_words,
    speed_words,
)
from shardwise.render.layout_words import (
    NO_RESHARD,
    kept_words,
    layout_words,
    options_text,
    recipe_words,
    short_words,
)
from shardwise.render.names import QUESTION_FIELDS, gib_number
from shardwise.render.question import question_lines
from shardwise.render.retyped import change_options
from shardwise.render.screen_lines import (
    INDENT,
    MAX_LINES,
    Section,
    command_lines,
    fitting_lines,
    lines_of,
    screen_text,
    screen_width,
    whole_parts,
)
from shardwise.render.terminal import PLAIN, TextStyle
from shardwise.rules import find_refusals
from shardwise.rules.token_batch import fine_tunes, nearest_sequences
from shardwise.search.offers import better_shared_batches
from shardwise.search.shortlist import Beside, Shortlist
from shardwise.search.what_if import Sensitivity, WhatIf
from shardwise.step.native_engine import is_native_engine
from shardwise.units import format_count, format_gib, format_percent, format_seconds

MAX_CHANGES = 2
WITH = "With "
CHANGE_LINES = MAX_CHANGES
"""The what-ifs are printed after the rest, a line each."""
FASTER_RATIO, SLOWER_RATIO = 1.01, 0.97
"""Changes between these ratios of tokens per second and GPU hardly change the answer."""
MAX_LAYOUT_LINES = 3
MAX_FIGURE_LINES, MIN_REASON_LINES = 3, 2
MAX_REASON_LINES = 4
LABEL_WIDTH = 9
FIGURES_WIDTH, MIN_NAME_WIDTH = 36, 16
"""Columns of an alternative's figures; its name has the others, and no fewer than these."""
CELL_WIDTHS = (7, 11, 8, 10)
"""Columns of GiB, of the step, of how much it differs, and of why a faster one is not recommended."""
MUST_GAIN = "must gain"
HINT = "(--details: the ranking, why the others lost, the front, the rules, all assumed)"
EXPORTED = ("torchtitan", "megatron", "deepspeed", "accelerate")
"""Engines that run the files that a plan is exported as."""
FEW_STEPS = "--steps 10"
"""A first run measures the step; a whole one needs data."""
TUNED = "--weights FOLDER --data FILE"
"""Options of a fine-tune, whose weights and data the user fills in."""
TRIAL = f"(its speed alone: {FEW_STEPS} --random-weights in their place)"
SCHEDULED = " --launcher slurm"
"""Nobody starts ranks of several servers by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenContext:
    """The facts of a screen that the search does not know: assumptions, the typed command, files."""

    assumed: frozenset[str] = frozenset()
    """Fields of the question that nobody gave, such as ``seq_len`` and ``engine``."""
    command: str = "shardwise plan MODEL CLUSTER"
    """The command that was typed."""
    plan_file: str | None = None
    """Where the recommended plan was written; ``None`` where it was not."""
    num_kept_lines: int = 0
    """Lines that are printed afterwards."""
    asked_tokens: float | None = None
    """Tokens of a step that were asked for; ``None`` where the batch was given in sequences or not at all."""


def plan_screen(chosen: Shortlist, context: ScreenContext, *, style: TextStyle = PLAIN) -> str:
    """The screen of a search that found a plan, without its what-ifs."""
    sections = _plan_sections(chosen, context, screen_width(style))
    return screen_text(sections, style=style, num_kept_lines=context.num_kept_lines)


def what_if_screen(sensitivity: Sensitivity, *, now: Prediction | None = None, style: TextStyle = PLAIN) -> str:
    """The first two changes that bring more per GPU; where fewer bring anything, those that lose most.

    Before them stands what the batch costs that was asked for, where a batch near it was taken.

    More memory on the same GPU is no change that anybody can make: where it would help, a line that is left says
    that memory binds.
    """
    width = screen_width(style)
    changes = [change for change in sensitivity.changes if change.is_for_sale]
    gains = [change for change in changes if change.rate_ratio > FASTER_RATIO and not change.has_fewer_gpus]
    by_rate = sorted(changes, key=lambda change: change.rate_ratio)
    losses = [change for change in by_rate if change.rate_ratio < SLOWER_RATIO]
    exact = [change for change in losses if change.is_as_asked]
    largest = list(dict.fromkeys([*exact, *gains, *losses]))[:MAX_CHANGES]
    if not largest:
        tried = "; ".join(change.change for change in changes)
        text = f"No shorter step: {tried}" if tried else sensitivity.binding
        return screen_text([lines_of(text, width=width, most=CHANGE_LINES)], style=style)
    lines = [
        line
        for change in largest
        for line in fitting_lines(
            whole_parts(_change_text(change, width - len(WITH), now)), width=width, most=1, label=WITH
        )
    ]
    if sensitivity.memory_binds and len(lines) < CHANGE_LINES:
        lines += fitting_lines(whole_parts(sensitivity.binding, end="."), width=width, most=1, label="")
    return screen_text([lines], style=style)


def _change_text(change: WhatIf, width: int, now: Prediction | None) -> str:
    """A change, its step and the layout that it has; of other hardware its dollars come before the layout."""
    typed = " ".join(change_options(change.change)) or change.change
    figures = f"{format_seconds(change.step_s)} a step, {change_words(change)}"
    start, texts = f"{typed}: {figures}", list[str]()
    if change.running_cost is not None:
        other = hardware_words(change.running_cost, beside=None if now is None else now.running_cost)
        names = (typed, change.plan.cluster.gpu.id)
        texts = [f"{name}: {figures}; {dollars}" for dollars in other for name in names]
    layout = f"{start}, as {short_words(change.plan)}"
    texts += [f"{layout}, mb {change.plan.recipe.micro_batch_size}", layout]
    return next((text for text in texts if len(text) <= width), start)


def _plan_sections(chosen: Shortlist, context: ScreenContext, width: int) -> list[Section]:
    """The question, the recommendation, what stands beside it, the reason in the lines that are left, what is next."""
    best = chosen.recommended
    question = question_section(best.plan, context, width)
    fastest = _fastest_lines(chosen.fastest, width)
    answer = [*recommendation_lines(best.plan, best.prediction, width), *fastest]
    beside = _alternative_lines(chosen.alternatives, width)
    following, hint = next_lines(best.plan, context, width), [hint_line(width)]
    left = MAX_LINES - context.num_kept_lines - sum(map(len, (question, answer, beside, following, hint)))
    while left < MIN_REASON_LINES and (hint or beside):  # the hint goes first, then the last alternative
        (hint or beside).pop()
        left += 1
        if len(beside) == 1 and chosen.alternatives:  # a heading of nothing
            left += len(beside)
            beside = []
    if left < 1:
        answer = [*recommendation_lines(best.plan, best.prediction, width, most=MAX_FIGURE_LINES - 1), *fastest]
    reason = _reason_lines(chosen, width, most=min(max(1, left), MAX_REASON_LINES))
    return [question, answer, beside, reason, [*following, *hint]]


def _reason_lines(chosen: Shortlist, width: int, *, most: int) -> list[Text]:
    """Why the plan is recommended, or what the speed of faster ones does not pay for: as much as the lines hold."""
    fastest = chosen.fastest
    if fastest is None or not fastest.why:
        label, reason, both = "Why: ", chosen.recommended.why, []
    else:
        faster = (one for one in chosen.alternatives if one.why and one.step_ratio < 1)
        label, reason = "Why not the fastest: ", f"it is {fastest.why}"
        both = [f"{reason} {short_words(one.plan)} is {one.why}" for one in faster][:1]
    return fitting_lines((*both, *whole_parts(reason, end=".")), width=width, most=most, label=label)


def question_section(plan: Plan, context: ScreenContext, width: int, *, place: str | None = None) -> list[Text]:
    """The question as every answer repeats it, with what a search warns of."""
    return [
        *question_lines(plan, width, assumed=context.assumed, place=place),
        *lines_of(_rounded_words(plan, context.asked_tokens), width=width, most=2),
        *lines_of(_unshared_words(plan), width=width, most=2, look="bold"),
        *lines_of(_warning_words(plan), width=width, most=2, look="bold"),
    ]


def _rounded_words(plan: Plan, asked_tokens: float | None) -> str:
    """The batch that stands for the tokens that were asked for, where another number of sequences comes closer."""
    if asked_tokens is None:
        return ""
    size, num_gpus = plan.global_batch_size, plan.cluster.num_gpus
    nearest = nearest_sequences(asked_tokens, seq_len=plan.recipe.seq_len, num_gpus=num_gpus)
    used = f"{size:,} sequences, {format_count(plan.tokens_per_step)} tokens, divide better than {nearest:,}"
    return "" if nearest == size else f"{format_count(asked_tokens)} tokens asked: {used}."


def _warning_words(plan: Plan) -> str:
    """Warnings that no layout mends, such as a sequence that is longer than the model was made for."""
    broken = (refusal for refusal in find_refusals(plan) if refusal.severity == "warning")
    asked = [refusal.message for refusal in broken if all(name in QUESTION_FIELDS for name, _ in refusal.neighbour)]
    return f"Warning: {'; '.join(asked)}." if asked else ""


def _unshared_words(plan: Plan) -> str:
    """The GPUs that can share the batch, and the nearest batches that more of them can; empty where there is none.

    Whoever asks for 30 sequences on 8 GPUs gets a layout that nobody would run with 32.
    """
    better = better_shared_batches(plan)
    if not better:
        return ""
    size, num_gpus = plan.global_batch_size, plan.cluster.num_gpus
    sharing, could = gcd(size, num_gpus), gcd(better[0], num_gpus)
    others = " or ".join(f"{other:,}" for other in better)
    return f"Only {sharing} of {num_gpus:,} GPUs can share {size:,} sequences evenly; {could:,} could share {others}."


def recommendation_lines(
    plan: Plan,
    prediction: Prediction,
    width: int,
    *,
    label: str = "Recommended: ",
    look: str = "bold green",
    most: int = MAX_FIGURE_LINES,
) -> list[Text]:
    """The layout in words and as options, its memory with the verdict, its speed with a caution where no published
    run is as fast, and its days and dollars."""
    words = f"{layout_words(plan)}; {recipe_words(plan)}"
    figures = [("memory", memory_words(prediction)), ("speed", speed_words(prediction))]
    if published := published_words(plan, prediction, is_short=True):
        figures.append(("caution", published))
    if prediction.cost is not None:
        figures.append(("run", run_words(prediction.cost)))
    lines = lines_of(words, width=width, most=MAX_LAYOUT_LINES, label=label, look=look)
    lines += lines_of(options_text(plan), width=width, most=3, label=INDENT, look="dim")
    for name, text in figures:
        lines += _figure_lines(name, text, width, most=most)
    return lines


def _figure_lines(label: str, text: str, width: int, *, most: int = MAX_FIGURE_LINES) -> list[Text]:
    start = f"{INDENT}{label:<{LABEL_WIDTH}}"
    return lines_of(text, width=width, most=most, label=start, indent=" " * len(start))


def _fastest_lines(fastest: Beside | None, width: int) -> list[Text]:
    if fastest is None:
        return _figure_lines("fastest", "no plan that was found is faster", width)
    time, memory = fastest.prediction.time, fastest.prediction.memory
    saved = format_percent(1 - fastest.step_ratio)
    text = (
        f"{plan_name(fastest.plan)}: {format_seconds(time.step_s)} ({saved} less), "
        f"{format_gib(memory.needed_bytes)}: {fastest.prediction.fit}"
    )
    return _figure_lines("fastest", text, width)


def plan_name(plan: Plan, width: int | None = None) -> str:
    """A plan on one line: its degrees, what is recomputed or kept on the host, and its micro-batch.

    Where it is wider than the width, blanks go first, then the micro-batch, then what is recomputed.
    """
    return _names(plan, width)[0]


def _names(plan: Plan, width: int | None = None) -> list[str]:
    """The names that are no wider than the width, the fullest first; the shortest where none is."""
    layout, (recomputed, moved) = short_words(plan), kept_words(plan.recipe)
    size, tight = f"mb {plan.recipe.micro_batch_size}", layout.replace(" + ", "+")
    short = moved.replace("optimizer", "opt").replace("activations", "act")
    shorter = ((tight, recomputed, moved), (tight, recomputed, short), (tight, moved, size), (tight, moved))
    parts = ((layout, recomputed, moved, size), (tight, recomputed, moved, size), *shorter, (tight, recomputed))
    names = [", ".join(filter(None, words)) for words in parts]
    return [name for name in names if width is None or len(name) <= width] or [tight.replace(NO_RESHARD, "")]


def _alternative_lines(alternatives: Sequence[Beside], width: int) -> list[Text]:
    """A heading and one line a plan, or that there is none."""
    if not alternatives:
        return [Text("Alternatives: no plan of another kind was found to fit."[:width])]
    name_width = max(width - FIGURES_WIDTH, MIN_NAME_WIDTH)
    title = "Alternatives (--pick N; mb: micro-batch)"
    asks = any(map(_asked_text, alternatives))
    cells = ("GiB", "step", "differs", *([MUST_GAIN] if asks else []))
    heading = _row(title[:name_width].ljust(name_width), cells, width)
    lines, seen = [Text(heading, style="bold")], set[str]()
    for number, one in enumerate(alternatives, start=1):
        names = _names(one.plan, name_width - len(INDENT))
        name = next((name for name in names if name not in seen), names[0])
        seen.add(name)
        (line,) = lines_of(name, width=name_width, most=1, label=f"{number} ")
        gib, step = gib_number(one.prediction.memory.needed_bytes), format_seconds(one.prediction.time.step_s)
        beside = _asked_text(one) if one.prediction.fit == "fits" else "at edge"
        differs = f"{round(one.step_ratio - 1, 3) + 0.0:+.1%}"
        lines.append(Text(_row(line.plain.ljust(name_width), (gib, step, differs, beside), width)))
    return lines


def _asked_text(one: Beside) -> str:
    """The gain that is asked of a plan which is faster than the recommended one and fits as safely."""
    is_asked = one.why and one.step_ratio < 1 and one.prediction.fit == "fits"
    return format_percent(one.asked_fraction) if is_asked else ""


def _row(start: str, cells: Sequence[str], width: int) -> str:
    """A line of a table: as many of its cells as it has room for whole."""
    row = start
    for cell, cell_width in zip(cells, CELL_WIDTHS, strict=False):
        if len(row) + max(len(cell), cell_width) > width:
            break
        row += cell.rjust(cell_width)
    return row.rstrip()


def next_lines(plan: Plan, context: ScreenContext, width: int) -> list[Text]:
    """Two commands: writing the plan, or explaining it where it was written; then running it."""
    file = context.plan_file or "plan.json"
    first, short = f"{context.command} --out {file}", ""
    if context.plan_file:
        first, short = f"shardwise explain {file}", "shardwise explain FILE"
    trial = TRIAL if is_native_engine(plan) and fine_tunes(plan.model, plan.recipe) else ""
    return [
        *command_lines(first, "Next: ", width, short=short),
        *command_lines(_runner(plan, file), "then: ", width, short=_runner(plan, "FILE")),
        *lines_of(trial, width=width, most=1, label=INDENT, look="dim"),
    ]


def _runner(plan: Plan, file: str) -> str:
    """The command that runs a plan for the first time: a few steps, through the scheduler where there are servers."""
    launcher = SCHEDULED if plan.cluster.num_nodes > 1 else ""
    if is_native_engine(plan):
        what = TUNED if fine_tunes(plan.model, plan.recipe) else FEW_STEPS
        return f"shardwise train {file} {what}{launcher}{' --out run' if launcher else ''}"
    if plan.engine in EXPORTED:
        return f"shardwise export {file} --to {plan.engine}{launcher} --out run"
    return f"shardwise timeline {file} --html step.html"


def hint_line(width: int) -> Text:
    """The last line: the option that prints what the screen leaves out."""
    return Text(HINT[:width], style="dim")
