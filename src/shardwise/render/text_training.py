"""What a finished run says: predicted beside measured, and where everything is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.reconcile.traced import traced_components
from shardwise.reconcile.utilisation import Utilisation
from shardwise.render.question import plan_lines
from shardwise.render.screen_lines import screen_width
from shardwise.render.terminal import PLAIN, TextStyle, page_text
from shardwise.render.utilisation import utilisation_lines
from shardwise.units import format_bytes, format_seconds

ABSENT = "-"


def training_text(
    *,
    plan: Plan,
    prediction: Prediction,
    measured: Mapping[str, object],
    used: Sequence[Utilisation],
    folder: Path,
    style: TextStyle = PLAIN,
) -> str:
    """Everything ``shardwise train`` prints at the end."""
    asked = plan_lines(plan, screen_width(style))
    return page_text([*asked, *_parts(plan, prediction, measured, used, folder)], style=style)


STARTERS = {
    ".sbatch": "sbatch --time=24:00:00 {path} runs the script on every node",
    ".yaml": "once its placeholders are edited, kubectl apply -f {path}",
}
"""How the file of a launcher is given to its scheduler, by the end of the file's name."""


def command_lines(
    script: Path,
    *,
    launchers: Sequence[Path],
    num_nodes: int,
    begins_with: Mapping[str, object],
    missing: Sequence[str],
    unseen: Sequence[str],
) -> Iterator[str]:
    """What ``shardwise train`` prints where it starts nothing: what it wrote, and what it found and did not look at."""
    place = f"on each of {num_nodes} nodes" if num_nodes > 1 else "where nothing is missing" if missing else "here"
    seen = "" if num_nodes > 1 or missing else "what the run reads is there and "
    yield f"{seen}nothing was started; wrote {script}: run it {place}"
    for path in launchers:
        yield f"wrote {path}: {STARTERS[path.suffix].format(path=path)}"
    for name, said in _part(begins_with, "in_words").items():
        yield f"{name}: {said}"
    for sentence in missing:
        yield f"missing here: {sentence}"
    for sentence in unseen:
        yield f"not looked at: {sentence}"


def _parts(
    plan: Plan, prediction: Prediction, measured: Mapping[str, object], used: Sequence[Utilisation], folder: Path
) -> Iterator[RenderableType]:
    header = Table.grid(padding=(0, 2))
    header.add_row("ran on", str(_part(measured, "environment").get("device") or "this machine"))
    for name, said in _part(_part(measured, "inputs"), "in_words").items():
        header.add_row(name, str(said))
    yield header
    yield Text()
    yield _comparison(plan, prediction, measured)
    yield Text()
    yield from utilisation_lines(used)
    loss = _part(measured, "loss")
    yield Text(f"loss {_number(loss, 'first'):.4f} -> {_number(loss, 'last'):.4f}")
    yield from _validation_lines(_part(measured, "validation"))
    yield from _skipped_lines(_part(measured, "loss_scale"))
    yield Text(f"run folder {folder}", overflow="fold", no_wrap=False)


def _validation_lines(validation: Mapping[str, object]) -> Iterator[RenderableType]:
    """What the validations showed; nothing where there were none."""
    if validation.get("num_validations"):
        first, last, best = (_number(validation, f"{name}_loss") for name in ("first", "last", "best"))
        yield Text(
            f"validation loss {first:.4f} -> {last:.4f}, best {best:.4f} (perplexity "
            f"{_number(validation, 'best_perplexity'):,.4g}) after step {validation.get('best_step')}"
        )
    if validation.get("ended_early"):
        yield Text("the run ended early, as the validation loss fell no more (--patience)")


def _skipped_lines(loss_scale: Mapping[str, object]) -> Iterator[RenderableType]:
    """Which part of an fp16 run was skipped; nothing where no gradient overflowed."""
    num_skipped, num_steps = loss_scale.get("num_skipped_steps"), loss_scale.get("num_steps")
    if num_skipped:
        ratio = _number(loss_scale, "ratio")
        said = f"skipped {num_skipped} of {num_steps} steps, whose gradients overflowed fp16"
        yield Text(f"{said}; the loss scale was {ratio:,g} at the end")


def _comparison(plan: Plan, prediction: Prediction, measured: Mapping[str, object]) -> Table:
    """Predicted beside measured, the parts of the step as a trace tells them apart: ``reconcile`` prints the same."""
    time, memory = _part(measured, "time"), _part(measured, "memory")
    throughput, components = _part(measured, "throughput"), _part(memory, "components_bytes")
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for heading in ("", "predicted", "measured"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row("step time", format_seconds(prediction.time.step_s), _shown(time, "step_s", format_seconds))
    table.add_row("  steps it is the median of", "", _shown(time, "num_steps_measured", "{:,.0f}".format))
    table.add_row("  first step", "", _shown(time, "first_step_s", format_seconds))
    table.add_row(
        "tokens/s/GPU",
        f"{prediction.throughput.tokens_per_s_per_gpu:,.0f}",
        _shown(throughput, "tokens_per_s_per_gpu", "{:,.0f}".format),
    )
    table.add_row(
        "peak allocated",
        format_bytes(prediction.memory.worst.peak_allocated_bytes),
        _shown(memory, "peak_allocated_bytes", format_bytes),
    )
    for entry in prediction.memory.worst.components:
        if entry.num_bytes and entry.component in components:
            name = f"  {entry.component.replace('_', ' ')}"
            table.add_row(name, format_bytes(entry.num_bytes), _shown(components, entry.component, format_bytes))
    parts = _part(time, "components_s")
    for component, predicted_s in traced_components(plan, prediction).items() if parts else ():
        if predicted_s or parts.get(component):
            name = f"{component.replace('_', ' ')} (sampled)"
            table.add_row(name, format_seconds(predicted_s), _shown(parts, component, format_seconds))
    return table


def _part(record: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = record.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(record: Mapping[str, object], name: str) -> float:
    found = record.get(name)
    return float(found) if isinstance(found, int | float) else float("nan")


def _shown(record: Mapping[str, object], name: str, form: Callable[[float], str]) -> str:
    found = record.get(name)
    return form(found) if isinstance(found, int | float) else ABSENT
