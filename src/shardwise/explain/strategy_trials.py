"""Each way to divide the work, with the best layout a search restricted to it finds, predicted."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from shardwise.engines.table import ENGINES
from shardwise.errors import LayoutError
from shardwise.explain.records import Quantity, QuantityUnit
from shardwise.explain.told import told
from shardwise.layout import Layout, ZeroStage
from shardwise.plan import Plan
from shardwise.predict.memory import predict_memory
from shardwise.prediction import CommunicationEntry, Fit, MemoryPrediction, Prediction
from shardwise.search import IntRange, SearchBounds
from shardwise.search.evaluation import safely_fitting
from shardwise.search.one_pass import find
from shardwise.search.shown import of_all_stages
from shardwise.search.simplicity import short_layout, variant_words
from shardwise.search.space import Space
from shardwise.units import Bytes, Seconds, format_gb

__all__ = [
    "Strategy",
    "StrategyKind",
    "StrategyTrial",
    "pattern_words",
    "settings_words",
    "strategy_name",
    "trial_of",
    "try_strategies",
]

FEW_PREDICTIONS = 6
MAX_KINDS = 4
SMALL_PAYLOAD_FRACTION = 0.001
KEEPS_WEIGHTS = "FSDP that keeps gathered weights"
LONG_SEQ_LEN = 32768
ONE = IntRange(low=1, high=1)
MANY = IntRange(low=2, high=10_000_000)


StrategyKind = Literal["undivided", "zero-1", "zero-2", "fsdp", "fsdp-kept", "hsdp", "tp", "pp", "3d", "cp"]
"""The ways to divide the work that are tried; the names of :class:`Strategy` say them to a reader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way to divide the work, as bounds on a search."""

    kind: StrategyKind
    name: str
    when: str
    """The textbook's criterion, in a sentence."""
    bounds: SearchBounds

    @property
    def divides_model(self) -> bool:
        """Whether ranks hold parts of a layer, of the layers or of a sequence, and not of the states alone."""
        return self.kind in ("tp", "pp", "3d", "cp")


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyTrial:
    """The best layout of one strategy, and what was predicted for it."""

    strategy: Strategy
    plan: Plan | None
    """``None`` when every layout of the strategy breaks a rule."""
    prediction: Prediction | None
    """The prediction of the best layout; ``None`` when no layout fits."""
    memory: MemoryPrediction | None
    """The memory of the best layout, or of the one that comes closest to fitting."""
    refusal: str
    """Why there is no layout at all."""

    @property
    def needed_bytes(self) -> Bytes:
        """Bytes needed per GPU by the layout."""
        return self.memory.needed_bytes if self.memory is not None else 0

    @property
    def fit(self) -> Fit:
        """The verdict by the memory band of the layout."""
        return "does not fit" if self.prediction is None else self.prediction.fit

    def told(self, name: str, field: str, unit: QuantityUnit) -> Quantity:
        """A field of the layout's prediction, or of its memory where it does not fit."""
        predicted = self.prediction if self.prediction is not None else self.memory
        if predicted is None:
            raise LayoutError(self.refusal, code="search-bounds", fix="look at the layouts that keep all rules")
        return told(name, predicted, field, unit, plan=self.plan)

    @property
    def step_s(self) -> Seconds:
        """Step time of the strategy's best layout in seconds; infinite when none fits."""
        return self.prediction.time.step_s if self.prediction is not None else float("inf")


def try_strategies(question: Plan) -> tuple[StrategyTrial, ...]:
    """Each strategy the engine and the cluster allow, with its best layout predicted: the fastest that fits safely."""
    return tuple(_try(strategy, question) for strategy in _strategies(question))


