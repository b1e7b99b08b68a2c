"""Rules about what our own trainer does to models, token tables and gradients when it is asked to."""

from collections.abc import Iterable, Iterator

from shardwise.plan import Plan
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule
from shardwise.step.native_engine import (
    MAX_EXCHANGING_RANKS,
    exchanges_gradients,
    has_own_decoder,
    has_own_vocabulary,
    is_native_engine,
    spreads_vocabulary,
    undivided_axes,
)


def _breaks_spread(plan: Plan) -> bool:
    return plan.layout.spread_vocabulary is True and not spreads_vocabulary(plan)


def _spread_message(plan: Plan) -> str:
    return f"spread_vocabulary: {next(_against_spreading(plan))}"


def _against_spreading(plan: Plan) -> Iterator[str]:
    layout, model = plan.layout, plan.model
    if not is_native_engine(plan):
        yield f"only the native engine divides token tables so, and without adapters, not {plan.engine}"
    if not has_own_vocabulary(model):
        yield f"{model.name} has no token table and head of our own decoder that are two matrices"
    if layout.zero_stage == 3 and model.vocab_size % layout.dp_shard:
        yield f"dp_shard={layout.dp_shard} does not divide {model.vocab_size} rows evenly"
    yield (
        f"data-parallel ranks alone divide the rows (zero_stage 3, dp_shard above 1, nothing on the host), and the "
        f"layout has zero_stage={layout.zero_stage} dp_shard={layout.dp_shard} dp_replicate={layout.dp_replicate} "
        f"tp={layout.tp} cp={layout.cp} pp={layout.pp} ep={layout.ep}, offload={plan.recipe.offload}"
    )


def _breaks_exchange(plan: Plan) -> bool:
    return plan.layout.exchange_gradients is True and not exchanges_gradients(plan)


def _exchange_message(plan: Plan) -> str:
    layout = plan.layout
    if not is_native_engine(plan):
        return f"exchange_gradients: only the native engine does so, and without adapters, not {plan.engine}"
    return (
        f"exchange_gradients needs gradients in 16 bits that 2 to {MAX_EXCHANGING_RANKS} ranks divide in every "
        f"micro-batch and add up in fp32, and there is precision={plan.recipe.precision} "
        f"zero_stage={layout.zero_stage} dp_shard={layout.dp_shard} cp={layout.cp} pp={layout.pp} ep={layout.ep}"
    )


def _undivided(plan: Plan) -> tuple[str, ...]:
    return () if has_own_decoder(plan.model) else undivided_axes(plan.layout, model_type=plan.model.model_type)


def _breaks_inside(plan: Plan) -> bool:
    return bool(_undivided(plan))


def _inside_message(plan: Plan) -> str:
    degrees = ", ".join(f"{axis}={getattr(plan.layout, axis)}" for axis in _undivided(plan))
    return (
        f"our trainer does not divide the inside of {plan.model.name} ({degrees}): train it with these at 1, or run "
        "this plan with another engine"
    )


def _inside_candidates(plan: Plan) -> Iterable[Changes]:
    yield tuple((axis, 1) for axis in _undivided(plan))


RULES = (
    Rule(
        name="engine-native-inside",
        severity="warning",
        engines=("native",),
        why="Our trainer divides the inside of its own decoder along every axis, and that of some families that "
        "transformers builds over tp and ep. `train` refuses the rest; as a prediction such a plan stands.",
        source="our train/divisible.py",
        breaks=_breaks_inside,
        message=_inside_message,
        candidates=_inside_candidates,
    ),
    Rule(
        name="engine-spread-vocabulary",
        why="Rows that data-parallel ranks divide stay where they are: no other axis may divide table or model.",
        source="our train/spread_vocabulary.py",
        reads=("spread_vocabulary",),
        breaks=_breaks_spread,
        message=_spread_message,
        candidates=(change(spread_vocabulary=None),),
    ),
    Rule(
        name="engine-exchange-gradients",
        why="Gradients that travel as they were made save bytes only in 16 bits, and only where they are scattered.",
        source="our train/data_parallel.py",
        reads=("exchange_gradients",),
        breaks=_breaks_exchange,
        message=_exchange_message,
        candidates=(change(exchange_gradients=None),),
    ),
)
