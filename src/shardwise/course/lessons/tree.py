"""Other ways to all-reduce than a ring: trees, halving and doubling, nodes first; when each is the fastest."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardwise.claims import Claim
from shardwise.course.collectives.all_to_all import all_to_all
from shardwise.course.collectives.halving_doubling import halving_doubling_all_reduce
from shardwise.course.collectives.hierarchical import hierarchical_all_reduce
from shardwise.course.collectives.moves import CollectiveProgram
from shardwise.course.collectives.ring import ring_all_reduce
from shardwise.course.collectives.timing import LinkBetween, LinkTime, links_of_nodes, one_link, time_collective
from shardwise.course.collectives.tree import binary_tree, double_tree_all_reduce, second_tree, tree_depth
from shardwise.course.collectives.values import contributions, everything, final_state, run_on_values
from shardwise.course.formulas.collective_time import hierarchical_all_reduce_s, ring_all_reduce_s, tree_all_reduce_s
from shardwise.course.formulas.collective_volume import hierarchical_nic_bytes
from shardwise.course.lesson import Check, Column, Curve, CurvePicture, Lesson, LessonStep, LessonTable, Setting
from shardwise.course.lessons.link import Transfer, message_picture, round_messages, step_of_round, transfer_of
from shardwise.course.lessons.request import LessonRequest, checked, checked_seed
from shardwise.units import format_percent

OPTIONS = ("num_ranks", "ranks_per_node", "payload_bytes", "latency_s", "bandwidth_bytes_per_s", "seed")
MOST_RANKS = 64
NODE_STEP_S = 3.4e-6
"""One step of NCCL's Simple protocol over NVLink: NVIDIA/nccl src/graph/tuning.cc."""
NODE_BYTES_PER_S = 450e9
"""NVLink 4 of an H100, one direction."""
PIECE_COUNTS = (1, 4, 16, 64)
"""Pieces per tree that are tried; the fastest is shown."""
PIECES_TO_WALK = 2
PAYLOADS_BYTES = tuple(4.0**power for power in range(5, 18))
LARGE_GROUPS = (8, 64, 512, 4096)
BUCKET_BYTES = 25e6
"""DDP's default bucket: torch.nn.parallel.DistributedDataParallel, bucket_cap_mb."""
TREE_RATE_FRACTION = 0.92 * 0.85
"""Rate of a tree over that of a ring, protocol and pattern: NVIDIA/nccl src/graph/tuning.cc."""
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Algorithms:
    """The programs of one group, built once."""

    ring: CollectiveProgram
    trees: tuple[CollectiveProgram, ...]
    halving: CollectiveProgram | None
    """``None`` unless the number of ranks is a power of two."""
    hierarchical: CollectiveProgram

    def fastest_tree(self, transfer: Transfer) -> CollectiveProgram:
        """The tree cut into the best number of pieces for this payload."""
        return min(self.trees, key=lambda program: _total_s(program, transfer))


def make_lesson(request: LessonRequest) -> Lesson:
    """Run each algorithm on numbers and on a clock."""
    n = checked("num_ranks", request.num_ranks, default=8, low=2, high=MOST_RANKS)
    per_node = checked("ranks_per_node", request.ranks_per_node, default=4 if n % 4 == 0 else n, low=1, high=n)
    transfer, seed = transfer_of(request), checked_seed(request)
    algorithms = _Algorithms(
        ring=ring_all_reduce(num_ranks=n),
        trees=tuple(double_tree_all_reduce(num_ranks=n, pieces_per_tree=count) for count in PIECE_COUNTS),
        halving=halving_doubling_all_reduce(num_ranks=n) if n & (n - 1) == 0 else None,
        hierarchical=hierarchical_all_reduce(num_ranks=n, ranks_per_node=per_node),
    )
    walked = _walked(algorithms)
    return Lesson(
        name="tree",
        title=f"Trees, halving and nodes: all-reduce over {n} ranks, and all-to-all",
        what="A simulation: each algorithm is a list of messages, really added up. A rank sends one message and "
        "receives one at a time, each takes alpha + bytes / beta; trees are cut into the number of pieces that is "
        "fastest, and a port serves pieces in the order in which they are ready.",
        settings=(
            Setting(name="num-ranks", value=n, unit="count"),
            Setting(name="ranks-per-node", value=per_node, unit="count", meaning="of the hierarchical algorithm"),
            *transfer.settings,
        ),
        tables=(
            _algorithm_table(algorithms, transfer, per_node),
            _payload_table(algorithms, transfer),
            _group_table(transfer),
        ),
        steps=tuple(step for program in walked for step in _steps(program, transfer, seed)),
        checks=tuple(_checks(algorithms, transfer, per_node, seed)),
        claims=_claims(transfer),
        pictures=(
            *(
                message_picture(program, title=f"{program.name}: who sends what", payload_bytes=transfer.payload_bytes)
                for program in walked
            ),
            _curves(algorithms, transfer),
        ),
        notes=(_verdict(algorithms, transfer),),
    )


