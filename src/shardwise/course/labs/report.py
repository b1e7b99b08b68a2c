"""The answer of a lab: its runs side by side, predicted beside measured, the picture, and what texts say of it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwise.claims import Cell, Claim
from shardwise.course.labs.quantities import family, predicted_family
from shardwise.course.labs.settings import DEFAULT_STEPS, LabSetting
from shardwise.course.labs.steadiness import UNSTEADY_RATIO, unsteady_ratio
from shardwise.course.labs.trial import Lab, Outcome, Quantity
from shardwise.course.lesson import Bar, BarGroup, BarPicture, Lesson, LessonTable, Setting

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send_recv")


def lab_lesson(lab: Lab, outcomes: Sequence[Outcome], setting: LabSetting) -> Lesson:
    """Everything a lab shows; for a lab that was interrupted, what it had measured until then."""
    tables = [_table(lab, outcomes)]
    if lab.has_families:
        tables += [_families(found) for found in outcomes if found.measurement is not None]
    return Lesson(
        name=lab.name,
        title=lab.question,
        what=lab.expect,
        is_measured=True,
        settings=tuple(_settings(outcomes, setting)),
        tables=tuple(tables),
        pictures=(_picture(lab.quantities[0], outcomes),),
        claims=tuple(_claims(lab, outcomes, setting)),
        notes=tuple(_notes(lab, outcomes, setting)),
    )


def _claims(lab: Lab, outcomes: Sequence[Outcome], setting: LabSetting) -> Iterator[Claim]:
    """What texts say beside what came out; no verdict where too few processes ran to ask."""
    for claim in lab.claims(outcomes):
        is_asked = setting.num_processes >= lab.min_processes
        yield claim if is_asked else replace(claim, verdict="unclear", note=f"no verdict: {_too_few(lab, setting)}")


def _too_few(lab: Lab, setting: LabSetting) -> str:
    where = "GPUs" if setting.is_on_gpu else "processes"
    return f"this question needs at least {lab.min_processes} {where}; one divides nothing and sends nothing"


def _settings(outcomes: Sequence[Outcome], setting: LabSetting) -> Iterator[Setting]:
    environment = next((found.measurement["environment"] for found in outcomes if found.measurement), {})
    device = environment.get("device") if isinstance(environment, dict) else None
    yield Setting(name="machine", value=f"{setting.gpu} ({device or 'not measured'})")
    yield Setting(name="processes", value=setting.num_processes, unit="count")
    for size in dict.fromkeys(found.trial.size for found in outcomes):
        model = next(found.plan.model for found in outcomes if found.trial.size == size)
        yield Setting(name=f"{size} model", value=model.name)
    recipe = outcomes[0].plan.recipe
    yield Setting(
        name="each rank",
        value=f"{recipe.micro_batch_size} x {recipe.seq_len} tokens at once, {recipe.precision}",
    )
    yield Setting(name="steps", value=setting.num_steps, unit="count", meaning="of every run; the median of the last")


def _table(lab: Lab, outcomes: Sequence[Outcome]) -> LessonTable:
    pairs = (f"{quantity.name}, predicted: {quantity.unit} | measured: {quantity.unit}" for quantity in lab.quantities)
    rows = tuple((found.trial.name, *_cells(lab.quantities, found)) for found in outcomes)
    meanings = "; ".join(
        f"{quantity.name}: {quantity.title[:1].lower()}{quantity.title[1:]}" for quantity in lab.quantities
    )
    return LessonTable(title="Predicted beside measured", head=" | ".join(("run", *pairs)), rows=rows, note=meanings)


def _cells(quantities: Sequence[Quantity], outcome: Outcome) -> Iterator[Cell]:
    for quantity in quantities:
        yield quantity.predicted(outcome)
        yield quantity.measured(outcome) if outcome.measurement is not None else None


def _families(outcome: Outcome) -> LessonTable:
    head = (
        "collective | calls, predicted: count | measured: count | work, predicted: s | measured: s | "
        "exposed, predicted: s | measured: s"
    )
    rows = tuple(
        (
            kind.replace("_", "-"),
            *(
                value
                for predicted, measured in (("count", "num_calls"), ("total_s", "work_s"), ("exposed_s", "exposed_s"))
                for value in (predicted_family(outcome, kind, predicted), family(outcome, kind, measured))
            ),
        )
        for kind in KINDS
        if predicted_family(outcome, kind, "count") or family(outcome, kind, "num_calls")
    )
    return LessonTable(title=f"Collectives of one step of a rank: {outcome.trial.name}", head=head, rows=rows)


def _picture(quantity: Quantity, outcomes: Sequence[Outcome]) -> BarPicture:
    groups = tuple(
        BarGroup(
            name=found.trial.name,
            bars=(
                Bar(name="predicted", amount=quantity.predicted(found)),
                Bar(name="measured", amount=quantity.measured(found) if found.measurement is not None else None),
            ),
        )
        for found in outcomes
    )
    return BarPicture(title=quantity.title, unit=quantity.unit, groups=groups)


def _notes(lab: Lab, outcomes: Sequence[Outcome], setting: LabSetting) -> Iterator[str]:
    is_asked = setting.num_processes >= lab.min_processes
    if is_asked and (conclusion := lab.conclusion(outcomes)):
        yield f"In short: {conclusion}"
    for found in outcomes:
        if found.failure:
            yield f"{found.trial.name}: {found.failure}"
    if not is_asked:
        said = _too_few(lab, setting)
        yield f"{said[:1].upper()}{said[1:]}. The runs show only what a rank alone does."
    if not setting.is_on_gpu and lab.on_cpu:
        yield lab.on_cpu
    unsteady = max(outcomes, key=unsteady_ratio)
    if unsteady_ratio(unsteady) > UNSTEADY_RATIO:
        yield (
            f"{unsteady.trial.name}: the slowest step took {unsteady_ratio(unsteady):.1f} times the fastest: "
            "something else works on this machine, and the times say little. Memory does not suffer."
        )
    if setting.num_steps < setting.profiled_every:
        yield (
            f"With {setting.num_steps} steps no step is looked into, which is step {setting.profiled_every}: shares, "
            f"collectives and what memory holds are left out; --steps {DEFAULT_STEPS} shows them."
        )
    yield "Times are predicted from the catalogue; `shardwise calibrate` measures this machine for plans."
    crowded = sorted({found.plan.layout.world_size for found in outcomes if found.is_crowded})
    if crowded:
        yield (
            f"{' and '.join(map(str, crowded))} processes share {setting.num_cores} cores; the prediction gives each "
            "process a core."
        )
