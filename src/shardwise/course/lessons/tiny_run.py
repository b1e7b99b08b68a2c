"""Tiny models trained on simulated ranks: the plan, both runs, and the tables that all such lessons share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from shardwise.catalog import load_node
from shardwise.cluster import Cluster
from shardwise.course.lesson import Check, LessonStep, LessonTable, Message, MessagePicture, MessageRound
from shardwise.course.lessons.request import checked, option_text
from shardwise.course.numerics.against_inventory import differences, held_rows, traffic_rows
from shardwise.course.numerics.batch import Batch, random_batch
from shardwise.course.numerics.reenact import Options, Reenactment, gradient_error, one_device, reenact, weight_error
from shardwise.course.numerics.tiny_model import initial_weights, weights_of
from shardwise.course.numerics.world import Event
from shardwise.course.numerics.world import Message as Exchanged
from shardwise.engines.table import EngineName
from shardwise.errors import SimulationError
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.recipe import Recipe

NODE = "dgx-h100"
"""Where the simulated ranks are said to be; nothing that is computed depends on it."""
EXACT = 1e-12
"""The relative difference to one device in fp64: sums of some hundred terms in another order."""
ROUNDING = 2e-5
"""The relative difference in fp32, where one rounding is 2**-24."""
UNEVEN = 1e-3
"""Where ranks do not divide weights evenly, the inventory rounds every unit up, and engines the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyRun:
    """One plan, re-enacted in fp64 beside one device, and in fp32 to count bytes as the plan says."""

    found: Reenactment
    expected: Reenactment
    counted: Reenactment
    """One step."""
    first_step: Reenactment
    """The step that one device takes, in fp64."""

    @property
    def checks(self) -> tuple[Check, ...]:
        """Equal to one device, and to the inventory."""
        name, count = layout_text(self.counted.plan.layout), len(self.found.losses)
        steps = "a step" if count == 1 else f"{count} steps"
        return (
            Check(
                what=f"{name}: gradients against one device, fp64",
                difference=gradient_error(self.found, self.expected),
                limit=EXACT,
            ),
            Check(
                what=f"{name}: weights after {steps} against one device, fp64",
                difference=weight_error(self.found, self.expected),
                limit=EXACT,
            ),
            Check(
                what=f"{name}: gradients in fp32 against one device in fp64",
                difference=gradient_error(self.counted, self.first_step),
                limit=ROUNDING,
            ),
            Check(
                what=f"{name}: bytes that the inventory predicts otherwise, over what a rank holds",
                difference=sum(map(abs, differences(self.counted))) / sum(self.counted.ranks[0].held.peak.values()),
                limit=0.0 if is_even(self.counted.plan) else UNEVEN,
            ),
        )


def is_even(plan: Plan) -> bool:
    """Whether the ranks that divide model states divide every weight evenly."""
    return all(weight.num_params % plan.layout.state_shard_size == 0 for _, weight in weights_of(plan.model))


def tiny_plan(
    model: ModelSpec,
    layout: Layout,
    *,
    engine: EngineName = "fsdp2",
    seq_len: int = 16,
    num_microbatches: int = 1,
    micro_batch_size: int = 1,
) -> Plan:
    """A plan in fp32 on one node that is as large as the layout.

    Its attention is the memory-efficient kernel, the only fused one that computes in fp32. Its experts are predicted
    with the tokens of a mean rank, which is what all ranks together hold and send.
    """
    node = replace(load_node(NODE), gpus_per_node=layout.world_size, scale_up_domain_gpus=layout.world_size)
    return Plan(
        model=model,
        cluster=Cluster(node=node, num_nodes=1),
        recipe=Recipe(
            seq_len=seq_len,
            micro_batch_size=micro_batch_size,
            global_batch_size=micro_batch_size * num_microbatches * layout.data_parallel_size,
            precision="fp32",
            attention_kernel="efficient",
            routing_imbalance_ratio=1.0 if layout.ep > 1 else None,
        ),
        layout=layout,
        engine=engine,
    )


def batch_of(plan: Plan, *, seed: int, num_sequences: int | None = None) -> Batch:
    """A random batch of a plan."""
    return random_batch(
        num_sequences=num_sequences or plan.global_batch_size,
        seq_len=plan.recipe.seq_len,
        vocab_size=plan.model.vocab_size,
        seed=seed,
    )


def tiny_run(plan: Plan, *, seed: int, options: Options | None = None, num_steps: int = 1) -> TinyRun:
    """Train a plan's every rank, and one device, on the same batches from the same weights."""
    weights = initial_weights(plan.model, seed=seed)
    batches = [batch_of(plan, seed=seed + step) for step in range(num_steps)]
    single = {key: array.astype("float32") for key, array in weights.items()}
    expected = one_device(plan, weights, batches, options)
    return TinyRun(
        found=reenact(plan, weights, batches, options),
        expected=expected,
        counted=reenact(plan, single, batches[:1], options),
        first_step=expected if num_steps == 1 else one_device(plan, weights, batches[:1], options),
    )


def require_multiple(name: str, value: int, *, of: int, why: str) -> None:
    """Refuse a size that ranks do not divide, with the nearest one that they do.

    Raises:
        SimulationError: it is not a multiple.

    >>> require_multiple("num_experts", 8, of=4, why="each rank holds as many")
    """
    if value % of:
        nearest = max(of, of * round(value / of))
        raise SimulationError(
            f"{option_text(name)} {value} is not a multiple of {of}: {why}",
            code="simulate-size",
            fix=f"use {option_text(name)} {nearest}",
        )