def _walked(algorithms: _Algorithms) -> tuple[CollectiveProgram, ...]:
    n = algorithms.ring.num_ranks
    tree = double_tree_all_reduce(num_ranks=n, pieces_per_tree=PIECES_TO_WALK)
    halving = (algorithms.halving,) if algorithms.halving is not None else ()
    return (tree, *halving, algorithms.hierarchical, all_to_all(num_ranks=n))


def _total_s(program: CollectiveProgram, transfer: Transfer, link_between: LinkBetween | None = None) -> float:
    return time_collective(
        program, payload_bytes=transfer.payload_bytes, link_between=link_between or one_link(transfer.link)
    ).total_s


def _node_links(transfer: Transfer, per_node: int, *, has_latency: bool = True) -> LinkBetween:
    """NVLink inside a node, the lesson's link between nodes."""
    inside = LinkTime(latency_s=NODE_STEP_S if has_latency else 0.0, bandwidth_bytes_per_s=NODE_BYTES_PER_S)
    across = (
        transfer.link
        if has_latency
        else LinkTime(latency_s=0.0, bandwidth_bytes_per_s=transfer.link.bandwidth_bytes_per_s)
    )
    return links_of_nodes(ranks_per_node=per_node, inside=inside, across=across)


def _algorithm_table(algorithms: _Algorithms, transfer: Transfer, per_node: int) -> LessonTable:
    tree, n = algorithms.fastest_tree(transfer), algorithms.ring.num_ranks
    programs = [algorithms.ring, tree, algorithms.halving, algorithms.hierarchical]
    nodes = _node_links(transfer, per_node)
    rows = [
        (
            program.name,
            len(program.rounds),
            max(program.sent_fraction(rank) for rank in range(n)),
            _total_s(program, transfer),
            _total_s(program, transfer, nodes),
        )
        for program in programs
        if program is not None
    ]
    exchange = all_to_all(num_ranks=n)
    whole = Transfer(payload_bytes=transfer.payload_bytes * n, link=transfer.link)
    sent = max(exchange.sent_fraction(rank) for rank in range(n)) * n
    rows.append(
        (exchange.name, len(exchange.rounds), sent, _total_s(exchange, whole), _total_s(exchange, whole, nodes))
    )
    return LessonTable(
        title="What each algorithm does with the payload",
        head=f"algorithm | steps: count | sent / payload: ratio | one link: s | nodes of {per_node}: s",
        rows=tuple(rows),
        note=f"nodes: NVLink 450 GB/s and 3.4 us inside; the tree is cut into {tree.num_pieces // 2} pieces a tree; "
        "all-to-all is another operation: nothing is added",
    )


def _payload_table(algorithms: _Algorithms, transfer: Transfer) -> LessonTable:
    rows: list[tuple[str | float, ...]] = []
    for payload_bytes in PAYLOADS_BYTES:
        times = _times(algorithms, Transfer(payload_bytes=payload_bytes, link=transfer.link))
        rows.append((payload_bytes, *times.values(), min(times, key=lambda name: times[name])))
    names = _times(algorithms, transfer)
    return LessonTable(
        title="By size of the tensor: who is the fastest",
        head=" | ".join(("payload: bytes", *(f"{name}: s" for name in names), "fastest")),
        rows=tuple(rows),
    )


def _times(algorithms: _Algorithms, transfer: Transfer) -> dict[str, float]:
    """Time of each algorithm on one kind of link."""
    times = {
        "ring": _total_s(algorithms.ring, transfer),
        "tree": _total_s(algorithms.fastest_tree(transfer), transfer),
    }
    if algorithms.halving is not None:
        times["halving"] = _total_s(algorithms.halving, transfer)
    return times


