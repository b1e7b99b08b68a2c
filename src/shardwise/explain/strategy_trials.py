"""Each way to divide the work, with the best layout a search restricted to it finds, predicted."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.engines.table import ENGINES
from shardwise.layout import ZeroStage
from shardwise.plan import Plan
from shardwise.predict.memory import predict_memory
from shardwise.prediction import MemoryPrediction, Prediction
from shardwise.search import IntRange, SearchBounds
from shardwise.search.one_pass import find
from shardwise.units import Bytes, Seconds

__all__ = ["Strategy", "StrategyTrial", "activation_bytes", "component_s", "exposed_s", "trial_named", "try_strategies"]

FEW_PREDICTIONS = 6
LONG_SEQ_LEN = 32768
ONE = IntRange(low=1, high=1)
MANY = IntRange(low=2, high=10_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A way to divide the work, as bounds on a search."""

    name: str
    when: str
    """The textbook's criterion, in a sentence."""
    bounds: SearchBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyTrial:
    """The best layout of one strategy, and what was predicted for it."""

    strategy: Strategy
    plan: Plan | None
    """``None`` when every layout of the strategy breaks a rule."""
    prediction: Prediction | None
    """The prediction of the best layout; ``None`` when no layout fits."""
    needed_bytes: Bytes
    """Bytes needed per GPU by the best layout, or by the one that comes closest to fitting."""
    refusal: str
    """Why there is no layout at all."""

    @property
    def step_s(self) -> Seconds:
        """Step time of the strategy's best layout in seconds; infinite when none fits."""
        return self.prediction.time.step_s if self.prediction is not None else float("inf")


def try_strategies(question: Plan) -> tuple[StrategyTrial, ...]:
    """Each strategy the engine and the cluster allow, with its best layout predicted."""
    return tuple(_try(strategy, question) for strategy in _strategies(question))


def _strategies(question: Plan) -> Iterator[Strategy]:
    """Data parallelism and its sharded forms first, then those that divide the model."""
    offer, world = ENGINES[question.engine], question.cluster.num_gpus
    plain = replace(_few(question), tp=ONE, cp=ONE, pp=ONE)
    yield Strategy(
        name="data parallel (DDP)" if world > 1 else "one GPU",
        when="while states, activations and logits of the whole model fit one GPU",
        bounds=replace(plain, zero_stage=(0,)),
    )
    if world == 1:
        return
    words = {1: "when the optimizer states are what does not fit", 2: "when gradients do not fit either"}
    for stage, when in words.items():
        if stage in offer.zero_stages:
            stages: tuple[ZeroStage, ...] = (1,) if stage == 1 else (2,)
            yield Strategy(name=f"ZeRO-{stage}", when=when, bounds=replace(plain, zero_stage=stages, dp_replicate=ONE))
    if 3 in offer.zero_stages:
        yield Strategy(
            name="FSDP / ZeRO-3",
            when="when the parameters themselves do not fit, or their states are the bulk",
            bounds=replace(plain, zero_stage=(3,), dp_replicate=ONE),
        )
        per_node = question.cluster.node.gpus_per_node
        if question.cluster.num_nodes > 1 and per_node > 1:
            inside = IntRange(low=2, high=per_node)
            yield Strategy(
                name="HSDP (shard in a node, replicate across)",
                when="when gathers across nodes cannot be hidden and a node's GPUs hold all states",
                bounds=replace(plain, zero_stage=(3,), dp_replicate=MANY, dp_shard=inside),
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
            name="tensor parallel with data parallel",
            when="when one layer's weights, activations or logits are too large, or there are more GPUs than sequences",
            bounds=replace(few, tp=MANY, cp=ONE, pp=ONE),
        )
    if "pp" in offer.axes:
        yield Strategy(
            name="pipeline parallel with data parallel",
            when="when the network is slow or states outgrow a node, and there are many micro-batches",
            bounds=replace(few, tp=ONE, cp=ONE, pp=MANY),
        )
    if {"tp", "pp"} <= offer.axes and question.cluster.num_gpus >= 4:
        yield Strategy(
            name="tensor, pipeline and data parallel (3D)",
            when="when tensor parallelism inside a node does not make the model small enough",
            bounds=replace(few, tp=MANY, cp=ONE, pp=MANY),
        )
    if "cp" in offer.axes and question.recipe.seq_len >= LONG_SEQ_LEN:
        yield Strategy(
            name="context parallel",
            when="when the activations of one sequence are too large for a GPU",
            bounds=replace(few, cp=MANY, pp=ONE),
        )


def _try(strategy: Strategy, question: Plan) -> StrategyTrial:
    found = find(question, strategy.bounds)
    fitting = found.evaluation.fitting
    if fitting:
        best = min(fitting, key=lambda evaluated: evaluated.prediction.time.step_s)
        return StrategyTrial(
            strategy=strategy,
            plan=best.plan,
            prediction=best.prediction,
            needed_bytes=best.prediction.memory.needed_bytes,
            refusal="",
        )
    nearest = found.evaluation.nearest
    plan = nearest[0] if nearest is not None else found.smallest
    refusal = found.rejected[0].example if found.rejected and plan is None else ""
    needed = predict_memory(plan).needed_bytes if plan is not None else 0
    return StrategyTrial(strategy=strategy, plan=plan, prediction=None, needed_bytes=needed, refusal=refusal)


def trial_named(trials: tuple[StrategyTrial, ...], name: str) -> StrategyTrial | None:
    """The trial whose strategy's name begins so."""
    return next((trial for trial in trials if trial.strategy.name.startswith(name)), None)


def activation_bytes(memory: MemoryPrediction) -> Bytes:
    """Activations and logits of the worst stage at its peak."""
    return memory.worst.component_bytes("activations") + memory.worst.component_bytes("logits")


def component_s(prediction: Prediction, component: str) -> Seconds:
    """Time of one component of a step."""
    return sum(entry.duration_s for entry in prediction.time.components if entry.component == component)


def exposed_s(prediction: Prediction) -> Seconds:
    """Communication that nothing hides."""
    return component_s(prediction, "exposed_communication")
