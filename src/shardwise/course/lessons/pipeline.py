"""Pipeline schedules drawn and counted: makespan, bubble by both denominators, micro-batches in flight."""

from collections.abc import Iterator

from shardwise.claims import Claim
from shardwise.course.formulas import pipeline_bubbles, pipeline_in_flight
from shardwise.course.lesson import Check, GanttBar, GanttLane, GanttPicture, Lesson, LessonTable, Setting
from shardwise.course.lessons.pipeline_numbers import train_through
from shardwise.course.lessons.pipeline_walk import schedule_steps
from shardwise.course.lessons.request import LessonRequest, checked
from shardwise.course.pipeline_lanes import RankLane, pipeline_lanes
from shardwise.errors import ShardwiseError, SimulationError
from shardwise.schedules.kept_by_order import peak_in_flight
from shardwise.schedules.make import make_schedule, settled
from shardwise.schedules.shape import ScheduleShape
from shardwise.schedules.table import SCHEDULE_KINDS, ScheduleName
from shardwise.simulate.pipeline import bubble_over_ideal, idle_fraction, run_pipeline
from shardwise.simulate.pipeline_times import ChunkTimes, PipelineTimes, even_chunks

OPTIONS = ("pp", "vpp", "num_microbatches", "schedule")
MOST_STAGES = 64
MOST_MICROBATCHES = 512
MOST_CHUNKS = 8
STAGE = ChunkTimes(forward_s=2.0, input_backward_s=2.0, weight_backward_s=2.0)
"""Times of a whole stage, in units: forward, input gradient and weight gradient take equally long."""
MOST_PASSES_DRAWN = 4000
"""Larger steps draw one schedule only."""
MOST_PASSES_WALKED = 600
ROUNDING = 1e-9
SEED_MICROBATCHES = (1, 4, 8, 16, 32)
SEED_LAYERS, SEED_STAGES = 32, 4


def make_lesson(request: LessonRequest) -> Lesson:
    """Time every schedule that these numbers allow, and draw them."""
    pp = checked("pp", request.pp, default=4, low=1, high=MOST_STAGES)
    vpp = checked("vpp", request.vpp, default=2, low=1, high=MOST_CHUNKS)
    m = checked("num_microbatches", request.num_microbatches, default=8, low=1, high=MOST_MICROBATCHES)
    shapes, refused = _shapes(pp=pp, vpp=vpp, num_microbatches=m)
    chosen = _chosen(request.schedule or "1f1b", shapes, refused)
    lanes_of = {shape.name: pipeline_lanes(shape, stage_times(shape)) for shape in _drawn(shapes, chosen)}
    trained = train_through(shapes)
    return Lesson(
        name="pipeline",
        title=f"Pipeline schedules: {pp} stages, {m} micro-batches",
        what="A simulation: every rank runs the passes of its schedule in order, each as soon as its input is there. "
        "Forward, input gradient and weight gradient of a stage take 2 units each, sends take none; bubbles are where "
        "a rank has nothing to run, and a micro-batch is in flight from the start of its forward to the end of its "
        "weight gradient.",
        settings=(
            Setting(name="pp", value=pp, unit="count", meaning="stages"),
            Setting(name="vpp", value=vpp, unit="count", meaning="chunks a rank of interleaved schedules"),
            Setting(name="num-microbatches", value=m, unit="count"),
            Setting(name="schedule", value=chosen.name, meaning="the one to walk through"),
        ),
        tables=(_schedule_table(shapes), _seed_table(), *trained.tables),
        steps=schedule_steps(chosen, lanes_of[chosen.name]) if _num_passes(chosen) <= MOST_PASSES_WALKED else (),
        checks=(*_checks(shapes, lanes_of), *trained.checks),
        claims=_claims(),
        pictures=tuple(_picture(shape, lanes_of[shape.name]) for shape in _drawn(shapes, chosen)),
        notes=(*refused, *trained.notes),
    )


def stage_times(shape: ScheduleShape) -> PipelineTimes:
    """Equal chunks that add up to a stage of 2 + 2 + 2 units for every micro-batch."""
    schedule = make_schedule(shape)
    share = 1 / schedule.chunks_per_rank
    chunk = ChunkTimes(
        forward_s=share * STAGE.forward_s,
        input_backward_s=share * STAGE.input_backward_s,
        weight_backward_s=share * STAGE.weight_backward_s,
    )
    return PipelineTimes(chunks=even_chunks(num_chunks=schedule.num_chunks, chunk=chunk))


def _shapes(*, pp: int, vpp: int, num_microbatches: int) -> tuple[tuple[ScheduleShape, ...], tuple[str, ...]]:
    """The schedules that can be written for these numbers, and why the others cannot."""
    shapes, refused = [], []
    for name in SCHEDULE_KINDS:
        asked = ScheduleShape(name=name, pp=pp, vpp=1 if name == "zb-h1" else vpp, num_microbatches=num_microbatches)
        try:
            shapes.append(settled(asked))
        except ShardwiseError as error:
            refused.append(f"{name} is left out: {error.message}; {error.fix}.")
    return tuple(shapes), tuple(refused)


