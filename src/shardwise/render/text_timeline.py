"""A predicted step as a few lines: what is drawn, and how busy each stream of the drawn ranks is."""

from shardwise.plan import Plan
from shardwise.predict.timeline import StepTimeline
from shardwise.render.names import calibration_lines, cluster_text, layout_text, model_text
from shardwise.render.timeline_lanes import rank_title, timeline_lanes
from shardwise.units import format_seconds


def timeline_text(*, plan: Plan, timeline: StepTimeline) -> str:
    """The summary that the command prints beside the files it writes."""
    lines = [
        f"{model_text(plan.model)} on {cluster_text(plan.cluster)}",
        layout_text(plan.layout),
        *calibration_lines(plan.cluster),
        "",
        f"Simulated step of {format_seconds(timeline.step_s)}; {len(timeline.ranks)} of {timeline.num_ranks:,} ranks "
        f"drawn with {timeline.num_spans:,} spans",
    ]
    title = ""
    for lane in timeline_lanes(timeline):
        if rank_title(lane.rank) != title:
            title = rank_title(lane.rank)
            lines += ["", title]
        busy = format_seconds(sum(span.duration_s for span in lane.spans))
        lines.append(f"  {lane.stream:<13} {busy:>10} busy in {len(lane.spans):,} spans")
    lines += ["", *(f"note: {note}" for note in timeline.notes)]
    return "\n".join(lines)
