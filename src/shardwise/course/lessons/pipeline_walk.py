"""A pipeline step walked from moment to moment: what starts, who waits, what each rank holds."""

from shardwise.course.lesson import LessonStep, LessonTable
from shardwise.course.pipeline_lanes import RankLane
from shardwise.schedules.shape import ScheduleShape
from shardwise.simulate.spans import Span

PASS_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "input_backward": "input gradient",
    "weight_backward": "weight gradient",
}


def schedule_steps(shape: ScheduleShape, lanes: tuple[RankLane, ...]) -> tuple[LessonStep, ...]:
    """A step for every moment at which a pass starts."""
    moments = sorted({span.start_s for lane in lanes for span in lane.spans})
    return tuple(_step(shape, lanes, moment) for moment in moments)


def _step(shape: ScheduleShape, lanes: tuple[RankLane, ...], moment: float) -> LessonStep:
    rows = []
    starting = []
    for lane in lanes:
        running = next((span for span in lane.spans if span.start_s <= moment < span.end_s), None)
        held = [amount for since, amount in lane.held if since <= moment]
        doing = "waits" if running is None else _pass_text(running, shape)
        rows.append((str(lane.rank), doing, held[-1] if held else 0.0))
        if running is not None and running.start_s == moment:
            starting.append(f"rank {lane.rank} starts {doing}")
    return LessonStep(
        title=f"{shape.name}, time {moment:g}",
        text="; ".join(starting),
        table=LessonTable(
            title="",
            head="rank | does | in flight: number",
            rows=tuple(rows),
        ),
    )


def _pass_text(span: Span, shape: ScheduleShape) -> str:
    chunk = "" if shape.vpp == 1 else f" through chunk {span.chunk}"
    return f"{PASS_NAMES[span.name]} {span.micro_batch}{chunk}"
