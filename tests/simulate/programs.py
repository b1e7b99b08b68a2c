"""Random programs of tasks for the tests of the engine."""

from hypothesis import strategies as st

from shardwise.simulate.engine import Task

STREAMS = ("compute", "all_gather", "reduce_scatter", "pp")
DURATIONS = st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 0.5])


@st.composite
def programs(draw, *, max_tasks=25, with_cpu=True):
    """Programs whose dependencies point back; some tasks are launched by a CPU, some run on it."""
    tasks = []
    for position in range(draw(st.integers(0, max_tasks))):
        launched = with_cpu and draw(st.booleans())
        on_cpu = with_cpu and not launched and draw(st.integers(0, 9)) == 0
        tasks.append(
            Task(
                name=f"task {position}",
                stream="cpu" if on_cpu else draw(st.sampled_from(STREAMS)),
                duration_s=draw(DURATIONS),
                depends_on=tuple(sorted(draw(st.sets(st.integers(0, position - 1), max_size=3)))) if position else (),
                issued_by="cpu" if launched else None,
                issue_s=draw(st.sampled_from([0.0, 0.25, 1.0])) if launched else 0.0,
            )
        )
    return tuple(tasks)