def _strategies(question: Plan) -> Iterator[Strategy]:
    """Data parallelism and its sharded forms first, then those that divide the model."""
    offer, world = ENGINES[question.engine], question.cluster.num_gpus
    plain = replace(_few(question), tp=ONE, cp=ONE, pp=ONE)
    yield Strategy(
        kind="undivided",
        name="data parallel (DDP)" if world > 1 else "one GPU",
        when="while states, activations and logits of the whole model fit one GPU",
        bounds=replace(plain, zero_stage=(0,)),
    )
    if world == 1:
        return
    words = {1: "when the optimizer states are what does not fit", 2: "when gradients do not fit either"}
    if question.recipe.adapter != "none":
        words = {}  # adapters alone have gradients and optimizer states
    for stage, when in words.items():
        if stage in offer.zero_stages:
            stages: tuple[ZeroStage, ...] = (1,) if stage == 1 else (2,)
            kind: StrategyKind = "zero-1" if stage == 1 else "zero-2"
            bounds = replace(plain, zero_stage=stages, dp_replicate=ONE)
            yield Strategy(kind=kind, name=f"ZeRO-{stage}", when=when, bounds=bounds)
    if 3 in offer.zero_stages:
        yield Strategy(
            kind="fsdp",
            name="FSDP / ZeRO-3",
            when="when the parameters themselves do not fit, or their states are the bulk",
            bounds=replace(plain, zero_stage=(3,), reshard_after_forward=True, dp_replicate=ONE),
        )
        yield Strategy(
            kind="fsdp-kept",
            name=KEEPS_WEIGHTS,
            when="when memory is left for all weights, so that the backward pass does not gather them again",
            bounds=replace(plain, zero_stage=(3,), reshard_after_forward=False, dp_replicate=ONE),
        )
        per_node = question.cluster.node.gpus_per_node
        if question.cluster.num_nodes > 1 and per_node > 1:
            inside = IntRange(low=2, high=per_node)
            yield Strategy(
                kind="hsdp",
                name="HSDP (shard in a node, replicate across)",
                when="when gathers across nodes cannot be hidden and a node's GPUs hold all states",
                bounds=replace(plain, zero_stage=(3,), reshard_after_forward=True, dp_replicate=MANY, dp_shard=inside),
            )
    yield from _model_parallel(question)


def _few(question: Plan) -> SearchBounds:
    """A small search that moves to the host only what the question does."""
    recipe = question.recipe
    return SearchBounds(
        offload=(recipe.offload,), activation_offload=recipe.activation_offload, max_predictions=FEW_PREDICTIONS
    )


def _model_parallel(question: Plan) -> Iterator[Strategy]:
    offer, few = ENGINES[question.engine], _few(question)
    if "tp" in offer.axes and question.cluster.node.gpus_per_node > 1:
        yield Strategy(
            kind="tp",
            name="tensor parallel with data parallel",
            when="when one layer's weights, activations or logits are too large, or there are more GPUs than sequences",
            bounds=replace(few, tp=MANY, cp=ONE, pp=ONE),
        )
    if "pp" in offer.axes:
        yield Strategy(
            kind="pp",
            name="pipeline parallel with data parallel",
            when="when the network is slow or states outgrow a node, and there are many micro-batches",
            bounds=replace(few, tp=ONE, cp=ONE, pp=MANY),
        )
    if {"tp", "pp"} <= offer.axes and question.cluster.num_gpus >= 4:
        yield Strategy(
            kind="3d",
            name="tensor, pipeline and data parallel (3D)",
            when="when tensor parallelism inside a node does not make the model small enough",
            bounds=replace(few, tp=MANY, cp=ONE, pp=MANY),
        )
    if "cp" in offer.axes and question.recipe.seq_len >= LONG_SEQ_LEN:
        yield Strategy(
            kind="cp",
            name="context parallel",
            when="when the activations of one sequence are too large for a GPU",
            bounds=replace(few, cp=MANY, pp=ONE),
        )