def _group_table(transfer: Transfer) -> LessonTable:
    """Larger groups than can be walked, by the closed forms that the checks hold to."""
    rows = []
    for n in LARGE_GROUPS:
        link: dict[str, float] = {
            "group_size": n,
            "step_latency_s": transfer.link.latency_s,
            "bandwidth_bytes_per_s": transfer.link.bandwidth_bytes_per_s,
        }
        for payload_bytes in (BUCKET_BYTES, transfer.payload_bytes):
            ring_s = ring_all_reduce_s(payload_bytes=payload_bytes, **link)  # type: ignore[arg-type]
            tree_s = tree_all_reduce_s(payload_bytes=payload_bytes / TREE_RATE_FRACTION, **link)  # type: ignore[arg-type]
            rows.append((n, payload_bytes, ring_s, tree_s, "ring" if ring_s <= tree_s else "tree"))
    return LessonTable(
        title="By size of the group (closed forms)",
        head="ranks: count | payload: decimal_bytes | ring: s | tree: s | faster",
        rows=tuple(rows),
        note="a ring has 2 (n - 1) latencies, a tree 2 log2(n) and 0.78 of the ring's rate, as NCCL's tuner counts it",
    )


def _steps(program: CollectiveProgram, transfer: Transfer, seed: int) -> Iterator[LessonStep]:
    num_rounds = len(program.rounds)
    if program.is_exchange:
        for number, indices in enumerate(program.rounds, start=1):
            yield LessonStep(
                title=f"{program.name}, step {number} of {num_rounds}",
                messages=round_messages(program, indices, transfer.payload_bytes * program.num_ranks),
            )
        return
    numbers = contributions(num_ranks=program.num_ranks, num_pieces=program.num_pieces, size=2, seed=seed)
    for state in run_on_values(program, everything(numbers)):
        yield step_of_round(
            program,
            state,
            title=f"{program.name}, step {state.round_index + 1} of {num_rounds}",
            payload_bytes=transfer.payload_bytes,
        )


def _checks(algorithms: _Algorithms, transfer: Transfer, per_node: int, seed: int) -> Iterator[Check]:
    n = algorithms.ring.num_ranks
    for program in (algorithms.trees[1], algorithms.halving, algorithms.hierarchical):
        if program is not None:
            yield Check(
                what=f"{program.name}: every rank against the sum", difference=_largest_error(program, seed), limit=0
            )
    yield Check(what="all-to-all: pieces that are not with their receiver", difference=_misplaced(n), limit=0)
    inside_both = len(set(binary_tree(n).values()) & set(second_tree(n).values()))
    yield Check(what="ranks that have children in both trees", difference=inside_both, limit=1 if n % 2 else 0)
    if algorithms.halving is not None:
        best_s = tree_all_reduce_s(
            payload_bytes=transfer.payload_bytes,
            group_size=n,
            step_latency_s=transfer.link.latency_s,
            bandwidth_bytes_per_s=transfer.link.bandwidth_bytes_per_s,
        )
        yield Check(
            what="halving-doubling: time against 2 log2(n) alpha + 2 (n - 1) / n S / beta",
            difference=abs(_total_s(algorithms.halving, transfer) / best_s - 1),
            limit=ROUNDING,
        )
    yield from _hierarchical_checks(algorithms.hierarchical, transfer, per_node)


def _largest_error(program: CollectiveProgram, seed: int) -> float:
    numbers = contributions(num_ranks=program.num_ranks, num_pieces=program.num_pieces, size=3, seed=seed)
    held, total = final_state(program, everything(numbers)).held, numbers.sum(axis=0)
    return max(float(np.abs(number - total[piece]).max()) for (_, piece), number in held.items())


def _misplaced(n: int) -> int:
    """Pieces of an all-to-all whose receiver does not end with the sender's numbers."""
    program = all_to_all(num_ranks=n)
    numbers = contributions(num_ranks=n, num_pieces=n, size=1, seed=0)
    start = {(rank, rank * n + other): numbers[rank, other] for rank in range(n) for other in range(n)}
    held = final_state(program, start).held
    return sum(
        (other, rank * n + other) not in held or bool((held[other, rank * n + other] != numbers[rank, other]).any())
        for rank in range(n)
        for other in range(n)
    )


