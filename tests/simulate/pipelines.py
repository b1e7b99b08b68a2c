"""Small pipelines for the tests of simulation."""

from hypothesis import strategies as st

from shardwise.schedules.shape import ScheduleShape
from shardwise.simulate.pipeline import run_pipeline
from shardwise.simulate.pipeline_times import ChunkTimes, PipelineTimes

V_SHAPED = ("zbv", "dualpipev")
ALL = (
    ("gpipe", 1),
    ("1f1b", 1),
    ("interleaved", 2),
    ("interleaved", 3),
    ("looped-bfs", 2),
    ("zb-h1", 1),
    ("zb-h1", 2),
    ("zb-h2", 1),
    ("zbv", 2),
    ("dualpipev", 2),
)
"""Every schedule with the chunks of a rank."""


def chunk(forward=1.0, input_backward=1.0, weight_backward=1.0, *, parts=1):
    return ChunkTimes(
        forward_s=forward / parts, input_backward_s=input_backward / parts, weight_backward_s=weight_backward / parts
    )


def shape(name, pp, m, vpp=1, **rest):
    return ScheduleShape(name=name, pp=pp, num_microbatches=m, vpp=vpp, **rest)


def even_run(name, *, pp=4, m=16, vpp=1, fbw=(1.0, 1.0, 1.0), **rest):
    """Equal stages whose chunks together take ``fbw`` per micro-batch."""
    times = PipelineTimes(chunks=(chunk(*fbw, parts=vpp),) * (pp * vpp), **rest)
    return run_pipeline(shape(name, pp, m, vpp), times)


@st.composite
def cases(draw, *, max_rounds=6):
    """A shape of any schedule and uneven times for it, with or without sends."""
    name, vpp = draw(st.sampled_from(ALL))
    pp = draw(st.integers(1, 5))
    m = draw(st.integers(1, max_rounds)) * pp + (2 * pp if name == "dualpipev" else 0)
    seconds = st.sampled_from([1.0, 0.5, 2.0, 1.25, 3.0])
    chunks = tuple(chunk(draw(seconds), draw(seconds), draw(seconds)) for _ in range(pp * vpp))
    sends = tuple(draw(st.sampled_from([0.0, 0.25, 1.0])) for _ in chunks[1:]) if draw(st.booleans()) else ()
    times = PipelineTimes(
        chunks=chunks,
        sends_s=sends,
        is_send_blocking=draw(st.booleans()),
        joined_ratio=draw(st.sampled_from([None, 0.75])),
    )
    return shape(name, pp, m, vpp), times