def _try(strategy: Strategy, question: Plan) -> StrategyTrial:
    found = find(question, strategy.bounds, is_brief=True)
    fitting = found.evaluation.fitting
    if fitting:
        safe = safely_fitting(fitting, Space(question=question, bounds=strategy.bounds))
        best = min(safe or fitting, key=lambda evaluated: evaluated.prediction.time.step_s)
        prediction = of_all_stages(best.plan, best.prediction)
        return StrategyTrial(
            strategy=strategy, plan=best.plan, prediction=prediction, memory=prediction.memory, refusal=""
        )
    nearest = found.evaluation.nearest
    plan = nearest[0] if nearest is not None else found.smallest
    refusal = found.rejected[0].example if found.rejected and plan is None else ""
    memory = predict_memory(plan) if plan is not None else None
    return StrategyTrial(strategy=strategy, plan=plan, prediction=None, memory=memory, refusal=refusal)


def settings_words(plan: Plan) -> str:
    """The degrees, the ZeRO stage and the recipe that distinguish a plan from others of its strategy, as typed."""
    layout = plan.layout
    if layout.world_size == 1:
        return variant_words(plan)
    stage = f" zero_stage={layout.zero_stage}" if layout.state_shard_size > 1 else ""
    kept = " reshard_after_forward=off" if layout.zero_stage == 3 and not layout.reshard_after_forward else ""
    return f"{short_layout(plan)}{stage}{kept}, {variant_words(plan)}"


def strategy_name(layout: Layout) -> str:
    """The strategy of a layout in the words of the field: FSDP that does not reshard is no ZeRO-3."""
    if layout.tp * layout.pp * layout.cp == 1:
        return _data_name(layout)
    words = {"tensor": layout.tp, "pipeline": layout.pp, "context": layout.cp}
    used = [word for word, degree in words.items() if degree > 1]
    joined = used[0] if len(used) == 1 else f"{', '.join(used[:-1])} and {used[-1]}"
    return f"{joined} parallel" + (f" with {_data_name(layout)}" if layout.data_parallel_size > 1 else "")


def _data_name(layout: Layout) -> str:
    if layout.state_shard_size == 1 or layout.zero_stage == 0:
        return "one GPU" if layout.world_size == 1 else "data parallel (DDP)"
    name = {1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP / ZeRO-3"}[layout.zero_stage]
    if layout.zero_stage == 3 and not layout.reshard_after_forward:
        name = KEEPS_WEIGHTS
    return f"HSDP of {name}" if layout.dp_replicate > 1 else name


def trial_of(trials: tuple[StrategyTrial, ...], kind: StrategyKind) -> StrategyTrial | None:
    """The trial of a kind of strategy; ``None`` where the engine or the cluster does not allow it."""
    return next((trial for trial in trials if trial.strategy.kind == kind), None)


def pattern_words(prediction: Prediction) -> str:
    """The collectives of a step: how often, over which axis, how many bytes."""
    entries = prediction.time.communication
    total = sum(entry.num_bytes * entry.count for entry in entries)
    shown = [entry for entry in _by_kind(entries) if entry.num_bytes > SMALL_PAYLOAD_FRACTION * total]
    return ", ".join(_pattern(entry) for entry in shown[:MAX_KINDS])


def _by_kind(entries: Iterable[CommunicationEntry]) -> list[CommunicationEntry]:
    """Entries of one kind over one axis added up; ``count`` is of calls and ``num_bytes`` of all of them together."""
    merged: dict[tuple[str, str], CommunicationEntry] = {}
    for entry in entries:
        key = (entry.kind, entry.axis)
        before = merged.get(key)
        merged[key] = replace(
            entry,
            count=entry.count + (before.count if before else 0),
            num_bytes=entry.num_bytes * entry.count + (before.num_bytes if before else 0),
        )
    return sorted(merged.values(), key=lambda entry: -entry.num_bytes)


def _pattern(entry: CommunicationEntry) -> str:
    return f"{entry.count:,} {entry.kind} over {entry.axis} ({entry.group_size} ranks, {format_gb(entry.num_bytes)})"