def _hierarchical_checks(program: CollectiveProgram, transfer: Transfer, per_node: int) -> Iterator[Check]:
    num_nodes = program.num_ranks // per_node
    piece_bytes = transfer.payload_bytes / program.num_pieces
    crossing = sum(
        piece_bytes * len(one.pieces)
        for one in program.messages
        if one.sender == 0 and one.sender // per_node != one.receiver // per_node
    )
    formula = hierarchical_nic_bytes(payload_bytes=transfer.payload_bytes, num_nodes=num_nodes, gpus_per_node=per_node)
    yield Check(
        what="hierarchical: bytes of a rank between nodes against 2 (k - 1) / k S / g",
        difference=abs(crossing - formula) / transfer.payload_bytes,
        limit=ROUNDING,
    )
    total_s = hierarchical_all_reduce_s(
        payload_bytes=transfer.payload_bytes,
        num_nodes=num_nodes,
        gpus_per_node=per_node,
        node_bandwidth_bytes_per_s=NODE_BYTES_PER_S,
        nic_bandwidth_bytes_per_s=transfer.link.bandwidth_bytes_per_s,
        overlaps_levels=False,
    )
    simulated_s = _total_s(program, transfer, _node_links(transfer, per_node, has_latency=False))
    yield Check(
        what="hierarchical: time without latency against the sum of its levels",
        difference=abs(simulated_s / total_s - 1),
        limit=ROUNDING,
    )


def _claims(transfer: Transfer) -> tuple[Claim, ...]:
    shares = []
    for payload_bytes, n in ((transfer.payload_bytes, 8), (BUCKET_BYTES, 1024)):
        latency_s = 2 * (n - 1) * transfer.link.latency_s
        total_s = ring_all_reduce_s(
            payload_bytes=payload_bytes,
            group_size=n,
            step_latency_s=transfer.link.latency_s,
            bandwidth_bytes_per_s=transfer.link.bandwidth_bytes_per_s,
        )
        shares.append(latency_s / total_s)
    return (
        Claim(
            says="bandwidth, not latency, matters most for a ring all-reduce",
            source="distributed training page, rung 10",
            said="bandwidth",
            computed=f"latency is {format_percent(shares[0])} of the payload over 8 ranks, "
            f"{format_percent(shares[1])} of a 25 MB bucket over 1,024",
            verdict="loose",
            note="true for large tensors and short rings; with many ranks or small buckets the 2 (n - 1) latencies "
            "win, which is what trees, hierarchical rings and HSDP are for",
        ),
    )


def _curves(algorithms: _Algorithms, transfer: Transfer) -> CurvePicture:
    points: dict[str, list[tuple[float, float]]] = {}
    for payload_bytes in PAYLOADS_BYTES:
        times = _times(algorithms, Transfer(payload_bytes=payload_bytes, link=transfer.link))
        for name, total_s in times.items():
            points.setdefault(name, []).append((payload_bytes, total_s))
    return CurvePicture(
        title=f"Time of an all-reduce over {algorithms.ring.num_ranks} ranks",
        x=Column(name="payload", unit="decimal_bytes"),
        y=Column(name="time", unit="s"),
        curves=tuple(Curve(name=name, points=tuple(found)) for name, found in points.items()),
        is_x_log=True,
        is_y_log=True,
    )


def _verdict(algorithms: _Algorithms, transfer: Transfer) -> str:
    """The payload from which on the ring beats the tree in this sweep, in a sentence."""
    n = algorithms.ring.num_ranks
    depth = tree_depth(binary_tree(n))
    first = next(
        (
            payload_bytes
            for payload_bytes in PAYLOADS_BYTES
            if (times := _times(algorithms, Transfer(payload_bytes=payload_bytes, link=transfer.link)))["ring"]
            < times["tree"]
        ),
        None,
    )
    where = "at no size of the sweep" if first is None else f"from {first / 2**20:g} MiB on"
    return (
        f"The ring beats the tree {where}: the tree is {depth} levels deep instead of {n - 1} steps long, but each "
        "inner rank receives from two children, and filling the pipeline takes pieces that each cost a latency. NCCL "
        "decides the same way, by size and number of nodes (src/graph/tuning.cc)."
    )