def _chosen(name: str, shapes: tuple[ScheduleShape, ...], refused: tuple[str, ...]) -> ScheduleShape:
    found = next((shape for shape in shapes if shape.name == name), None)
    if found is not None:
        return found
    reason = next((one for one in refused if one.startswith(f"{name} ")), f"there is no schedule {name}")
    raise SimulationError(
        f"{name} cannot be simulated with these numbers: {reason.rstrip('.')}",
        code="simulate-size",
        fix="use --num-microbatches of at least twice --pp",
    )


def _num_passes(shape: ScheduleShape) -> int:
    return 2 * shape.pp * shape.vpp * shape.num_microbatches


def _drawn(shapes: tuple[ScheduleShape, ...], chosen: ScheduleShape) -> tuple[ScheduleShape, ...]:
    """All schedules, or the chosen one where all would be too much."""
    return shapes if max(map(_num_passes, shapes)) <= MOST_PASSES_DRAWN else (chosen,)


def _schedule_table(shapes: tuple[ScheduleShape, ...]) -> LessonTable:
    rows = []
    for shape in shapes:
        run = run_pipeline(shape, stage_times(shape))
        peaks = peak_in_flight(shape)
        rows.append(
            (
                shape.name,
                shape.vpp,
                run.makespan_s,
                bubble_over_ideal(run),
                idle_fraction(run),
                max(peak.kept_micro_batches_ratio for peak in peaks),
                peaks[-1].kept_micro_batches_ratio,
            )
        )
    return LessonTable(
        title="Every schedule with the same work",
        head=(
            "schedule | chunks: count | time: time_units | over ideal: fraction | idle share: fraction | "
            "in flight: number | last rank: number"
        ),
        rows=tuple(rows),
        note="over ideal: idle time over the time without a bubble; idle share: over the time of the step. In flight: "
        "the most micro-batches any rank keeps, and the last rank",
    )


def _seed_table() -> LessonTable:
    """The pipeline program of the scaling lesson, run by this simulator: a backward as long as a forward."""
    rows = []
    for m in SEED_MICROBATCHES:
        run = run_pipeline(ScheduleShape(name="gpipe", pp=SEED_STAGES, num_microbatches=m), _seed_times())
        rows.append((m, run.makespan_s, idle_fraction(run), bubble_over_ideal(run)))
    return LessonTable(
        title=f"GPipe with {SEED_LAYERS} layers on {SEED_STAGES} stages, as the scaling lesson runs it",
        head="micro-batches: count | total time: time_units | idle share: fraction | over ideal: fraction",
        rows=tuple(rows),
        note="a layer takes one unit forward and one backward; a real backward takes two",
    )


