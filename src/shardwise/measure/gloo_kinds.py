"""What gloo was asked for: its own ranges name the algorithm, torch's operators the collective.

Gloo carries a reduce-scatter out as an all-reduce and says so. Its thread takes requests in the order in which they
were made, so the n-th piece of work answers the n-th operator.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from shardwise.measure.kernel_names import collective_kind
from shardwise.measure.trace_records import CommunicationFacts, RankTrace, Work
from shardwise.step.inventory import CollectiveKind

OPERATOR = re.compile(r"^c10d::(?P<name>[a-z_]+)$")
NOT_QUEUED = frozenset({"monitored_barrier_"})
UNKNOWN = CommunicationFacts(
    kind=None, payload_bytes=None, group_size=None, group_name="", group_description="", group_ranks=()
)


def with_asked_kinds(trace: RankTrace) -> RankTrace:
    """The trace with the kind of each operator on gloo's work; unchanged where they cannot be matched one to one."""
    if trace.has_device:
        return trace
    asked = tuple(_asked(trace))
    answers = [index for index, work in enumerate(trace.works) if work.family == "communication"]
    if len(asked) != len(answers):
        return trace
    works = list(trace.works)
    for index, kind in zip(answers, asked, strict=True):
        works[index] = _stated(works[index], kind)
    return replace(trace, works=tuple(works))


def _asked(trace: RankTrace) -> Iterator[CollectiveKind | None]:
    for mark in trace.marks:
        found = OPERATOR.match(mark.name)
        if found and found["name"] not in NOT_QUEUED:
            yield collective_kind(found["name"])


def _stated(work: Work, kind: CollectiveKind | None) -> Work:
    facts = work.communication or UNKNOWN
    return replace(work, communication=replace(facts, kind=kind))
