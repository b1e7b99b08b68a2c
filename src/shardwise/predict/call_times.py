"""Seconds of every collective call of a plan, each distinct call computed once."""

from shardwise.cluster import Cluster
from shardwise.engines.table import engine_profile
from shardwise.plan import Plan
from shardwise.predict.block_tasks import TimedCall
from shardwise.predict.communication import TunedCall, collective_call, collective_time_s
from shardwise.predict.concurrency import slowdown_beside_exchange, slowdown_ratio
from shardwise.predict.group_placement import GroupPlacement, place_group
from shardwise.step.inventory import Collective, ExpertChoice
from shardwise.units import Seconds

CallSizes = tuple[str, str, int, int, int, ExpertChoice | None]


class CallTimes:
    """Times of the calls of one cluster and engine, which outlive the plan that asks first."""

    def __init__(self, plan: Plan) -> None:
        self._cluster: Cluster = plan.cluster
        self._has_in_switch_reduction = engine_profile(plan.engine).has_in_switch_reduction
        self._placements: dict[tuple[int, int, bool], GroupPlacement] = {}
        self._seconds: dict[CallSizes, Seconds] = {}

    def timed(self, call: Collective) -> TimedCall:
        """The call with its seconds, and how much it and computation slow each other down."""
        return TimedCall(collective=call, call_s=self.seconds(call), slowdown_ratio=self.slowdown_ratio(call))

    def seconds(self, call: Collective) -> Seconds:
        """Seconds of one call when nothing else uses the links."""
        key = (call.kind, call.axis, call.num_bytes, call.group_size, call.stride, call.sent_once)
        found = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = collective_time_s(call, placement=self._placement(call))
        return found

    def slowdown_ratio(self, call: Collective) -> float:
        """How much the call and computation beside it slow each other down."""
        placement = self._placement(call)
        if call.sent_once is not None and placement.num_hosts > 1:
            return slowdown_beside_exchange(self._cluster.gpu)
        return slowdown_ratio(placement)

    def tuned(self, call: Collective) -> TunedCall:
        """The algorithm and protocol that NCCL chooses for the call, and what limits it."""
        return collective_call(call, placement=self._placement(call))

    def _placement(self, call: Collective) -> GroupPlacement:
        """Where the call's ranks lie; of neighbours in a pipeline, some lie on both sides of a host's end."""
        is_chain = call.kind == "send_recv" and call.axis == "pp"
        key = (call.group_size, call.stride, is_chain)
        found = self._placements.get(key)
        if found is None:
            found = self._placements[key] = place_group(
                cluster=self._cluster,
                size=call.group_size,
                stride=call.stride,
                has_in_switch_reduction=self._has_in_switch_reduction,
                is_chain=is_chain,
            )
        return found