def _seed_times() -> PipelineTimes:
    layers = float(SEED_LAYERS // SEED_STAGES)
    chunk = ChunkTimes(forward_s=layers, input_backward_s=layers)
    return PipelineTimes(chunks=even_chunks(num_chunks=SEED_STAGES, chunk=chunk))


def _checks(shapes: tuple[ScheduleShape, ...], lanes_of: dict[ScheduleName, tuple[RankLane, ...]]) -> Iterator[Check]:
    for shape in shapes:
        run = run_pipeline(shape, stage_times(shape))
        expected_s = closed_form_idle_s(shape)
        if expected_s is not None:
            yield Check(
                what=f"{shape.name}: idle time of a rank against the closed form",
                difference=max(abs(run.idle_s(rank) - expected_s) for rank in range(shape.pp)),
                limit=ROUNDING,
            )
        expected_held = closed_form_in_flight(shape)
        if expected_held is not None:
            peak = peak_in_flight(shape)[0].kept_micro_batches_ratio
            yield Check(
                what=f"{shape.name}: in flight on the first rank against the closed form",
                difference=abs(peak - expected_held),
                limit=ROUNDING,
            )
        if shape.name in lanes_of:
            lanes = lanes_of[shape.name]
            yield Check(
                what=f"{shape.name}: drawn bubbles and held work against the order's own count",
                difference=max(
                    abs(lane.idle_s - run.idle_s(lane.rank)) + abs(lane.max_held_ratio - peak.kept_micro_batches_ratio)
                    for lane, peak in zip(lanes, peak_in_flight(shape), strict=True)
                ),
                limit=ROUNDING,
            )


def closed_form_idle_s(shape: ScheduleShape) -> float | None:
    """Idle time of each rank by the papers; ``None`` where they give none for these numbers."""
    whole_s = {"pp": shape.pp, "forward_s": STAGE.forward_s, "backward_s": STAGE.backward_s}
    if shape.name in ("gpipe", "1f1b"):
        return pipeline_bubbles.one_f_one_b_idle_s(**whole_s)  # type: ignore[arg-type]
    if shape.name == "interleaved" and shape.num_microbatches % shape.pp == 0:
        return pipeline_bubbles.interleaved_idle_s(vpp=shape.vpp, **whole_s)  # type: ignore[arg-type]
    if shape.name == "zb-h1" and shape.vpp == 1 and shape.num_microbatches >= shape.pp:
        return pipeline_bubbles.zb_h1_idle_s(
            pp=shape.pp,
            forward_s=STAGE.forward_s,
            input_backward_s=STAGE.input_backward_s,
            weight_backward_s=STAGE.weight_backward_s,
        )
    if shape.name == "dualpipe":
        return pipeline_bubbles.dualpipe_idle_s(
            pp=shape.pp,
            forward_backward_s=STAGE.total_s,
            backward_s=STAGE.backward_s,
            weight_backward_s=STAGE.weight_backward_s,
        )
    return None


def closed_form_in_flight(shape: ScheduleShape) -> float | None:
    """Micro-batches that the first rank keeps by the papers; ``None`` where they give none for these numbers."""
    m, pp = shape.num_microbatches, shape.pp
    if shape.name == "gpipe":
        return pipeline_in_flight.gpipe_in_flight(num_microbatches=m)
    if shape.name == "1f1b":
        return pipeline_in_flight.one_f_one_b_in_flight(pp=pp, stage=0, num_microbatches=m)
    if shape.name == "interleaved" and shape.vpp > 1 and m % pp == 0 and m >= 2 * pp:
        return pipeline_in_flight.interleaved_in_flight(pp=pp, vpp=shape.vpp)
    if shape.name == "zb-h1" and shape.vpp == 1:
        return pipeline_in_flight.zb_h1_in_flight(pp=pp, num_microbatches=m)
    if shape.name == "zb-h2":
        return pipeline_in_flight.zb_h2_in_flight(pp=pp, num_microbatches=m)
    return None


def _picture(shape: ScheduleShape, lanes: tuple[RankLane, ...]) -> GanttPicture:
    chunks = "" if shape.vpp == 1 else f", {shape.vpp} chunks a rank"
    return GanttPicture(
        title=f"{shape.name}{chunks}",
        unit="time_units",
        lanes=tuple(
            GanttLane(
                name=f"rank {lane.rank}",
                bars=(
                    *(
                        GanttBar(kind=span.name, start=span.start_s, end=span.end_s, label=str(span.micro_batch))
                        for span in lane.spans
                    ),
                    *(GanttBar(kind="bubble", start=start, end=end) for start, end in lane.gaps),
                ),
                held=lane.held,
            )
            for lane in lanes
        ),
        held_name="micro-batches in flight",
        numbered=f"micro-batch{', once a chunk' if shape.vpp > 1 else ''}",
    )


def _claims() -> tuple[Claim, ...]:
    gpipe = [run_pipeline(ScheduleShape(name="gpipe", pp=4, num_microbatches=m), _seed_times()) for m in (1, 8, 16)]
    one = run_pipeline(ScheduleShape(name="1f1b", pp=4, num_microbatches=8), _seed_times())
    eight = ScheduleShape(name="1f1b", pp=8, num_microbatches=64)
    return (
        Claim(
            says="with 4 stages and one micro-batch three of four GPUs are idle",
            source="scaling lesson, step 3",
            said=3 / 4,
            computed=idle_fraction(gpipe[0]),
            unit="fraction",
            verdict="right",
        ),
        Claim(
            says="16 micro-batches on 4 stages leave (N - 1) / M of idle time",
            source="scaling lesson, pipeline parallelism",
            said=(4 - 1) / 16,
            computed=idle_fraction(gpipe[2]),
            unit="fraction",
            verdict="loose",
            note="(N - 1) / M is idle time over the ideal time; of the time of the step it is (N - 1) / (M + N - 1), "
            "which is what the lesson's own program prints",
        ),
        Claim(
            says="1F1B has the bubble of the naive schedule: 4 stages, 8 micro-batches",
            source="scaling lesson, exercise 2",
            said=idle_fraction(gpipe[1]),
            computed=idle_fraction(one),
            unit="fraction",
            verdict="right",
            note="what it saves is memory, not time",
        ),
        Claim(
            says="1F1B needs less memory than GPipe: micro-batches in flight of 8, 4 stages",
            source="scaling lesson, exercise 2",
            said="less",
            computed=f"{_first_peak('1f1b'):g} instead of {_first_peak('gpipe'):g} on the first rank",
            verdict="right",
        ),
        Claim(
            says="pipeline parallelism reduces activation memory",
            source="architectures page, pipeline parallelism",
            said="reduces",
            computed=f"{peak_in_flight(eight)[0].kept_micro_batches_ratio / eight.pp:g} of a whole model's on the "
            f"first of 8 ranks, {peak_in_flight(eight)[-1].kept_micro_batches_ratio / eight.pp:g} on the last",
            verdict="wrong",
            note="a stage has 1/p of the layers, but the first keeps p micro-batches of them; only later ranks gain",
        ),
    )


def _first_peak(name: ScheduleName) -> float:
    return peak_in_flight(ScheduleShape(name=name, pp=4, num_microbatches=8))[0].kept_micro_batches_ratio