def tiny_width(asked: int | None, *, default: int, heads: int = 4) -> int:
    """A hidden size that the heads divide into even halves, for rotary embeddings.

    Raises:
        SimulationError: it is outside 2 to 64 elements a head, or not a multiple.
    """
    width = checked("hidden_size", asked, default=default, low=2 * heads, high=64 * heads)
    require_multiple("hidden_size", width, of=2 * heads, why=f"{heads} heads of an even number of elements")
    return width


def layout_text(layout: Layout) -> str:
    """The degrees that divide something.

    >>> layout_text(Layout(dp_shard=4, zero_stage=3, tp=2))
    'dp_shard=4 zero_stage=3 tp=2'
    """
    names = ("dp_replicate", "dp_shard", "zero_stage", "tp", "cp", "pp", "vpp", "ep")
    plain = Layout()
    shown = [name for name in names if getattr(layout, name) != getattr(plain, name) or name == "zero_stage"]
    texts = [f"{name}={getattr(layout, name)}" for name in shown if name != "zero_stage" or layout.dp_shard > 1]
    return " ".join([*texts, *(["sequence_parallel"] if layout.sequence_parallel else [])])


def traffic_table(run: Reenactment, *, rank: int = 0, title: str = "") -> LessonTable:
    """Tabulate what one rank exchanges in a step, beside the inventory."""
    rows = [row for row in traffic_rows(run) if row.rank == rank]
    return LessonTable(
        title=title or f"What rank {rank} exchanges in one step",
        head="axis | collective | ranks: count | phase | payload: bytes | sent: bytes | inventory: bytes",
        rows=tuple(
            (
                row.axis,
                row.kind,
                row.group_size,
                row.phase,
                row.payload_bytes,
                row.sent_bytes,
                row.predicted_payload_bytes,
            )
            for row in rows
        ),
        note="the last column is the payload that the inventory predicts",
    )


def held_table(run: Reenactment, *, title: str = "What each rank holds at its worst moment") -> LessonTable:
    """Model states and kept activations of every rank, beside the inventory."""
    rows = held_rows(run)
    components = tuple(dict.fromkeys(row.component for row in rows))
    by_rank: dict[int, list[int | str]] = {}
    for row in rows:
        by_rank.setdefault(row.rank, [str(row.rank)]).append(row.held_bytes)
    first = [row.predicted_bytes for row in rows if row.rank == 0]
    return LessonTable(
        title=title,
        head=" | ".join(("rank", *(f"{component}: bytes" for component in components))),
        rows=(*(tuple(cells) for cells in by_rank.values()), ("inventory", *first)),
        note="the last row is the inventory's worst rank of the first stage" if run.plan.layout.pp > 1 else "",
    )


def walk(run: Reenactment, *, rank: int = 0) -> tuple[LessonStep, ...]:
    """Everything one rank does, with what it holds after each."""
    return tuple(
        LessonStep(
            title=f"{event.phase}: {event.text}",
            text=_event_text(event),
            messages=arrows(event.message) if event.message else (),
            table=LessonTable(
                title=f"held by rank {rank}",
                head="component | bytes: bytes",
                rows=tuple((component, num_bytes) for component, num_bytes in event.held if num_bytes),
            ),
        )
        for event in run.ranks[rank].events
    )


def _event_text(event: Event) -> str:
    message = event.message
    if message is None:
        return ""
    return f"{message.kind} over {message.axis}, ranks {', '.join(map(str, message.members))}"


def arrows(message: Exchanged) -> tuple[Message, ...]:
    """An exchange as messages: round the ring, to one rank, or from everybody to everybody."""
    members = message.members
    if message.kind == "all_to_all":
        share = message.sent_bytes / max(1, len(members) - 1)
        pairs = [(one, other) for one in members for other in members if one != other]
        return tuple(Message(sender=one, receiver=other, num_bytes=share, what=message.name) for one, other in pairs)
    if len(members) == 2 and message.kind == "send_recv" and message.axis == "pp":
        return (Message(sender=members[0], receiver=members[1], num_bytes=message.sent_bytes, what=message.name),)
    following = (*members[1:], members[0])
    adds = message.kind in ("all_reduce", "reduce_scatter")
    return tuple(
        Message(sender=one, receiver=other, num_bytes=message.sent_bytes, what=message.name, adds=adds)
        for one, other in zip(members, following, strict=True)
    )


def exchange_picture(run: Reenactment, *, title: str, rank: int = 0) -> MessagePicture:
    """The exchanges of one rank in the order in which they happen, equal neighbours drawn once with their number."""
    rounds: list[MessageRound] = []
    for message, count in _without_repeats(run.ranks[rank].messages):
        times = f" x {count}" if count > 1 else ""
        rounds.append(MessageRound(title=f"{message.phase}: {message.name}{times}", messages=arrows(message)))
    return MessagePicture(title=title, rank_names=tuple(str(one.number) for one in run.ranks), rounds=tuple(rounds))


def _without_repeats(messages: Sequence[Exchanged]) -> list[tuple[Exchanged, int]]:
    """Each exchange that differs from the one before it, with how often it follows itself."""
    runs = groupby(messages, key=lambda message: (message.name, message.kind, message.phase))
    return [(same[0], len(same)) for same in (tuple(run) for _, run in runs)]
