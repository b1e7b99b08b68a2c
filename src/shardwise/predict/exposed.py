"""Exposed communication: the makespan of a step minus that with free communication, by axis and by unit."""

from collections.abc import Callable, Iterable

from shardwise.plan import Plan
from shardwise.predict.step_parts import step_parts
from shardwise.prediction import ExposedCommunication, ExposedShare
from shardwise.step.inventory import Collective

VERBS = ("all-gather ", "reduce-scatter ", "all-reduce ", "broadcast ", "weights after ")
"""How names of data parallelism begin; what follows is the unit."""
ENDINGS = (" over replicas", " experts", " all_gather", " reduce_scatter", " all_reduce", " all_to_all", " send_recv")


def exposed_communication(plan: Plan) -> ExposedCommunication:
    """Seconds the step of a plan would lose if communication were free, and if only one axis or one unit of it were.

    Free collectives take no time and slow nothing down; the copies around them stay. What several of them hide behind
    each other is exposed by none alone, and a wait that two of them cause goes only with both, so the parts need not
    sum to the whole. A part can be a little below zero, where what followed was hidden better before.
    """
    parts = step_parts(plan)
    calls = tuple(time.collective for stage in parts.times for time in stage.collectives)
    axes = tuple(dict.fromkeys(call.axis for call in calls))
    units = tuple(dict.fromkeys(unit_of(call) for call in calls))

    def lost_s(is_free: Callable[[Collective], bool]) -> float:
        return parts.step_s - step_parts(plan, is_free=is_free).step_s

    whole_s = lost_s(lambda _: True) if calls else 0.0
    return ExposedCommunication(
        total_s=whole_s,
        axes=tuple(_shares(axes, whole_s, lambda axis: lost_s(lambda call: call.axis == axis))),
        units=tuple(_shares(units, whole_s, lambda unit: lost_s(lambda call: unit_of(call) == unit))),
    )


def _shares(names: Iterable[str], whole_s: float, lost_s: Callable[[str], float]) -> Iterable[ExposedShare]:
    """Exposed seconds of each name; a single name has all of them."""
    names = tuple(names)
    for name in names:
        yield ExposedShare(name=name, exposed_s=whole_s if len(names) == 1 else lost_s(name))


def unit_of(call: Collective) -> str:
    """Unit of a collective: a run of blocks, the tables, all gradients, or a kind of parallelism inside blocks.

    >>> from shardwise.step.inventory import Collective
    >>> unit_of(Collective(name="all-reduce blocks[0] over replicas", kind="all_reduce", axis="dp_replicate",
    ...     group_size=2, num_bytes=8, count=1, phase="backward", is_overlappable=True))
    'blocks[0]'
    """
    name = call.name
    for verb in VERBS:
        name = name.removeprefix(verb)
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name
