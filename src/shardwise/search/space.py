"""Which candidates exist: the options of every axis for a model, a cluster and bounds."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from shardwise.engines.engine import ProgramChoice
from shardwise.engines.table import ENGINES, engine_profile
from shardwise.errors import LayoutError
from shardwise.layout import ZeroStage
from shardwise.plan import Plan
from shardwise.recipe import Offload
from shardwise.rules.degrees import divisors
from shardwise.rules.token_batch import MAX_MICRO_BATCH_SIZE
from shardwise.rules.world import leaves_fast_domain
from shardwise.schedules.table import DEFAULT_SCHEDULE, SCHEDULE_KINDS, SCHEDULES, Schedule
from shardwise.search.bounds import IntRange, SearchBounds
from shardwise.search.candidates import (
    OFFLOADS,
    RECOMPUTES,
    Candidates,
    IntColumn,
    Key,
    constant,
    expand,
    option_counts,
)
from shardwise.search.module_ladder import module_ladder
from shardwise.search.no_degrees import DEGREES, no_degrees, range_text
from shardwise.step.native_engine import is_native_engine

__all__ = ["AXES", "DEGREES", "STATE_AXES", "AxisOptions", "Space"]

MAX_VPP = 12
KEEP, SELECTIVE = RECOMPUTES.index("none"), RECOMPUTES.index("selective")
STAYS = 1 << OFFLOADS.index("none")
"""The set of ways to offload in which nothing moves."""


Options = Callable[[Key], Sequence[Key]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisOptions:
    """One step of the enumeration: the columns it sets, and the degrees that decide which options there are."""

    names: tuple[str, ...]
    keys: tuple[str, ...]
    options: Options


AXES = ("ep", "pipeline", "zero_stage", "sequence_parallel", "micro_batch_size")
"""The order of enumeration after the degrees whose product is the world size. Recomputation and offload decorate what
these make, see :attr:`Space.ways_to_recompute`."""
STATE_AXES = ("ep", "pipeline", "zero_stage")
"""The axes that decide the bytes of model states; what they alone make too big is dropped before the others."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """The candidates of a question. ``question`` is a plan whose layout is ignored."""

    question: Plan
    bounds: SearchBounds

    @property
    def offloads(self) -> tuple[Offload, ...]:
        """Modes of offload that are searched: those asked for, or all that the engine offers.

        CPUs compute in the memory of their host, where moving states frees nothing: none unless asked for.
        """
        if self.bounds.offload is not None:
            return self.bounds.offload
        asked, offered = self.question.recipe.offload, ENGINES[self.question.engine].offloads
        if self.question.cluster.runs_on_cpu:
            return (asked,)
        return (asked,) if asked != "none" else tuple(name for name in OFFLOADS if name in offered)

    @property
    def least_offload(self) -> int:
        """The position in ``OFFLOADS`` of the way that moves least of those that are searched."""
        return min(OFFLOADS.index(name) for name in self.offloads)

    @property
    def activation_offloads(self) -> tuple[bool, ...]:
        """Whether saved activations may, or must, move to the host."""
        if self.bounds.activation_offload is not None:
            return (self.bounds.activation_offload,)
        if self.question.recipe.activation_offload:
            return (True,)
        has_copies = ENGINES[self.question.engine].activation_copies != "none"
        moves = has_copies and not self._leaves_out("activation_offload")
        return (False, True) if moves and not self.question.cluster.runs_on_cpu else (False,)

    @property
    def recomputes(self) -> tuple[int, ...]:
        """Positions in ``RECOMPUTES`` that are searched."""
        offered = ENGINES[self.question.engine].recomputes
        names = self.bounds.recompute
        if names is None:
            names = tuple(name for name in RECOMPUTES if name in offered)
        return tuple(RECOMPUTES.index(name) for name in names)

    @property
    def counted_modes(self) -> tuple[int, ...]:
        """Modes of which "recompute k of a stage's blocks" is searched for every k.

        None where the question says how many; engines that recompute by module do that in every block.
        """
        if self._leaves_out("recompute_layers") or self.question.recipe.recompute_layers is not None:
            return ()
        by_module = ENGINES[self.question.engine].recomputes_modules
        return tuple(mode for mode in self.recomputes if mode and not (by_module and mode == SELECTIVE))

    @cached_property
    def module_sets(self) -> tuple[int, ...]:
        """Sets of modules that are searched beside whole blocks, as bits; the first keeps most."""
        if not self.searches_modules:
            return ()
        return module_ladder(self.question, beside_blocks=bool(self.counted_modes))

    @property
    def searches_modules(self) -> bool:
        """Whether selective recomputation means sets of modules of every block, from which the search chooses."""
        recipe, by_module = self.question.recipe, ENGINES[self.question.engine].recomputes_modules
        is_open = recipe.recompute_modules is None and recipe.recompute_layers is None
        return by_module and is_open and {KEEP, SELECTIVE}.issubset(self.recomputes)

    def degrees(self) -> Candidates:
        """Every way to write the world size as dp_replicate * dp_shard * tp * cp * pp, all other columns 1 or 0."""
        found = np.asarray(list(self._degree_tuples()), dtype=np.int64).reshape(-1, 5)
        if not len(found):
            raise no_degrees(self.bounds, self.question.cluster.num_gpus)
        self._require_micro_batch()
        self._require_zero_stage()
        found, offload_choices = self._with_ways_to_offload(found)
        ones, zeros = constant(1, len(found)), constant(0, len(found))
        return Candidates(
            tp=found[:, 0],
            cp=found[:, 1],
            pp=found[:, 2],
            dp_replicate=found[:, 3],
            dp_shard=found[:, 4],
            vpp=ones,
            ep=ones,
            expert_tp=ones,
            zero_stage=zeros,
            schedule=constant(SCHEDULES.index(DEFAULT_SCHEDULE), len(found)),
            reshard_after_forward=ones,
            sequence_parallel=zeros,
            micro_batch_size=ones,
            offload_choices=offload_choices,
            recompute=zeros,
            recompute_layers=constant(self.question.recipe.recompute_layers or 0, len(found)),
            recompute_modules=zeros,
            offload=constant(OFFLOADS.index(self.offloads[0]), len(found)),
            activation_offload=constant(int(self.activation_offloads[0]), len(found)),
        )

    def _with_ways_to_offload(self, found: IntColumn) -> tuple[IntColumn, IntColumn]:
        """Degrees, and the ways to offload that each is searched with, as bits.

        One data-parallel rank divides nothing, so what stays on the device is searched at stage 0. Offload needs higher
        stages: the ways that move something are further rows, which have them.
        """
        ways = sum(1 << OFFLOADS.index(name) for name in self.offloads)
        stays, moves = ways & STAYS, ways & ~STAYS
        is_one_rank = found[:, 1] * found[:, 3] * found[:, 4] == 1
        if not (stays and moves) or self.bounds.zero_stage is not None or not is_one_rank.any():
            return found, constant(ways, len(found))
        split = found[is_one_rank]
        choices = np.where(is_one_rank, stays, ways)
        return np.concatenate([found, split]), np.concatenate([choices, np.full(len(split), moves)])

    @property
    def ways_to_recompute(self) -> tuple[Key, ...]:
        """Modes that every row is estimated with, and of how many blocks: all, or as many as the question says.

        Sets of modules are tried where a row does not fit without.
        """
        layers = self.question.recipe.recompute_layers or 0
        modes = (mode for mode in self.recomputes if not (mode == SELECTIVE and self.searches_modules))
        return tuple((mode, layers if mode else 0) for mode in modes)

    def num_decorations(self, rows: Candidates) -> IntColumn:
        """Recipes each row stands for: recomputation of 0, 1, ... or all blocks of a stage or of modules in every
        block, times ways to offload."""
        counted = len(self.counted_modes)
        once = len(self.recomputes) - counted + self.searches_modules * (len(self.module_sets) - 1)
        ways = once + counted * self.most_layers(rows.pp)
        choices: IntColumn = np.bitwise_count(rows.offload_choices.astype(np.uint64)).astype(np.int64)
        return ways * choices * len(self.activation_offloads)

    def most_layers(self, pp: IntColumn) -> IntColumn:
        """Blocks of a stage of pipelines so deep, rounded up: "k of them" means 1, 2, ... up to that, which is all."""
        if self.bounds.stage_layers is not None:
            return np.full(len(pp), max(self.bounds.stage_layers), dtype=np.int64)
        most: IntColumn = -(-self.question.model.num_hidden_layers // pp)
        return most

    def axis(self, name: str) -> AxisOptions:
        """How one of ``AXES`` is enumerated."""
        return self._axes[name]

    @cached_property
    def _axes(self) -> dict[str, AxisOptions]:
        """The options of every axis; those of a combination of degrees are remembered, since every count asks again."""
        return {
            "sequence_parallel": AxisOptions(
                names=("sequence_parallel",), keys=("tp",), options=cache(self._sequence_parallel_options)
            ),
            "ep": AxisOptions(names=("ep", "expert_tp"), keys=("tp",), options=cache(self._expert_options)),
            "pipeline": AxisOptions(names=("schedule", "vpp"), keys=("pp",), options=cache(self._pipeline_options)),
            "zero_stage": AxisOptions(
                names=("zero_stage", "reshard_after_forward"),
                keys=("dp_replicate", "dp_shard", "cp", "pp", "offload_choices"),
                options=cache(self._zero_options),
            ),
            "micro_batch_size": AxisOptions(
                names=("micro_batch_size",), keys=("dp_replicate", "dp_shard"), options=cache(self._micro_batch_options)
            ),
        }

    def grow(self, rows: Candidates, name: str) -> Candidates:
        """Every row once for each option of an axis."""
        axis = self.axis(name)
        return expand(rows, names=axis.names, keys=axis.keys, options=axis.options)

    def num_descendants(self, rows: Candidates, *, after: str | None) -> IntColumn:
        """Candidates each row stands for, once the axes later than ``after`` are enumerated and decorated."""
        remaining = AXES if after is None else AXES[AXES.index(after) + 1 :]
        product = self.num_decorations(rows)
        for name in remaining:
            axis = self.axis(name)
            product = product * option_counts(rows, keys=axis.keys, options=axis.options)
        return product

    def _degree_tuples(self) -> Iterator[Key]:
        bounds, world = self.bounds, self.question.cluster.num_gpus
        for tp in self._tensor_degrees():
            for cp in _allowed_divisors(world // tp, bounds.cp):
                for pp in self._pipeline_depths(world // (tp * cp)):
                    data = world // (tp * cp * pp)
                    for dp_replicate in self._copies(data, cp):
                        if bounds.dp_shard is None or bounds.dp_shard.allows(data // dp_replicate):
                            yield tp, cp, pp, dp_replicate, data // dp_replicate

    def _leaves_out(self, choice: ProgramChoice) -> bool:
        """Whether only a program of the user's own makes a choice, so that it is not searched unless asked for."""
        return choice in ENGINES[self.question.engine].program_choices

    def _copies(self, data_ranks: int, cp: int) -> Sequence[int]:
        """Copies of the model: where no argument asks for copies of shards, all data ranks or one; shards lie over cp
        as well."""
        found = _allowed_divisors(data_ranks, self.bounds.dp_replicate)
        if self._leaves_out("dp_replicate") and self.bounds.dp_replicate is None:
            return [copies for copies in found if copies == 1 or (copies == data_ranks and cp == 1)]
        return found

    def _tensor_degrees(self) -> list[int]:
        """Degrees of tensor parallelism inside the fast domain; wider ones where the question limits them itself."""
        cluster, asked = self.question.cluster, self.bounds.tp
        found = _allowed_divisors(cluster.num_gpus, asked)
        return found if asked is not None else [tp for tp in found if not leaves_fast_domain(cluster, tp)]

    def _pipeline_depths(self, ranks: int) -> list[int]:
        stages, least = self.bounds.stage_layers, 2 if self.bounds.needs_pipeline else 1
        is_left_out = self._leaves_out("pp") and self.bounds.pp is None and stages is None and least == 1
        depths = [1] if is_left_out else [d for d in _allowed_divisors(ranks, self.bounds.pp) if d >= least]
        return depths if stages is None else [depth for depth in depths if depth == len(stages)]

    def _require_micro_batch(self) -> None:
        batch, limit = self.question.global_batch_size, self.bounds.micro_batch_size
        sizes = divisors(batch)
        if limit is None or any(limit.allows(size) for size in sizes):
            return
        allowed = ", ".join(str(size) for size in sizes[:12])
        raise LayoutError(
            f"micro_batch_size={range_text(limit)} does not divide the global batch of {batch} sequences",
            code="search-bounds",
            fix=f"allow micro-batches that divide {batch}: {allowed}",
        )

    def _require_zero_stage(self) -> None:
        asked, engine = self.bounds.zero_stage, self.question.engine
        offered = ENGINES[engine].zero_stages
        if asked is None or offered.intersection(asked):
            return
        keeps = 2 in asked and 3 in offered
        raise LayoutError(
            f"{engine} has no zero_stage {', '.join(map(str, asked))}, only {', '.join(map(str, sorted(offered)))}",
            code="engine-zero-stage",
            fix="set zero_stage=3 and reshard_after_forward=false" if keeps else f"set zero_stage={max(offered)}",
        )

    def _sequence_parallel_options(self, key: Key) -> Sequence[Key]:
        (tp,) = key
        if tp == 1:
            return ((0,),)
        pinned = self.bounds.sequence_parallel
        if pinned is None and self._leaves_out("sequence_parallel"):
            pinned = False
        return ((1,), (0,)) if pinned is None else ((int(pinned),),)

    def _expert_options(self, key: Key) -> Sequence[Key]:
        """Expert parallelism with tensor parallelism inside each expert: none, or as wide as that of the rest."""
        (tp,) = key
        widths = self._expert_widths(tp)
        return [(ep, width) for (ep,) in self._ep_options() for width in widths]

    def _expert_widths(self, tp: int) -> Sequence[int]:
        limit, moe = self.bounds.expert_tp, self.question.model.moe
        if limit is not None and (limit.pinned is not None or (moe is None and not limit.allows(1))):
            return (limit.low,)
        found = [1] if moe is None or limit is None else divisors(tp)
        if moe is not None and limit is None and tp > 1:
            found = [1, tp]
        return [width for width in found if limit is None or limit.allows(width)]

    def _ep_options(self) -> Sequence[Key]:
        moe, limit = self.question.model.moe, self.bounds.ep
        if moe is None or (limit is None and self._leaves_out("ep")):
            return ((1,),) if limit is None or limit.allows(1) else ((limit.low,),)
        world = self.question.cluster.num_gpus
        found = [degree for degree in divisors(moe.num_experts) if degree <= world]
        return _pinned(found, limit)

    def _pipeline_options(self, key: Key) -> Sequence[Key]:
        (pp,) = key
        if pp == 1:
            return ((SCHEDULES.index(DEFAULT_SCHEDULE), 1),)
        offered = ENGINES[self.question.engine].schedules
        names = self.bounds.schedule or [
            name for name in SCHEDULES if name in offered and SCHEDULE_KINDS[name].is_searched
        ]
        found = [(SCHEDULES.index(name), vpp) for name in names for vpp in self._vpp_options(pp, name)]
        # Chunks that none of these schedules has are left to the rules, which say why.
        return found or [(SCHEDULES.index(name), self.bounds.vpp.low) for name in names if self.bounds.vpp is not None]

    def _vpp_options(self, pp: int, schedule: Schedule) -> Sequence[int]:
        limit = self.bounds.vpp
        kind = SCHEDULE_KINDS[schedule]
        found = [] if kind.least_chunks > 1 else [1]
        if kind.runs_in_rounds:
            layers = self.question.model.num_hidden_layers
            depths = set(
                self.bounds.stage_layers or (layers // pp, -(-layers // pp))
            )  # of a stage; uneven ones count embedding or loss as a layer
            most = max(depths)
            found += [vpp for vpp in range(2, MAX_VPP + 1) if any(depth % vpp == 0 for depth in depths if depth)]
            if limit is not None and limit.values:
                found = list(limit.values)
            elif limit is not None:
                found += [vpp for vpp in range(2, MAX_VPP + 1) if vpp <= most and vpp not in found]
        return [vpp for vpp in sorted(found) if limit is None or limit.allows(vpp)]

    def _zero_options(self, key: Key) -> Sequence[Key]:
        """Stage 0 is spelled with one of dp_replicate and dp_shard only, so that no layout is listed twice.

        Our trainer's pipelines divide all states in every stage above 0 and gather them once a step, so that only the
        highest is listed: it also allows most ways to offload.
        """
        dp_replicate, dp_shard, cp, pp, ways_to_offload = key
        if dp_replicate * dp_shard * cp == 1:
            stages = self._stages_of_one_rank(ways_to_offload)
        else:
            is_plain = dp_replicate == 1 if self.question.model.is_moe else dp_shard == 1
            stages = ([0] if is_plain else []) + ([1, 2, 3] if dp_shard * cp > 1 else [])
        engine = ENGINES[self.question.engine]
        untried = engine.untried_pipeline_stages if pp > 1 else frozenset[ZeroStage]()
        allowed = self.bounds.zero_stage or engine.zero_stages - untried
        stages = [stage for stage in stages if stage in allowed]
        if pp > 1 and is_native_engine(self.question) and dp_shard * cp > 1:
            stages = [stage for stage in stages if stage in (0, max(stages))]
        return [(stage, again) for stage in stages for again in self._gathers_again(stage, pp)]

    def _stages_of_one_rank(self, ways_to_offload: int) -> list[int]:
        """Stages on one rank, which divide nothing.

        They differ in what they allow to offload. FSDP, which is stage 3, also casts weights unit by unit, and so may
        need less memory than the whole model under autocast; our own trainer does not wrap it around one rank.
        """
        if self.bounds.zero_stage is not None or ways_to_offload != STAYS:
            return [0, 1, 2, 3]
        casts_by_unit = engine_profile(self.question.engine).is_torch
        return [0, 3] if casts_by_unit and not is_native_engine(self.question) else [0]

    def _gathers_again(self, zero_stage: int, pp: int) -> Sequence[int]:
        """FSDP2 gathers again for backward or keeps what it gathered; in a pipeline every stage keeps it."""
        if zero_stage < 3 or not ENGINES[self.question.engine].runs_torch_pipelines:
            return (1,)
        pinned = self.bounds.reshard_after_forward
        if pinned is not None:
            return (int(pinned),)
        return (1, 0) if pp == 1 else (0,)

    def _micro_batch_options(self, key: Key) -> Sequence[Key]:
        per_rank, remainder = divmod(self.question.global_batch_size, key[0] * key[1])
        limit = self.bounds.micro_batch_size
        if remainder or not per_rank:
            return ((limit.low if limit is not None else 1,),)
        sizes = [size for size in divisors(per_rank) if size <= MAX_MICRO_BATCH_SIZE]
        # Of each doubling the largest: powers of two where they divide, and what comes next to them where they do not.
        doublings = {size.bit_length(): size for size in sizes if size & (size - 1)}
        powers = {size.bit_length(): size for size in sizes if not size & (size - 1)}
        return _pinned(sorted({**doublings, **powers}.values()), limit)


def _allowed_divisors(number: int, limit: IntRange | None) -> list[int]:
    return [divisor for divisor in divisors(number) if limit is None or limit.allows(divisor)]


def _pinned(found: Sequence[int], limit: IntRange | None) -> Sequence[Key]:
    """The options inside a limit; explicitly listed values are kept even where the enumeration would skip them."""
    if limit is None:
        return [(value,) for value in found]
    explicit = limit.values or ((limit.low,) if limit.pinned is not None else ())
    return [(value,) for value in explicit] or [(value,) for value in found if limit.allows(value)]
