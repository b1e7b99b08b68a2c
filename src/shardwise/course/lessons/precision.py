"""Mixed precision: what 16- and 8-bit numbers lose, what loss scaling and master weights bring back, what it saves."""

from dataclasses import dataclass

import numpy as np

from shardwise.claims import Claim
from shardwise.course.formulas.model_states import zero_model_state_bytes
from shardwise.course.formulas.scaling import mixed_precision_comparison
from shardwise.course.lesson import Check, Column, Curve, CurvePicture, Lesson, LessonStep, LessonTable, Setting
from shardwise.course.lessons.request import LessonRequest, checked_seed
from shardwise.course.loss_scaling import ScaledStep, ScalerSettings, train
from shardwise.course.number_formats import (
    FORMAT_NAMES,
    Floats,
    FormatName,
    accumulated,
    number_format,
    overflow_fraction,
    relative_error,
    rounded,
    updated,
    vanished_fraction,
)

OPTIONS = ("num_microbatches", "seed")
NUM_GRADIENTS = 200_000
MEDIAN_GRADIENT = 1e-7
SPREAD = 3.0
"""Standard deviation of the logarithm: gradients of one model lie many powers of ten apart."""
SCALES = (1.0, 2.0**10, 2.0**16, 2.0**24)
NUM_STEPS = 40
TOO_LARGE_SCALE = 2.0**32
NUM_MICROBATCHES = 256
WEIGHT_UPDATES = (1e-3, 1e-4, 1e-5)
NUM_UPDATES = 1000
SEED_SIZES = (7e9, 13e9, 70e9, 405e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One training of the small model."""

    name: str
    steps: tuple[ScaledStep, ...]


def make_lesson(request: LessonRequest) -> Lesson:
    """Cast, scale, add and train in every format."""
    seed = checked_seed(request)
    num_microbatches = request.num_microbatches or NUM_MICROBATCHES
    generator = np.random.default_rng(seed)
    gradients = np.exp(generator.normal(np.log(MEDIAN_GRADIENT), SPREAD, NUM_GRADIENTS)).astype(np.float32)
    runs = _runs(seed)
    return Lesson(
        name="precision",
        title="Mixed precision: bf16, fp16 and fp8",
        what="A simulation with bit-true casts: every number is really rounded to the format and back. Gradients are "
        "drawn log-normally around 1e-7; the training is least squares with 32 weights, whose errors and gradients "
        "pass through the format while weights stay in fp32.",
        settings=(
            Setting(name="num-microbatches", value=num_microbatches, unit="count", meaning="added up one by one"),
            Setting(name="seed", value=seed, unit="count"),
        ),
        tables=(
            _format_table(),
            _gradient_table(gradients),
            _training_table(runs),
            _accumulation_table(generator, num_microbatches),
            _master_table(),
            _memory_table(),
        ),
        steps=tuple(_step(step) for step in runs[-1].steps),
        checks=_checks(),
        claims=_claims(gradients),
        pictures=(_loss_picture(runs), _scale_picture(runs[-1])),
        notes=(
            "bf16 needs no loss scaling because it has fp32's exponent: what fp32 can hold, bf16 can hold, with 8 bits "
            "of it. Those 8 bits are why sums and weights stay in fp32: an addition that changes less than 1 part in "
            "256 is lost.",
        ),
    )


def _format_table() -> LessonTable:
    formats = [number_format(name) for name in FORMAT_NAMES]
    return LessonTable(
        title="The formats",
        head=(
            "format | exponent bits: count | mantissa bits: count | largest: number | smallest: number | "
            "step at 1: number | 1e6 becomes"
        ),
        rows=tuple(
            (
                one.name,
                one.num_exponent_bits,
                one.num_mantissa_bits,
                one.max_value,
                one.smallest_ratio,
                one.step_at_one_ratio,
                f"{float(rounded(np.array([1e6]), one.name)[0]):g}",
            )
            for one in formats
        ),
        note="e4m3 has no infinity: without a scale per tensor, large values become NaN",
    )


def _gradient_table(gradients: Floats) -> LessonTable:
    rows = tuple(
        (
            name,
            scale,
            vanished_fraction(gradients, name, scale=scale),
            overflow_fraction(gradients, name, scale=scale),
        )
        for name in FORMAT_NAMES[1:]
        for scale in SCALES
    )
    return LessonTable(
        title="Gradients around 1e-7: what vanishes and what overflows, by loss scale",
        head="format | loss scale: count | become 0: fraction | overflow: fraction",
        rows=rows,
        note="a scale shifts the window of the format; fp8 formats have none that fits all gradients",
    )


def _runs(seed: int) -> tuple[_Run, ...]:
    """The last one is the dynamic scale that begins too large."""
    constant = ScalerSettings(first_ratio=1.0)
    scaled = ScalerSettings(first_ratio=2.0**16)
    dynamic = ScalerSettings(first_ratio=TOO_LARGE_SCALE, is_dynamic=True)
    asked: tuple[tuple[str, FormatName, ScalerSettings], ...] = (
        ("fp32", "fp32", constant),
        ("bf16, no scale", "bf16", constant),
        ("fp16, no scale", "fp16", constant),
        ("fp16, scale 65,536", "fp16", scaled),
        ("fp8-e5m2, scale 65,536", "fp8-e5m2", scaled),
        ("fp16, dynamic scale", "fp16", dynamic),
    )
    return tuple(
        _Run(name=name, steps=train(format_name, scaler, num_steps=NUM_STEPS, seed=seed))
        for name, format_name, scaler in asked
    )


def _training_table(runs: tuple[_Run, ...]) -> LessonTable:
    return LessonTable(
        title=f"The same training in each format, {NUM_STEPS} steps",
        head=("format | errors that vanish at first: fraction | skipped steps: count | loss / first loss: number"),
        rows=tuple(
            (
                run.name,
                run.steps[0].vanished_fraction,
                sum(step.is_skipped for step in run.steps),
                run.steps[-1].loss_ratio,
            )
            for run in runs
        ),
    )


def _accumulation_table(generator: np.random.Generator, num_microbatches: int) -> LessonTable:
    """Gradients of many micro-batches with a common direction, added one after the other."""
    terms = (1.0 + generator.standard_normal((num_microbatches, 1000))).astype(np.float32)
    exact = terms.astype(np.float64).sum(axis=0)
    rows = []
    for name in ("fp32", "bf16", "fp16"):
        total = accumulated(terms, name)
        rows.append((name, relative_error(total, exact), relative_error(rounded(exact, name), exact)))
    return LessonTable(
        title=f"Adding the gradients of {num_microbatches} micro-batches",
        head="buffer | error of the sum: fraction | of one rounding: fraction",
        rows=tuple(rows),
        note="rounding after every addition costs far more than rounding the sum once: accumulate in fp32",
    )


def _master_table() -> LessonTable:
    rows = []
    for update in WEIGHT_UPDATES:
        kept = {name: updated(1.0, update=update, num_steps=NUM_UPDATES, name=name) for name in ("fp32", "bf16")}
        rows.append((update, 1.0 - NUM_UPDATES * update, kept["fp32"], kept["bf16"]))
    return LessonTable(
        title=f"A weight of 1 after {NUM_UPDATES:,} small updates",
        head="update: number | exact: number | fp32 master: number | kept in bf16: number",
        rows=tuple(rows),
        note="below half a step of bf16 (0.0039 at 1, 0.0020 just below) an update changes nothing",
    )


def _memory_table() -> LessonTable:
    rows = []
    for num_params in SEED_SIZES:
        one = mixed_precision_comparison(num_params=num_params)
        rows.append(
            (
                f"{num_params / 1e9:g}B",
                one.fp32_bytes,
                one.mixed_bytes,
                one.saved_fraction,
                one.mixed_with_master_bytes,
                1 - one.mixed_with_master_bytes / one.fp32_bytes,
            )
        )
    return LessonTable(
        title="Model states with Adam, with and without the master copy",
        head=(
            "model | fp32: decimal_bytes | bf16, no master: decimal_bytes | saves: fraction | "
            "with master: decimal_bytes | saves: fraction"
        ),
        rows=tuple(rows),
        note="4+4+8, 2+2+8 and 2+2+4+8 bytes a parameter: with the master copy, mixed precision saves no state, only "
        "activations, traffic and time",
    )


def _step(step: ScaledStep) -> LessonStep:
    what = (
        "a gradient overflowed: nothing is updated and the scale is halved"
        if step.is_skipped
        else f"updated; {step.vanished_fraction:.1%} of the errors vanished, loss at {step.loss_ratio:.3g} of the first"
    )
    return LessonStep(title=f"step {step.index}, loss scale {step.scale_ratio:,.0f}", text=what)


def _checks() -> tuple[Check, ...]:
    """The casts against numbers that can be checked by hand."""
    by_hand: tuple[tuple[FormatName, float, float], ...] = (
        ("bf16", 1.00390625, 1.0),
        ("bf16", 1.01171875, 1.015625),
        ("fp16", 65504.0, 65504.0),
        ("fp16", 2.0**-24, 2.0**-24),
        ("fp16", 2.0**-26, 0.0),
        ("fp8-e4m3", 17.0, 16.0),
        ("fp8-e4m3", 448.0, 448.0),
        ("fp8-e5m2", 57344.0, 57344.0),
    )
    wrong = [value for name, value, kept in by_hand if float(rounded(np.array([value]), name)[0]) != kept]
    sizes = [mixed_precision_comparison(num_params=num_params) for num_params in SEED_SIZES]
    whole = [zero_model_state_bytes(num_params=num_params) for num_params in SEED_SIZES]
    return (
        Check(what="casts that differ from rounding by hand, of 8", difference=len(wrong), limit=0),
        Check(
            what="states with the master copy against the ZeRO paper's 16 bytes a parameter",
            difference=max(
                abs(one.mixed_with_master_bytes / paper - 1) for one, paper in zip(sizes, whole, strict=True)
            ),
            limit=0,
        ),
    )


def _claims(gradients: Floats) -> tuple[Claim, ...]:
    seven = mixed_precision_comparison(num_params=7e9)
    bits = {name: number_format(name) for name in FORMAT_NAMES}
    lesson = "scaling lesson, mixed precision"
    return (
        Claim(
            says="exponent and mantissa bits of bf16, fp16 and fp32's mantissa",
            source=lesson,
            said="8/7, 5/10, 23",
            computed=f"{bits['bf16'].num_exponent_bits}/{bits['bf16'].num_mantissa_bits}, "
            f"{bits['fp16'].num_exponent_bits}/{bits['fp16'].num_mantissa_bits}, {bits['fp32'].num_mantissa_bits}",
            verdict="right",
        ),
        Claim(
            says="bf16 rarely needs loss scaling, fp16 does: gradients around 1e-7 that vanish",
            source=lesson,
            said="rarely",
            computed=f"{vanished_fraction(gradients, 'bf16'):.1%} in bf16, {vanished_fraction(gradients, 'fp16'):.1%} "
            "in fp16",
            verdict="right",
        ),
        Claim(
            says="7B in fp32 takes 112 GB of states",
            source=lesson,
            said=112e9,
            computed=seven.fp32_bytes,
            unit="decimal_bytes",
            verdict="right",
        ),
        Claim(
            says='7B in "BF16 + FP32 master" takes 84 GB',
            source=lesson,
            said=84e9,
            computed=seven.mixed_with_master_bytes,
            unit="decimal_bytes",
            verdict="wrong",
            note="84 GB is 2 + 2 + 8 bytes and has no master copy; with the 4 bytes that the row names it is 112 GB",
        ),
        Claim(
            says="mixed precision saves 25% of the memory",
            source=lesson,
            said=seven.saved_fraction,
            computed=1 - seven.mixed_with_master_bytes / seven.fp32_bytes,
            unit="fraction",
            verdict="loose",
            note="25% without a master copy, as when bf16 weights are updated with stochastic rounding; with it the "
            "states are as large as in fp32",
        ),
    )


def _loss_picture(runs: tuple[_Run, ...]) -> CurvePicture:
    return CurvePicture(
        title="Loss over the first loss",
        x=Column(name="step", unit="count"),
        y=Column(name="loss", unit="number"),
        curves=tuple(
            Curve(name=run.name, points=tuple((float(step.index), step.loss_ratio) for step in run.steps))
            for run in runs
        ),
        is_y_log=True,
    )


def _scale_picture(run: _Run) -> CurvePicture:
    return CurvePicture(
        title="Dynamic loss scale: halved at every overflow, doubled after 8 good steps",
        x=Column(name="step", unit="count"),
        y=Column(name="scale", unit="number"),
        curves=(Curve(name=run.name, points=tuple((float(step.index), step.scale_ratio) for step in run.steps)),),
        is_y_log=True,
        note="torch.amp.GradScaler begins at 65,536 and waits 2,000 steps; this one begins too large on purpose",
    )
